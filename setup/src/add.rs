//! Adding a site, or repairing one: the order of things, and what is undone when one of them fails.
//!
//! 1. [`prepare`] reaches the new machine and those of all other sites, copies the programs, makes the key and looks around.
//!    Nothing that works by then is touched.
//! 2. [`Prepared::commit`] hands the new sites file to every site, starts the new gateway, has the others take up the new
//!    site, and tries every connection. If anything about a *new* site does not work, all sites get their old file back and
//!    the user's own is never written; a site that was there before is left as repaired as it could be.

mod plan;

use std::path::PathBuf;

use launch::check::Finding;
use serde::Serialize;

use crate::book::{Book, Entry};
use crate::company::{Company, whereabouts};
use crate::here::finding;
use crate::message::{Reply, Request, Survey};
use crate::place::Place;
use crate::release::Release;
use crate::{Progress, SetupError};

/// What the user wants of a site.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Its name.
    pub name: String,
    /// Where its machine is; `None`: where the sites file says, else this machine.
    pub place: Option<Place>,
    /// The folder for the copies there.
    pub folder: Option<String>,
    /// The folder here with the programs to copy, when they are not those of this release.
    pub programs: Option<PathBuf>,
    /// The gateway's port.
    pub port: Option<u16>,
    /// `host[:port]` that other sites dial.
    pub advertise: Option<String>,
    /// Other sites cannot dial it.
    pub dial_out: bool,
    /// `host[:port]` that the site's nodes dial.
    pub inside: Option<String>,
    /// Its nodes, as a list.
    pub nodes: Option<String>,
    /// Somebody sits at a terminal and can be asked.
    pub asking: bool,
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The site.
    pub site: String,
    /// Whether everything about this site works.
    pub ok: bool,
    /// What was done and found.
    pub findings: Vec<Finding>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Everything that can be done without changing what works.
#[derive(Debug)]
pub struct Prepared {
    wish: Wish,
    /// It is not in the sites file yet.
    new: bool,
    after: Book,
    company: Company,
    /// The sites files as they were at every machine reached.
    old: Vec<(String, Option<String>)>,
    findings: Vec<Finding>,
    notes: Vec<String>,
    /// What was left at the site by now.
    left: String,
}

/// Does everything that can be done without changing what works.
///
/// # Errors
/// The wish makes no sense, a machine cannot be reached, or the site cannot be one.
pub async fn prepare(book: Book, wish: Wish, progress: &mut dyn Progress) -> Result<Prepared, SetupError> {
    let name = wish.name.clone();
    let known = book.sites()?;
    let old_entry = known.site(&name).map(|(_, site)| site.clone());
    let place = plan::place(&wish, old_entry.as_ref())?;
    let folder = wish.folder.clone().or_else(|| old_entry.as_ref().and_then(|site| site.folder.clone()));
    let nodes = wish.nodes.as_deref().map(crate::nodes::expand).transpose()?;
    let own_release = wish.programs.is_none();
    let release = Release::read(wish.programs.as_deref())?;
    let mut company = Company::new(release.clone(), wish.asking);
    let machine = company.reach(&name, &place, folder.as_deref(), progress).await?;
    let facts = machine.facts.clone();
    let copied = match machine.copied {
        0 => format!("{} is there already", facts.folder),
        _ => format!("copied to {}", facts.folder),
    };
    if !own_release {
        // The other sites have theirs.
        company = company.with_release(Release::read(None)?);
    }
    let mut findings = vec![finding(&name, "programs", copied)];
    let mut notes = Vec::new();
    let mut after = book.clone();
    for site in known.sites.iter().filter(|site| site.name != name) {
        match whereabouts(site)? {
            Some(there) => {
                company.reach(&site.name, &there, site.folder.as_deref(), progress).await.map_err(|error| {
                    SetupError::Request(format!(
                        "{error}\nsite {} must be told of site {name}: make it reachable and try again, or take it out with \
                         `landbridge sites remove {0}`",
                        site.name
                    ))
                })?;
            }
            None => notes.push(format!(
                "site {0} joined by itself and cannot be told from here: type `landbridge sites join {0} TICKET` there, with \
                 a ticket of `landbridge sites invite`",
                site.name
            )),
        }
    }
    let mut old = Vec::new();
    for site in company.names() {
        let text = company.read_sites(&site).await?;
        if let Some(text) = &text {
            let theirs = Book::of(&PathBuf::from(format!("sites file of site {site}")), text)?;
            // An older entry of the new site is what this command is about.
            for taken in after.adopt(&theirs, &name)? {
                notes.push(format!("site {taken} taken over from the sites file of site {site}"));
            }
        }
        old.push((site, text));
    }
    let survey = look_around(&mut company, &name, nodes.clone().unwrap_or_default(), wish.port).await?;
    let key = match company.ask(&name, &Request::Key { site: name.clone() }).await? {
        Reply::Key { fingerprint, .. } => fingerprint,
        _ => return Err(SetupError::site(&name, "an answer to another question")),
    };
    let key = key.parse().map_err(|e: types::sites::FingerprintError| SetupError::site(&name, e.to_string()))?;
    let entry = plan::entry(&wish, &place, &survey, nodes, old_entry.as_ref(), &mut notes).await?;
    write_entry(&mut after, &wish, old_entry.is_some(), &entry)?;
    let ssh = (place != Place::Here).then(|| place.to_string());
    let ssh = ssh.or_else(|| old_entry.as_ref().and_then(|site| site.ssh.clone()));
    after.identify(&name, &key, ssh.as_deref(), folder.as_deref())?;
    after.sites()?;
    progress.step(&name, &plan::describe(&entry, &survey));
    findings.push(finding(&name, "machine", plan::describe_machine(&survey)));
    let left = format!("{} and {}'s key in ~/.config/landbridge on {}", facts.folder, name, facts.host);
    Ok(Prepared { wish, new: old_entry.is_none(), after, company, old, findings, notes, left })
}

/// The entry of this machine as a site, and the connection to it; nothing else is touched.
pub(crate) async fn describe_here(
    wish: &Wish,
    known: Option<&types::sites::Site>,
    progress: &mut dyn Progress,
) -> Result<(Company, Book, Vec<Finding>), SetupError> {
    let name = wish.name.clone();
    plan::place(wish, None)?;
    let nodes = wish.nodes.as_deref().map(crate::nodes::expand).transpose()?;
    let folder = wish.folder.clone().or_else(|| known.and_then(|site| site.folder.clone()));
    let mut company = Company::new(Release::read(wish.programs.as_deref())?, wish.asking);
    let machine = company.reach(&name, &Place::Here, folder.as_deref(), progress).await?;
    let programs = machine.facts.folder.clone();
    let survey = look_around(&mut company, &name, nodes.clone().unwrap_or_default(), wish.port).await?;
    let key = match company.ask(&name, &Request::Key { site: name.clone() }).await? {
        Reply::Key { fingerprint, .. } => fingerprint,
        _ => return Err(SetupError::site(&name, "an answer to another question")),
    };
    let key = key.parse().map_err(|e: types::sites::FingerprintError| SetupError::site(&name, e.to_string()))?;
    let entry = plan::entry(wish, &Place::Here, &survey, nodes, known, &mut Vec::new()).await?;
    let mut book = Book::of(&PathBuf::from("the entry of this site"), "")?;
    book.add(&name, &entry)?;
    // Where its copies lie is for its own sites file.
    book.identify(&name, &key, None, None)?;
    let findings =
        vec![finding(&name, "programs", programs), finding(&name, "machine", plan::describe_machine(&survey))];
    Ok((company, book, findings))
}

async fn look_around(
    company: &mut Company,
    site: &str,
    nodes: Vec<String>,
    port: Option<u16>,
) -> Result<Survey, SetupError> {
    match company.ask(site, &Request::Survey { nodes, port, site: site.to_owned() }).await? {
        Reply::Survey(survey) => Ok(survey),
        _ => Err(SetupError::site(site, "an answer to another question")),
    }
}

/// What the user did not ask to change stays as it is.
fn write_entry(book: &mut Book, wish: &Wish, known: bool, entry: &Entry) -> Result<(), SetupError> {
    let elsewhere = wish.port.is_some() || wish.advertise.is_some() || wish.inside.is_some() || wish.dial_out;
    match (known, wish.nodes.is_some()) {
        (false, _) => book.add(&wish.name, entry),
        (true, true) => book.describe(&wish.name, entry),
        (true, false) if elsewhere => book.set_gateway(&wish.name, entry),
        (true, false) => Ok(()),
    }
}

impl Prepared {
    /// Makes the change at all sites, tries it, and writes the user's sites file; or undoes it.
    ///
    /// # Errors
    /// The user's sites file cannot be written. What fails at a site is in the outcome.
    pub async fn commit(mut self, progress: &mut dyn Progress) -> Result<Outcome, SetupError> {
        let name = self.wish.name.clone();
        let (mut touched, mut started) = (Vec::new(), Vec::new());
        if let Err(error) = self.spread(&mut touched, &mut started, progress).await {
            self.findings.push(Finding::new(&name, "gateway", Err(error.to_string())));
        } else if let Err(error) = self.try_all(progress).await {
            self.findings.push(Finding::new(&name, "check", Err(error.to_string())));
        }
        let concerns = format!("trunk from {name}");
        let fine = |finding: &Finding| finding.ok || (finding.site != name && finding.part != concerns);
        let ok = self.findings.iter().all(fine);
        if ok || !self.new {
            self.after.save()?;
        } else {
            progress.step(&name, "something does not work: undoing");
            self.undo(&touched, &started).await;
            self.notes.push(format!("the sites file is as it was; left there: {}", self.left));
        }
        Ok(Outcome { site: name, ok, findings: self.findings, notes: self.notes })
    }

    /// Hands the file out and has gateways follow it: the new one first, since the others will dial it.
    async fn spread(
        &mut self,
        touched: &mut Vec<String>,
        started: &mut Vec<String>,
        progress: &mut dyn Progress,
    ) -> Result<(), SetupError> {
        let text = self.after.text();
        for site in self.company.names() {
            touched.push(site.clone());
            self.company.ask(&site, &Request::WriteSites { text: Some(text.clone()) }).await?;
            match self.company.ask(&site, &Request::Gateway { site: site.clone() }).await? {
                Reply::Gateway { started: anew, note } => {
                    progress.step(&site, &format!("gateway {note}"));
                    if anew {
                        started.push(site);
                    }
                }
                _ => return Err(SetupError::site(&site, "an answer to another question")),
            }
        }
        Ok(())
    }

    /// Tries everything from the site, and the way to it from every other.
    async fn try_all(&mut self, progress: &mut dyn Progress) -> Result<(), SetupError> {
        let name = self.wish.name.clone();
        progress.step(&name, "trying everything from there");
        for site in self.company.names() {
            let request = match site == name {
                true => Request::Check { site: site.clone() },
                false => Request::Probe { site: site.clone(), to: name.clone() },
            };
            match self.company.ask(&site, &request).await? {
                Reply::Findings(findings) => self.findings.extend(findings),
                _ => return Err(SetupError::site(&site, "an answer to another question")),
            }
        }
        Ok(())
    }

    /// Gives every site its old file back and has gateways follow it. What cannot be undone is noted.
    async fn undo(&mut self, touched: &[String], started: &[String]) {
        for site in touched.iter().rev() {
            let text = self.old.iter().find(|(name, _)| name == site).and_then(|(_, text)| text.clone());
            let follow = match started.contains(site) {
                true => Request::StopGateway { site: site.clone(), force: true },
                false => Request::Gateway { site: site.clone() },
            };
            for request in [Request::WriteSites { text }, follow] {
                if let Err(error) = self.company.ask(site, &request).await {
                    self.notes.push(format!("not undone: {error}"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
