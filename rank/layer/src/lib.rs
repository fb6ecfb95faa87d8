//! The library that ranks of a multi-site job preload. It defines the covered MPI functions, under both of their names,
//! and passes each call to the provider's collectives or to the MPI library.
//!
//! It finds the MPI library's own functions in the loaded library, not by the linker's next definition: under Python
//! the library is not in the global scope. It defines no function that an MPI library may lack, because mpi4py checks
//! whether a name exists; `layer-large` adds MPI-4's functions with large counts for libraries that have them.
//!
//! A profiling tool still works. If the tool is preloaded first, or is part of the program, its `MPI_Bcast` calls
//! `PMPI_Bcast`, which is ours. If our library comes first, it calls the tool's function.

#![deny(unsafe_op_in_unsafe_fn)]

mod found;
mod functions;
pub mod real;

pub use collectives::{BufferArguments, Sides};

use std::ffi::{CStr, c_char, c_int, c_void};

/// A C `int`.
pub type Int = c_int;
/// The address of a buffer, or an MPI constant in its place.
pub type Buffer = *mut c_void;

/// Version of the interface to the provider. The provider looks for this symbol to check that the layer is loaded.
#[unsafe(no_mangle)]
pub static landbridge_layer: u32 = collectives::INTERFACE;

/// Defines an MPI function under both of its names. `$hand` gets the table of covered functions and the arguments.
#[macro_export]
macro_rules! cover {
    ($($name:ident $profiling:ident ($($argument:ident: $type:ty),*) $hand:expr;)*) => {$(
        /// The MPI function of this name.
        ///
        /// # Safety
        /// As MPI demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $profiling($($argument: $type),*) -> ::std::ffi::c_int {
            static REAL: $crate::real::Real = $crate::real::Real::new(concat!(stringify!($profiling), "\0"));
            if let Some(table) = $crate::real::table() {
                let hand: fn(&$crate::real::FunctionTable, $($type),*) -> ::std::ffi::c_int = $hand;
                let code = hand(table, $($argument),*);
                if code != $crate::real::PASS {
                    return code;
                }
            }
            // SAFETY: the MPI library's function of this name has these parameters.
            let real = unsafe {
                ::std::mem::transmute::<*const (), unsafe extern "C" fn($($type),*) -> ::std::ffi::c_int>(REAL.get())
            };
            // SAFETY: the caller's arguments, passed on.
            unsafe { real($($argument),*) }
        }

        /// The MPI function of this name.
        ///
        /// # Safety
        /// As MPI demands.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> ::std::ffi::c_int {
            static TOOL: $crate::real::Tool = $crate::real::Tool::new(concat!(stringify!($name), "\0"));
            match TOOL.get() {
                // SAFETY: a tool's function of this name has these parameters; the caller's arguments, passed on.
                Some(tool) => unsafe {
                    ::std::mem::transmute::<*const (), unsafe extern "C" fn($($type),*) -> ::std::ffi::c_int>(tool)(
                        $($argument),*
                    )
                },
                // SAFETY: the caller's arguments, passed on.
                None => unsafe { $profiling($($argument),*) },
            }
        }
    )*};
}

functions_with_counts!(cover_plain, c_int);

cover! {
    MPI_Barrier PMPI_Barrier (comm: usize)
        |table, comm| {
            // SAFETY: the program's argument, passed on.
            unsafe { (table.barrier)(comm) }
        };
    MPI_Comm_free PMPI_Comm_free (comm: *mut c_void)
        |table, comm| {
            // SAFETY: the program's argument, passed on.
            unsafe { (table.comm_free)(comm) }
        };
    MPI_Comm_disconnect PMPI_Comm_disconnect (comm: *mut c_void)
        |table, comm| {
            // SAFETY: the program's argument, passed on.
            unsafe { (table.comm_disconnect)(comm) }
        };
    MPI_Finalize PMPI_Finalize ()
        |table| {
            // SAFETY: it takes nothing.
            unsafe { (table.finalize)() };
            real::PASS
        };
}

/// Describes the data that a call sends, or the buffer that it receives into.
pub fn side(buffer: Buffer, count: impl Into<i64>, datatype: usize) -> BufferArguments {
    BufferArguments { buffer, count: count.into(), datatype }
}

/// An element of a list of counts or offsets.
pub trait Number {
    /// True for 64-bit elements.
    const LARGE: bool;
}

impl Number for c_int {
    const LARGE: bool = false;
}

impl Number for i64 {
    const LARGE: bool = true;
}

/// Describes the data for each rank, or the buffer for each rank's data. `lists`: counts, and starts of the blocks.
pub fn sides<N: Number>(buffer: *mut c_void, lists: (*const N, *const N), datatype: usize) -> Sides {
    Sides { buffer, counts: lists.0.cast(), starts: lists.1.cast(), large: N::LARGE, datatype }
}

/// Ends the process: the MPI library lacks a function that the program calls.
fn lacking(name: *const c_char) -> ! {
    // SAFETY: the names of this crate end with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    let text = format!("landbridge: the loaded MPI library has no {name:?}: run with --collectives native\n");
    // SAFETY: the length is the text's own; if the write fails, there is no other remedy.
    unsafe {
        libc::write(2, text.as_ptr().cast(), text.len());
        libc::abort()
    }
}
