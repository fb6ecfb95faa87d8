//! Adds or repairs a site: the order of the steps, and the undoing when one fails.
//!
//! 1. [`prepare`] reaches the new machine and those of all other sites, copies the programs, makes the key and surveys
//!    the machine. It touches nothing that already works.
//! 2. [`Prepared::commit`] writes the new sites file at every site, starts the new gateway, has the others take up the
//!    new site, and tries every connection. If anything about a *new* site does not work, all sites get their old file
//!    back and the user's own is never written; a site that existed before is left as repaired as it could be.

mod plan;
mod preparation;
mod settle;
mod verdict;

use std::path::PathBuf;

use serde::Serialize;
use types::sites::{Fingerprint, Login};
use watching::check::Finding;

pub use self::preparation::prepare;
use self::verdict::{Logins, Remedy, Verdict, cut_off, verdict};
use crate::access::{self, Grant};
use crate::book::{Book, SiteEntry};
use crate::company::Company;
use crate::here::finding;
use crate::message::{Reply, SiteRequest, Survey};
use crate::place::MachinePlace;
use crate::release::Release;
use crate::slurm::SlurmSetting;
use crate::{Progress, SetupError};

/// The user's request for a site.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub name: String,
    /// `[USER@]HOST[:PORT]` of its machine. `None`: the one in the sites file, else this machine.
    pub place: Option<String>,
    /// The folder for the copies there.
    pub folder: Option<String>,
    /// The local folder with the programs to copy, if they are not those of this release.
    pub programs: Option<PathBuf>,
    /// The gateway's port.
    pub port: Option<u16>,
    /// `host[:port]` that other sites dial.
    pub advertise: Option<String>,
    /// Other sites cannot dial it.
    pub dial_out: bool,
    /// `host[:port]` that the site's own nodes dial.
    pub inside: Option<String>,
    /// The list of its nodes, as typed.
    pub nodes: Option<String>,
    /// The settings for requesting the site's nodes from Slurm.
    pub slurm: Vec<SlurmSetting>,
    /// Never give gateways of other sites keys to log in there.
    pub no_trunk_ssh: bool,
    /// Have the machine itself restart the gateway.
    pub keep: bool,
    /// Sites that another machine's sites file may add to the user's own.
    pub accept: Vec<String>,
    /// A user is at the terminal and can be asked.
    pub asking: bool,
}

/// The result of adding or repairing a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub site: String,
    /// True if everything about this site works.
    pub ok: bool,
    /// The steps and their results.
    pub findings: Vec<Finding>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// A site that is ready to be committed: every step that does not affect working sites is done.
#[derive(Debug)]
pub struct Prepared {
    wish: Wish,
    /// The site is not in the sites file yet.
    new: bool,
    /// The entry as planned. Fields that the user wrote by hand are only in `after`.
    entry: SiteEntry,
    /// The login of other sites' gateways at this site.
    login: Option<Login>,
    /// The login of the site's gateway at each other site.
    logins: Vec<(String, Login)>,
    after: Book,
    company: Company,
    /// The sites file of every machine reached, as it was.
    old: Vec<(String, Option<String>)>,
    /// Other sites that this change makes reachable through ssh.
    changed: Vec<String>,
    findings: Vec<Finding>,
    notes: Vec<String>,
    /// Description of the files left on the site's machine so far.
    left: String,
}

/// One attempt to make the change at all sites.
#[derive(Debug, Default)]
struct Attempt {
    /// Sites that have the new file.
    touched: Vec<String>,
    /// Sites whose gateway was not running before.
    started: Vec<String>,
    /// New permissions for gateways to log in.
    granted: Vec<Grant>,
    findings: Vec<Finding>,
}

/// Makes the site's key unless it exists, and returns its fingerprint.
async fn make_key(company: &mut Company, site: &str) -> Result<Fingerprint, SetupError> {
    let key = match company.ask(site, &SiteRequest::Key { site: site.to_owned() }).await? {
        Reply::Key { fingerprint, .. } => fingerprint,
        _ => return Err(SetupError::site(site, "an answer to another question")),
    };
    key.parse().map_err(|e: types::sites::FingerprintError| SetupError::site(site, e.to_string()))
}

/// Connects to this machine as a site and makes its entry; touches nothing else.
pub(crate) async fn describe_here(
    wish: &Wish,
    known: Option<&types::sites::Site>,
    progress: &mut dyn Progress,
) -> Result<(Company, Book, SiteEntry, Vec<Finding>), SetupError> {
    let name = wish.name.clone();
    let plan::Checked { folder, nodes, .. } = plan::check(wish, None)?;
    let folder = folder.or_else(|| known.and_then(|site| site.folder.clone()));
    let mut company = Company::new(Release::read(None)?, wish.asking);
    let machine = company.reach(&name, &MachinePlace::Here, folder.as_deref(), progress).await?;
    let programs = machine.facts.folder.to_string();
    let survey = look_around(&mut company, &name, nodes.clone().unwrap_or_default(), wish.port).await?;
    let key = make_key(&mut company, &name).await?;
    let entry = plan::entry(wish, &MachinePlace::Here, &survey, nodes, known, &mut Vec::new()).await?;
    let mut book = Book::of(&PathBuf::from("the entry of this site"), "")?;
    book.add(&name, &entry)?;
    // The folder of its copies belongs only in its own sites file.
    book.identify(&name, &key, None, None)?;
    let findings =
        vec![finding(&name, "programs", programs), finding(&name, "machine", plan::describe_machine(&survey))];
    Ok((company, book, entry, findings))
}

async fn look_around(
    company: &mut Company,
    site: &str,
    nodes: Vec<String>,
    port: Option<u16>,
) -> Result<Survey, SetupError> {
    match company.ask(site, &SiteRequest::Survey { nodes, port, site: site.to_owned() }).await? {
        Reply::Survey(survey) => Ok(survey),
        _ => Err(SetupError::site(site, "an answer to another question")),
    }
}

/// Writes the entry; settings that the user did not ask to change stay as they are.
pub(crate) fn write_entry(book: &mut Book, wish: &Wish, known: bool, entry: &SiteEntry) -> Result<(), SetupError> {
    let elsewhere = wish.port.is_some() || wish.advertise.is_some() || wish.inside.is_some() || wish.dial_out;
    match (known, wish.nodes.is_some()) {
        (false, _) => book.add(&wish.name, entry)?,
        (true, true) => book.describe(&wish.name, entry)?,
        (true, false) if elsewhere => book.set_gateway(&wish.name, entry)?,
        (true, false) => {}
    }
    if wish.slurm.is_empty() { Ok(()) } else { book.set_slurm(&wish.name, &wish.slurm) }
}

impl Prepared {
    /// Makes the change at all sites and tries it, then writes the user's sites file or undoes the change.
    ///
    /// # Errors
    /// The user's sites file cannot be edited or written. The outcome contains failures at sites.
    pub async fn commit(mut self, progress: &mut dyn Progress) -> Result<Outcome, SetupError> {
        let name = self.wish.name.clone();
        let (mut tried, mut refuted) = (Vec::new(), Vec::new());
        let mut attempt = self.attempt(progress).await;
        while self.new && verdict(&name, &attempt.findings) == Verdict::Fails && self.after.check().is_ok() {
            let findings = attempt.findings.as_slice();
            let apart: Vec<String> = cut_off(&name, findings).into_iter().map(str::to_owned).collect();
            let there = apart.iter().all(|apart| self.logins.iter().any(|(site, _)| site == apart));
            let logins = Logins { here: self.login.is_some(), there };
            let Some(remedy) = verdict::remedy(&self.wish, &self.entry, logins, findings, &tried) else { break };
            self.undo(&attempt).await;
            self.apply(remedy, &apart, progress)?;
            tried.push(remedy);
            refuted.push(std::mem::replace(&mut attempt, self.attempt(progress).await));
        }
        let verdict = verdict(&name, &attempt.findings);
        if verdict == Verdict::Fails && self.new {
            self.give_up(&mut attempt, &tried, &refuted, progress).await;
        } else {
            if let Some(change) = tried.last().map(|remedy| self.describe(*remedy)) {
                self.notes.push(change);
            }
            self.save(&attempt, progress).await?;
        }
        let settled = verdict == Verdict::Fails || self.settle(&mut attempt.findings).await;
        if verdict == Verdict::NodesFail {
            self.notes.push(format!(
                "site {name} is kept: its gateway works, and only its nodes do not. `landbridge sites add {name}` with the flag \
                 that is missing completes it"
            ));
        }
        self.findings.extend(attempt.findings);
        Ok(Outcome { site: name, ok: verdict == Verdict::Works && settled, findings: self.findings, notes: self.notes })
    }

    /// Undoes the last attempt, and notes the reasons for the failure of each. `refuted`: the attempts before.
    async fn give_up(
        &mut self,
        attempt: &mut Attempt,
        tried: &[Remedy],
        refuted: &[Attempt],
        progress: &mut dyn Progress,
    ) {
        let name = self.wish.name.clone();
        progress.step(&name, "something does not work: undoing");
        self.undo(attempt).await;
        // The findings explain the entry as planned. For the other attempts, the reason for the failure is enough.
        for (remedy, failed) in tried.iter().zip(refuted.iter().skip(1).chain([&*attempt])) {
            let faults = failed.findings.iter().filter(|finding| verdict::is_fault(&name, finding));
            let faults = faults.map(|finding| finding.detail.clone()).collect::<Vec<_>>().join("; ");
            self.notes.push(match remedy {
                Remedy::DialOut => format!("dialling out from {name} was tried and fails too: {faults}"),
                Remedy::ThroughSsh => {
                    format!("ssh from the other sites to {name} was tried and fails too: {faults}")
                }
                Remedy::ThroughTheirSsh => {
                    format!("ssh from {name} to the other sites was tried and fails too: {faults}")
                }
            });
        }
        if let Some(first) = refuted.first() {
            attempt.findings = first.findings.clone();
        }
        self.notes.push(format!("the sites file is as it was; left there: {}", self.left));
    }

    /// Writes the user's sites file, or undoes the attempt at a new site.
    async fn save(&mut self, attempt: &Attempt, progress: &mut dyn Progress) -> Result<(), SetupError> {
        let name = self.wish.name.clone();
        if let Err(error) = self.after.save() {
            if self.new {
                progress.step(&name, "the sites file cannot be written: undoing");
                self.undo(attempt).await;
                let file = match &error {
                    SetupError::TakenOver { .. } => format!(
                        "site {name} is not in the sites file, and `landbridge sites apply` hands that out as it is now"
                    ),
                    _ => "the sites file is as it was".to_owned(),
                };
                self.notes.push(format!("{file}; left there: {}", self.left));
            }
            let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
            let text = std::iter::once(format!("{error}{cause}")).chain(std::mem::take(&mut self.notes));
            return Err(SetupError::Request(text.collect::<Vec<_>>().join("\n")));
        }
        // The `[site.run]` that was kept is in the sites file again.
        let _ = std::fs::remove_file(self.after.kept_run(&name));
        Ok(())
    }

    /// Distributes the sites file and tries everything.
    async fn attempt(&mut self, progress: &mut dyn Progress) -> Attempt {
        let name = self.wish.name.clone();
        let mut attempt = Attempt::default();
        let (part, done) = match self.spread(&mut attempt, progress).await {
            Ok(()) => ("check", self.try_all(&mut attempt.findings, progress).await),
            failed => ("gateway", failed),
        };
        if let Err(error) = done {
            attempt.findings.push(Finding::new(&name, part, Err(error.to_string())));
        }
        attempt
    }

    /// Changes the sites file for the next attempt. `apart`: the sites without a working trunk to this one.
    fn apply(&mut self, remedy: Remedy, apart: &[String], progress: &mut dyn Progress) -> Result<(), SetupError> {
        let name = &self.wish.name;
        match remedy {
            Remedy::DialOut => {
                progress.step(name, "other sites cannot dial it: trying again with dialling out");
                self.after.set_gateway(name, &SiteEntry { advertise: None, ..self.entry.clone() })
            }
            Remedy::ThroughSsh => {
                let text = format!(
                    "neither it nor the other sites can dial each other: trying through ssh. ~/.ssh/authorized_keys there gets a \
                     key of each other site, good for reaching {} and nothing else",
                    self.entry.inside
                );
                progress.step(name, &text);
                let ssh = self.login.clone();
                self.after.set_gateway(name, &SiteEntry { advertise: None, ssh, ..self.entry.clone() })
            }
            Remedy::ThroughTheirSsh => {
                self.after.set_gateway(name, &SiteEntry { advertise: None, ssh: None, ..self.entry.clone() })?;
                for (site, login) in self.logins.iter().filter(|(site, _)| apart.contains(site)) {
                    let text = format!(
                        "neither it nor {site} can dial the other, and {site} cannot log in there: trying through ssh from \
                         {name} to {site}. ~/.ssh/authorized_keys at {site} gets a key of each other site, good for \
                         reaching its gateway and nothing else"
                    );
                    progress.step(name, &text);
                    self.after.set_login(site, login)?;
                    self.changed.push(site.clone());
                }
                Ok(())
            }
        }
    }

    /// The change made by the remedy, described for the user.
    fn describe(&self, remedy: Remedy) -> String {
        let (name, address) = (&self.wish.name, self.entry.advertise.as_deref().unwrap_or_default());
        match remedy {
            Remedy::DialOut => format!(
                "other sites cannot dial {name} at {address} (a firewall?), so {name} dials them. If its administrators open the \
                 port, `landbridge sites add {name} --advertise {address}` uses it"
            ),
            Remedy::ThroughSsh => {
                let (inside, port) = (&self.entry.inside, verdict::port(&self.entry.inside));
                let login = self.login.as_ref().map(Login::to_string).unwrap_or_default();
                format!(
                    "a firewall lets neither {name} nor the other sites dial each other on port {port}, so gateways of the other \
                     sites reach {name} through ssh to {login}. ~/.ssh/authorized_keys there has a key for each of them, good for \
                     reaching {inside} and nothing else; `landbridge sites remove {name}` takes them out again. If administrators \
                     open the port, `landbridge sites add {name} --advertise HOST` uses it"
                )
            }
            Remedy::ThroughTheirSsh => {
                let sites = self.changed.join(", ");
                let logins = self.logins.iter().filter(|(site, _)| self.changed.contains(site));
                let logins = logins.map(|(_, login)| login.to_string()).collect::<Vec<_>>().join(", ");
                let port = verdict::port(&self.entry.inside);
                format!(
                    "a firewall lets neither {name} nor {sites} dial the other on port {port}, and only {name} can log in at \
                     {sites}, so its gateway reaches {sites} through ssh to {logins}; so do those of all other sites. \
                     ~/.ssh/authorized_keys there has a key for each of them, good for reaching the gateway and nothing else; \
                     `landbridge sites remove {name}` takes its key out again. If administrators open the port of {name}, \
                     `landbridge sites remove {name}` and `landbridge sites add {name} HOST` use it"
                )
            }
        }
    }

    /// Distributes the sites file and has the gateways reload it. The new gateway comes first because the others will
    /// dial it.
    async fn spread(&mut self, attempt: &mut Attempt, progress: &mut dyn Progress) -> Result<(), SetupError> {
        access::grant(&mut self.company, &self.after.sites()?, &mut attempt.granted).await?;
        let text = self.after.text();
        for site in self.company.names() {
            self.after.check()?;
            self.check_at(&site, &text).await?;
            self.after.expect(&text);
            attempt.touched.push(site.clone());
            self.company.ask(&site, &SiteRequest::WriteSites { text: Some(text.clone()) }).await?;
            match self.company.ask(&site, &SiteRequest::Gateway { site: site.clone() }).await? {
                Reply::Gateway { started: anew, note } => {
                    progress.step(&site, &format!("gateway {note}"));
                    if anew {
                        attempt.started.push(site);
                    }
                }
                _ => return Err(SetupError::site(&site, "an answer to another question")),
            }
        }
        Ok(())
    }

    /// Checks that nobody has changed a site's file since this command read it: a site may have joined there, or been
    /// added from another machine. `text`: the new file, which sites on one machine share.
    async fn check_at(&mut self, site: &str, text: &str) -> Result<(), SetupError> {
        let there = self.company.read_sites(site).await?;
        let old = self.old.iter().find(|(name, _)| name == site).and_then(|(_, text)| text.as_deref());
        match there.as_deref() == old || there.as_deref() == Some(text) {
            true => Ok(()),
            false => {
                Err(SetupError::site(site, "somebody has changed its sites file meanwhile: type this command again"))
            }
        }
    }

    /// Tries everything from the site, and the trunk to it from every other site.
    async fn try_all(&mut self, findings: &mut Vec<Finding>, progress: &mut dyn Progress) -> Result<(), SetupError> {
        let name = self.wish.name.clone();
        progress.step(&name, "trying everything from there");
        for site in self.company.names() {
            let request = match site == name {
                true => SiteRequest::Check { site: site.clone() },
                false => SiteRequest::Probe { site: site.clone(), to: name.clone() },
            };
            match self.company.ask(&site, &request).await? {
                Reply::Findings(found) => findings.extend(found),
                _ => return Err(SetupError::site(&site, "an answer to another question")),
            }
        }
        self.try_others(findings).await
    }

    /// Tries the trunks from the other sites to each site that this change makes reachable through ssh.
    async fn try_others(&mut self, findings: &mut Vec<Finding>) -> Result<(), SetupError> {
        let name = self.wish.name.clone();
        let others: Vec<String> = self.company.names().into_iter().filter(|site| *site != name).collect();
        for to in self.changed.clone() {
            for site in others.iter().filter(|site| **site != to) {
                let probe = SiteRequest::Probe { site: site.clone(), to: to.clone() };
                let Reply::Findings(found) = self.company.ask(site, &probe).await? else {
                    return Err(SetupError::site(site, "an answer to another question"));
                };
                let failed = found.into_iter().filter(|finding| !finding.ok);
                findings.extend(failed.map(|finding| {
                    let problem = format!("the trunk from {site} to {to} would not work any more: {}", finding.detail);
                    Finding::new(&name, "other trunks", Err(problem))
                }));
            }
        }
        Ok(())
    }

    /// Gives every site its old file back and has the gateways reload it. Notes changes that cannot be undone.
    async fn undo(&mut self, attempt: &Attempt) {
        for grant in &attempt.granted {
            if let Err(error) = access::withdraw(&mut self.company, grant).await {
                self.notes.push(format!("not undone: {error}"));
            }
        }
        for site in attempt.touched.iter().rev() {
            let restored = self.restore(site).await;
            let follow = match attempt.started.contains(site) {
                true => SiteRequest::StopGateway { site: site.clone(), force: true },
                false => SiteRequest::Gateway { site: site.clone() },
            };
            for done in [restored, self.company.ask(site, &follow).await.map(drop)] {
                if let Err(error) = done {
                    self.notes.push(format!("not undone: {error}"));
                }
            }
        }
    }

    /// Gives a site its old file back.
    async fn restore(&mut self, site: &str) -> Result<(), SetupError> {
        let there = self.company.read_sites(site).await?;
        let old = self.old.iter().find(|(name, _)| name == site).and_then(|(_, text)| text.as_deref());
        match restored(there.as_deref(), &self.after.text(), old, &self.wish.name)? {
            Some(request) => self.company.ask(site, &request).await.map(drop),
            None => Ok(()),
        }
    }
}

/// The request that undoes a site's change from the text `old` to `written`. If another command has changed the file
/// meanwhile, its text stays, without the new site. `None`: there is nothing to undo.
fn restored(
    there: Option<&str>,
    written: &str,
    old: Option<&str>,
    name: &str,
) -> Result<Option<SiteRequest>, SetupError> {
    if there == old {
        return Ok(None);
    }
    if there == Some(written) {
        return Ok(Some(SiteRequest::WriteSites { text: old.map(str::to_owned) }));
    }
    let mut book = Book::of("sites file".as_ref(), there.unwrap_or_default())?;
    let removed = book.remove(name)?;
    Ok(removed.then(|| SiteRequest::WriteSites { text: Some(book.text()).filter(|text| !text.trim().is_empty()) }))
}

#[cfg(test)]
mod tests;
