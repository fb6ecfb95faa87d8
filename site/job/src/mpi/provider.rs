//! The place of the libfabric provider, and the settings with which libfabric loads it.

use std::path::{Path, PathBuf};

use types::sites::Fabric;

use super::shared_settings::insist;
use crate::environment::Environment;

/// File name of the provider. libfabric loads files whose names end in `-fi.so`.
pub const PROVIDER_FILE: &str = "liblandbridge-fi.so";

/// The expected path of the provider on this node: `LANDBRIDGE_PROVIDER` of the node, else that of the user, else
/// beside this program, else `../lib/landbridge` from there, where packages put it. The caller checks that it exists.
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

/// Makes libfabric load and choose the provider. In a job within one site, the user may choose another provider for
/// comparison.
///
/// `FI_PROVIDER_PATH` gets a single directory, because not every libfabric splits it at colons.
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

/// Passes the site's own network on to our provider, if that will be used. The node's `LANDBRIDGE_LIBFABRIC` takes
/// precedence over the site's libfabric.
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

/// True if our provider will be used.
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
        assert_eq!(beside(&program), here.join(PROVIDER_FILE), "there is none: the first place is returned");
        std::fs::write(packaged.join(PROVIDER_FILE), "").unwrap();
        assert_eq!(beside(&program), packaged.join(PROVIDER_FILE));
        std::fs::write(here.join(PROVIDER_FILE), "").unwrap();
        assert_eq!(beside(&program), here.join(PROVIDER_FILE), "the file beside the program takes precedence");
    }
}
