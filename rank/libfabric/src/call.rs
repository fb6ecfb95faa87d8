//! Calling libfabric's objects: entries of operation tables, and error numbers.

use std::ffi::c_int;

use thiserror::Error;

/// A call that libfabric refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{call}: {reason} ({code})")]
pub struct Fault {
    pub call: &'static str,
    /// libfabric's error number, positive.
    pub code: c_int,
    /// The library's description of the number.
    pub reason: String,
}

/// Result of a call that found nothing to do, or no room: `FI_EAGAIN`.
pub(crate) const AGAIN: isize = -(libc::EAGAIN as isize);
/// Result of reading a completion queue whose first entry is an error: `FI_EAVAIL`.
pub(crate) const ERROR_AVAILABLE: isize = -259;

/// Returns an entry of an operation table: the function, or `None` if the provider's table is shorter or has a hole. In
/// an unsafe block only: the pointer must be null or point to a living `repr(C)` table that begins with its own `size`.
macro_rules! entry {
    ($table:expr, $type:ty, $name:ident) => {{
        let table: *const $type = $table;
        if table.is_null() || (*table).size < std::mem::offset_of!($type, $name) + size_of::<usize>() {
            None
        } else {
            crate::call::function(&raw const (*table).$name)
        }
    }};
}
pub(crate) use entry;

/// Converts a function pointer written by C, which may be null, to a Rust function pointer, which must not be.
///
/// # Safety
/// `place` can be read, and holds null or a function of type `F`.
pub(crate) unsafe fn function<F: Copy>(place: *const F) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: the caller's promise; a number may have any bits.
    let raw = unsafe { place.cast::<usize>().read() };
    // SAFETY: not null, so by the caller's promise a function of this type.
    (raw != 0).then(|| unsafe { place.read() })
}
