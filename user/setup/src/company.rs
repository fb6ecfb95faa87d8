//! The machines of several sites, each reached once and kept connected for the duration of a command.

use types::sites::Site;

use crate::here::background;
use crate::here::folders::Folders;
use crate::machine::{Machine, Way};
use crate::message::{Reply, SiteRequest};
use crate::place::MachinePlace;
use crate::release::Release;
use crate::{Progress, SetupError};

/// Connected machines, by the names of their sites.
#[derive(Debug)]
pub(crate) struct Company {
    release: Release,
    asking: bool,
    machines: Vec<(String, Machine)>,
}

impl Company {
    /// No machines yet. `asking`: a user is at the terminal and can be asked.
    pub(crate) fn new(release: Release, asking: bool) -> Company {
        Company { release, asking, machines: Vec::new() }
    }

    /// Copies another release to machines reached from now on.
    pub(crate) fn set_release(&mut self, release: Release) {
        self.release = release;
    }

    /// Connects to a site's machine, unless it is connected already.
    pub(crate) async fn reach(
        &mut self,
        site: &str,
        place: &MachinePlace,
        folder: Option<&str>,
        progress: &mut dyn Progress,
    ) -> Result<&mut Machine, SetupError> {
        let at = match self.machines.iter().position(|(name, _)| name == site) {
            Some(at) => at,
            None => {
                let way = Way { site, place, folder, asking: self.asking };
                let machine = Machine::reach(&way, &self.release, progress).await?;
                let (host, user, libc) = (&machine.facts.host, &machine.facts.user, &machine.facts.libc);
                let text = format!("reached {host} as {user} ({}, {libc})", machine.facts.architecture);
                progress.step(site, &text);
                self.machines.push((site.to_owned(), machine));
                self.machines.len() - 1
            }
        };
        Ok(&mut self.machines[at].1)
    }

    /// The machine of a site that has been reached.
    pub(crate) fn machine(&mut self, site: &str) -> Result<&mut Machine, SetupError> {
        let found = self.machines.iter_mut().find(|(name, _)| name == site);
        found.map(|(_, machine)| machine).ok_or_else(|| SetupError::site(site, "was not reached"))
    }

    /// Names of the sites that have been reached, in the order of reaching them.
    pub(crate) fn names(&self) -> Vec<String> {
        self.machines.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Sends a request to a site's machine and returns the reply.
    pub(crate) async fn ask(&mut self, site: &str, request: &SiteRequest) -> Result<Reply, SetupError> {
        self.machine(site)?.ask(request).await
    }

    /// Reads the sites file of a site's machine.
    pub(crate) async fn read_sites(&mut self, site: &str) -> Result<Option<String>, SetupError> {
        match self.ask(site, &SiteRequest::ReadSites).await? {
            Reply::Sites { text } => Ok(text),
            _ => Err(SetupError::site(site, "an answer to another question")),
        }
    }
}

/// The machine of a site: this machine if the site's gateway belongs here, else the one in its `ssh` entry. `None`: the
/// site joined by itself, and only it can open a connection.
pub(crate) fn whereabouts(site: &Site) -> Result<Option<MachinePlace>, SetupError> {
    let folders = Folders::of_user()?;
    if background::lives_here(&folders, &site.name) {
        return Ok(Some(MachinePlace::Here));
    }
    Ok(site.ssh.clone().map(MachinePlace::Ssh))
}
