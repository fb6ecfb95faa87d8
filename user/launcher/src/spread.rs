//! The number of ranks on each node of each site. Pure: turns a sites file and a wish into a roster.

use thiserror::Error;
use types::quantity::counted;
use types::sites::Site;
use types::{NodeRoster, Roster, SiteRoster, SitesFile};
use wire::control::HeldAllocation;

/// The numbers that the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Total number of ranks. `None`: the sum of `per_site`.
    pub ranks: Option<u32>,
    /// Most ranks on one node; nodes are then filled in order. `None`: ranks are spread evenly over nodes.
    pub ranks_per_node: Option<u32>,
    /// True if each node's `slots` are filled before the next node gets ranks. `ranks_per_node` fills nodes too.
    pub fill: bool,
    /// Ranks at each named site, in any order. Empty: ranks are spread evenly over all sites.
    pub per_site: Vec<(String, u32)>,
}

impl Wish {
    /// Without numbers, asks for all slots of the user's batch job at `site`.
    pub fn or_all_of(&mut self, site: &str, held: &HeldAllocation) {
        if self.ranks.is_none() && self.per_site.is_empty() {
            let slots = held.nodes.iter().fold(0u32, |sum, node| sum.saturating_add(node.slots));
            self.per_site = vec![(site.to_owned(), slots)];
        }
    }
}

/// A wish that cannot be met. The message names the numbers that do not fit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpreadError {
    #[error("unknown site `{site}`: the sites file has {known}")]
    UnknownSite { site: String, known: String },
    #[error("--site {0} is given twice: give each site once, as --site {0}=N")]
    Twice(String),
    #[error("0 ranks: a job needs at least one (-n N)")]
    Zero,
    /// The wish has neither a total nor numbers per site.
    #[error("how many ranks? Give -n N, or --site NAME=N for each site")]
    NoNumber,
    #[error("-n {ranks} is not the sum of the --site options, which is {sum}: leave -n out or correct one of them")]
    Sum { ranks: u32, sum: u64 },
    /// A site has too few slots.
    #[error("site {site} has room for {} on its {}{limit}, not for {ranks}: {advice}",
        counted(*room, "rank"), counted(*nodes, "node"))]
    Full { site: String, room: u64, nodes: usize, limit: String, ranks: u32, advice: &'static str },
    /// All sites together have too few slots.
    #[error("all sites together have room for {} ({detail}), not for {ranks}: {advice}", counted(*room, "rank"))]
    AllFull { room: u64, detail: String, ranks: u32, advice: &'static str },
    /// Nodes must be filled, but the sites file does not give the slots of one.
    #[error(
        "--map-by slot fills nodes, but site {site} does not say how many slots node {node} has: add `slots` to the node in the sites \
         file, or give --ranks-per-node K"
    )]
    NoSlots { site: String, node: String },
    /// The job has more ranks, nodes or sites than addresses can name.
    #[error(transparent)]
    Roster(#[from] types::roster::RosterError),
}

/// The remedy if a site is too small.
fn advice<'a>(mut sites: impl Iterator<Item = &'a Site>) -> &'static str {
    if sites.all(|site| site.starter.allocates()) {
        "ask for fewer, or for a batch job with more slots"
    } else {
        "ask for fewer, raise --ranks-per-node or `slots`, or add nodes to the sites file"
    }
}

/// The roster for a wish. `home` is the launcher's site. It is in every roster; if it gets no ranks, it has no nodes.
///
/// Ranks form contiguous blocks: sites in the order of the file, nodes in the order of their site.
///
/// # Errors
/// [`SpreadError`], which names the numbers that do not fit.
pub fn spread(file: &SitesFile, home: &str, wish: &Wish) -> Result<Roster, SpreadError> {
    file.site(home).ok_or_else(|| unknown(file, home))?;
    let mut sites = Vec::new();
    for (site, ranks) in file.sites.iter().zip(counts(file, wish)?) {
        let nodes = node_counts(site, ranks, wish)?;
        if ranks > 0 || site.name == home {
            sites.push(SiteRoster { name: site.name.clone(), nodes });
        }
    }
    Ok(Roster::new(sites)?)
}

/// The number of ranks at each site of the file. A site whose nodes are not known yet takes any number.
///
/// # Errors
/// [`SpreadError`], which names the numbers that do not fit.
pub fn counts(file: &SitesFile, wish: &Wish) -> Result<Vec<u32>, SpreadError> {
    for (at, (site, _)) in wish.per_site.iter().enumerate() {
        file.site(site).ok_or_else(|| unknown(file, site))?;
        if wish.per_site[..at].iter().any(|(other, _)| other == site) {
            return Err(SpreadError::Twice(site.clone()));
        }
    }
    let settled = |site: &&Site| {
        site.nodes.iter().find(|node| node.slots.is_none()).map(|node| (site.name.clone(), node.name.clone()))
    };
    if wish.fill
        && wish.ranks_per_node.is_none()
        && let Some((site, node)) =
            file.sites.iter().filter(|site| takes_part(wish, site)).find_map(|site| settled(&site))
    {
        return Err(SpreadError::NoSlots { site, node });
    }
    let counts = site_counts(file, wish)?;
    Roster::check_ranks(counts.iter().map(|ranks| u64::from(*ranks)).sum())?;
    for (site, ranks) in file.sites.iter().zip(&counts).filter(|(site, _)| !is_unknown(site)) {
        node_counts(site, *ranks, wish)?;
    }
    Ok(counts)
}

fn takes_part(wish: &Wish, site: &Site) -> bool {
    wish.per_site.is_empty() || wish.per_site.iter().any(|(name, ranks)| *name == site.name && *ranks > 0)
}

fn unknown(file: &SitesFile, site: &str) -> SpreadError {
    SpreadError::UnknownSite { site: site.to_owned(), known: file.names() }
}

/// True if the site's nodes come from a batch job that does not exist yet.
pub(crate) fn is_unknown(site: &Site) -> bool {
    site.nodes.is_empty() && site.starter.allocates()
}

fn site_counts(file: &SitesFile, wish: &Wish) -> Result<Vec<u32>, SpreadError> {
    if !wish.per_site.is_empty() {
        let sum: u64 = wish.per_site.iter().map(|(_, ranks)| u64::from(*ranks)).sum();
        if let Some(ranks) = wish.ranks.filter(|ranks| u64::from(*ranks) != sum) {
            return Err(SpreadError::Sum { ranks, sum });
        }
        if sum == 0 {
            return Err(SpreadError::Zero);
        }
        let asked = |site: &Site| wish.per_site.iter().find(|(name, _)| *name == site.name).map_or(0, |(_, n)| *n);
        return Ok(file.sites.iter().map(asked).collect());
    }
    let ranks = wish.ranks.ok_or(SpreadError::NoNumber)?;
    if ranks == 0 {
        return Err(SpreadError::Zero);
    }
    let rooms: Vec<u64> = file
        .sites
        .iter()
        .map(|site| match is_unknown(site) {
            true => u64::from(u32::MAX),
            false => site.nodes.iter().map(|node| room(node.slots, wish.ranks_per_node)).sum(),
        })
        .collect();
    let counts = if wish.fill { fill_in_order(ranks, &rooms) } else { fill_evenly(ranks, &rooms) };
    counts.ok_or_else(|| SpreadError::AllFull {
        room: rooms.iter().sum(),
        detail: file.sites.iter().zip(&rooms).map(|(s, r)| format!("{} {r}", s.name)).collect::<Vec<_>>().join(", "),
        ranks,
        advice: advice(file.sites.iter().filter(|site| takes_part(wish, site))),
    })
}

pub(crate) fn node_counts(site: &Site, ranks: u32, wish: &Wish) -> Result<Vec<NodeRoster>, SpreadError> {
    let per_node = wish.ranks_per_node;
    let rooms: Vec<u64> = site.nodes.iter().map(|node| room(node.slots, per_node)).collect();
    let counts =
        if per_node.is_some() || wish.fill { fill_in_order(ranks, &rooms) } else { fill_evenly(ranks, &rooms) };
    let counts = counts.ok_or_else(|| SpreadError::Full {
        site: site.name.clone(),
        room: rooms.iter().sum(),
        nodes: site.nodes.len(),
        limit: per_node.map_or_else(String::new, |k| format!(" (--ranks-per-node {k})")),
        ranks,
        advice: advice(std::iter::once(site)),
    })?;
    let nodes = site.nodes.iter().zip(counts).filter(|(_, ranks)| *ranks > 0);
    Ok(nodes.map(|(node, ranks)| NodeRoster { name: node.name.clone(), ranks }).collect())
}

fn room(slots: Option<u32>, per_node: Option<u32>) -> u64 {
    u64::from(slots.unwrap_or(u32::MAX).min(per_node.unwrap_or(u32::MAX)))
}

/// Shares `total` as evenly as the rooms allow. The first ones get the remainder. `None` if it does not fit.
pub(crate) fn fill_evenly(total: u32, rooms: &[u64]) -> Option<Vec<u32>> {
    let mut counts = vec![0u32; rooms.len()];
    let mut left = total;
    while left > 0 {
        let open: Vec<usize> = (0..rooms.len()).filter(|at| u64::from(counts[*at]) < rooms[*at]).collect();
        let count = u32::try_from(open.len()).ok().filter(|count| *count > 0)?;
        let (share, rest) = (left / count, left % count);
        for (order, at) in open.into_iter().enumerate() {
            let wanted = share + u32::from((order as u32) < rest);
            let given = wanted.min(u32::try_from(rooms[at] - u64::from(counts[at])).unwrap_or(u32::MAX));
            counts[at] += given;
            left -= given;
        }
    }
    Some(counts)
}

fn fill_in_order(total: u32, rooms: &[u64]) -> Option<Vec<u32>> {
    let mut left = total;
    let counts = rooms.iter().map(|room| {
        let given = left.min(u32::try_from(*room).unwrap_or(u32::MAX));
        left -= given;
        given
    });
    let counts = counts.collect();
    (left == 0).then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(sites: &[(&str, &[Option<u32>])]) -> SitesFile {
        let mut text = String::new();
        for (name, nodes) in sites {
            text += &format!("[[site]]\nname=\"{name}\"\nfingerprint=\"sha256:{}\"\n", "0".repeat(64));
            text += "[[site.gateway]]\nname=\"gw1\"\ninside=\"h:1\"\n";
            for (n, slots) in nodes.iter().enumerate() {
                let slots = slots.map_or(String::new(), |s| format!("slots={s}\n"));
                text += &format!("[[site.node]]\nname=\"n{}\"\n{slots}", n + 1);
            }
        }
        SitesFile::parse(&text, "test").unwrap()
    }

    fn two_by_two() -> SitesFile {
        file(&[("a", &[None, None]), ("b", &[None, None])])
    }

    fn text(file: &SitesFile, wish: Wish) -> String {
        spread(file, "a", &wish).map_or_else(|e| e.to_string(), |roster| roster.to_string())
    }

    fn n(ranks: u32) -> Wish {
        Wish { ranks: Some(ranks), ..Wish::default() }
    }

    #[test]
    fn evenly_over_sites_and_nodes_in_blocks() {
        let file = two_by_two();
        assert_eq!(text(&file, n(4)), "a:n1*1,n2*1;b:n1*1,n2*1");
        assert_eq!(text(&file, n(7)), "a:n1*2,n2*2;b:n1*2,n2*1");
        assert_eq!(text(&file, n(1)), "a:n1*1");
        assert_eq!(text(&file, n(12)), "a:n1*3,n2*3;b:n1*3,n2*3");
    }

    #[test]
    fn ranks_per_node_fills_nodes_in_order() {
        let file = two_by_two();
        assert_eq!(text(&file, Wish { ranks_per_node: Some(2), ..n(4) }), "a:n1*2;b:n1*2");
        assert!(
            text(&file, Wish { ranks_per_node: Some(2), ..n(9) }).contains("room for 8 ranks (a 4, b 4), not for 9")
        );
    }

    #[test]
    fn sites_can_be_named() {
        let file = two_by_two();
        let of = |sites: &[(&str, u32)]| Wish {
            per_site: sites.iter().map(|(s, n)| ((*s).to_owned(), *n)).collect(),
            ..Wish::default()
        };
        assert_eq!(text(&file, of(&[("b", 3)])), "a:;b:n1*2,n2*1");
        assert_eq!(text(&file, of(&[("b", 1), ("a", 2)])), "a:n1*1,n2*1;b:n1*1");
        assert!(text(&file, of(&[("c", 1)])).contains("unknown site `c`: the sites file has a, b"));
        assert!(text(&file, of(&[("a", 1), ("a", 1)])).contains("given twice"));
        assert!(text(&file, Wish { ranks: Some(4), ..of(&[("a", 1)]) }).contains("-n 4 is not the sum"));
        let full = text(&file, Wish { ranks_per_node: Some(1), ..of(&[("a", 3)]) });
        assert!(full.contains("site a has room for 2 ranks on its 2 nodes (--ranks-per-node 1), not for 3"), "{full}");
    }

    #[test]
    fn slots_push_ranks_elsewhere() {
        let file = file(&[("a", &[Some(1)]), ("b", &[Some(4), None])]);
        assert_eq!(text(&file, n(5)), "a:n1*1;b:n1*2,n2*2");
        assert_eq!(text(&file, n(0)), SpreadError::Zero.to_string());
        assert_eq!(text(&file, Wish::default()), SpreadError::NoNumber.to_string());
    }

    proptest! {
        #[test]
        fn shares_add_up_within_the_rooms(total in 0u32..500, rooms in prop::collection::vec(0u64..100, 1..9)) {
            match fill_evenly(total, &rooms) {
                Some(counts) => {
                    prop_assert_eq!(counts.iter().sum::<u32>(), total);
                    prop_assert!(counts.iter().zip(&rooms).all(|(c, r)| u64::from(*c) <= *r));
                }
                None => prop_assert!(u64::from(total) > rooms.iter().sum::<u64>()),
            }
        }
    }

    #[test]
    fn nodes_are_filled_slot_by_slot_across_sites() {
        let file = file(&[("a", &[Some(2), Some(3)]), ("b", &[Some(4)])]);
        let fill = |ranks| Wish { fill: true, ..n(ranks) };
        assert_eq!(text(&file, fill(4)), "a:n1*2,n2*2");
        assert_eq!(text(&file, fill(7)), "a:n1*2,n2*3;b:n1*2");
        assert!(text(&file, fill(10)).contains("room for 9 ranks"));
        assert!(text(&two_by_two(), fill(2)).contains("does not say how many slots node n1 has"));
        let both = Wish { ranks_per_node: Some(1), ..fill(2) };
        assert_eq!(text(&two_by_two(), both), "a:n1*1,n2*1");
    }
}
