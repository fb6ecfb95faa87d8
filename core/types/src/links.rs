//! Figures of the network between sites: a [`LinkTable`] of round trips and rates, the threshold for announcing a
//! change, and the order in which pairs of sites are measured.

use std::fmt;

use crate::id::SiteId;

/// A figure is announced when it differs by this fraction of its old value.
pub const CHANGE: f64 = 0.15;

/// Round trips that differ by less than this many seconds count as equal.
const LEAST: f64 = 1e-4;

/// Most sites of a table: a job with more sites gets no table.
pub const MAX_SITES: usize = 128;

/// Figures of the path from one site to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkFigures {
    /// Round trip in seconds, without queueing; `None` while it is unknown.
    pub round_trip: Option<f64>,
    /// Rate of the path in bytes per second; `None` while it is unknown.
    pub rate: Option<f64>,
}

impl LinkFigures {
    /// Returns true if a figure has become known or unknown, or differs from `before` by at least [`CHANGE`]. A round
    /// trip must also differ by at least 0.1 ms.
    pub fn differs(self, before: LinkFigures) -> bool {
        let differs = |now: Option<f64>, before: Option<f64>, least: f64| match (now, before) {
            (Some(now), Some(before)) => (now - before).abs() >= (CHANGE * before).max(least),
            (None, None) => false,
            _ => true,
        };
        differs(self.round_trip, before.round_trip, LEAST) || differs(self.rate, before.rate, 0.0)
    }
}

/// Figures for each ordered pair of a job's sites, numbered as in its roster.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkTable {
    version: u32,
    sites: usize,
    /// Row by row: from site × to site.
    figures: Vec<LinkFigures>,
}

impl LinkTable {
    /// An empty table of this many sites, at most [`MAX_SITES`], with version 0.
    pub fn unknown(sites: usize) -> LinkTable {
        let sites = sites.min(MAX_SITES);
        LinkTable { version: 0, sites, figures: vec![LinkFigures::default(); sites * sites] }
    }

    /// The figures of the path from one site to another; unknown for a site that does not exist, and for the path of a
    /// site to itself.
    pub fn get(&self, from: SiteId, to: SiteId) -> LinkFigures {
        self.at(from, to).map(|at| self.figures[at]).unwrap_or_default()
    }

    /// Sets the figures of a pair. Sites that do not exist, and pairs of a site with itself, are ignored.
    pub fn set(&mut self, from: SiteId, to: SiteId, figures: LinkFigures) {
        if let Some(at) = self.at(from, to) {
            self.figures[at] = figures;
        }
    }

    fn at(&self, from: SiteId, to: SiteId) -> Option<usize> {
        let (from, to) = (usize::from(from.0), usize::from(to.0));
        (from < self.sites && to < self.sites && from != to).then_some(from * self.sites + to)
    }

    /// Number of sites.
    pub fn sites(&self) -> usize {
        self.sites
    }

    /// Increases whenever a figure changes; wraps.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The same table with this version.
    pub fn numbered(self, version: u32) -> LinkTable {
        LinkTable { version, ..self }
    }

    /// The figures row by row: from the first site to all, from the second to all, and so on.
    pub fn rows(&self) -> &[LinkFigures] {
        &self.figures
    }

    /// Returns true if a figure differs from `before` enough to notify members: see [`LinkFigures::differs`].
    pub fn differs(&self, before: &LinkTable) -> bool {
        self.sites != before.sites || self.figures.iter().zip(&before.figures).any(|(now, before)| now.differs(*before))
    }
}

/// The known figures, for logs: `#0 to #1 20.1 ms 94.2 Mbit/s, #1 to #0 20.1 ms`.
impl fmt::Display for LinkTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (at, figures) in self.figures.iter().enumerate().filter(|(_, figures)| **figures != LinkFigures::default())
        {
            write!(f, "{between}#{} to #{}", at / self.sites, at % self.sites)?;
            figures.round_trip.map_or(Ok(()), |trip| write!(f, " {:.1} ms", trip * 1e3))?;
            figures.rate.map_or(Ok(()), |rate| write!(f, " {:.1} Mbit/s", rate * 8.0 / 1e6))?;
            between = ", ";
        }
        Ok(())
    }
}

/// The order in which pairs of `sites` sites are measured. In each round, a site is in at most one pair; over all
/// rounds, each pair occurs once. There are `sites - 1` rounds for an even number of sites. For an odd number there are
/// `sites`, and one site rests in each. The circle method for round-robin tournaments: the last site stays, the others
/// turn.
pub fn rounds(sites: usize) -> Vec<Vec<(usize, usize)>> {
    if sites < 2 {
        return Vec::new();
    }
    // With an odd number of sites, the partner of this extra place rests.
    let all = sites + sites % 2;
    let turning = all - 1;
    let round = |number: usize| {
        let pairs = (0..all / 2).map(move |place| match place {
            0 => (number, all - 1),
            _ => ((number + place) % turning, (number + turning - place) % turning),
        });
        pairs
            .filter(move |(one, other)| *one < sites && *other < sites)
            .map(|(one, other)| (one.min(other), one.max(other)))
    };
    (0..turning).map(|number| round(number).collect()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_has_its_round_and_no_site_two_in_one() {
        for sites in 0..=26 {
            let rounds = rounds(sites);
            assert_eq!(rounds.len(), if sites < 2 { 0 } else { sites - 1 + sites % 2 }, "{sites} sites");
            for round in &rounds {
                let busy: Vec<usize> = round.iter().flat_map(|(one, other)| [*one, *other]).collect();
                assert_eq!(busy.iter().collect::<BTreeSet<_>>().len(), busy.len(), "{sites} sites: {round:?}");
                assert_eq!(round.len(), sites / 2, "as many at once as possible");
            }
            let met: Vec<_> = rounds.into_iter().flatten().collect();
            let expected = sites * sites.saturating_sub(1) / 2;
            assert_eq!((met.len(), met.iter().collect::<BTreeSet<_>>().len()), (expected, expected), "{sites} sites");
            assert!(met.iter().all(|(one, other)| one < other && *other < sites));
        }
    }

    #[test]
    fn small_changes_are_not_worth_a_message() {
        let figures = |round_trip, rate| LinkFigures { round_trip, rate };
        let before = figures(Some(0.02), Some(1e6));
        for (now, differs) in [
            (figures(Some(0.0225), Some(1.1e6)), false),
            (figures(Some(0.02), Some(1.16e6)), true),
            (figures(Some(0.02), Some(0.84e6)), true),
            (figures(Some(0.0235), Some(1e6)), true),
            (figures(None, Some(1e6)), true),
            (figures(Some(0.02), None), true),
        ] {
            assert_eq!(now.differs(before), differs, "{now:?}");
        }
        assert!(!LinkFigures::default().differs(LinkFigures::default()));
    }

    #[test]
    fn a_table_knows_only_its_pairs() {
        let mut table = LinkTable::unknown(3);
        let (a, b, x) = (SiteId(0), SiteId(1), SiteId(3));
        let known = LinkFigures { round_trip: Some(0.01), rate: Some(5e6) };
        for (from, to) in [(a, b), (a, a), (a, x), (x, a)] {
            table.set(from, to, known);
        }
        assert_eq!(table.get(a, b), known);
        for (from, to) in [(b, a), (a, a), (a, x), (x, a), (x, x)] {
            assert_eq!(table.get(from, to), LinkFigures::default(), "{from:?} to {to:?}");
        }
        assert!(table.differs(&LinkTable::unknown(3)) && table.differs(&LinkTable::unknown(4)));
        assert_eq!(table.to_string(), "#0 to #1 10.0 ms 40.0 Mbit/s");
        assert_eq!(table.clone().numbered(7).version(), 7);
        assert_eq!(LinkTable::unknown(1 << 16).sites(), MAX_SITES);
    }
}
