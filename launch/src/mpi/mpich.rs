//! MPICH: its OFI netmod, whatever it was configured to prefer.

use super::insist;
use crate::environment::Environment;

pub(super) fn settings(environment: &mut Environment) -> Vec<String> {
    let mut notes = Vec::new();
    insist(environment, "MPIR_CVAR_CH4_NETMOD", "ofi", &mut notes);
    notes
}
