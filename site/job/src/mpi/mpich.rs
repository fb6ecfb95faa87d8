//! MPICH: always uses its OFI netmod, even if it was configured to prefer another one.

use std::path::{Path, PathBuf};

use super::shared_settings::{do_not_confirm_sends, insist};
use crate::environment::Environment;

pub(super) fn settings(environment: &mut Environment) -> Vec<String> {
    let mut notes = Vec::new();
    insist(environment, "MPIR_CVAR_CH4_NETMOD", "ofi", &mut notes);
    do_not_confirm_sends(environment);
    notes
}

/// True if messages within a node use MPICH's own shared memory; the user can switch that off.
pub(super) fn has_own_memory(environment: &Environment) -> bool {
    let off = environment.get("MPIR_CVAR_NOLOCAL").and_then(|value| value.to_str()).unwrap_or_default();
    !["1", "yes", "true", "on"].iter().any(|word| off.eq_ignore_ascii_case(word))
}

/// The path prefixes of the files through which ranks of one job share memory, from MPICH 4.2 on. MPICH builds the
/// names from a hash (FNV-1a) of the job's key-value space and the number of the node.
pub fn shared_files(space: &str) -> Vec<PathBuf> {
    let hash = space.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    ["shm", "vci"].iter().map(|kind| Path::new("/dev/shm").join(format!("mpich_{kind}_{hash:x}_"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_mpich_names_them() {
        // Observed with MPICH 5.0.
        let files = shared_files("landbridge-72bdd5a3");
        assert_eq!(files, ["/dev/shm/mpich_shm_f2ebd3bc_", "/dev/shm/mpich_vci_f2ebd3bc_"].map(PathBuf::from));
    }
}
