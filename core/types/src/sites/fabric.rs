//! The `fabric` and `libfabric` of a site: its own network, and the library that reaches it.

use serde::{Deserialize, Serialize};

use super::wrong::Wrong;

/// A site's own network, by its libfabric names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// libfabric's provider, such as `verbs`, `cxi` or `tcp`; a layered one has a semicolon, as in `verbs;ofi_rxm`.
    pub provider: String,
    /// Path of the libfabric that contains the provider. `None`: the MPI library's own libfabric, else one of the
    /// system's.
    pub library: Option<String>,
}

/// A provider that reaches only processes of one node.
const WITHIN_A_NODE: &str = "shm";

/// Checks the two fields. `nodes`: number of nodes listed for the site.
pub(super) fn check(fabric: Option<String>, library: Option<String>, nodes: usize) -> Result<Option<Fabric>, Wrong> {
    let Some(provider) = fabric else {
        return match library {
            None => Ok(None),
            Some(path) => {
                let problem = format!("`{path}` has no effect without `fabric`: set that too, or remove this");
                Err(Wrong::new("libfabric", problem))
            }
        };
    };
    let is_name = |part: &str| {
        !part.is_empty() && part.len() <= 32 && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    if !provider.split(';').all(is_name) || provider.split(';').any(|part| part == "landbridge") {
        let problem = format!(
            "`{provider}` is not a libfabric provider such as verbs, cxi, efa, psm3 or tcp (`fi_info` lists them)"
        );
        return Err(Wrong::new("fabric", problem));
    }
    if provider == WITHIN_A_NODE && nodes > 1 {
        let problem = format!("`{provider}` reaches no other node, and this site has {nodes}");
        return Err(Wrong::new("fabric", problem));
    }
    if let Some(path) = library.as_ref().filter(|path| !path.starts_with('/')) {
        return Err(Wrong::new("libfabric", format!("`{path}` is not an absolute path of a libfabric.so.1")));
    }
    Ok(Some(Fabric { provider, library }))
}
