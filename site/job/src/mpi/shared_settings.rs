//! Settings that several MPI libraries need.

use crate::environment::Environment;

/// Sets a variable to the only value that works. Adds a note if this replaces another value of the user.
pub(super) fn insist(environment: &mut Environment, name: &str, value: &str, notes: &mut Vec<String>) {
    if let Some(old) = environment.get(name).filter(|old| *old != value) {
        notes.push(format!("{name}={} cannot work across sites; using {name}={value}", old.display()));
    }
    environment.set(name, value);
}

/// Switches off the confirmation of sends. MPICH and its derivatives open their endpoints for confirmed delivery,
/// because their one-sided operations need it; every send would then cost a confirmation that it does not need.
pub(super) fn do_not_confirm_sends(environment: &mut Environment) {
    environment.set_default("LANDBRIDGE_CONFIRM_SENDS", "no");
}
