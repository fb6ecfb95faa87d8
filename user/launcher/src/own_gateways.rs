//! The gateways of the user's own site that serve a job, and the sites that each one has lost.

use std::collections::{BTreeMap, BTreeSet};

/// See the module docs. Gateways are numbered from 0. Number 0 leads the job and is connected from the start.
#[derive(Debug)]
pub(crate) struct OwnGateways {
    home: String,
    connected: BTreeSet<usize>,
    /// For each site, the gateways that do not reach it. Sites that all gateways reach are not in the map.
    lost: BTreeMap<String, BTreeSet<usize>>,
}

impl OwnGateways {
    /// The gateways of site `home`; so far, only the first one is connected.
    pub(crate) fn new(home: &str) -> OwnGateways {
        OwnGateways { home: home.to_owned(), connected: BTreeSet::from([0]), lost: BTreeMap::new() }
    }

    /// The number of connected gateways.
    pub(crate) fn len(&self) -> usize {
        self.connected.len()
    }

    /// A gateway is connected, perhaps not for the first time. It may have been restarted, so it counts as reaching
    /// every site.
    pub(crate) fn connected(&mut self, gateway: usize) {
        self.connected.insert(gateway);
        let sites: Vec<String> = self.lost.keys().cloned().collect();
        sites.iter().for_each(|site| self.found(gateway, site));
    }

    /// A gateway is no longer connected.
    pub(crate) fn disconnected(&mut self, gateway: usize) {
        self.connected.remove(&gateway);
    }

    /// A gateway reports that site `seen_from` has lost `site`. If `seen_from` is not our own site, none of our
    /// gateways offers a way around the loss.
    pub(crate) fn lost(&mut self, gateway: usize, seen_from: &str, site: &str) {
        let own = seen_from == self.home;
        let gateways = if own { BTreeSet::from([gateway]) } else { self.connected.clone() };
        self.lost.entry(site.to_owned()).or_default().extend(gateways);
    }

    /// A gateway reaches a site again.
    pub(crate) fn found(&mut self, gateway: usize, site: &str) {
        if let Some(gateways) = self.lost.get_mut(site) {
            gateways.remove(&gateway);
            if gateways.is_empty() {
                self.lost.remove(site);
            }
        }
    }

    /// The first site that none of the connected gateways reaches.
    pub(crate) fn unreached(&self) -> Option<&str> {
        let mut lost = self.lost.iter().filter(|(_, gateways)| self.connected.is_subset(gateways));
        lost.next().map(|(site, _)| site.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_unreached_when_the_last_gateway_has_lost_it() {
        let mut gateways = OwnGateways::new("a");
        gateways.connected(1);
        gateways.lost(0, "a", "b");
        assert_eq!(gateways.unreached(), None);
        gateways.lost(1, "a", "b");
        assert_eq!(gateways.unreached(), Some("b"));
        gateways.found(0, "b");
        assert_eq!(gateways.unreached(), None);
        gateways.disconnected(0);
        assert_eq!(gateways.unreached(), Some("b"), "the gateway that reached it is gone");
        gateways.connected(0);
        assert_eq!(gateways.unreached(), None);
    }

    #[test]
    fn what_another_site_has_lost_is_lost_to_all_gateways() {
        let mut gateways = OwnGateways::new("a");
        gateways.connected(1);
        gateways.lost(0, "b", "c");
        assert_eq!(gateways.unreached(), Some("c"));
        gateways.found(1, "c");
        assert_eq!(gateways.unreached(), None);
    }
}
