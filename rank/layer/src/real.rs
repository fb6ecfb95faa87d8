//! The functions behind ours: the MPI library's, another tool's, and the provider's.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

pub use collectives::{FunctionTable, PASS};
use collectives::{INTERFACE, LibraryLookup};

use crate::found::{self, LIBRARY};
use crate::lacking;

/// The MPI library's function with this name.
pub struct Real {
    name: &'static str,
    function: AtomicPtr<()>,
}

impl Real {
    /// `name` ends with a zero.
    pub const fn new(name: &'static str) -> Real {
        Real { name, function: AtomicPtr::new(null_mut()) }
    }

    /// The function. Looked up once; ends the process if there is none.
    pub fn get(&self) -> *const () {
        let known = self.function.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let name: *const c_char = self.name.as_ptr().cast();
        // SAFETY: the name ends with a zero.
        let function = unsafe { function(name) }.cast::<()>();
        if function.is_null() {
            lacking(name);
        }
        self.function.store(function, Ordering::Relaxed);
        function
    }
}

/// Another library's function with one of our names, which would be called if our library were absent.
pub struct Tool {
    name: &'static str,
    function: OnceLock<Option<usize>>,
}

impl Tool {
    /// `name` ends with a zero.
    pub const fn new(name: &'static str) -> Tool {
        Tool { name, function: OnceLock::new() }
    }

    /// The next definition in the program's scope, unless it is the MPI library's.
    pub fn get(&self) -> Option<*const ()> {
        let look = || {
            let name: *const c_char = self.name.as_ptr().cast();
            // SAFETY: the name ends with a zero.
            let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
            (!next.is_null() && !found::is_mpi(next)).then_some(next as usize)
        };
        (*self.function.get_or_init(look)).map(|function| function as *const ())
    }
}

/// Table of the provider's covered functions. `None`: this process has not loaded our provider, or it covers nothing.
pub fn table() -> Option<&'static FunctionTable> {
    static KNOWN: OnceLock<Option<&'static FunctionTable>> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let provider = found::provider()?;
        // SAFETY: a handle from dlopen, and a name that ends with a zero.
        let door = unsafe { libc::dlsym(provider, c"landbridge_collectives".as_ptr()) };
        if door.is_null() {
            return None;
        }
        let source = LibraryLookup { function, object, standard: LIBRARY.get()?.standard };
        // SAFETY: the provider's function of this name takes these arguments; both libraries stay loaded.
        unsafe {
            let door = std::mem::transmute::<
                *mut c_void,
                unsafe extern "C" fn(u32, *const LibraryLookup) -> *const FunctionTable,
            >(door);
            door(INTERFACE, &source).as_ref()
        }
    })
}

/// The MPI library's own function, never ours.
unsafe extern "C" fn function(name: *const c_char) -> *mut c_void {
    let Some(library) = LIBRARY.get() else { return null_mut() };
    // SAFETY: a handle from dlopen, and the caller's name.
    unsafe { libc::dlsym(library.handle as *mut c_void, name) }
}

/// An object of the MPI library. An executable may hold a copy of it (`R_COPY` relocation). Then everybody uses the
/// copy, which comes first in the program's scope.
unsafe extern "C" fn object(name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's name.
    let shared = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name) };
    // SAFETY: as above.
    if shared.is_null() { unsafe { function(name) } } else { shared }
}
