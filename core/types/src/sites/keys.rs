//! The keys that identify a site.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Fingerprint;

/// The key of a site and its successor. Both are accepted, so that a site can change its key while others still use the
/// old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// The current key.
    pub current: Fingerprint,
    /// The next key.
    pub next: Option<Fingerprint>,
}

impl Keys {
    /// Returns true if a peer that presents this key is the site.
    pub fn accept(&self, presented: Option<Fingerprint>) -> bool {
        presented.is_some() && (presented == Some(self.current) || presented == self.next)
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.next {
            None => self.current.fmt(f),
            Some(next) => write!(f, "{} (next {next})", self.current),
        }
    }
}
