//! The memory that a site's ranks share: the site's `memory`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::wrong::Wrong;

/// The location of shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// The ranks of each node, in its `/dev/shm`.
    #[default]
    Node,
    /// The ranks of all nodes of the site, in a folder whose files every node can map.
    Pool(PathBuf),
    /// No shared memory.
    Off,
}

impl Memory {
    /// Reads the value in the sites file.
    pub(super) fn check(text: Option<&str>) -> Result<Memory, Wrong> {
        match text {
            None | Some("/dev/shm") => Ok(Memory::Node),
            Some("off") => Ok(Memory::Off),
            Some(path) if path.starts_with('/') => Ok(Memory::Pool(path.into())),
            Some(other) => {
                let problem = "is neither the absolute path of a folder that all nodes of the site map, nor \"off\"";
                Err(Wrong::new("memory", format!("`{other}` {problem}")))
            }
        }
    }
}
