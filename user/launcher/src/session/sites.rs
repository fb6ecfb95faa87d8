//! A user's sites file, and the gateways and the key of the user's own site.

use std::path::{Path, PathBuf};
use std::time::Duration;

use client::key::{self, KeyError};
use client::{Client, Role, race};
use types::SitesFile;
use types::sites::{Gateway, Site};
use wire::Secret;

use super::error::SessionError;

/// Time for one gateway of the own site to answer before the next one is dialled as well.
const HEAD_START: Duration = Duration::from_secs(2);

/// A sites file and its folder: paths of keys are relative to it.
#[derive(Clone, Debug)]
pub struct Sites {
    /// The file's content.
    pub file: SitesFile,
    /// The file's folder.
    pub folder: PathBuf,
    /// The secret for the gateways of the only site, if that site's key is in no file.
    pub secret: Option<Secret>,
}

impl Sites {
    /// The path of a site's key, if the file names one.
    pub fn key_path(&self, site: &Site) -> Option<PathBuf> {
        site.key.as_ref().map(|key| self.folder.join(Path::new(key)))
    }

    /// Returns the site with this name.
    ///
    /// # Errors
    /// [`SessionError::UnknownSite`].
    pub fn site(&self, name: &str) -> Result<&Site, SessionError> {
        let unknown = || SessionError::UnknownSite { site: name.to_owned(), known: self.file.names() };
        self.file.site(name).map(|(_, site)| site).ok_or_else(unknown)
    }

    /// The secret with which users of a site authenticate to its gateways. Checks the key against the fingerprint in
    /// the sites file.
    ///
    /// # Errors
    /// [`SessionError::NoKey`], [`SessionError::Key`].
    pub fn client_secret(&self, site: &Site) -> Result<Secret, SessionError> {
        if let Some(secret) = &self.secret {
            return Ok(secret.clone());
        }
        let path = self.key_path(site).ok_or_else(|| SessionError::NoKey(site.name.clone()))?;
        let key = key::load(&path)?;
        let (actual, expected) = (key.fingerprint(), site.fingerprint);
        if actual != expected {
            return Err(KeyError::OtherKey { site: site.name.clone(), path, actual, expected }.into());
        }
        Ok(key.client_secret())
    }

    /// The reasons why sites' keys cannot be used here, as one text.
    pub fn key_problems(&self) -> String {
        let problems = self.file.sites.iter().filter_map(|site| self.client_secret(site).err());
        problems.map(|problem| problem.to_string()).collect::<Vec<_>>().join("; ")
    }

    /// Connects to the first gateway of the user's own site that answers, and returns its name too. Dials them in their
    /// order; the next one after a failure or 2 s without an answer.
    ///
    /// # Errors
    /// The error of the gateway that failed last.
    pub async fn connect(&self, site: &Site) -> Result<(Client, String), SessionError> {
        self.reach(site).await.map(|(client, name, _)| (client, name))
    }

    /// Like [`Sites::connect`]; also returns the names of the dialled gateways that have not answered by then.
    pub(super) async fn reach(&self, site: &Site) -> Result<(Client, String, Vec<String>), SessionError> {
        let role = Role::Client { secret: self.client_secret(site)? };
        let mut silent = Vec::new();
        let attempts = site.gateways.iter().map(|gateway| {
            silent.push(gateway.name.clone());
            let (gateway, role) = (dialled(site, gateway), role.clone());
            async move {
                match Client::connect(&gateway, &role).await {
                    Ok(client) => Ok((client, gateway.name)),
                    Err(source) => Err(SessionError::Gateway { site: gateway.site, gateway: gateway.name, source }),
                }
            }
        });
        match race(attempts, HEAD_START).await {
            Ok((client, name)) => {
                silent.retain(|other| *other != name);
                Ok((client, name, silent))
            }
            Err(mut failed) => Err(failed.pop().unwrap_or_else(|| SessionError::Closed(site.name.clone()))),
        }
    }
}

/// A gateway of a site, at the address that its users dial.
pub fn dialled(site: &Site, gateway: &Gateway) -> client::Gateway {
    let (site, keys) = (site.name.clone(), Some(site.keys()));
    client::Gateway { site, name: gateway.name.clone(), address: gateway.inside.clone(), keys }
}
