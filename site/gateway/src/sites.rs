//! The sites file in force, this gateway's place in it, and the credentials of its site.

use std::cell::{Cell, Ref, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use client::key::{KeyError, SiteKey};
use client::tls::{self, TlsConfig};
use gateway_tasks::GatewayAddress;
use types::sites::{Fingerprint, Site, SitesFile};
use wire::Secret;

use crate::config::GatewayConfig;

/// See the module docs.
pub(crate) struct Sites {
    /// Name of the gateway's site.
    pub site: String,
    /// Name of the gateway.
    pub gateway: String,
    /// The sites file as last read.
    pub file: RefCell<SitesFile>,
    /// Path of the file.
    pub path: Option<PathBuf>,
    /// Index of this gateway's site, and of this gateway within it.
    pub own: Cell<(usize, usize)>,
    credentials: RefCell<Rc<Credentials>>,
}

/// Credentials derived from the site's key. The key may change.
pub(crate) struct Credentials {
    pub fingerprint: Fingerprint,
    /// The secret that users of the site prove.
    pub client_secret: Secret,
    pub tls: TlsConfig,
}

impl Credentials {
    fn new(key: &SiteKey) -> Result<Credentials, KeyError> {
        let (fingerprint, client_secret) = (key.fingerprint(), key.client_secret());
        Ok(Credentials { fingerprint, client_secret, tls: tls::config(key)? })
    }
}

impl Sites {
    /// The state at start.
    ///
    /// # Errors
    /// The key cannot be used.
    pub(crate) fn new(config: &GatewayConfig) -> Result<Sites, KeyError> {
        Ok(Sites {
            site: config.own_site().name.clone(),
            gateway: config.own().name.clone(),
            file: RefCell::new(config.sites.clone()),
            path: config.file.clone(),
            own: Cell::new((config.site, config.gateway)),
            credentials: RefCell::new(Rc::new(Credentials::new(&config.key)?)),
        })
    }

    /// The credentials derived from the site's current key.
    pub(crate) fn credentials(&self) -> Rc<Credentials> {
        self.credentials.borrow().clone()
    }

    /// Adopts a new key of the site.
    ///
    /// # Errors
    /// The key cannot be used; nothing has changed then.
    pub(crate) fn replace_key(&self, key: &SiteKey) -> Result<(), KeyError> {
        self.credentials.replace(Rc::new(Credentials::new(key)?));
        Ok(())
    }

    /// The entry of this gateway's site.
    pub(crate) fn own_site(&self) -> Ref<'_, Site> {
        Ref::map(self.file.borrow(), |file| &file.sites[self.own.get().0])
    }

    /// Address at which ranks and agents find this gateway.
    pub(crate) fn inside(&self) -> String {
        self.own_site().gateways[self.own.get().1].inside.clone()
    }

    /// Addresses where the nodes of this site dial its gateways, this one first.
    pub(crate) fn insides(&self) -> Vec<GatewayAddress> {
        let sites = self.file.borrow();
        let (site, own) = self.own.get();
        let gateways = &sites.sites[site].gateways;
        let others = gateways.iter().enumerate().filter(|(at, _)| *at != own);
        let others =
            others.map(|(_, other)| GatewayAddress { name: other.name.clone(), address: other.inside.clone() });
        let this = GatewayAddress { name: self.gateway.clone(), address: self.inside() };
        std::iter::once(this).chain(others).collect()
    }
}
