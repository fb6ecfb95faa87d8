//! The steps of adding or repairing a site that touch nothing that already works.

use std::path::PathBuf;

use types::SitesFile;
use types::sites::{Login, Site};
use watching::check::Finding;

use super::{Prepared, Wish, look_around, make_key, plan, write_entry};
use crate::book::{Book, SiteEntry};
use crate::company::{Company, whereabouts};
use crate::here::{finding, folders};
use crate::machine::Facts;
use crate::place::MachinePlace;
use crate::release::Release;
use crate::{Progress, SetupError, newcomers};

/// A preparation in progress: the sites reached so far, and the user's sites file as it will be.
struct Preparation<'a> {
    wish: &'a Wish,
    /// The sites before.
    known: SitesFile,
    /// The site's entry before, if it is repaired.
    old_entry: Option<Site>,
    /// The machine of the site.
    place: MachinePlace,
    /// The folder of its copies, if chosen.
    folder: Option<String>,
    company: Company,
    after: Book,
    findings: Vec<Finding>,
    notes: Vec<String>,
}

/// Takes every step that does not affect working sites.
///
/// # Errors
/// The wish makes no sense, a machine cannot be reached, or the machine cannot be a site.
pub async fn prepare(book: Book, wish: Wish, progress: &mut dyn Progress) -> Result<Prepared, SetupError> {
    let known = book.sites()?;
    let old_entry = known.site(&wish.name).map(|(_, site)| site.clone());
    let plan::Checked { place, folder, nodes, programs } = plan::check(&wish, old_entry.as_ref())?;
    let own_release = programs.is_none();
    let release = programs.map_or_else(|| Release::read(None), Ok)?;
    let company = Company::new(release, wish.asking);
    let (findings, notes) = (Vec::new(), Vec::new());
    let mut preparation =
        Preparation { wish: &wish, known, old_entry, place, folder, company, after: book, findings, notes };
    let facts = preparation.reach_machine(own_release, progress).await?;
    preparation.reach_others(progress).await?;
    let old = preparation.read_sites_files(progress).await?;
    let entry = preparation.describe(nodes, progress).await?;
    let left = format!("{} and {}'s key in ~/.config/landbridge on {}", facts.folder, wish.name, facts.host);
    let login = if wish.no_trunk_ssh { None } else { plan::login(&preparation.place).await.ok() };
    let logins = preparation.logins().await?;
    let Preparation { old_entry, company, after, findings, notes, .. } = preparation;
    Ok(Prepared {
        new: old_entry.is_none(),
        wish,
        entry,
        login,
        logins,
        changed: Vec::new(),
        after,
        company,
        old,
        findings,
        notes,
        left,
    })
}

impl Preparation<'_> {
    /// Reaches the site's machine and copies the programs.
    async fn reach_machine(&mut self, own_release: bool, progress: &mut dyn Progress) -> Result<Facts, SetupError> {
        let name = &self.wish.name;
        let machine = self.company.reach(name, &self.place, self.folder.as_deref(), progress).await?;
        let (facts, copied) = (machine.facts.clone(), machine.copied);
        let copied = match copied {
            0 => format!("{} is there already", facts.folder),
            _ => format!("copied to {}", facts.folder),
        };
        if !own_release {
            // The given programs are for the new site only; the other sites get the programs of this release.
            self.company.set_release(Release::read(None)?);
        }
        self.findings.push(finding(name, "programs", copied));
        Ok(facts)
    }

    /// Reaches the machines of all other sites.
    async fn reach_others(&mut self, progress: &mut dyn Progress) -> Result<(), SetupError> {
        let name = &self.wish.name;
        let mut unreached = Vec::new();
        for site in self.known.sites.iter().filter(|site| site.name != *name) {
            let Some(there) = whereabouts(site)? else {
                self.notes.push(format!(
                    "site {0} joined by itself and cannot be reached from here: type `landbridge sites join {0} --ticket FILE` \
                     there, with a ticket of `landbridge sites invite`",
                    site.name
                ));
                continue;
            };
            if let Err(error) = self.company.reach(&site.name, &there, site.folder.as_deref(), progress).await {
                unreached.push(format!(
                    "{error}\nsite {0} must learn of site {name}: make it reachable and try again, or take it out with \
                     `landbridge sites remove {0} --force`",
                    site.name
                ));
            }
        }
        if unreached.is_empty() { Ok(()) } else { Err(SetupError::Request(unreached.join("\n"))) }
    }

    /// Reads the sites file of every machine reached, and takes over sites that only those files have.
    async fn read_sites_files(
        &mut self,
        progress: &mut dyn Progress,
    ) -> Result<Vec<(String, Option<String>)>, SetupError> {
        let name = &self.wish.name;
        let old_entry = self.old_entry.as_ref();
        let first_login = self.place != MachinePlace::Here && old_entry.is_some_and(|site| site.ssh.is_none());
        let mut old = Vec::new();
        for site in self.company.names() {
            let text = self.company.read_sites(&site).await?;
            if let Some(text) = &text {
                let theirs = Book::of(&PathBuf::from(format!("sites file of site {site}")), text)?;
                if site == *name && first_login {
                    // Until now another machine's file described this site. The site's own file is more reliable.
                    complete(&mut self.after, theirs.clone(), name)?;
                }
                // An older entry of the new site is skipped: this command replaces it.
                let place = format!("the sites file of site {site}");
                let taken = newcomers::take(&mut self.after, &theirs, name, &place, &self.wish.accept, progress)?;
                if let Some(refused) = taken.refused() {
                    return Err(SetupError::Request(format!(
                        "{place} names {refused}, which the one here lacks: if you know it, type this again with {}; if not, \
                         somebody else writes that file. Nothing was changed",
                        taken.flags()
                    )));
                }
                self.notes.extend(taken.notes);
            }
            old.push((site, text));
        }
        Ok(old)
    }

    /// Surveys the machine, makes the site's key and writes its entry.
    async fn describe(
        &mut self,
        nodes: Option<Vec<String>>,
        progress: &mut dyn Progress,
    ) -> Result<SiteEntry, SetupError> {
        let (wish, name, place) = (self.wish, &self.wish.name, &self.place);
        let old_entry = self.old_entry.as_ref();
        let survey = look_around(&mut self.company, name, nodes.clone().unwrap_or_default(), wish.port).await?;
        let key = make_key(&mut self.company, name).await?;
        let entry = plan::entry(wish, place, &survey, nodes, old_entry, &mut self.notes).await?;
        write_entry(&mut self.after, wish, old_entry.is_some(), &entry)?;
        let kept = self.after.kept_run(name);
        let run = folders::read(&kept).map_err(|e| SetupError::SitesFile(Box::new(e)))?;
        if let Some(run) = run.filter(|_| old_entry.is_none()) {
            self.after.set_run(name, &run)?;
            self.notes.push(format!(
                "its [site.run] is that of {}, which `landbridge sites remove` had kept",
                kept.display()
            ));
        }
        let ssh = (*place != MachinePlace::Here).then(|| place.to_string());
        let ssh = ssh.or_else(|| old_entry.and_then(|site| site.ssh.as_ref()).map(ToString::to_string));
        self.after.identify(name, &key, ssh.as_deref(), self.folder.as_deref())?;
        self.after.sites()?;
        progress.step(name, &plan::describe(&entry, &survey));
        self.findings.push(finding(name, "machine", plan::describe_machine(&survey)));
        Ok(entry)
    }

    /// The login of the site's gateway at each other site.
    async fn logins(&self) -> Result<Vec<(String, Login)>, SetupError> {
        let mut logins = Vec::new();
        let wish = self.wish;
        for site in self.known.sites.iter().filter(|site| site.name != wish.name && !wish.no_trunk_ssh) {
            if let Some(there) = whereabouts(site)?
                && let Ok(login) = plan::login(&there).await
            {
                logins.push((site.name.clone(), login));
            }
        }
        Ok(logins)
    }
}

/// Replaces a site's entry by the entry in the site's own file, if that has the same key. The user's own settings for
/// reaching the site stay.
fn complete(book: &mut Book, mut theirs: Book, name: &str) -> Result<(), SetupError> {
    let key = |book: &Book| Ok::<_, SetupError>(book.sites()?.site(name).map(|(_, site)| site.fingerprint));
    if key(book)?.is_some() && key(book)? == key(&theirs)? {
        theirs.unreach(name)?;
        book.replace(&theirs, name)?;
    }
    Ok(())
}
