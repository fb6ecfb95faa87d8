//! Checks of pointer arguments.

use std::ffi::{CStr, c_char};

use crate::error::Problem;

fn missing(name: &str) -> Problem {
    Problem::invalid(format_args!("{name} is NULL"))
}

/// # Safety
/// The pointer is null, or points to a value that is valid for `'a`.
pub(crate) unsafe fn given<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Problem> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| missing(name))
}

/// # Safety
/// As [`given`], for `length` items.
pub(crate) unsafe fn slice<'a, T>(pointer: *const T, length: usize, name: &str) -> Result<&'a [T], Problem> {
    if length == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(missing(name));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, length) })
}

/// # Safety
/// As [`given`], for a string that ends with 0.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Problem> {
    if pointer.is_null() {
        return Err(missing(name));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Problem::invalid(format_args!("{name} is not UTF-8: {text:?}")))
}

/// Writes a value to the caller's variable.
///
/// # Safety
/// The pointer is null, or can be written.
pub(crate) unsafe fn put<T>(place: *mut T, value: T, name: &str) -> Result<(), Problem> {
    if place.is_null() {
        return Err(missing(name));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Gives the caller an object, which [`free`] frees.
///
/// # Safety
/// As [`put`].
pub(crate) unsafe fn hand_out<T>(place: *mut *mut T, value: T, name: &str) -> Result<(), Problem> {
    if place.is_null() {
        return Err(missing(name));
    }
    // SAFETY: the caller's promise.
    unsafe { put(place, Box::into_raw(Box::new(value)), name) }
}

/// Frees an object, and makes the caller's variable null.
///
/// # Safety
/// `place` is null, or points to null or to a pointer from [`hand_out`].
pub(crate) unsafe fn free<T>(place: *mut *mut T) {
    // SAFETY: the caller's promise.
    unsafe {
        if place.is_null() || (*place).is_null() {
            return;
        }
        drop(Box::from_raw(place.replace(std::ptr::null_mut())));
    }
}

/// Checks that a number is not negative.
pub(crate) fn natural(value: i64, what: impl std::fmt::Display) -> Result<u64, Problem> {
    u64::try_from(value).map_err(|_| Problem::invalid(format_args!("{what} is {value}: it cannot be negative")))
}

/// As [`natural`].
pub(crate) fn natural32(value: i32, what: impl std::fmt::Display) -> Result<u32, Problem> {
    u32::try_from(value).map_err(|_| Problem::invalid(format_args!("{what} is {value}: it cannot be negative")))
}
