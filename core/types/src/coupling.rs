//! Names of couplings, and the lines of JSON between a coupling's helper, `landbridge couple`, and the process that
//! started it.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::roster::is_name;

/// A text that does not name a coupling.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not NAME@SITE, such as ocean@lyon, with letters, digits, `.`, `_` and `-` in both")]
pub struct NameError(pub String);

/// Splits `NAME@SITE` into the name and the site of a coupling.
///
/// # Errors
/// [`NameError`].
pub fn name_and_site(text: &str) -> Result<(&str, &str), NameError> {
    let parts = text.split_once('@').filter(|(name, site)| is_name(name) && is_name(site));
    parts.ok_or_else(|| NameError(text.to_owned()))
}

/// A line from the helper to the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HelperReport {
    /// Before [`HelperReport::Coupled`]: the sites at which processes may be.
    Home { site: String, sites: Vec<CouplingSite> },
    /// The reason why the coupling is still waiting, for the user.
    Waiting(String),
    /// The job that both sides form.
    Coupled(Box<Coupled>),
    /// Last: the coupling has ended, with the reason.
    Over(String),
}

/// A site at which processes of a side may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CouplingSite {
    pub name: String,
    /// Names and addresses (`host:port`) of its gateways.
    pub gateways: Vec<(String, String)>,
    /// Fingerprints of its keys, if its network is shared with strangers.
    pub keys: Vec<String>,
}

/// The parameters of the coupling's job that every process needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coupled {
    pub job: String,
    /// In hexadecimal.
    pub secret: String,
    pub roster: String,
    pub window: u32,
    /// Ranks in the job: first this side's processes, then the other's.
    pub ranks: [Vec<u32>; 2],
    /// Listening addresses of the other side's processes.
    pub addresses: Vec<SocketAddr>,
    /// True if this side is the first; both sides agree on that.
    pub first: bool,
    /// The other side, for messages.
    pub other: String,
}

/// A line from the process to the helper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HelperOrder {
    /// First: its side's processes.
    Processes(Vec<Process>),
    /// Last: the process ends the coupling, for this reason. The end of the helper's input has the same effect.
    Leave(String),
}

/// A process of a side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pub site: String,
    pub node: String,
    /// Its listening address for peers of its site.
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
