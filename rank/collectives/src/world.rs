//! Locations of the ranks of `MPI_COMM_WORLD`.

use types::{Rank, Roster, SiteId};

/// Location of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub site: SiteId,
    /// The node's number at its site.
    pub node: u32,
}

/// Locations of the job's ranks, in rank order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct World {
    pub locations: Vec<Location>,
}

impl World {
    /// Reads the roster from this rank's environment, where the agent put it. `None`: this process is not a rank of a
    /// job, or its job is within one site.
    pub(crate) fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Option<World> {
        let roster: Roster = lookup("LANDBRIDGE_ROSTER")?.parse().ok()?;
        let locations = (0..roster.size())
            .map(|rank| roster.place(Rank(rank)).map(|place| Location { site: place.site, node: place.node.0 }));
        let locations: Vec<Location> = locations.collect::<Option<_>>()?;
        locations.iter().any(|other| other.site != locations[0].site).then_some(World { locations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roster_says_where_ranks_are() {
        let world = |text: &str| World::from_env(|name| (name == "LANDBRIDGE_ROSTER").then(|| text.to_owned()));
        let found = world("a:n1*2,n2*1;b:n1*1").unwrap().locations;
        let found: Vec<_> = found.iter().map(|location| (location.site.0, location.node)).collect();
        assert_eq!(found, [(0, 0), (0, 0), (0, 1), (1, 0)]);
        assert_eq!(world("a:n1*2,n2*2"), None);
        assert_eq!(world("nonsense"), None);
        assert_eq!(World::from_env(|_| None), None);
    }
}
