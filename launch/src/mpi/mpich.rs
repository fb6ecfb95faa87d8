//! MPICH: its OFI netmod, whatever it was configured to prefer.

use super::{confirm_no_sends, insist};
use crate::environment::Environment;

pub(super) fn settings(environment: &mut Environment) -> Vec<String> {
    let mut notes = Vec::new();
    insist(environment, "MPIR_CVAR_CH4_NETMOD", "ofi", &mut notes);
    confirm_no_sends(environment);
    notes
}
