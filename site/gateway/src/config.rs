//! The configuration of one gateway: its entry in the sites file, and its key.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::key::{self, KeyError, SiteKey};
use gateway_tasks::AgentStarter;
use gateway_tasks::{Doorkeeper, Tunneller};
use types::sites::{Gateway, Site, SitesFile};

use crate::counters::Counters;
use crate::error::GatewayError;

/// The configuration of one gateway. All of it comes from the sites file; there are no other defaults.
#[derive(Debug)]
pub struct GatewayConfig {
    /// All sites.
    pub sites: SitesFile,
    /// The file that `sites` was read from. The gateway reloads it on SIGHUP or when asked to.
    pub file: Option<PathBuf>,
    /// Index of this gateway's site in `sites`.
    pub site: usize,
    /// Index of this gateway within its site.
    pub gateway: usize,
    /// Adds sites that join to the sites file. `None`: no site can join here.
    pub doorkeeper: Option<Arc<dyn Doorkeeper>>,
    /// Opens tunnels to gateways that are reached through ssh. `None`: this gateway cannot dial those.
    pub tunneller: Option<Arc<dyn Tunneller>>,
    /// Starts agents on the gateway's own machine; `None`: it starts none there, so no ports are forwarded.
    pub beside: Option<Arc<dyn AgentStarter>>,
    /// The site's key.
    pub key: SiteKey,
    /// Counters that the gateway updates. Keep a clone to read them.
    pub counters: Arc<Counters>,
}

impl GatewayConfig {
    /// Finds a gateway's entry in the sites file at `path` and reads its key. `gateway` may be `None` if the site has
    /// only one.
    ///
    /// # Errors
    /// No such site or gateway, no key, or a key that does not match the fingerprint in the sites file.
    pub fn new(
        sites: SitesFile,
        path: &Path,
        site: &str,
        gateway: Option<&str>,
    ) -> Result<GatewayConfig, GatewayError> {
        let key = site_key(&sites, path, site)?;
        Ok(GatewayConfig { file: Some(path.to_owned()), ..Self::with_key(sites, site, gateway, key)? })
    }

    /// Like [`GatewayConfig::new`], with a key that has already been read.
    ///
    /// # Errors
    /// No such site or gateway.
    pub fn with_key(
        sites: SitesFile,
        site: &str,
        gateway: Option<&str>,
        key: SiteKey,
    ) -> Result<GatewayConfig, GatewayError> {
        let (site_id, entry) = sites.site(site).ok_or_else(|| unknown_site(&sites, site))?;
        let names = || entry.gateways.iter().map(|g| g.name.as_str()).collect::<Vec<_>>().join(", ");
        let index = match gateway {
            Some(name) => entry.gateways.iter().position(|g| g.name == name).ok_or_else(|| {
                GatewayError::Config(format!("site {site} has no gateway {name}; it has: {}", names()))
            })?,
            None if entry.gateways.len() == 1 => 0,
            None => {
                let text = format!("site {site} has several gateways ({}): add `--gateway NAME`", names());
                return Err(GatewayError::Config(text));
            }
        };
        let site = usize::from(site_id.0);
        let counters = Arc::default();
        let (file, doorkeeper, tunneller, beside) = (None, None, None, None);
        Ok(GatewayConfig { site, gateway: index, key, counters, sites, file, doorkeeper, tunneller, beside })
    }

    /// This gateway's site.
    pub fn own_site(&self) -> &Site {
        &self.sites.sites[self.site]
    }

    /// This gateway's entry.
    pub fn own(&self) -> &Gateway {
        &self.own_site().gateways[self.gateway]
    }
}

/// Reads the private key of a site, for its gateways and users. The sites file at `path` names the key's file.
///
/// # Errors
/// No such site, no key, or a key that does not match the fingerprint in the sites file.
pub fn site_key(sites: &SitesFile, path: &Path, site: &str) -> Result<SiteKey, GatewayError> {
    let (_, entry) = sites.site(site).ok_or_else(|| unknown_site(sites, site))?;
    let Some(file) = &entry.key else {
        let text = format!(
            "site {site}: no `key` in {}: set it to the file that holds the site's private key",
            path.display()
        );
        return Err(GatewayError::Config(text));
    };
    let file = path.parent().unwrap_or(Path::new("")).join(file);
    let key = key::load(&file)?;
    if !entry.keys().accept(Some(key.fingerprint())) {
        let (actual, expected) = (key.fingerprint(), entry.fingerprint);
        return Err(KeyError::OtherKey { site: site.to_owned(), path: file, actual, expected }.into());
    }
    Ok(key)
}

fn unknown_site(sites: &SitesFile, site: &str) -> GatewayError {
    GatewayError::Config(format!("unknown site `{site}`: the sites file has {}", sites.names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(fingerprint: String) -> SitesFile {
        let text = format!(
            r#"
            [[site]]
            name = "a"
            key = "a.key"
            fingerprint = "{fingerprint}"
            gateway = [{{ name = "gw1", advertise = "127.0.0.1:7100" }}]
            node = [{{ name = "n1" }}]
            "#
        );
        SitesFile::parse(&text, "sites.toml").unwrap()
    }

    #[test]
    fn the_key_lies_beside_the_sites_file_and_must_match_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sites.toml");
        let key = key::generate(&folder.path().join("a.key")).unwrap();
        let good = sites(key.fingerprint().to_string());
        assert_eq!(GatewayConfig::new(good.clone(), &path, "a", None).unwrap().own().name, "gw1");
        let other = sites(SiteKey::random().unwrap().fingerprint().to_string());
        let error = GatewayConfig::new(other, &path, "a", None).unwrap_err().to_string();
        assert!(error.contains("a.key") && error.contains(&key.fingerprint().to_string()), "{error}");
        let error = GatewayConfig::new(good.clone(), &path, "b", None).unwrap_err().to_string();
        assert!(error.contains("unknown site `b`: the sites file has a"), "{error}");
        let error = GatewayConfig::new(good, &path, "a", Some("gw9")).unwrap_err().to_string();
        assert!(error.contains("no gateway gw9"), "{error}");
    }
}
