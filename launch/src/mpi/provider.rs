//! Where the libfabric provider is, and how libfabric is told.

use std::path::{Path, PathBuf};

use types::sites::Fabric;

use super::insist;
use crate::environment::Environment;

/// File name of the provider: libfabric takes files that end in `-fi.so`.
pub const PROVIDER_FILE: &str = "liblandbridge-fi.so";

/// Where the provider should be on this node: `LANDBRIDGE_PROVIDER` of the node, then of the user, else beside this
/// program. Whether it is there is for the caller to see.
pub fn find_provider(environment: &Environment) -> PathBuf {
    const VARIABLE: &str = "LANDBRIDGE_PROVIDER";
    let named = std::env::var_os(VARIABLE).or_else(|| environment.get(VARIABLE).map(Into::into));
    if let Some(path) = named.filter(|path| !path.is_empty()) {
        return PathBuf::from(path);
    }
    let program = std::env::current_exe().unwrap_or_default();
    program.parent().unwrap_or(Path::new(".")).join(PROVIDER_FILE)
}

/// Makes libfabric load and choose the provider. Within one site another provider may be chosen (to compare).
///
/// `FI_PROVIDER_PATH` gets one directory: not every libfabric splits it at colons.
pub(super) fn settings(environment: &mut Environment, provider: &Path, crosses: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if crosses {
        insist(environment, "FI_PROVIDER", "landbridge", &mut notes);
    } else {
        environment.set_default("FI_PROVIDER", "landbridge");
    }
    if is_ours(environment) {
        environment.set("FI_PROVIDER_PATH", provider.parent().unwrap_or(Path::new(".")));
    }
    notes
}

/// Tells our provider, if it is the one that will be used, of the site's own network. A libfabric that the node names in
/// `LANDBRIDGE_LIBFABRIC` goes before the site's.
pub fn use_fabric(fabric: Option<&Fabric>, environment: &mut Environment) {
    const LIBRARY: &str = "LANDBRIDGE_LIBFABRIC";
    let Some(fabric) = fabric.filter(|_| is_ours(environment)) else { return };
    environment.set("LANDBRIDGE_FABRIC", &fabric.provider);
    let library = std::env::var_os(LIBRARY).filter(|path| !path.is_empty());
    if let Some(path) = library.or_else(|| fabric.library.as_ref().map(Into::into)) {
        environment.set(LIBRARY, path);
    }
    environment.set("FI_PROVIDER", libfabric::offer::mpis_choice(&fabric.provider));
}

/// Whether our provider is the one that will be used.
pub(super) fn is_ours(environment: &Environment) -> bool {
    environment.get("FI_PROVIDER").is_some_and(|name| name == "landbridge")
}
