//! Interface between the preloaded layer and the provider's shared object.

use std::ffi::{c_char, c_int, c_void};

use endpoint::Endpoint;

/// Returned by a function of [`crate::FunctionTable`] that does not handle the call: the layer then calls the MPI
/// library's own function. No MPI library has this error code.
pub const PASS: c_int = c_int::MIN;

/// Lookup functions for the rank's MPI library.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LibraryLookup {
    /// Returns the library's own function of this name, or null.
    pub function: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    /// Returns the object of this name that the program and the library share, or null.
    pub object: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    /// True if the library has the ABI that MPI-5 standardised.
    pub standard: bool,
}

/// The rank's endpoint, which its MPI library uses too.
pub trait Transport: Sync {
    /// Calls `work` with the endpoint, which is locked meanwhile. Returns false if none is open.
    fn with(&self, work: &mut dyn FnMut(&mut Endpoint)) -> bool;
}

/// The data that a call sends, or the buffer that it receives into.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BufferArguments {
    pub buffer: *mut c_void,
    /// Number of elements per rank.
    pub count: i64,
    pub datatype: usize,
}

/// The data that a call sends to each rank, or the buffers that it receives into: lists with an entry for every rank.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sides {
    pub buffer: *mut c_void,
    /// Number of elements for each rank, as `int`s or `MPI_Count`s.
    pub counts: *const c_void,
    /// Start of each rank's block, in elements, as `int`s or `MPI_Aint`s.
    pub starts: *const c_void,
    /// True if the lists have 64-bit numbers.
    pub large: bool,
    pub datatype: usize,
}
