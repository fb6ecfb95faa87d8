//! Nodes chosen by name, for `--host` and `--hostfile`. No I/O: removes all other nodes from a sites file.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use types::SitesFile;
use types::quantity::counted;
use types::roster::FORWARDER;
use types::sites::Node;
use types::untrusted::printable;

use crate::spread::{Wish, fill_evenly};

/// A node, and the number of ranks that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub site: String,
    pub node: String,
    pub slots: Option<u32>,
}

/// Reasons why nodes cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HostError {
    #[error("`{0}` is not SITE/NODE or SITE/NODE:N, such as lyon/n1 or lyon/n1:4")]
    Malformed(String),
    /// A line of a hostfile.
    #[error("line {number}: {problem}")]
    Line { number: usize, problem: Box<HostError> },
    #[error("host {host}: unknown site `{site}`: the sites file has {known}")]
    UnknownSite { host: String, site: String, known: String },
    #[error("host {host}: site {site} has no node `{node}`; it has {known}")]
    UnknownNode { host: String, site: String, node: String, known: String },
    #[error("host {host}: the batch system of site {site} chooses its nodes: give --site {site}=N instead")]
    Batch { host: String, site: String },
    /// A line of a hostfile gives a node two numbers of slots.
    #[error("host {host} has {first} slots and {second}: give one of the numbers")]
    Slots { host: String, first: u32, second: u32 },
    #[error("host {0} is given twice: give it once, as {0}:N")]
    Twice(String),
    #[error(
        "the hosts have room for {}, not for {ranks}: name more hosts, or more slots, as SITE/NODE:N",
        counted(*room, "rank")
    )]
    Full { room: u64, ranks: u32 },
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Host, HostError> {
        let malformed = || malformed(text);
        let (site, rest) = text.split_once('/').ok_or_else(malformed)?;
        let (node, slots) = match rest.split_once(':') {
            None => (rest, None),
            Some((node, slots)) => (node, Some(slots.parse().ok().filter(|slots| *slots > 0).ok_or_else(malformed)?)),
        };
        if site.is_empty() || node.is_empty() {
            return Err(malformed());
        }
        Ok(Host { site: site.to_owned(), node: node.to_owned(), slots })
    }
}

impl Host {
    /// Sets the number of slots, which may be set already to the same number.
    fn set_slots(&mut self, slots: u32) -> Result<(), HostError> {
        match self.slots.replace(slots) {
            Some(first) if first != slots => {
                let host = printable(&format!("{}/{}", self.site, self.node));
                Err(HostError::Slots { host, first, second: slots })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.site, self.node)?;
        self.slots.map_or(Ok(()), |slots| write!(f, ":{slots}"))
    }
}

/// The hosts of a hostfile: one per line, with `:N` or with Open MPI's `slots=N` and `max_slots=N`; `#` starts a
/// comment, in any encoding.
///
/// # Errors
/// [`HostError::Line`].
pub fn parse_file(bytes: &[u8]) -> Result<Vec<Host>, HostError> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let lines = (1..).zip(bytes.split(|byte| *byte == b'\n'));
    let texts =
        lines.map(|(number, line)| (number, line.split(|byte| *byte == b'#').next().unwrap_or_default().trim_ascii()));
    let parse = |(number, text): (usize, &[u8])| {
        let host = match str::from_utf8(text) {
            Ok(text) => host(text),
            Err(_) => Err(malformed(&String::from_utf8_lossy(text))),
        };
        host.map_err(|problem| HostError::Line { number, problem: Box::new(problem) })
    };
    texts.filter(|(_, text)| !text.is_empty()).map(parse).collect()
}

fn malformed(text: &str) -> HostError {
    HostError::Malformed(printable(text))
}

/// UTF-8's byte order mark, which some editors write before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses a line of a hostfile.
fn host(line: &str) -> Result<Host, HostError> {
    let Some((name, rest)) = line.split_once(char::is_whitespace) else { return line.parse() };
    let malformed = || malformed(line);
    let (mut host, mut most): (Host, Option<u32>) = (name.parse()?, None);
    // Open MPI allows white space around `=`.
    let apart = rest.replace('=', " = ");
    let words: Vec<&str> = apart.split_whitespace().collect();
    for setting in words.chunks(3) {
        let [name, "=", number] = setting else { return Err(malformed()) };
        let number = number.parse().ok().filter(|number| *number > 0).ok_or_else(malformed)?;
        match *name {
            "slots" => host.set_slots(number)?,
            "max_slots" | "max-slots" => most = Some(number),
            _ => return Err(malformed()),
        }
    }
    host.slots = host.slots.into_iter().chain(most).min();
    Ok(host)
}

/// Reduces the sites of these hosts to these nodes, in this order, and fixes the number of ranks at each site. If no
/// number of ranks is given, a host without slots gets one rank. `movers`: the job moves files; a site's node service
/// starts such a job on any node.
///
/// # Errors
/// [`HostError`].
pub fn choose(file: &mut SitesFile, wish: &mut Wish, hosts: &[Host], movers: bool) -> Result<(), HostError> {
    if hosts.is_empty() {
        return Ok(());
    }
    let counted = wish.ranks.is_some() || !wish.per_site.is_empty();
    let mut chosen: Vec<(usize, Vec<Node>)> = Vec::new();
    for Host { site: site_name, node: name, slots } in hosts {
        let (host, site) = (printable(&format!("{site_name}/{name}")), printable(site_name));
        let at = file.sites.iter().position(|entry| entry.name == *site_name);
        let Some(at) = at else { return Err(HostError::UnknownSite { host, site, known: file.names() }) };
        let entry = &file.sites[at];
        // Movers may run on the gateway's machine, which is no node, and on any node with a node service.
        let any = movers && entry.starter.node_service().is_some();
        if name != FORWARDER && !any && crate::spread::is_unknown(entry) {
            return Err(HostError::Batch { host, site });
        }
        let unlisted = (any || name == FORWARDER).then(|| Node { name: name.clone(), address: None, slots: None });
        let listed = entry.nodes.iter().find(|node| node.name == *name).cloned();
        let Some(mut node) = listed.or(unlisted) else {
            let known = entry.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ");
            return Err(HostError::UnknownNode { host, site, node: printable(name), known: printable(&known) });
        };
        node.slots = slots.or(node.slots).or(if counted { None } else { Some(1) });
        match chosen.iter_mut().find(|(other, _)| *other == at) {
            None => chosen.push((at, vec![node])),
            Some((_, nodes)) if nodes.iter().any(|other| other.name == node.name) => {
                return Err(HostError::Twice(host));
            }
            Some((_, nodes)) => nodes.push(node),
        }
    }
    chosen.sort_by_key(|(at, _)| *at);
    let room = |nodes: &[Node]| nodes.iter().map(|node| u64::from(node.slots.unwrap_or(u32::MAX))).sum::<u64>();
    if wish.per_site.is_empty() {
        let rooms: Vec<u64> = chosen.iter().map(|(_, nodes)| room(nodes)).collect();
        let all = rooms.iter().sum::<u64>();
        let ranks = wish.ranks.unwrap_or(u32::try_from(all).unwrap_or(u32::MAX));
        let counts = fill_evenly(ranks, &rooms).ok_or(HostError::Full { room: all, ranks })?;
        let sites = chosen.iter().zip(counts).map(|((at, _), ranks)| (file.sites[*at].name.clone(), ranks));
        wish.per_site = sites.collect();
    }
    for (at, nodes) in chosen {
        file.sites[at].nodes = nodes;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::spread;

    fn file() -> SitesFile {
        let mut text = String::new();
        for (name, rest) in [
            ("a", "node=[{name=\"n1\"},{name=\"n2\",slots=4}]\n"),
            ("b", "node=[{name=\"n1\"},{name=\"n2\"},{name=\"n3\"}]\n"),
            ("c", "[site.starter]\nkind=\"slurm\"\n"),
            ("d", "[site.starter]\nkind=\"slurm\"\nnode_service=7760\n"),
        ] {
            let print = "0".repeat(64);
            text += &format!(
                "[[site]]\nname=\"{name}\"\nfingerprint=\"sha256:{print}\"\ngateway=[{{name=\"g\",inside=\"h:1\"}}]\n{rest}"
            );
        }
        SitesFile::parse(&text, "x.toml").unwrap()
    }

    fn placed(hosts: &str, ranks: Option<u32>) -> String {
        placed_of(hosts, ranks, false)
    }

    fn placed_of(hosts: &str, ranks: Option<u32>, movers: bool) -> String {
        let hosts: Result<Vec<Host>, _> = hosts.split(',').map(str::parse).collect();
        let (mut file, mut wish) = (file(), Wish { ranks, ..Wish::default() });
        match hosts.and_then(|hosts| choose(&mut file, &mut wish, &hosts, movers)) {
            Err(error) => error.to_string(),
            Ok(()) => spread(&file, "a", &wish).map_or_else(|error| error.to_string(), |roster| roster.to_string()),
        }
    }

    #[test]
    fn only_the_named_nodes_take_part_in_the_order_given() {
        assert_eq!(placed("b/n3,b/n1", Some(4)), "a:;b:n3*2,n1*2");
        assert_eq!(placed("a/n2,b/n3", None), "a:n2*4;b:n3*1", "slots of the file, else one");
        assert_eq!(placed("b/n3:3,b/n1:2", None), "a:;b:n3*3,n1*2");
        assert_eq!(placed("b/n3:3,a/n1", Some(5)), "a:n1*3;b:n3*2");
    }

    #[test]
    fn movers_go_to_any_node_of_a_site_with_a_node_service() {
        assert_eq!(placed_of("d/n7:1,d/n2:1,a/n1:1", Some(3), true), "a:n1*1;d:n7*1,n2*1");
        assert!(placed_of("c/n1", None, true).contains("give --site c=N"));
    }

    #[test]
    fn errors_name_what_cannot_be_chosen() {
        for (hosts, ranks, expected) in [
            ("x/n1", None, "unknown site `x`: the sites file has a, b, c, d"),
            ("a/n9", None, "host a/n9: site a has no node `n9`; it has n1, n2"),
            ("c/n1", None, "give --site c=N"),
            ("d/n1", None, "give --site d=N"),
            ("a/n1,a/n1", None, "host a/n1 is given twice"),
            ("a/n1:2", Some(3), "room for 2 ranks, not for 3"),
            ("n1", None, "`n1` is not SITE/NODE"),
            ("a/n1:0", None, "is not SITE/NODE"),
        ] {
            let error = placed(hosts, ranks);
            assert!(error.contains(expected), "{hosts}: {error}");
        }
    }

    #[test]
    fn a_hostfile_has_one_host_per_line() {
        let hosts = parse_file(
            b"\xef\xbb\xbf# m\xefn\na/n1\r\nb/n2 slots = 3 max_slots=4\n\nb/n3:2 # fast\nb/n4\tmax-slots =5",
        )
        .unwrap();
        let slots: Vec<_> = hosts.iter().map(|host| (host.node.as_str(), host.slots)).collect();
        assert_eq!(slots, [("n1", None), ("n2", Some(3)), ("n3", Some(2)), ("n4", Some(5))]);
        for wrong in ["a/n1 fast", "a/n1 slots", "a/n1 slots=0", "a/n1 slots=2 max_slots", "a/n1 = 2"] {
            assert!(parse_file(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(parse_file(b"a/n\xff1").unwrap_err().to_string().contains("is not SITE/NODE"));
    }

    #[test]
    fn two_numbers_of_slots_must_be_the_same() {
        let hosts = parse_file(b"a/n1:2 slots=2\na/n2 slots=3 slots=3\n").unwrap();
        assert_eq!(hosts.iter().map(|host| host.slots).collect::<Vec<_>>(), [Some(2), Some(3)]);
        for (line, first, second) in [("a/n1:2 slots=3", 2, 3), ("a/n1 slots=4 slots=5", 4, 5)] {
            let error = parse_file(line.as_bytes()).unwrap_err().to_string();
            let expected = format!("line 1: host a/n1 has {first} slots and {second}: give one of the numbers");
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn errors_show_the_beginning_of_a_long_text() {
        let long = "x".repeat(100_000);
        for host in [long.clone(), format!("{long}/n1"), format!("a/{long}"), format!("a/n1:{long}")] {
            let error = placed(&host, None);
            assert!(error.len() < 2000, "{} bytes", error.len());
        }
        for line in [format!("{long} slots=1"), format!("a/n1 {long}"), format!("a/{long}:1 slots=2")] {
            let error = parse_file(line.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("line 1: ") && error.len() < 2000, "{} bytes", error.len());
        }
    }
}
