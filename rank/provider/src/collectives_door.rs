//! The preloaded layer's entry to the collectives: the one function of this shared object that is not libfabric's.

use std::ptr::null;

use crate::opened::OldestEndpoint;

/// Name of the layer that the agent made this rank preload; not set if its job uses none.
const LAYER: &str = "LANDBRIDGE_LAYER";

/// The table of covered functions for the MPI library behind `source`. Null if `interface` belongs to another release,
/// or if no function is covered in this process.
///
/// # Safety
/// `source` is null or finds functions and objects of one MPI library, which stays loaded.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn landbridge_collectives(
    interface: u32,
    source: *const collectives::LibraryLookup,
) -> *const collectives::FunctionTable {
    // SAFETY: the caller's promise.
    let Some(source) = (unsafe { source.as_ref() }) else { return null() };
    // SAFETY: the caller's promise.
    unsafe { collectives::table(interface, source, &OldestEndpoint) }.map_or(null(), std::ptr::from_ref)
}

/// The reason why this rank must not start, if any. The job's other ranks use a layer that this rank has not loaded; in
/// the first collective operation they would wait for it forever.
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
