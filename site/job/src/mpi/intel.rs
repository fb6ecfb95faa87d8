//! Intel MPI: its root directory, its libraries, shared memory within a node and OFI between nodes.

use std::path::{Path, PathBuf};

use super::provider::is_ours;
use super::shared_settings::{do_not_confirm_sends, insist};
use crate::environment::Environment;

/// The installation that a library file belongs to, and the folders of its libraries.
fn installation(library: &Path) -> Option<(PathBuf, Vec<PathBuf>)> {
    let folder = library.parent()?;
    let lib = if folder.ends_with("release") || folder.ends_with("debug") { folder.parent()? } else { folder };
    let root = lib.parent()?.to_owned();
    let libfabric = ["opt/mpi/libfabric/lib", "libfabric/lib"].map(|inner| root.join(inner));
    let folders = [folder.to_owned(), lib.to_owned()].into_iter().chain(libfabric.into_iter().filter(|f| f.is_dir()));
    let mut folders: Vec<PathBuf> = folders.collect();
    folders.dedup();
    Some((root, folders))
}

pub(super) fn settings(environment: &mut Environment, library: Option<&Path>, crosses: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some((root, folders)) = library.and_then(installation) {
        environment.set_default("I_MPI_ROOT", root);
        for folder in folders.iter().rev() {
            environment.prepend("LD_LIBRARY_PATH", folder.as_os_str());
        }
        // If the user chose another provider for comparison, it is one of Intel's own.
        if !is_ours(environment) {
            let has_providers = |folder: &PathBuf| folder.join("libtcp-fi.so").is_file();
            let own = folders.iter().flat_map(|folder| [folder.join("prov"), folder.clone()]).find(has_providers);
            if let Some(own) = own {
                environment.set_default("FI_PROVIDER_PATH", own);
            }
        }
    }
    match environment.get("I_MPI_FABRICS").and_then(|value| value.to_str()) {
        Some("ofi" | "shm:ofi") => {}
        Some("shm") if !crosses => {}
        _ => insist(environment, "I_MPI_FABRICS", "shm:ofi", &mut notes),
    }
    if crosses {
        insist(environment, "I_MPI_OFI_PROVIDER", "landbridge", &mut notes);
        // oneCCL would open TCP connections of its own between its ranks, which do not reach another site. Over MPI it
        // needs none. It takes its key-value store from MPI only if its data uses MPI too.
        environment.set_default("CCL_ATL_TRANSPORT", "mpi");
        environment.set_default("CCL_KVS_MODE", "mpi");
    } else {
        let chosen = environment.get("FI_PROVIDER").unwrap_or_default().to_owned();
        environment.set_default("I_MPI_OFI_PROVIDER", chosen);
    }
    environment.set_default("LANDBRIDGE_INJECT", "16KiB");
    do_not_confirm_sends(environment);
    // No Hydra pins the ranks, and several jobs or sites may share a machine.
    environment.set_default("I_MPI_PIN", "0");
    notes
}

/// Makes ranks of one node put their shared files into this folder, which is removed however the ranks end.
pub fn share_memory_in(environment: &mut Environment, folder: &Path) {
    environment.set_default("I_MPI_SHM_FILE_PREFIX_4K", folder);
}

/// Makes ranks that share cores yield, in Intel MPI's own shared memory too. Intel's mpiexec would have passed on the
/// number of the node's cores; without it, ranks yield only if these variables are set. A few polls between two yields
/// then cost no time, and 64 ranks start in 3.7 s instead of 4.4 s.
pub(super) fn share_cores(environment: &mut Environment) {
    environment.set_default("I_MPI_WAIT_MODE", "1");
    environment.set_default("I_MPI_SPIN_COUNT", "20");
}
