//! The planned places and programs of a job's ranks, for `run --dry-run`. Contacts no site.

use serde::Serialize;
use types::SitesFile;

use super::allocate::check_memory;
use super::outcome::Failure;
use crate::spread::{Wish, counts, is_unknown, node_counts};
use crate::tailor::Typed;

/// A site's part of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SitePlacement {
    pub name: String,
    pub ranks: Vec<u32>,
    /// The nodes that have ranks. `None`: a batch system chooses them when the job runs.
    pub nodes: Option<Vec<NodePlacement>>,
    /// The program of the site's first rank, with its arguments.
    pub command: Vec<String>,
    /// The working directory of that program.
    pub directory: String,
    /// All programs that have ranks at the site.
    pub parts: Vec<PartPlacement>,
}

/// One of several programs at a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PartPlacement {
    /// The site's ranks that run it.
    pub ranks: Vec<u32>,
    pub command: Vec<String>,
    pub directory: String,
}

/// A node's part of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodePlacement {
    pub name: String,
    pub ranks: Vec<u32>,
}

/// Places every rank; sites without ranks are left out.
///
/// # Errors
/// The numbers do not fit, or a gateway's memory cannot hold the job. `run` reports the same errors before it contacts
/// any site.
pub fn place(file: &SitesFile, wish: &Wish, typed: &Typed) -> Result<Vec<SitePlacement>, Failure> {
    let wrong = |error: crate::spread::SpreadError| Failure::new(error.to_string());
    let counts = counts(file, wish).map_err(wrong)?;
    // A home without ranks is not checked: it relays nothing that needs memory for ranks of its own.
    check_memory(file, "", &counts)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let size = counts.iter().sum();
    let (mut next, mut places) = (0, Vec::new());
    for (site, count) in file.sites.iter().zip(counts).filter(|(_, count)| *count > 0) {
        let first = next;
        let nodes = if is_unknown(site) { None } else { Some(node_counts(site, count, wish).map_err(wrong)?) };
        let nodes = nodes.map(|nodes| {
            let place = |node: types::NodeRoster| {
                let from = next;
                next += node.ranks;
                NodePlacement { name: node.name, ranks: (from..next).collect() }
            };
            nodes.into_iter().map(place).collect()
        });
        next = first + count;
        let program = typed.at(site);
        let parts = program.ranks(size).into_iter().zip(&program.parts).filter_map(|(ranks, part)| {
            let ranks: Vec<u32> = (ranks.start.max(first)..ranks.end.min(next)).collect();
            let command = part.command.iter().map(|word| text(word)).collect();
            (!ranks.is_empty()).then(|| PartPlacement { ranks, command, directory: text(&part.directory) })
        });
        let parts: Vec<PartPlacement> = parts.collect();
        let (command, directory) = match parts.first() {
            Some(part) => (part.command.clone(), part.directory.clone()),
            None => (Vec::new(), String::new()),
        };
        let ranks = (first..next).collect();
        places.push(SitePlacement { name: site.name.clone(), ranks, nodes, command, directory, parts });
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tailor::TypedPart;
    use job::message::Part;

    #[test]
    fn ranks_are_numbered_site_by_site_and_a_batch_systems_nodes_are_left_open() {
        let mut text = String::new();
        for (name, rest) in [
            ("a", "node=[{name=\"n1\"},{name=\"n2\"}]\n[site.run]\ndirectory=\"/a\"\n"),
            ("b", "[site.starter]\nkind=\"slurm\"\n"),
            ("c", "node=[{name=\"m\"}]\n"),
        ] {
            let print = "0".repeat(64);
            text += &format!(
                "[[site]]\nname=\"{name}\"\nfingerprint=\"sha256:{print}\"\ngateway=[{{name=\"g\",inside=\"h:1\"}}]\n{rest}"
            );
        }
        let file = SitesFile::parse(&text, "x.toml").unwrap();
        let part = |first, name: &str| Part {
            first,
            command: vec![name.into()],
            directory: b"/here".to_vec(),
            ..Part::default()
        };
        let typed = |part| TypedPart { part, ..TypedPart::default() };
        let typed = Typed { parts: vec![typed(part(0, "p")), typed(part(4, "q"))], ..Typed::default() };
        let per_site = vec![("a".into(), 3), ("b".into(), 2), ("c".into(), 1)];
        let places = place(&file, &Wish { per_site, ..Wish::default() }, &typed).unwrap();
        let shown: Vec<_> =
            places.iter().map(|place| (&place.name[..], &place.ranks[..], &place.directory[..])).collect();
        assert_eq!(shown, [("a", &[0, 1, 2][..], "/a"), ("b", &[3, 4], "/here"), ("c", &[5], "/here")]);
        let nodes = |at: usize| {
            places[at].nodes.clone().map(|nodes| nodes.into_iter().map(|node| (node.name, node.ranks)).collect())
        };
        assert_eq!(nodes(0), Some(vec![("n1".to_owned(), vec![0, 1]), ("n2".to_owned(), vec![2])]));
        assert_eq!(nodes(1), None::<Vec<(String, Vec<u32>)>>);
        assert_eq!(nodes(2), Some(vec![("m".to_owned(), vec![5])]));
        let parts = |at: usize| places[at].parts.iter().map(|part| (part.command[0].clone(), part.ranks.clone()));
        assert_eq!(parts(0).collect::<Vec<_>>(), [("p".to_owned(), vec![0, 1, 2])]);
        assert_eq!(parts(1).collect::<Vec<_>>(), [("p".to_owned(), vec![3]), ("q".to_owned(), vec![4])]);
        assert_eq!(parts(2).collect::<Vec<_>>(), [("q".to_owned(), vec![5])]);
        assert!(place(&file, &Wish::default(), &typed).unwrap_err().to_string().contains("how many ranks"));
    }
}
