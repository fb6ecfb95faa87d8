//! The place of files: `[SITE[/NODE,…]:]PATH`.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A path and its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `None`: this machine.
    pub site: Option<String>,
    pub node: NodeChoice,
    pub path: PathBuf,
}

/// A machine of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChoice {
    /// Any machine that can reach the path, such as the gateway's.
    Any,
    /// One node, or several separated by commas.
    Named(String),
    /// `*`: every node of the site.
    All,
}

/// Reasons why a text is not a place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlaceError {
    #[error("`{0}` names no path: a place is PATH, SITE:PATH or SITE/NODE:PATH")]
    NoPath(String),
    #[error(
        "`{0}`: `*` stands for all nodes of one site, SITE/*:PATH; a path that has a colon after it begins with / or ./"
    )]
    Star(String),
    #[error("`{0}` contains a zero byte")]
    Zero(String),
    #[error("`{0}` ends in `..`: name the folder itself")]
    Parent(String),
}

impl Place {
    /// Parses a place. Text before the first colon is a site, and perhaps a node, if it has only letters, digits and
    /// `-_.*`; a path with a colon therefore begins with `/` or `./`.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn parse(text: &OsStr) -> Result<Place, PlaceError> {
        let shown = || text.to_string_lossy().into_owned();
        let bytes = text.as_bytes();
        let (machine, path) = match bytes.iter().position(|byte| *byte == b':') {
            Some(colon) => match Self::machine(&bytes[..colon]) {
                Some(machine) => (machine, &bytes[colon + 1..]),
                None if bytes[..colon].contains(&b'*') && !matches!(bytes[0], b'/' | b'.' | b'~') => {
                    return Err(PlaceError::Star(shown()));
                }
                None => ((None, NodeChoice::Any), bytes),
            },
            None => ((None, NodeChoice::Any), bytes),
        };
        if path.is_empty() {
            return Err(PlaceError::NoPath(shown()));
        }
        if path.contains(&0) {
            return Err(PlaceError::Zero(shown()));
        }
        if Path::new(OsStr::from_bytes(path)).ends_with("..") {
            return Err(PlaceError::Parent(shown()));
        }
        let (site, node) = machine;
        Ok(Place { site, node, path: PathBuf::from(OsString::from(OsStr::from_bytes(path))) })
    }

    /// Returns true if the place may be on several nodes.
    pub fn is_several(&self) -> bool {
        match &self.node {
            NodeChoice::Any => false,
            NodeChoice::Named(names) => names.contains(','),
            NodeChoice::All => true,
        }
    }

    /// Parses `SITE`, `SITE/NODE` or `SITE/NODE,NODE`.
    fn machine(bytes: &[u8]) -> Option<(Option<String>, NodeChoice)> {
        let text = std::str::from_utf8(bytes).ok()?;
        let is_name = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
        };
        let (site, node) = text.split_once('/').map_or((text, None), |(site, node)| (site, Some(node)));
        let node = match node {
            None => NodeChoice::Any,
            Some("*") => NodeChoice::All,
            Some(name) if name.split(',').all(is_name) => NodeChoice::Named(name.to_owned()),
            Some(_) => return None,
        };
        is_name(site).then(|| (Some(site.to_owned()), node))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.site, &self.node) {
            (None, _) => {}
            (Some(site), NodeChoice::Any) => write!(f, "{site}:")?,
            (Some(site), NodeChoice::Named(node)) => write!(f, "{site}/{node}:")?,
            (Some(site), NodeChoice::All) => write!(f, "{site}/*:")?,
        }
        write!(f, "{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Option<String>, NodeChoice, String) {
        let place = Place::parse(OsStr::new(text)).unwrap();
        (place.site, place.node, place.path.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_place_has_a_site_and_a_node_or_neither() {
        let lyon = || Some("lyon".to_owned());
        assert_eq!(parsed("data/in"), (None, NodeChoice::Any, "data/in".into()));
        assert_eq!(parsed("lyon:data/in"), (lyon(), NodeChoice::Any, "data/in".into()));
        assert_eq!(parsed("lyon/n3:/scratch"), (lyon(), NodeChoice::Named("n3".into()), "/scratch".into()));
        assert_eq!(parsed("lyon/n3,n4:/scratch"), (lyon(), NodeChoice::Named("n3,n4".into()), "/scratch".into()));
        assert_eq!(parsed("lyon/*:/scratch"), (lyon(), NodeChoice::All, "/scratch".into()));
        assert_eq!(parsed("lyon:a:b"), (lyon(), NodeChoice::Any, "a:b".into()));
    }

    #[test]
    fn a_path_may_have_colons() {
        for path in ["./a:b", "/a:b", "a/b,:c", "../x:y", "a b:c", "a/b/c:d", "~/a:b", ":x"] {
            assert_eq!(parsed(path), (None, NodeChoice::Any, path.into()));
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        let refused = |text: &str| Place::parse(OsStr::new(text)).unwrap_err().to_string();
        assert!(refused("").contains("names no path"));
        assert!(refused("lyon:").contains("`lyon:` names no path"));
        assert!(refused("lyon:a/..").contains("ends in `..`"));
        assert!(refused("a\0b").contains("zero byte"));
        for typed in ["*/*:/tmp/x", "*:/tmp/x", "lyon/n*:x"] {
            assert!(refused(typed).contains("all nodes of one site"), "{typed}");
        }
        for path in ["./*:x", "/a*:b", "~/*:x"] {
            assert_eq!(parsed(path), (None, NodeChoice::Any, path.into()));
        }
    }

    #[test]
    fn a_place_prints_as_it_was_typed() {
        for text in ["data", "lyon:data", "lyon/n3:/scratch", "lyon/n3,n4:/x", "lyon/*:/scratch"] {
            assert_eq!(Place::parse(OsStr::new(text)).unwrap().to_string(), text);
        }
    }
}
