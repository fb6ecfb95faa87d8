//! Where the preloaded layer finds the collectives: the one function of this shared object that is not libfabric's.

use std::ptr::null;

use crate::opened::Opened;

/// Which layer the agent made this rank preload; not set if its job uses none.
const LAYER: &str = "LANDBRIDGE_LAYER";

/// The covered functions for the MPI library behind `source`; null if `interface` is that of another release, or if
/// nothing is covered in this process.
///
/// # Safety
/// `source` is null or finds functions and objects of one MPI library, which stays loaded.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn landbridge_collectives(
    interface: u32,
    source: *const collectives::Source,
) -> *const collectives::Table {
    // SAFETY: the caller's promise.
    let Some(source) = (unsafe { source.as_ref() }) else { return null() };
    // SAFETY: the caller's promise.
    unsafe { collectives::table(interface, source, &Opened) }.map_or(null(), std::ptr::from_ref)
}

/// Why this rank must not start: its job's other ranks use a layer that this one has not loaded, and in the first
/// collective operation they would wait for it forever. `None`: it may.
pub(crate) fn missing_layer() -> Option<String> {
    let layer = std::env::var(LAYER).ok()?;
    // SAFETY: the name ends with a zero.
    let loaded = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"landbridge_layer".as_ptr()) };
    if loaded.is_null() {
        return Some(format!(
            "{layer} is not loaded: something between `landbridge run` and the program removed it from LD_PRELOAD, or \
             its folder is not visible here; keep LD_PRELOAD, or run with --collectives native"
        ));
    }
    // SAFETY: the layer's symbol of this name is a number.
    let interface = unsafe { loaded.cast::<u32>().read() };
    (interface != collectives::INTERFACE)
        .then(|| format!("{layer} is of another release than the provider: install the files of one release"))
}
