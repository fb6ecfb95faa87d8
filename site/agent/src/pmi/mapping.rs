//! `PMI_process_mapping`: the ranks that share a node, in MPICH's format.

use std::fmt::Write;

use types::Roster;

/// The mapping of a roster: `(vector,(first node,nodes,ranks per node),…)`, with nodes numbered over all sites.
///
/// MPICH and Intel MPI use it to decide which ranks share memory.
pub fn process_mapping(roster: &Roster) -> String {
    let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
    for (at, (_, _, _, node)) in roster.nodes().enumerate() {
        match blocks.last_mut() {
            Some((_, nodes, ranks)) if *ranks == node.ranks => *nodes += 1,
            _ => blocks.push((at as u32, 1, node.ranks)),
        }
    }
    let mut out = String::from("(vector");
    for (first, nodes, ranks) in blocks {
        let _ = write!(out, ",({first},{nodes},{ranks})");
    }
    out + ")"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_nodes_share_a_block() {
        let of = |text: &str| process_mapping(&text.parse().unwrap());
        assert_eq!(of("a:n1*2,n2*2;b:n1*2,n2*2"), "(vector,(0,4,2))");
        assert_eq!(of("a:n1*2,n2*1;b:n1*1,n2*3"), "(vector,(0,1,2),(1,2,1),(3,1,3))");
        assert_eq!(of("a:;b:n1*1"), "(vector,(0,1,1))");
    }
}
