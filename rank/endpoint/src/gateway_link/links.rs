//! Figures of the links between the job's sites, as each gateway reports them.

use member::Route;
use types::links::LinkTable;
use wire::WireError;
use wire::links::Assembly;

/// One table per gateway, because each gateway numbers its own. The tables differ only by the latest changes.
#[derive(Debug)]
pub(super) struct LinkTables {
    /// Number of sites of the job.
    sites: usize,
    /// By route.
    gateways: Vec<(Assembly, Option<LinkTable>)>,
}

impl LinkTables {
    pub(super) fn new(sites: usize, gateways: usize) -> LinkTables {
        LinkTables { sites, gateways: (0..gateways).map(|_| Default::default()).collect() }
    }

    /// Takes a part of a gateway's table.
    ///
    /// # Errors
    /// `part` is not a part of a table of the job's sites.
    pub(super) fn take(&mut self, route: Route, part: &[u8]) -> Result<(), WireError> {
        if let Some((assembly, table)) = self.gateways.get_mut(usize::from(route.0))
            && let Some(whole) = assembly.take(part, self.sites)?
        {
            *table = Some(whole);
        }
        Ok(())
    }

    /// The table of the first gateway that is open and has sent one, else of the first gateway that has sent one.
    pub(super) fn first(&self, is_open: impl Fn(Route) -> bool) -> Option<&LinkTable> {
        let known = || self.gateways.iter().enumerate().filter_map(|(at, (_, table))| Some((at, table.as_ref()?)));
        known().find(|(at, _)| is_open(Route(*at as u8))).or_else(|| known().next()).map(|(_, table)| table)
    }
}

#[cfg(test)]
mod tests {
    use types::SiteId;
    use types::links::LinkFigures;

    use super::*;

    fn table(rate: f64) -> LinkTable {
        let mut table = LinkTable::unknown(2);
        table.set(SiteId(0), SiteId(1), LinkFigures { round_trip: Some(0.5), rate: Some(rate) });
        table
    }

    #[test]
    fn the_first_gateway_that_is_there_counts() {
        let mut links = LinkTables::new(2, 2);
        assert_eq!(links.first(|_| true), None);
        for (route, rate) in [(1, 1024.0), (0, 2048.0), (1, 4096.0)] {
            links.take(Route(route), &wire::links::parts(&table(rate))[0]).unwrap();
        }
        assert_eq!(links.first(|_| true), Some(&table(2048.0)));
        assert_eq!(links.first(|route| route == Route(1)), Some(&table(4096.0)));
        assert_eq!(links.first(|_| false), Some(&table(2048.0)), "the last that is known");
        assert!(links.take(Route(0), &[0; 7]).is_err());
        assert_eq!(links.first(|_| true), Some(&table(2048.0)));
    }
}
