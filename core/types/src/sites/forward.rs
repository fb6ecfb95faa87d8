//! The ports that a site opens to others through its gateway: the `[site.forward]` table.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::host::MAX_HOST;
use super::wrong::Wrong;

/// Most entries of `allow`.
const MOST: usize = 64;

/// The ports that `landbridge forward` may reach at a site. Empty: none, the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    allow: Vec<Pattern>,
}

/// `HOST:PORT` with a port range, or `*` for any host or any port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pattern {
    /// In lower case. `None`: any.
    host: Option<String>,
    first: u16,
    last: u16,
}

/// A TCP port that a gateway's machine can connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    /// A name or an address, resolved on the gateway's machine; IPv6 addresses without brackets.
    pub host: String,
    /// Never 0.
    pub port: u16,
}

/// A text that is not a target.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not HOST:PORT or PORT, such as 127.0.0.1:8888")]
pub struct TargetError(String);

impl Forward {
    /// Returns true if no target is allowed.
    pub fn is_off(&self) -> bool {
        self.allow.is_empty()
    }

    /// Returns true if this target is allowed. Hosts are compared as texts: `localhost` does not allow `127.0.0.1`.
    pub fn allows(&self, target: &Target) -> bool {
        let host = target.host.to_ascii_lowercase();
        self.allow.iter().any(|pattern| {
            pattern.host.as_ref().is_none_or(|allowed| *allowed == host)
                && (pattern.first..=pattern.last).contains(&target.port)
        })
    }
}

/// The allowed targets, as written in the sites file.
impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Pattern { host, first, last }) in self.allow.iter().enumerate() {
            let host = host.as_deref().map_or("*".to_owned(), bracketed);
            let ports = match (*first, *last) {
                (1, u16::MAX) => "*".to_owned(),
                (first, last) if first == last => first.to_string(),
                (first, last) => format!("{first}-{last}"),
            };
            write!(f, "{}{host}:{ports}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", bracketed(&self.host), self.port)
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

impl FromStr for Target {
    type Err = TargetError;
    fn from_str(text: &str) -> Result<Target, TargetError> {
        let wrong = || TargetError(text.to_owned());
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (unbracketed(host).ok_or_else(wrong)?, port),
            None => ("127.0.0.1".to_owned(), text),
        };
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        Ok(Target { host, port })
    }
}

impl TryFrom<String> for Target {
    type Error = TargetError;
    fn try_from(text: String) -> Result<Target, TargetError> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

/// A host without the brackets of an IPv6 address; `None` if the text cannot be a host.
fn unbracketed(text: &str) -> Option<String> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let host = inner.unwrap_or(text);
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c) || (inner.is_some() && ":%".contains(c));
    (!host.is_empty() && host.len() <= MAX_HOST && host.chars().all(fits)).then(|| host.to_owned())
}

/// The table as written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    #[serde(default)]
    allow: Vec<String>,
}

impl Raw {
    pub(super) fn check(self) -> Result<Forward, Wrong> {
        if self.allow.len() > MOST {
            let message = format!("{} entries; at most {MOST} are allowed", self.allow.len());
            return Err(Wrong::new("allow", message).within("forward"));
        }
        let allow = self.allow.iter().map(|text| {
            pattern(text).ok_or_else(|| {
                let message = format!(
                    "`{}` is not HOST:PORT, HOST:FIRST-LAST or HOST:*, where HOST may be *, such as \"127.0.0.1:8888\"",
                    text.escape_debug()
                );
                Wrong::new("allow", message).within("forward")
            })
        });
        Ok(Forward { allow: allow.collect::<Result<_, _>>()? })
    }
}

fn pattern(text: &str) -> Option<Pattern> {
    let (host, ports) = text.rsplit_once(':')?;
    let host = match host {
        "*" => None,
        host => Some(unbracketed(host)?.to_ascii_lowercase()),
    };
    let (first, last) = match (ports, ports.split_once('-')) {
        ("*", _) => (1, u16::MAX),
        (_, Some((first, last))) => (first.parse().ok()?, last.parse().ok()?),
        (port, None) => (port.parse().ok()?, port.parse().ok()?),
    };
    (first != 0 && first <= last).then_some(Pattern { host, first, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forward(allow: &[&str]) -> Forward {
        Raw { allow: allow.iter().map(|text| text.to_string()).collect() }.check().unwrap_or_default()
    }

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn only_what_is_allowed_is_reached() {
        let some = forward(&["127.0.0.1:8888", "Node1:29500-29509", "[::1]:*"]);
        for (text, allowed) in [
            ("127.0.0.1:8888", true),
            ("8888", true),
            ("127.0.0.1:8889", false),
            ("localhost:8888", false),
            ("node1:29500", true),
            ("NODE1:29509", true),
            ("node1:29510", false),
            ("[::1]:22", true),
        ] {
            assert_eq!(some.allows(&target(text)), allowed, "{text}");
        }
        assert_eq!(some.to_string(), "127.0.0.1:8888, node1:29500-29509, [::1]:*");
        assert!(!forward(&[]).allows(&target("8888")) && forward(&[]).is_off());
        assert!(forward(&["*:22"]).allows(&target("anything:22")));
    }

    #[test]
    fn nonsense_is_named() {
        for bad in ["", "8888", "h:0", "h:9-8", "h:65536", "a b:1", ":1", "[::1:1", "::1:1", "*:1-*"] {
            let Err(error) = (Raw { allow: vec![bad.to_owned()] }).check() else { panic!("{bad} is taken") };
            assert!(error.message.contains(&format!("`{bad}`")), "{}", error.message);
        }
        for bad in ["", "0", "h:0", "h:", "a/b:1", "::1:1", "h:1:2"] {
            let error = bad.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{bad}`")), "{error}");
        }
        assert_eq!(target("[fe80::1%eth0]:5").to_string(), "[fe80::1%eth0]:5");
    }
}
