//! The sites file: the user's description of the sites, in TOML.
//!
//! `docs/sites-file.md` documents every field for users. The caller reads the file from disk and passes in its text and
//! name; an error names the file and the wrong entry.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use host::{host_port, listen_address};
use wrong::Wrong;

use crate::id::SiteId;
use crate::quantity::{parse_bytes, parse_duration};
use crate::roster;
use crate::untrusted::printable;

mod approach;
mod fabric;
mod forward;
mod host;
mod inside;
mod keys;
mod links;
mod login;
mod memory;
mod raw;
mod run;
mod starter;
mod wrong;

pub use approach::{Approach, Dialling};
pub use fabric::Fabric;
pub use forward::{Forward, Target, TargetError};
pub use inside::Inside;
pub use keys::Keys;
pub use links::Links;
pub use login::{Login, LoginError};
pub use memory::Memory;
pub use run::RunSettings;
pub use starter::{PLACEHOLDERS, Slurm, Ssh, Starter, Template};

/// Most bytes of a TOML syntax error, which quotes the faulty line.
const MOST_SHOWN: usize = 2000;

/// The parsed and checked sites file. The order of sites is the order of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SitesFile {
    /// The sites, in the order of the file.
    pub sites: Vec<Site>,
}

/// One private cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Its name, unique in the file.
    pub name: String,
    /// Path of the site's private key (PKCS#8 PEM), relative to the sites file. Only the site's own gateways and users
    /// need it.
    pub key: Option<String>,
    /// The ssh login by which the site's user reaches it: `[user@]host[:port]`. Used by the `sites` commands and by
    /// `run` on machines outside all sites.
    pub ssh: Option<Login>,
    /// The folder at the site that holds the copies made by `sites add`. `None`: its default.
    pub folder: Option<String>,
    /// Fingerprint of the site's public key: `sha256:` and 64 hexadecimal digits. Peers identify the site by it.
    pub fingerprint: Fingerprint,
    /// Fingerprint of the key that will replace it. `None`: no change is planned.
    pub next: Option<Fingerprint>,
    /// Its gateways, at least one.
    pub gateways: Vec<Gateway>,
    /// Its nodes: at least one, or none where they come from a batch job ([`Starter::allocates`]).
    pub nodes: Vec<Node>,
    /// The way of starting agents on its nodes.
    pub starter: Starter,
    /// The memory that its ranks share.
    pub memory: Memory,
    /// Settings for programs that run there.
    pub run: RunSettings,
    /// Its own network. `None`: its ranks use TCP.
    pub fabric: Option<Fabric>,
    /// Encryption of the traffic among its ranks, and between them and its gateways.
    pub inside: Inside,
    /// Time for which its gateways keep jobs waiting for an unreachable site.
    pub patience: Duration,
    /// The ports that `landbridge forward` may reach there.
    pub forward: Forward,
}

impl Site {
    /// The keys that identify the site.
    pub fn keys(&self) -> Keys {
        Keys { current: self.fingerprint, next: self.next }
    }
}

/// The smallest share of half of a gateway's memory that each member at other sites needs, in bytes: two full frames.
pub const LEAST_SHARE: u64 = 32 << 10;

/// The default `listen` of a gateway: `port` of every address of its machine, IPv6 and IPv4.
pub fn any_address(port: u16) -> String {
    format!("[::]:{port}")
}

/// A gateway of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its name, unique in the site.
    pub name: String,
    /// `host:port` that other sites dial. `None`: it cannot be dialled and dials out instead.
    pub advertise: Option<String>,
    /// The ssh login for gateways of other sites, on a machine that reaches `inside`, where firewalls let only ssh
    /// pass.
    pub ssh: Option<Login>,
    /// `host:port` that ranks and agents of its own site dial.
    pub inside: String,
    /// `address:port` that it binds. `[::]:port` means every address of both families.
    pub listen: String,
    /// Most memory it may use for frames in flight, in bytes.
    pub memory: u64,
    /// TCP connections per trunk.
    pub links: Links,
    /// Address of its page and metrics, reachable only from its own machine. `None`: no page.
    pub page: Option<SocketAddr>,
    /// True if two gateways that cannot be dialled may meet at this one, provided that this one can be dialled.
    pub meeting: bool,
}

/// A node of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, unique in the site.
    pub name: String,
    /// The IP its ranks listen on. `None`: the local address of the agent's connection to the gateway.
    pub address: Option<IpAddr>,
    /// Most ranks that the spreading of ranks should place on it. `None`: no limit.
    pub slots: Option<u32>,
}

/// SHA-256 of a site's public key (SubjectPublicKeyInfo, DER).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint(pub [u8; 32]);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> String {
        fingerprint.to_string()
    }
}

/// A text that is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a fingerprint: expected sha256: and 64 hexadecimal digits (`landbridge key` shows it)")]
pub struct FingerprintError(pub String);

impl TryFrom<String> for Fingerprint {
    type Error = FingerprintError;
    fn try_from(text: String) -> Result<Fingerprint, FingerprintError> {
        text.parse()
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = FingerprintError;
    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let wrong = || FingerprintError(text.to_owned());
        let hex = text
            .strip_prefix("sha256:")
            .filter(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .ok_or_else(wrong)?;
        let mut out = [0; 32];
        for (byte, pair) in out.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Fingerprint(out))
    }
}

/// Reasons for refusing a sites file. The message always names the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SitesError {
    /// Not TOML, a missing field, or an unknown one; the text names the line.
    #[error("{origin}: {message}")]
    Syntax {
        origin: String,
        /// The TOML reader's message, with the line.
        message: String,
    },
    /// An invalid value.
    #[error("{origin}: {place}: {message}")]
    Value {
        /// The file.
        origin: String,
        /// Which entry, such as `site lyon: gateway gw1: memory`.
        place: String,
        /// The reason.
        message: String,
    },
}

impl SitesFile {
    /// Reads and checks a sites file's text; `origin` is its name for messages.
    ///
    /// # Errors
    /// [`SitesError`], naming the file, the entry and the value.
    pub fn parse(text: &str, origin: &str) -> Result<SitesFile, SitesError> {
        let file = SitesFile::parse_begun(text, origin)?;
        if file.sites.is_empty() {
            let (place, message) = ("site".to_owned(), "a sites file needs at least one [[site]]".to_owned());
            return Err(SitesError::Value { origin: origin.to_owned(), place, message });
        }
        Ok(file)
    }

    /// Parses and validates a sites file that may name no site yet.
    ///
    /// # Errors
    /// As [`SitesFile::parse`].
    pub fn parse_begun(text: &str, origin: &str) -> Result<SitesFile, SitesError> {
        let raw: raw::SitesFile = toml::from_str(text)
            .map_err(|e| SitesError::Syntax { origin: origin.to_owned(), message: syntax_problem(text, &e) })?;
        let sites = raw.site.into_iter().map(raw::Site::check).collect::<Result<Vec<_>, Wrong>>();
        let checked = sites.and_then(|sites| {
            unique("site", sites.iter().map(|s| s.name.as_str()))?;
            Ok(SitesFile { sites })
        });
        checked.map_err(|Wrong { place, message }| SitesError::Value { origin: origin.to_owned(), place, message })
    }

    /// The site of that name and its index in the file.
    pub fn site(&self, name: &str) -> Option<(SiteId, &Site)> {
        self.sites.iter().enumerate().find(|(_, s)| s.name == name).map(|(i, s)| (SiteId(i as u16), s))
    }

    /// The names of all sites, for messages.
    pub fn names(&self) -> String {
        self.sites.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// The text of a TOML syntax error, with the faulty line; if that is too long to read, only the line's number.
fn syntax_problem(text: &str, error: &toml::de::Error) -> String {
    let whole = error.to_string();
    if whole.len() <= MOST_SHOWN {
        return whole.trim().to_owned();
    }
    let line =
        error.span().map_or(0, |span| text.as_bytes()[..span.start.min(text.len())].split(|b| *b == b'\n').count());
    format!("line {line}: {}", printable(error.message()))
}

/// Returns true if a text can name a site, a gateway or a node in a sites file. Such a name begins with a letter or a
/// digit: it is a word of command lines, where it must not look like an option, and names files.
pub fn is_name(text: &str) -> bool {
    roster::is_name(text) && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

fn name(place: &str, value: String) -> Result<String, Wrong> {
    if is_name(&value) {
        return Ok(value);
    }
    let value = printable(&value);
    let message =
        format!("`{value}` is not a name: letters, digits, `.`, `_` and `-`, at most 64, a letter or a digit first");
    Err(Wrong::new(place, message))
}

/// Checks the path of a site's key.
fn key_path(path: String) -> Result<String, Wrong> {
    match path.is_empty() || path.contains(char::is_control) {
        false => Ok(path),
        true => {
            Err(Wrong::new("key", format!("`{}` is not a path: remove the field, or correct it", printable(&path))))
        }
    }
}

fn unique<'a>(place: &str, names: impl Iterator<Item = &'a str>) -> Result<(), Wrong> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Wrong::new(place, format!("`{name}` appears twice")));
        }
    }
    Ok(())
}

/// Returns true if a path means the same folder wherever it is used: it is absolute, or in the home directory.
pub fn is_fixed_path(path: &str) -> bool {
    path.starts_with('/') || path.starts_with("~/")
}

/// Checks a folder at a site.
fn folder(place: &str, path: String) -> Result<String, Wrong> {
    let shown = printable(&path);
    if path.contains(char::is_control) {
        return Err(Wrong::new(
            place,
            format!("`{shown}` has a control character in it, which a path here may not have"),
        ));
    }
    match is_fixed_path(&path) {
        true => Ok(path),
        false => Err(Wrong::new(place, format!("`{shown}` must begin with / or ~/"))),
    }
}

/// Checks the login of a site or a gateway.
fn login(text: &str) -> Result<Login, Wrong> {
    text.parse().map_err(|error: LoginError| Wrong::new("ssh", error.to_string()))
}

/// Checks `address:port` of a page. The page has no authentication, so only the machine itself may reach it.
fn page(value: &str) -> Result<SocketAddr, Wrong> {
    let address: Option<SocketAddr> = value.parse().ok();
    let address = address.filter(|address| address.ip().is_loopback() && address.port() != 0);
    address.ok_or_else(|| {
        let message = format!(
            "`{value}` is not an address and port that only this machine reaches, such as 127.0.0.1:7780; to open it \
             from elsewhere: ssh -L 7780:127.0.0.1:7780 and the name of the gateway's machine"
        );
        Wrong::new("page", message)
    })
}

#[cfg(test)]
mod tests;
