//! Where the libfabric provider is, and how libfabric is told.

use std::path::{Path, PathBuf};

use types::sites::Fabric;

use super::insist;
use crate::environment::Environment;

/// File name of the provider: libfabric takes files that end in `-fi.so`.
pub const PROVIDER_FILE: &str = "liblandbridge-fi.so";

/// Where the provider should be on this node: `LANDBRIDGE_PROVIDER` of the node, then of the user, else beside this
/// program, else in `../lib/landbridge` from there, where packages put it. Whether it is there is for the caller to see.
pub fn find_provider(environment: &Environment) -> PathBuf {
    const VARIABLE: &str = "LANDBRIDGE_PROVIDER";
    let named = std::env::var_os(VARIABLE).or_else(|| environment.get(VARIABLE).map(Into::into));
    if let Some(path) = named.filter(|path| !path.is_empty()) {
        return PathBuf::from(path);
    }
    beside(&std::env::current_exe().unwrap_or_default())
}

fn beside(program: &Path) -> PathBuf {
    let folder = program.parent().unwrap_or(Path::new("."));
    let packaged = folder.parent().map(|above| above.join("lib/landbridge").join(PROVIDER_FILE));
    let beside = folder.join(PROVIDER_FILE);
    packaged.filter(|packaged| packaged.is_file() && !beside.is_file()).unwrap_or(beside)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_may_keep_it_with_its_libraries() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("bin/landbridge");
        let (here, packaged) = (root.path().join("bin"), root.path().join("lib/landbridge"));
        [&here, &packaged].into_iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
        assert_eq!(beside(&program), here.join(PROVIDER_FILE), "there is none: the first place is named");
        std::fs::write(packaged.join(PROVIDER_FILE), "").unwrap();
        assert_eq!(beside(&program), packaged.join(PROVIDER_FILE));
        std::fs::write(here.join(PROVIDER_FILE), "").unwrap();
        assert_eq!(beside(&program), here.join(PROVIDER_FILE), "what was built here goes first");
    }
}
