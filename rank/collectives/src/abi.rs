//! The constants of each MPI ABI.

mod mpich;
mod openmpi;
mod standard;

use std::ffi::{CStr, c_int, c_void};

use crate::door::LibraryLookup;

/// An MPI handle as held in a register: a pointer, or an `int` with the upper half cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub usize);

/// Constants that differ between MPI libraries.
#[derive(Clone, Debug)]
pub(crate) struct Abi {
    /// True if handles are `int`s.
    pub small_handles: bool,
    pub comm_world: Handle,
    pub comm_null: Handle,
    pub datatype_null: Handle,
    pub request_null: Handle,
    pub byte: Handle,
    pub int: Handle,
    pub min: Handle,
    pub op_null: Handle,
    pub errors_return: Handle,
    /// The error class `MPI_ERR_TRUNCATE`.
    pub err_truncate: c_int,
    /// `MPI_IN_PLACE`.
    pub in_place: usize,
    pub status_ignore: usize,
    pub combiner_named: c_int,
    pub combiner_dup: c_int,
    pub combiner_contiguous: c_int,
}

impl Abi {
    /// The ABI of the library behind `source`. `None`: the library lacks an object that its ABI needs.
    ///
    /// # Safety
    /// The functions of `source` can be called.
    pub(crate) unsafe fn of(source: &LibraryLookup) -> Option<Abi> {
        let object = |name: &CStr| {
            // SAFETY: the caller's promise, and the name ends with a zero.
            let found: *mut c_void = unsafe { (source.object)(name.as_ptr()) };
            (!found.is_null()).then_some(Handle(found as usize))
        };
        if source.standard {
            return Some(standard::ABI);
        }
        // Only in Open MPI are handles the addresses of objects.
        match object(openmpi::WORLD) {
            Some(_) => openmpi::abi(object),
            None => Some(mpich::ABI),
        }
    }

    /// Reads the handle at a place in the program's memory.
    ///
    /// # Safety
    /// `place` holds a handle.
    pub(crate) unsafe fn handle_at(&self, place: *const c_void) -> Handle {
        match self.small_handles {
            // SAFETY: the caller's promise.
            true => Handle(unsafe { place.cast::<u32>().read() } as usize),
            // SAFETY: the caller's promise.
            false => Handle(unsafe { place.cast::<usize>().read() }),
        }
    }

    /// Converts a handle as passed in a register.
    pub(crate) fn handle(&self, register: usize) -> Handle {
        Handle(if self.small_handles { register & 0xffff_ffff } else { register })
    }
}
