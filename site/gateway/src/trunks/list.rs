//! The trunks of a gateway, and the state that all code of trunks uses.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use types::sites::{Approach, Dialling, SitesFile};

use crate::path::Path;
use crate::sites::Sites;
use crate::table::TrunkId;
use crate::trunks::error::TrunkError;
use crate::trunks::trunk::{Trunk, TrunkEnd};

/// See the module docs.
pub(crate) struct TrunkList {
    pub path: Rc<Path>,
    pub sites: Rc<Sites>,
    /// A random number; other gateways see from it that this one was restarted.
    pub run_number: u32,
    /// Sites may be added and removed while the gateway runs; ids stay valid.
    list: RefCell<Vec<Rc<Trunk>>>,
}

impl TrunkList {
    /// The trunks of the sites file. `run_number`: a random number.
    pub(crate) fn new(path: Rc<Path>, sites: Rc<Sites>, run_number: u32) -> TrunkList {
        let trunks = trunks(&sites.file.borrow(), sites.own.get());
        let list = TrunkList { path, sites, run_number, list: RefCell::default() };
        trunks.into_iter().for_each(|trunk| list.add(Rc::new(trunk)));
        list
    }

    pub(crate) fn get(&self, id: TrunkId) -> Rc<Trunk> {
        self.list.borrow()[id.0].clone()
    }

    pub(crate) fn add(&self, trunk: Rc<Trunk>) {
        debug_assert_eq!(trunk.id, TrunkId(self.list.borrow().len()));
        self.path.add_trunk(trunk.links.clone());
        self.list.borrow_mut().push(trunk);
    }

    /// Trunks to gateways in the sites file.
    pub(crate) fn in_use(&self) -> Vec<Rc<Trunk>> {
        self.list.borrow().iter().filter(|trunk| !trunk.is_retired()).cloned().collect()
    }

    /// Trunks to gateways that were removed from the sites file.
    pub(crate) fn retired(&self) -> Vec<Rc<Trunk>> {
        self.list.borrow().iter().filter(|trunk| trunk.is_retired()).cloned().collect()
    }

    /// Makes every trunk that is down dial now rather than after its pause.
    pub(crate) fn kick(&self) {
        self.list.borrow().iter().for_each(|trunk| trunk.kick());
    }

    /// The trunk to another site, once it is up. Waits for at most `limit`.
    ///
    /// # Errors
    /// The trunk does not exist or did not come up; the error is meant for the user.
    pub(crate) async fn up_to(&self, site: &str, limit: Duration) -> Result<Rc<Trunk>, TrunkError> {
        let own = &self.sites.site;
        if site == own {
            return Err(TrunkError::Itself(site.to_owned()));
        }
        let id = self.path.table.read().lead_trunk(site);
        let unknown = || TrunkError::UnknownSite { own: own.clone(), site: site.to_owned() };
        let trunk = self.get(id.ok_or_else(unknown)?);
        trunk.wait_up(limit).await?;
        Ok(trunk)
    }
}

/// One trunk to every gateway of every other site. [`Dialling`] determines which side dials. If neither can, the
/// gateway of the site that comes earlier in the file asks for a meeting.
pub(crate) fn trunks(sites: &SitesFile, (own_site, own_gateway): (usize, usize)) -> Vec<Trunk> {
    let own = &sites.sites[own_site].gateways[own_gateway];
    let mut trunks = Vec::new();
    for (at, site) in sites.sites.iter().enumerate().filter(|(at, _)| *at != own_site) {
        for gateway in &site.gateways {
            let they_first = at < own_site;
            let dialling = match they_first {
                true => Dialling::between(gateway, own),
                false => Dialling::between(own, gateway),
            };
            let approach = match (dialling, they_first) {
                (Dialling::Earlier(approach), false) | (Dialling::Later(approach), true) => Some(approach),
                _ => None,
            };
            let hidden = dialling == Dialling::Meeting;
            let dials = approach.is_some() || (hidden && !they_first);
            let links = own.links.with(gateway.links);
            let id = TrunkId(trunks.len());
            let end = TrunkEnd {
                site: site.name.clone(),
                gateway: gateway.name.clone(),
                address: gateway.advertise.clone(),
                login: match approach {
                    Some(Approach::Ssh(login, to)) => Some((login.clone(), to.to_owned())),
                    _ => None,
                },
                through_ssh: dialling.is_ssh(),
                lets_meet: gateway.meeting && gateway.advertise.is_some() && !dialling.is_ssh(),
            };
            trunks.push(Trunk::new(id, end, site.keys(), (dials, hidden), links));
        }
    }
    trunks
}
