//! Error reporting of the exported functions.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error codes that functions return, as `landbridge.h` defines them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Invalid = 1,
    Over = 2,
    Timeout = 3,
    Memory = 4,
    Internal = 5,
}

#[derive(Debug)]
pub(crate) struct Problem {
    pub code: Code,
    pub text: String,
}

impl Problem {
    /// The error for an invalid argument.
    pub(crate) fn invalid(text: impl std::fmt::Display) -> Problem {
        Problem { code: Code::Invalid, text: text.to_string() }
    }
}

thread_local! {
    /// The error text of the last call that failed on this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps the text for [`lb_error`].
fn keep(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = text);
}

/// Calls `work`, and returns 0 or the error code.
pub(crate) fn at_border(work: impl FnOnce() -> Result<(), Problem>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        let text = "a fault of Landbridge: standard error has a line about it".to_owned();
        Err(Problem { code: Code::Internal, text })
    });
    match result {
        Ok(()) => 0,
        Err(problem) => {
            keep(&problem.text);
            problem.code as c_int
        }
    }
}

/// The error text of the last call that failed on this thread; valid until the next call that fails.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn lb_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// Makes [`lb_error`] return `text`, and returns `code`: for `landbridge_mpi.h`.
///
/// # Safety
/// `text` is null, or a string that ends with 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_fail(code: c_int, text: *const c_char) -> c_int {
    if !text.is_null() {
        // SAFETY: the caller's promise.
        keep(&unsafe { CStr::from_ptr(text) }.to_string_lossy());
    }
    code
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn lb_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
