//! Everything between this gateway and another: links, control messages, measurements, figures of the network, and
//! meetings where neither gateway can be dialled.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway_hooks::Tunneller;
use types::sites::{Approach, Dialling, SitesFile};

use crate::gateway::Gateway;
use crate::table::TrunkId;
use crate::trunks::error::TrunkError;
use crate::trunks::measure::Measuring;
use crate::trunks::meeting::host::Host;
use crate::trunks::meeting::visit::Visits;
use crate::trunks::survey::Survey;
use crate::trunks::trunk::{Trunk, TrunkEnd};

pub(crate) mod control;
pub(crate) mod error;
pub(crate) mod link;
pub(crate) mod measure;
pub(crate) mod meeting;
pub(crate) mod survey;
pub(crate) mod trunk;
mod tunnel;

/// All trunks of this gateway, with the state of measurements, meetings and tunnels.
pub(crate) struct Trunks {
    /// Sites may be added and removed while the gateway runs; ids stay valid.
    list: RefCell<Vec<Rc<Trunk>>>,
    pub measuring: Measuring,
    /// The figures of the network between sites.
    pub survey: Survey,
    /// Meetings that this gateway hosts for others, and its own at other gateways.
    pub host: Host,
    pub visits: Visits,
    /// Opens tunnels to gateways that are reached through ssh.
    pub tunneller: Option<Arc<dyn Tunneller>>,
}

impl Trunks {
    /// `own`: the indices of this gateway's site and of this gateway in the sites file.
    pub(crate) fn new(sites: &SitesFile, own: (usize, usize), tunneller: Option<Arc<dyn Tunneller>>) -> Trunks {
        let list = trunks(sites, own).into_iter().map(Rc::new).collect();
        Trunks {
            list: RefCell::new(list),
            measuring: Measuring::default(),
            survey: Survey::new(sites, own),
            host: Host::new(sites.sites[own.0].gateways[own.1].memory),
            visits: Visits::default(),
            tunneller,
        }
    }

    pub(crate) fn get(&self, id: TrunkId) -> Rc<Trunk> {
        self.list.borrow()[id.0].clone()
    }

    pub(crate) fn add(&self, trunk: Rc<Trunk>) {
        debug_assert_eq!(trunk.id, TrunkId(self.list.borrow().len()));
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
}

impl Gateway {
    /// Sets the problem to report for a trunk until its first attempt has ended.
    pub(crate) fn expect(&self, trunk: &Trunk) {
        let (site, name) = (&trunk.site, &trunk.gateway);
        let problem = match trunk.dials() {
            Some(Approach::Direct(address)) => {
                let port = address.rsplit(':').next().unwrap_or_default();
                format!("site {site}: gateway {name} at {address}: not reached yet; a firewall may block port {port}")
            }
            Some(Approach::Ssh(login, _)) => {
                format!("site {site}: gateway {name} through ssh to {login}: not reached yet")
            }
            None if trunk.hidden => self.unmet(trunk),
            None => format!("site {site}: its gateway {name} has not dialled us yet: is it running?"),
        };
        self.change(|table| table.trunk_problem(trunk.id, problem.clone()));
        trunk.expect(problem);
    }

    /// Starts to dial a trunk's links, or to ask for meetings, if this side does that.
    pub(crate) fn dial_trunk(&self, trunk: &Rc<Trunk>) {
        self.dial_links(trunk, 0..trunk.wanted());
    }

    /// Like [`Gateway::dial_trunk`], for the links in `which`.
    pub(crate) fn dial_links(&self, trunk: &Rc<Trunk>, which: Range<u16>) {
        if trunk.dials().is_some() || trunk.asks() {
            which.for_each(|index| self.beside(|gateway| trunk::keep_dialling(gateway, trunk.clone(), index)));
        }
    }

    /// The trunk to another site, once it is up. Waits for at most `limit`.
    ///
    /// # Errors
    /// The trunk does not exist or did not come up; the error is meant for the user.
    pub(crate) async fn trunk_to(&self, site: &str, limit: Duration) -> Result<Rc<Trunk>, TrunkError> {
        if site == self.site {
            return Err(TrunkError::Itself(site.to_owned()));
        }
        let id = self.table().lead_trunk(site);
        let unknown = || TrunkError::UnknownSite { own: self.site.clone(), site: site.to_owned() };
        let trunk = self.trunks.get(id.ok_or_else(unknown)?);
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
