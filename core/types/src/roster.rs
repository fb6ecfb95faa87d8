//! The placement of a job's ranks on nodes and sites.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::id::{NodeId, Rank, SiteId, Slot};

/// The ranks of a job, in blocks: sites in order, nodes in order, ranks contiguous.
///
/// Has a one-line text form for environment variables: `lyon:n1*2,n2*2;nancy:gpu7*4`.
/// Deserializing a peer's roster makes the same checks as [`Roster::new`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Roster {
    sites: Vec<SiteRoster>,
}

/// A roster from a peer, not yet checked.
#[derive(Deserialize)]
struct Unchecked {
    sites: Vec<SiteRoster>,
}

impl TryFrom<Unchecked> for Roster {
    type Error = RosterError;
    fn try_from(unchecked: Unchecked) -> Result<Roster, RosterError> {
        Roster::new(unchecked.sites)
    }
}

/// A site's part of a [`Roster`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteRoster {
    /// The site's name in the sites file.
    pub name: String,
    /// Its nodes with a part in the job, in order.
    pub nodes: Vec<NodeRoster>,
}

/// A node's part of a [`Roster`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRoster {
    /// The node's name in the sites file.
    pub name: String,
    /// Number of its ranks.
    pub ranks: u32,
}

/// The place of a rank: its site, its node, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPlace<'a> {
    /// Index of the site in the roster.
    pub site: SiteId,
    pub site_name: &'a str,
    /// Index of the node within its site.
    pub node: NodeId,
    pub node_name: &'a str,
    /// The rank's number among the ranks of its node.
    pub local_rank: u32,
}

impl fmt::Display for RankPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.site_name, self.node_name)
    }
}

/// Reasons for refusing a roster.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RosterError {
    /// More ranks, nodes or sites than addresses can name.
    #[error("{what}: {count} is more than the {limit} an address can name")]
    TooLarge {
        /// The kind of thing: ranks, nodes or sites.
        what: &'static str,
        /// Their number.
        count: u64,
        limit: u64,
    },
    /// A name is empty, longer than 64 bytes, or has a character other than letters, digits, `.`, `_` and `-`.
    #[error("`{0}` cannot name a site or node: names are 1 to 64 letters, digits, `.`, `_` and `-`")]
    Name(String),
    /// The text form could not be read.
    #[error("roster `{0}`: expected `site:node*ranks,…;site:…`")]
    Syntax(String),
}

/// The name in a roster for the machine of a site's gateway. An entry without ranks forwards ports there; its ranks are
/// movers of files, never an MPI program's. No node of a sites file may have this name.
pub const FORWARDER: &str = "_gateway";

/// Returns true if a text can name a site or a node: 1 to 64 letters, digits, `.`, `_` or `-`.
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

impl Roster {
    /// A roster of these sites.
    ///
    /// # Errors
    /// An invalid name, or more sites, nodes or ranks than an address can hold.
    pub fn new(sites: Vec<SiteRoster>) -> Result<Roster, RosterError> {
        let limit = |what, count: u64, limit: u64| {
            if count > limit { Err(RosterError::TooLarge { what, count, limit }) } else { Ok(()) }
        };
        limit("sites", sites.len() as u64, 1 << 16)?;
        let mut ranks = 0u64;
        for site in &sites {
            for name in std::iter::once(&site.name).chain(site.nodes.iter().map(|n| &n.name)) {
                if !is_name(name) {
                    return Err(RosterError::Name(name.clone()));
                }
            }
            limit("nodes of a site", site.nodes.len() as u64, 1 << 16)?;
            ranks += site.nodes.iter().map(|n| u64::from(n.ranks)).sum::<u64>();
        }
        Roster::check_ranks(ranks)?;
        Ok(Roster { sites })
    }

    /// Checks that addresses can name this number of ranks.
    ///
    /// # Errors
    /// [`RosterError::TooLarge`].
    pub fn check_ranks(count: u64) -> Result<(), RosterError> {
        let limit = u64::from(Slot::MAX_RANK) + 1;
        if count > limit { Err(RosterError::TooLarge { what: "ranks", count, limit }) } else { Ok(()) }
    }

    /// The sites in order.
    pub fn sites(&self) -> &[SiteRoster] {
        &self.sites
    }

    /// One site, if it exists.
    pub fn site(&self, site: SiteId) -> Option<&SiteRoster> {
        self.sites.get(usize::from(site.0))
    }

    /// Number of ranks in the job.
    pub fn size(&self) -> u32 {
        self.sites.iter().map(SiteRoster::size).sum()
    }

    /// Every node with its first rank, in rank order.
    pub fn nodes(&self) -> impl Iterator<Item = (SiteId, NodeId, Rank, &NodeRoster)> {
        let mut next = 0;
        self.sites
            .iter()
            .enumerate()
            .flat_map(|(s, site)| {
                site.nodes.iter().enumerate().map(move |(n, node)| (SiteId(s as u16), NodeId(n as u32), node))
            })
            .map(move |(s, n, node)| {
                let first = Rank(next);
                next += node.ranks;
                (s, n, first, node)
            })
    }

    /// The place of a rank; `None` when the job has no such rank.
    pub fn place(&self, rank: Rank) -> Option<RankPlace<'_>> {
        self.nodes().find(|(_, _, first, node)| rank.0 >= first.0 && rank.0 < first.0 + node.ranks).map(
            |(site, id, first, node)| RankPlace {
                site,
                site_name: &self.sites[usize::from(site.0)].name,
                node: id,
                node_name: &node.name,
                local_rank: rank.0 - first.0,
            },
        )
    }
}

impl SiteRoster {
    /// Number of ranks at the site.
    pub fn size(&self) -> u32 {
        self.nodes.iter().map(|n| n.ranks).sum()
    }
}

impl fmt::Display for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (s, site) in self.sites.iter().enumerate() {
            write!(f, "{}{}:", if s == 0 { "" } else { ";" }, site.name)?;
            for (n, node) in site.nodes.iter().enumerate() {
                write!(f, "{}{}*{}", if n == 0 { "" } else { "," }, node.name, node.ranks)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Roster {
    type Err = RosterError;
    fn from_str(text: &str) -> Result<Roster, RosterError> {
        let syntax = || RosterError::Syntax(text.to_owned());
        let node = |word: &str| {
            let (name, ranks) = word.split_once('*').ok_or_else(syntax)?;
            Ok(NodeRoster { name: name.to_owned(), ranks: ranks.parse().map_err(|_| syntax())? })
        };
        let site = |word: &str| {
            let (name, nodes) = word.split_once(':').ok_or_else(syntax)?;
            let nodes = nodes.split(',').filter(|n| !n.is_empty()).map(node).collect::<Result<_, RosterError>>()?;
            Ok(SiteRoster { name: name.to_owned(), nodes })
        };
        Roster::new(text.split(';').map(site).collect::<Result<_, RosterError>>()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_places() {
        let roster: Roster = "a:n1*2,n2*1;b:n1*3".parse().unwrap();
        assert_eq!(roster.size(), 6);
        let place = roster.place(Rank(4)).unwrap();
        assert_eq!((place.site, place.node, place.local_rank), (SiteId(1), NodeId(0), 1));
        assert_eq!(place.to_string(), "b/n1");
        assert_eq!(roster.place(Rank(2)).unwrap().to_string(), "a/n2");
        assert_eq!(roster.place(Rank(6)), None);
        assert_eq!(roster.to_string().parse::<Roster>().unwrap(), roster);
    }

    #[test]
    fn bad_rosters_are_named() {
        for bad in ["", "a", "a:n1", "a:n1*x", "a:n 1*2", "a:n1*4294967295,n2*4294967295"] {
            assert!(bad.parse::<Roster>().is_err(), "{bad}");
        }
    }
}
