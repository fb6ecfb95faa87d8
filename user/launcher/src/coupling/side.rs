//! The messages of the two sides of a coupling before they have a job, and the job that results.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use types::coupling::Process;
use types::roster::RosterError;
use types::{JobId, NodeRoster, Roster, SiteRoster};
use wire::Secret;

/// Version of these messages; incremented when sides no longer understand each other.
pub const PROTOCOL: u32 = 2;

/// The post of a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub protocol: u32,
    /// Version of the program, for messages.
    pub version: String,
    /// The site whose key the helper holds.
    pub home: String,
    /// Sites and nodes of the processes, each pair once.
    nodes: Vec<(String, String)>,
    /// For each process, the index of its node and the address at which it listens.
    processes: Vec<(u32, SocketAddr)>,
    /// The job that this side has opened.
    pub offer: Option<Offer>,
    /// The other side's job that this side has accepted.
    pub accepted: Option<JobId>,
    /// The reason why this side has ended the coupling.
    pub ended: Option<String>,
    /// Third sides that came although this one has a partner.
    pub refused: Vec<RefusedSide>,
}

/// The refusal of a third side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RefusedSide {
    /// The refused side.
    pub side: u64,
    /// The partner's site.
    pub partner: String,
}

/// A job for both sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    /// The side that gets the offer.
    pub to: u64,
    pub job: JobId,
    pub secret: Secret,
    /// Bytes that a process may have in flight initially.
    pub window: u32,
}

/// Reasons why two sides cannot be coupled.
#[derive(Debug, Error)]
pub enum SideError {
    #[error("cannot be read: {0}")]
    Unreadable(String),
    #[error(
        "Landbridge {version} speaks version {protocol} of couplings, this one version {PROTOCOL}: install the same on both sides"
    )]
    Protocol { version: String, protocol: u32 },
    #[error("process {process} is on node {node}, but it names {nodes}")]
    Node { process: usize, node: u32, nodes: usize },
    #[error(transparent)]
    Roster(#[from] RosterError),
}

impl About {
    pub(crate) fn new(home: &str, processes: &[Process]) -> About {
        let mut nodes: Vec<(String, String)> = Vec::new();
        let mut numbers = std::collections::HashMap::new();
        let mut placed = Vec::with_capacity(processes.len());
        for Process { site, node, address } in processes {
            let key = (site.clone(), node.clone());
            let number = *numbers.entry(key.clone()).or_insert_with(|| {
                nodes.push(key);
                nodes.len() as u32 - 1
            });
            placed.push((number, *address));
        }
        About {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            home: home.to_owned(),
            nodes,
            processes: placed,
            offer: None,
            accepted: None,
            ended: None,
            refused: Vec::new(),
        }
    }

    pub(crate) fn text(&self) -> String {
        // This never fails: numbers and strings always have a text.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the other side's post.
    ///
    /// # Errors
    /// The post is from another version, or malformed.
    pub(crate) fn read(text: &str) -> Result<About, SideError> {
        // The fields that every version has come first.
        #[derive(Deserialize)]
        struct Version {
            protocol: u32,
            version: String,
        }
        let unreadable = |e: serde_json::Error| SideError::Unreadable(e.to_string());
        let Version { protocol, version } = serde_json::from_str(text).map_err(unreadable)?;
        if protocol != PROTOCOL {
            return Err(SideError::Protocol { version, protocol });
        }
        let about: About = serde_json::from_str(text).map_err(unreadable)?;
        let nodes = about.nodes.len();
        match about.processes.iter().position(|(node, _)| *node as usize >= nodes) {
            Some(process) => Err(SideError::Node { process, node: about.processes[process].0, nodes }),
            None => Ok(about),
        }
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.processes.iter().map(|(_, address)| *address).collect()
    }

    /// The number of processes and their sites, for messages.
    pub(crate) fn summary(&self) -> String {
        let mut sites: Vec<&str> = self.nodes.iter().map(|(site, _)| site.as_str()).collect();
        sites.dedup();
        format!("{} processes at {}", self.processes.len(), sites.join(", "))
    }
}

/// The roster of a coupling's job, and the ranks of each side's processes in it. Both sides compute the same, provided
/// that the side with the lower number comes first.
pub(crate) fn matched(first: &About, second: &About) -> Result<(Roster, [Vec<u32>; 2]), SideError> {
    // Sites in the order in which they are named; the opener's own comes first, even if none of its processes is there.
    let mut sites: Vec<(&str, Vec<(&str, u32)>)> = vec![(&first.home, Vec::new())];
    let mut places: [Vec<(usize, usize, u32)>; 2] = [Vec::new(), Vec::new()];
    for (side, about) in [first, second].into_iter().enumerate() {
        for (node, _) in &about.processes {
            let (site, node) = &about.nodes[*node as usize];
            let at = sites.iter().position(|(name, _)| name == site).unwrap_or_else(|| {
                sites.push((site, Vec::new()));
                sites.len() - 1
            });
            let nodes = &mut sites[at].1;
            let on = nodes.iter().position(|(name, _)| name == node).unwrap_or_else(|| {
                nodes.push((node, 0));
                nodes.len() - 1
            });
            places[side].push((at, on, nodes[on].1));
            nodes[on].1 += 1;
        }
    }
    let mut firsts = Vec::new();
    let mut next = 0;
    for (_, nodes) in &sites {
        let first = |(_, ranks): &(&str, u32)| {
            next += ranks;
            next - ranks
        };
        firsts.push(nodes.iter().map(first).collect::<Vec<u32>>());
    }
    let node = |(name, ranks): &(&str, u32)| NodeRoster { name: (*name).to_owned(), ranks: *ranks };
    let rosters = sites
        .iter()
        .map(|(name, nodes)| SiteRoster { name: (*name).to_owned(), nodes: nodes.iter().map(node).collect() });
    let roster = Roster::new(rosters.collect())?;
    let ranks = places.map(|side| side.into_iter().map(|(site, node, local)| firsts[site][node] + local).collect());
    Ok((roster, ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(places: &[(&str, &str)]) -> Vec<Process> {
        let process = |(at, (site, node)): (usize, &(&str, &str))| Process {
            site: (*site).to_owned(),
            node: (*node).to_owned(),
            address: SocketAddr::from(([10, 0, 0, 1], 4000 + at as u16)),
        };
        places.iter().enumerate().map(process).collect()
    }

    #[test]
    fn both_sides_find_the_same_ranks() {
        let ocean = About::new("a", &processes(&[("a", "n1"), ("a", "n2"), ("a", "n1")]));
        let air = About::new("b", &processes(&[("b", "m1"), ("a", "n1"), ("b", "m1")]));
        let (roster, ranks) = matched(&ocean, &air).unwrap();
        assert_eq!(roster.to_string(), "a:n1*3,n2*1;b:m1*2");
        assert_eq!(ranks, [vec![0, 3, 1], vec![4, 2, 5]]);
        assert_eq!(About::read(&air.text()).unwrap(), air);
        assert_eq!(air.summary(), "3 processes at b, a");
        // A helper all of whose processes are at other sites.
        let away = About::new("c", &processes(&[("b", "m1")]));
        assert_eq!(matched(&away, &ocean).unwrap().0.to_string(), "c:;b:m1*1;a:n1*2,n2*1");
    }

    #[test]
    fn another_version_and_nonsense_are_named() {
        let text = About::new("a", &processes(&[("a", "n1")])).text();
        let read = |text: &str| About::read(text).unwrap_err().to_string();
        let newer = read(&text.replace("\"protocol\":2", "\"protocol\":3,\"more\":true"));
        assert!(newer.contains("version 3 of couplings, this one version 2"), "{newer}");
        assert!(read("{}").contains("cannot be read"));
        assert!(read(&text.replace("[[0,", "[[7,")).contains("process 0 is on node 7, but it names 1"));
        let strange = About::new("a", &processes(&[("a", "n 1")]));
        assert!(matched(&strange, &strange).unwrap_err().to_string().contains("n 1"));
    }
}
