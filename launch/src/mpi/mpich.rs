//! MPICH: its OFI netmod, whatever it was configured to prefer.

use super::{confirm_no_sends, insist};
use crate::environment::Environment;

pub(super) fn settings(environment: &mut Environment) -> Vec<String> {
    let mut notes = Vec::new();
    insist(environment, "MPIR_CVAR_CH4_NETMOD", "ofi", &mut notes);
    confirm_no_sends(environment);
    notes
}

/// Messages inside a node go through MPICH's own shared memory unless the user has switched that off.
pub(super) fn has_own_memory(environment: &Environment) -> bool {
    let off = environment.get("MPIR_CVAR_NOLOCAL").and_then(|value| value.to_str()).unwrap_or_default();
    !["1", "yes", "true", "on"].iter().any(|word| off.eq_ignore_ascii_case(word))
}
