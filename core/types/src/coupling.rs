//! Names of couplings, and lines of JSON between a coupling's helper, `landbridge couple`, and the process that has
//! started it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::roster::is_name;

/// A text that names no coupling.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not NAME@SITE, such as ocean@lyon, with letters, digits, `.`, `_` and `-` in both")]
pub struct NameError(pub String);

/// The name and the site of a coupling.
///
/// # Errors
/// [`NameError`].
pub fn name_and_site(text: &str) -> Result<(&str, &str), NameError> {
    let parts = text.split_once('@').filter(|(name, site)| is_name(name) && is_name(site));
    parts.ok_or_else(|| NameError(text.to_owned()))
}

/// A line to the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Said {
    /// First: where processes may be.
    Home { site: String, sites: Vec<Place> },
    /// What the coupling waits for, for the user.
    Waiting(String),
    /// The job.
    Coupled(Box<Coupled>),
    /// Last: the coupling has ended, and why.
    Over(String),
}

/// A site that processes of a side may be at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub name: String,
    /// Names and addresses (`host:port`) of its gateways.
    pub gateways: Vec<(String, String)>,
    /// Fingerprints of its keys, if its network is shared with strangers.
    pub keys: Vec<String>,
}

/// What a process must know to take part in the coupling's job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coupled {
    pub job: String,
    /// In hexadecimal.
    pub secret: String,
    pub roster: String,
    pub window: u32,
    /// Ranks in the job: of this side's processes, of the other's.
    pub ranks: [Vec<u32>; 2],
    /// Where the other side's processes listen.
    pub addresses: Vec<SocketAddr>,
    /// Both sides know which of them is first.
    pub first: bool,
    /// The other side, for messages.
    pub other: String,
}

/// A line from the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Told {
    /// First: its side's processes.
    Processes(Vec<Process>),
    /// Last: it ends the coupling, and why. The end of its input means the same.
    Leave(String),
}

/// A process of a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub site: String,
    pub node: String,
    /// Where it listens for peers of its site.
    pub address: SocketAddr,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coupling_has_a_name_and_a_site() {
        assert_eq!(name_and_site("ocean@lyon"), Ok(("ocean", "lyon")));
        for bad in ["ocean", "@lyon", "ocean@", "o cean@lyon", "ocean@ly/on", "a@b@c"] {
            assert!(name_and_site(bad).unwrap_err().to_string().contains("is not NAME@SITE"), "{bad}");
        }
    }
}
