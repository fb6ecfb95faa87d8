//! The border between C and Rust: checks pointers, finds the objects behind them, and stops panics.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::objects::fid;
use crate::errno::{EINVAL, ENOMEM, Errno};
use crate::log;

/// Extra bytes behind a structure that the core frees or copies: a newer core may know a longer one.
const SLACK: usize = 256;

/// Runs one call. A panic is a defect of ours: it ends the process with a message rather than unwinding into C.
pub(crate) fn guard<R>(work: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(cause) => {
            let text = cause
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| cause.downcast_ref::<&str>().copied())
                .unwrap_or("unknown cause");
            log::fatal(format_args!("internal error, aborting: {text}"));
            std::process::abort()
        }
    }
}

/// Memory of a libfabric object: the C part first, then ours.
#[repr(C)]
pub(crate) struct Object<T: Behind> {
    pub fid: T::Fid,
    pub inner: T,
}

/// Our part of a libfabric object.
pub(crate) trait Behind {
    /// `FI_CLASS_…`, which identifies the type behind a pointer.
    const CLASS: usize;
    /// Its C structure, which begins with a `fid`.
    type Fid;
}

/// Gives an object to C, which owns it until it calls close.
pub(crate) fn hand_out<T: Behind>(fid: T::Fid, inner: T) -> *mut T::Fid {
    Box::into_raw(Box::new(Object::<T> { fid, inner })).cast()
}

/// Our object behind a pointer from C.
///
/// # Errors
/// `FI_EINVAL`: null, or an object of another class.
///
/// # Safety
/// The pointer is null, or points to an object from libfabric that is not closed; libfabric's interface makes its
/// caller promise that. `F` is `fid` or a structure that begins with one.
pub(crate) unsafe fn behind<'a, T: Behind, F>(pointer: *const F) -> Result<&'a Object<T>, Errno> {
    let pointer = pointer.cast::<Object<T>>();
    // SAFETY: not null, so by the caller's promise a live object, which begins with its `fid`.
    if pointer.is_null() || unsafe { (*pointer.cast::<fid>()).fclass } != T::CLASS {
        return Err(EINVAL);
    }
    // SAFETY: its class shows that `hand_out::<T>` made it.
    Ok(unsafe { &*pointer })
}

/// Takes an object back from C, which will not use it again.
///
/// # Errors
/// As [`behind`].
///
/// # Safety
/// As [`behind`], and nobody else uses the object now or later.
pub(crate) unsafe fn take_back<T: Behind>(pointer: *mut fid) -> Result<Box<Object<T>>, Errno> {
    // SAFETY: the caller's promise.
    unsafe { behind::<T, fid>(pointer) }?;
    // SAFETY: `hand_out::<T>` made it from a box, and by the caller's promise this is its last use.
    Ok(unsafe { Box::from_raw(pointer.cast()) })
}

/// Writes an output argument.
///
/// # Errors
/// `FI_EINVAL`: `place` is null.
///
/// # Safety
/// `place` is null, or valid for writing a `T`.
pub(crate) unsafe fn write_out<T>(place: *mut T, value: T) -> Result<(), Errno> {
    if place.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: not null; the caller's promise.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// An array argument as a slice.
///
/// # Errors
/// `FI_EINVAL`: null with a nonzero count.
///
/// # Safety
/// `start` is null, or points to `count` valid elements that nobody writes during the call.
pub(crate) unsafe fn array<'a, T>(start: *const T, count: usize) -> Result<&'a [T], Errno> {
    match (count, start.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(EINVAL),
        // SAFETY: not null; the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(start, count) }),
    }
}

/// A text argument; `None` if null or not UTF-8.
///
/// # Safety
/// `start` is null, or points to a zero-terminated string.
pub(crate) unsafe fn text<'a>(start: *const c_char) -> Option<&'a str> {
    // SAFETY: not null; the caller's promise.
    if start.is_null() { None } else { unsafe { CStr::from_ptr(start) }.to_str().ok() }
}

/// Writes text into a caller's buffer of `size` bytes, cut to fit and zero-terminated.
///
/// # Safety
/// `buffer` is null or valid for writing `size` bytes.
pub(crate) unsafe fn write_text(buffer: *mut c_char, size: usize, text: &str) {
    if buffer.is_null() || size == 0 {
        return;
    }
    let count = text.len().min(size - 1);
    // SAFETY: `count` bytes and the zero fit in `size`; the text is ours, so they do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), count);
        buffer.add(count).write(0);
    }
}

/// Allocates a zeroed structure that the core will free, or copy at the length that it assumes.
///
/// # Errors
/// `FI_ENOMEM`.
pub(crate) fn allocate<T>() -> Result<*mut T, Errno> {
    // SAFETY: allocates; the core frees with `free`.
    let pointer = unsafe { libc::calloc(1, size_of::<T>() + SLACK) };
    if pointer.is_null() { Err(ENOMEM) } else { Ok(pointer.cast()) }
}

/// Copies bytes into memory that the core will free.
///
/// # Errors
/// `FI_ENOMEM`.
pub(crate) fn allocate_bytes(bytes: &[u8]) -> Result<*mut c_void, Errno> {
    // SAFETY: allocates at least one byte; the core frees with `free`.
    let pointer = unsafe { libc::malloc(bytes.len().max(1)) };
    if pointer.is_null() {
        return Err(ENOMEM);
    }
    // SAFETY: just allocated with that length.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pointer.cast(), bytes.len()) };
    Ok(pointer)
}

/// Copies a text into memory that the core will free.
///
/// # Errors
/// `FI_ENOMEM`.
pub(crate) fn allocate_text(text: &CStr) -> Result<*mut c_char, Errno> {
    allocate_bytes(text.to_bytes_with_nul()).map(|pointer| pointer.cast())
}
