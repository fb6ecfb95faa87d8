//! The routes of a member: the connected gateways of its site, and the sites that each reaches.

use channel::Route;
use rustc_hash::FxHashMap;
use types::SiteId;

#[derive(Debug, Default)]
pub struct Routes {
    gateways: Vec<GatewayReach>,
}

#[derive(Debug, Default)]
struct GatewayReach {
    open: bool,
    /// Sites that it cannot reach at present, with the reasons.
    away: FxHashMap<SiteId, String>,
}

impl Routes {
    /// Returns true if the gateway is connected.
    pub fn is_open(&self, route: Route) -> bool {
        self.gateways.get(usize::from(route.0)).is_some_and(|gateway| gateway.open)
    }

    /// The connected gateways.
    pub fn open(&self) -> impl Iterator<Item = Route> {
        self.gateways.iter().enumerate().filter(|(_, gateway)| gateway.open).map(|(at, _)| Route(at as u8))
    }

    /// The connected gateways that reach a site.
    pub fn to(&self, site: SiteId) -> impl Iterator<Item = Route> {
        let reaches = move |route: &Route| !self.gateways[usize::from(route.0)].away.contains_key(&site);
        self.open().filter(reaches)
    }

    /// Returns true if a gateway is connected and reaches a site.
    pub fn reaches(&self, route: Route, site: SiteId) -> bool {
        self.gateways.get(usize::from(route.0)).is_some_and(|gateway| gateway.open && !gateway.away.contains_key(&site))
    }

    /// Number of gateways, connected or not.
    pub(crate) fn count(&self) -> usize {
        self.gateways.len()
    }

    pub(crate) fn opened(&mut self, route: Route) {
        let at = usize::from(route.0);
        if self.gateways.len() <= at {
            self.gateways.resize_with(at + 1, GatewayReach::default);
        }
        self.gateways[at] = GatewayReach { open: true, away: FxHashMap::default() };
    }

    pub(crate) fn lost(&mut self, route: Route) {
        if let Some(gateway) = self.gateways.get_mut(usize::from(route.0)) {
            *gateway = GatewayReach::default();
        }
    }

    pub(crate) fn away(&mut self, route: Route, site: SiteId, reason: &str) {
        if let Some(gateway) = self.gateways.get_mut(usize::from(route.0)) {
            gateway.away.insert(site, reason.to_owned());
        }
    }

    pub(crate) fn back(&mut self, route: Route, site: SiteId) {
        if let Some(gateway) = self.gateways.get_mut(usize::from(route.0)) {
            gateway.away.remove(&site);
        }
    }
}
