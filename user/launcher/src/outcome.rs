//! The summary of a job.

use std::fmt;

use serde::Serialize;

/// An error and its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failure {
    pub site: Option<String>,
    pub node: Option<String>,
    pub rank: Option<u32>,
    /// The reason for the user, without the place.
    pub reason: String,
}

impl Failure {
    /// A failure that belongs to no place.
    pub fn new(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), ..Failure::default() }
    }

    /// A failure at a site. If the reason begins with the site, as gateways' reasons do, that part is removed.
    pub fn at_site(site: &str, reason: impl Into<String>) -> Failure {
        let mut reason = reason.into();
        if let Some(rest) = reason.strip_prefix("site ").and_then(|rest| rest.strip_prefix(site)?.strip_prefix(": ")) {
            reason = rest.to_owned();
        }
        Failure { site: Some(site.to_owned()), ..Failure::new(reason) }
    }

    /// A failure on a node.
    pub fn at_node(site: &str, node: &str, reason: impl Into<String>) -> Failure {
        Failure { node: Some(node.to_owned()), ..Failure::at_site(site, reason) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.site, &self.node, self.rank) {
            (Some(site), Some(node), Some(rank)) => write!(f, "site {site}, node {node}: rank {rank} {}", self.reason),
            (Some(site), Some(node), None) => write!(f, "site {site}, node {node}: {}", self.reason),
            (Some(site), None, _) => write!(f, "site {site}: {}", self.reason),
            _ => f.write_str(&self.reason),
        }
    }
}

/// A site's share of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SiteSummary {
    pub name: String,
    /// The nodes that took part.
    pub nodes: Vec<String>,
    pub ranks: Vec<u32>,
    /// Bytes of frames its gateway sent into trunks for the job; `None` when the site did not report.
    pub bytes_sent: Option<u64>,
    /// Bytes of frames its gateway received from trunks for the job; `None` when the site did not report.
    pub bytes_received: Option<u64>,
}

/// The result of a job. Its JSON form is the output of `landbridge run --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// True if every rank ended with exit code 0.
    pub ok: bool,
    /// The exit code of `run`.
    pub exit_code: i32,
    /// Time from opening the job to its end, in seconds.
    pub seconds: f64,
    pub ranks: u32,
    /// The MPI that was recognised or named.
    pub mpi: Option<String>,
    /// The sites that took part.
    pub sites: Vec<SiteSummary>,
    /// Bytes of frames that crossed trunks.
    pub bytes_relayed: u64,
    /// The failure that is reported as the cause.
    pub failure: Option<Failure>,
}

impl Summary {
    /// True if a signal to `run` ended the job.
    pub fn is_interrupted(&self) -> bool {
        let placeless = |failure: &Failure| failure.site.is_none() && failure.rank.is_none();
        self.exit_code > 128 && self.failure.as_ref().is_some_and(placeless)
    }

    /// The summary of a job that could not be started.
    pub fn without_job(failure: Failure, exit_code: i32, seconds: f64) -> Summary {
        Summary {
            ok: false,
            exit_code,
            seconds,
            ranks: 0,
            mpi: None,
            sites: Vec::new(),
            bytes_relayed: 0,
            failure: Some(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named() {
        let rank = Failure { rank: Some(3), ..Failure::at_node("b", "n2", "killed by signal 9 (SIGKILL)") };
        assert_eq!(rank.to_string(), "site b, node n2: rank 3 killed by signal 9 (SIGKILL)");
        assert_eq!(Failure::at_node("b", "n1", "no").to_string(), "site b, node n1: no");
        assert_eq!(Failure::at_site("b", "no").to_string(), "site b: no");
        assert_eq!(Failure::at_site("b", "site b: gateway gw1: no").to_string(), "site b: gateway gw1: no");
        assert_eq!(Failure::at_site("b", "site bc: no").to_string(), "site b: site bc: no");
        assert_eq!(Failure::new("no").to_string(), "no");
    }
}
