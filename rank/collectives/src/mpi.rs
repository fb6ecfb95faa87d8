//! The functions of the rank's MPI library, under their profiling names (`PMPI_`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::abi::{Abi, Handle};
use crate::door::LibraryLookup;

/// An MPI error code, and whether the program's error handler has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The handler has not seen this code.
    Quiet(c_int),
    /// The handler has seen this code.
    Raised(c_int),
}

/// MPICH's `MPI_ERR_OTHER`; other libraries number it 16. A program gets only a text for it, by `MPI_Error_string`.
const ERR_OTHER: c_int = 15;

/// Prefix of Intel MPI's version text.
const INTEL: &[u8] = b"Intel(R) MPI Library";
/// `MPI_MAX_LIBRARY_VERSION_STRING` is 8192 in MPICH and MPI-5's ABI, less in the other libraries.
const LONGEST_VERSION: usize = 8192;

impl Fault {
    /// No memory for a message.
    pub(crate) const NO_MEMORY: Fault = Fault::Quiet(ERR_OTHER);
    /// The sender or receiver of a message is lost.
    pub(crate) const LOST: Fault = Fault::Quiet(ERR_OTHER);
}

/// `MPI_Comm_copy_attr_function`.
pub(crate) type CopyAttribute =
    unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// `MPI_Comm_delete_attr_function`.
pub(crate) type DeleteAttribute = unsafe extern "C" fn(usize, c_int, *mut c_void, *mut c_void) -> c_int;

macro_rules! functions {
    (
        required { $($name:ident $symbol:literal ($($argument:ty),*);)* }
        optional { $($other:ident $also:literal ($($its:ty),*);)* }
    ) => {
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
            $(pub(crate) $other: Option<unsafe extern "C" fn($($its),*) -> c_int>,)*
        }

        impl Functions {
            /// `None`: the library lacks a required function.
            ///
            /// # Safety
            /// The functions of `source` can be called, and return functions of an MPI library.
            unsafe fn find(source: &LibraryLookup) -> Option<Functions> {
                let find = |name: &CStr| {
                    // SAFETY: the caller's promise, and the name ends with a zero.
                    let found = unsafe { (source.function)(name.as_ptr()) };
                    (!found.is_null()).then_some(found)
                };
                Some(Functions {
                    // SAFETY: an MPI function of this name has this signature; handles are integers or pointers, which
                    // registers carry alike on x86_64 and aarch64.
                    $($name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(find($symbol)?)
                    },)*
                    // SAFETY: as above.
                    $($other: find($also).map(|found| unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($its),*) -> c_int>(found)
                    }),)*
                })
            }
        }
    };
}

pub(crate) type Pointer = *mut c_void;
type Int = *mut c_int;
type Count = *mut i64;

functions! {
    required {
        initialized c"PMPI_Initialized" (Int);
        comm_test_inter c"PMPI_Comm_test_inter" (usize, Int);
        comm_size c"PMPI_Comm_size" (usize, Int);
        comm_rank c"PMPI_Comm_rank" (usize, Int);
        comm_group c"PMPI_Comm_group" (usize, Pointer);
        comm_create c"PMPI_Comm_create" (usize, usize, Pointer);
        comm_split c"PMPI_Comm_split" (usize, c_int, c_int, Pointer);
        comm_free c"PMPI_Comm_free" (Pointer);
        comm_disconnect c"PMPI_Comm_disconnect" (Pointer);
        comm_set_errhandler c"PMPI_Comm_set_errhandler" (usize, usize);
        comm_call_errhandler c"PMPI_Comm_call_errhandler" (usize, c_int);
        comm_create_keyval c"PMPI_Comm_create_keyval" (CopyAttribute, DeleteAttribute, Int, Pointer);
        comm_get_attr c"PMPI_Comm_get_attr" (usize, c_int, *mut Pointer, Int);
        comm_set_attr c"PMPI_Comm_set_attr" (usize, c_int, Pointer);
        comm_delete_attr c"PMPI_Comm_delete_attr" (usize, c_int);
        group_translate_ranks c"PMPI_Group_translate_ranks" (usize, c_int, Int, usize, Int);
        group_free c"PMPI_Group_free" (Pointer);
        type_size_x c"PMPI_Type_size_x" (usize, Count);
        type_get_extent_x c"PMPI_Type_get_extent_x" (usize, Count, Count);
        type_get_true_extent_x c"PMPI_Type_get_true_extent_x" (usize, Count, Count);
        type_get_envelope c"PMPI_Type_get_envelope" (usize, Int, Int, Int, Int);
        type_get_contents c"PMPI_Type_get_contents" (usize, c_int, c_int, c_int, Int, Pointer, Pointer);
        type_free c"PMPI_Type_free" (Pointer);
        pack c"PMPI_Pack" (Pointer, c_int, usize, Pointer, c_int, Int, usize);
        unpack c"PMPI_Unpack" (Pointer, c_int, Int, Pointer, c_int, usize, usize);
        allreduce c"PMPI_Allreduce" (Pointer, Pointer, c_int, usize, usize, usize);
        reduce c"PMPI_Reduce" (Pointer, Pointer, c_int, usize, usize, c_int, usize);
        reduce_local c"PMPI_Reduce_local" (Pointer, Pointer, c_int, usize, usize);
        op_commutative c"PMPI_Op_commutative" (usize, Int);
        barrier c"PMPI_Barrier" (usize);
        bcast c"PMPI_Bcast" (Pointer, c_int, usize, c_int, usize);
        allgatherv c"PMPI_Allgatherv" (Pointer, c_int, usize, Pointer, Int, Int, usize, usize);
        gatherv c"PMPI_Gatherv" (Pointer, c_int, usize, Pointer, Int, Int, usize, c_int, usize);
        isend c"PMPI_Isend" (Pointer, c_int, usize, c_int, c_int, usize, Pointer);
        irecv c"PMPI_Irecv" (Pointer, c_int, usize, c_int, c_int, usize, Pointer);
        allgather c"PMPI_Allgather" (Pointer, c_int, usize, Pointer, c_int, usize, usize);
        iprobe c"PMPI_Iprobe" (c_int, c_int, usize, Int, usize);
        testany c"PMPI_Testany" (c_int, Pointer, Int, Int, usize);
        waitany c"PMPI_Waitany" (c_int, Pointer, Int, usize);
        cancel c"PMPI_Cancel" (Pointer);
        request_free c"PMPI_Request_free" (Pointer);
    }
    optional {
        get_library_version c"PMPI_Get_library_version" (*mut c_char, Int);
        type_get_envelope_c c"PMPI_Type_get_envelope_c" (usize, Count, Count, Count, Count, Int);
        isend_c c"PMPI_Isend_c" (Pointer, i64, usize, c_int, c_int, usize, Pointer);
        irecv_c c"PMPI_Irecv_c" (Pointer, i64, usize, c_int, c_int, usize, Pointer);
        pack_c c"PMPI_Pack_c" (Pointer, i64, usize, Pointer, i64, Count, usize);
        unpack_c c"PMPI_Unpack_c" (Pointer, i64, Count, Pointer, i64, usize, usize);
    }
}

/// An MPI library. Its methods are thin: each makes one call and converts the error code to a [`Fault`].
pub(crate) struct Mpi {
    pub(crate) functions: Functions,
    /// The library's constants.
    pub abi: Abi,
    /// True if its `MPI_Reduce` is correct.
    pub reduces: bool,
}

/// A datatype's constructor, and the number of its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub integers: i64,
    pub addresses: i64,
    pub datatypes: i64,
    pub combiner: c_int,
    /// True if it was made with counts that do not fit an `int`.
    pub large: bool,
}

pub(crate) fn quiet(code: c_int) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault::Quiet(code)) }
}

pub(crate) fn raised(code: c_int) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault::Raised(code)) }
}

/// The library's version text.
///
/// # Safety
/// The functions belong to an MPI library.
unsafe fn version(functions: &Functions) -> Vec<u8> {
    let Some(call) = functions.get_library_version else { return Vec::new() };
    let (mut text, mut length) = (vec![0; LONGEST_VERSION], 0);
    // SAFETY: the caller's promise; the function may be called at any time, and no library's text is longer.
    unsafe { call(text.as_mut_ptr().cast(), &mut length) };
    text.truncate(usize::try_from(length).unwrap_or(0));
    text
}

impl Mpi {
    /// The library behind `source`. `None`: it lacks a required function or object.
    ///
    /// # Safety
    /// `source` finds functions and objects of one MPI library, which stays loaded.
    pub(crate) unsafe fn find(source: &LibraryLookup) -> Option<Mpi> {
        // SAFETY: the caller's promise.
        let (functions, abi) = unsafe { (Functions::find(source)?, Abi::of(source)?) };
        // SAFETY: as above.
        let reduces = !unsafe { version(&functions) }.starts_with(INTEL);
        Some(Mpi { functions, abi, reduces })
    }

    /// Returns the handle that `call` writes, and its error code.
    fn made(&self, call: impl FnOnce(Pointer) -> c_int) -> (Handle, c_int) {
        let mut place = 0_usize;
        // A library with `int` handles writes only the lower half, which comes first on little-endian machines;
        // Landbridge runs only on those.
        let code = call((&raw mut place).cast());
        (self.abi.handle(place), code)
    }

    pub(crate) fn initialized(&self) -> bool {
        let mut flag = 0;
        // SAFETY: may be called at any time; `flag` is writable, as are the places in all calls below.
        unsafe { (self.functions.initialized)(&mut flag) == 0 && flag != 0 }
    }

    pub(crate) fn is_inter(&self, comm: Handle) -> Result<bool, Fault> {
        let mut flag = 0;
        // SAFETY: MPI is initialised whenever a program calls a collective, and checks handles itself.
        raised(unsafe { (self.functions.comm_test_inter)(comm.0, &mut flag) })?;
        Ok(flag != 0)
    }

    pub(crate) fn size(&self, comm: Handle) -> Result<c_int, Fault> {
        let mut size = 0;
        // SAFETY: as in `is_inter`.
        raised(unsafe { (self.functions.comm_size)(comm.0, &mut size) })?;
        Ok(size)
    }

    pub(crate) fn rank(&self, comm: Handle) -> Result<c_int, Fault> {
        let mut rank = 0;
        // SAFETY: as in `is_inter`.
        raised(unsafe { (self.functions.comm_rank)(comm.0, &mut rank) })?;
        Ok(rank)
    }

    /// The group of a communicator; free it with [`Mpi::free_group`].
    pub(crate) fn group(&self, comm: Handle) -> Result<Handle, Fault> {
        // SAFETY: as in `is_inter`.
        let (group, code) = self.made(|place| unsafe { (self.functions.comm_group)(comm.0, place) });
        raised(code)?;
        Ok(group)
    }

    pub(crate) fn free_group(&self, group: Handle) {
        let mut place = group.0;
        // SAFETY: as in `is_inter`. It cannot fail for a group that was just made.
        unsafe { (self.functions.group_free)((&raw mut place).cast()) };
    }

    /// The ranks in `other` that correspond to ranks `0..count` of `group`.
    pub(crate) fn translate(&self, group: Handle, count: c_int, other: Handle) -> Result<Vec<c_int>, Fault> {
        let mut ranks: Vec<c_int> = (0..count).collect();
        let mut found = vec![0; ranks.len()];
        let translate = self.functions.group_translate_ranks;
        // SAFETY: as in `is_inter`; both arrays have `count` elements.
        raised(unsafe { translate(group.0, count, ranks.as_mut_ptr(), other.0, found.as_mut_ptr()) })?;
        Ok(found)
    }

    /// A communicator of the whole group of `comm`. Collective. Unlike a duplicate, it calls no attribute callbacks of
    /// the program.
    pub(crate) fn create(&self, comm: Handle, group: Handle) -> Result<Handle, Fault> {
        // SAFETY: as in `is_inter`.
        let (made, code) = self.made(|place| unsafe { (self.functions.comm_create)(comm.0, group.0, place) });
        raised(code)?;
        let handler = self.abi.errors_return.0;
        // SAFETY: as in `is_inter`.
        quiet(unsafe { (self.functions.comm_set_errhandler)(made.0, handler) })?;
        Ok(made)
    }

    /// A communicator for each `part`, in rank order. Collective. It inherits the error handler.
    pub(crate) fn split(&self, comm: Handle, part: u16) -> Result<Handle, Fault> {
        let split = self.functions.comm_split;
        // SAFETY: as in `is_inter`.
        let (made, code) = self.made(|place| unsafe { split(comm.0, part.into(), 0, place) });
        quiet(code)?;
        let handler = self.abi.errors_return.0;
        // SAFETY: as in `is_inter`.
        quiet(unsafe { (self.functions.comm_set_errhandler)(made.0, handler) })?;
        Ok(made)
    }

    pub(crate) fn free(&self, comm: Handle) {
        let mut place = comm.0;
        // SAFETY: as in `is_inter`. A failure was reported to the communicator's handler.
        unsafe { (self.functions.comm_free)((&raw mut place).cast()) };
    }

    /// Passes a fault to the program's error handler of `comm`; returns the code for the call to return.
    pub(crate) fn raise(&self, comm: Handle, fault: Fault) -> c_int {
        match fault {
            Fault::Raised(code) => code,
            Fault::Quiet(code) => {
                // SAFETY: as in `is_inter`.
                unsafe { (self.functions.comm_call_errhandler)(comm.0, code) };
                code
            }
        }
    }

    /// The fault of a message that is longer than its receive buffer.
    pub(crate) fn truncated(&self) -> Fault {
        Fault::Quiet(self.abi.err_truncate)
    }

    pub(crate) fn make_key(&self, copy: CopyAttribute, delete: DeleteAttribute) -> Result<c_int, Fault> {
        let mut key = 0;
        // SAFETY: as in `is_inter`; the callbacks are functions of ours.
        raised(unsafe { (self.functions.comm_create_keyval)(copy, delete, &mut key, null_mut()) })?;
        Ok(key)
    }

    /// The attribute of a communicator.
    pub(crate) fn attribute(&self, comm: Handle, key: c_int) -> Result<Option<Pointer>, Fault> {
        let (mut value, mut found) = (null_mut(), 0);
        // SAFETY: as in `is_inter`.
        raised(unsafe { (self.functions.comm_get_attr)(comm.0, key, &mut value, &mut found) })?;
        Ok((found != 0).then_some(value))
    }

    pub(crate) fn set_attribute(&self, comm: Handle, key: c_int, value: Pointer) -> Result<(), Fault> {
        // SAFETY: as in `is_inter`.
        raised(unsafe { (self.functions.comm_set_attr)(comm.0, key, value) })
    }

    pub(crate) fn delete_attribute(&self, comm: Handle, key: c_int) {
        // SAFETY: as in `is_inter`. A failure was reported to the communicator's handler.
        unsafe { (self.functions.comm_delete_attr)(comm.0, key) };
    }

    /// Length of an element's data, in bytes.
    pub(crate) fn type_size(&self, datatype: Handle) -> Result<i64, Fault> {
        let mut size = 0;
        // SAFETY: as in `is_inter`.
        raised(unsafe { (self.functions.type_size_x)(datatype.0, &mut size) })?;
        Ok(size)
    }

    /// An element's lower bound and extent, in bytes.
    pub(crate) fn extent(&self, datatype: Handle) -> Result<(i64, i64), Fault> {
        let (mut lower, mut extent) = (0, 0);
        // SAFETY: as in `is_inter`.
        raised(unsafe { (self.functions.type_get_extent_x)(datatype.0, &mut lower, &mut extent) })?;
        Ok((lower, extent))
    }

    /// Lower bound and extent of an element's data, in bytes.
    pub(crate) fn true_extent(&self, datatype: Handle) -> Result<(i64, i64), Fault> {
        let (mut lower, mut extent) = (0, 0);
        // SAFETY: as in `is_inter`.
        raised(unsafe { (self.functions.type_get_true_extent_x)(datatype.0, &mut lower, &mut extent) })?;
        Ok((lower, extent))
    }

    pub(crate) fn is_commutative(&self, operation: Handle) -> Result<bool, Fault> {
        let mut flag = 0;
        // SAFETY: as in `is_inter`.
        raised(unsafe { (self.functions.op_commutative)(operation.0, &mut flag) })?;
        Ok(flag != 0)
    }

    pub(crate) fn envelope(&self, datatype: Handle) -> Result<Envelope, Fault> {
        let mut combiner = 0;
        if let Some(envelope) = self.functions.type_get_envelope_c {
            let (mut integers, mut addresses, mut counts, mut datatypes) = (0, 0, 0, 0);
            // SAFETY: as in `is_inter`.
            raised(unsafe {
                envelope(datatype.0, &mut integers, &mut addresses, &mut counts, &mut datatypes, &mut combiner)
            })?;
            return Ok(Envelope { integers, addresses, datatypes, combiner, large: counts > 0 });
        }
        let (mut integers, mut addresses, mut datatypes) = (0, 0, 0);
        let envelope = self.functions.type_get_envelope;
        // SAFETY: as in `is_inter`.
        raised(unsafe { envelope(datatype.0, &mut integers, &mut addresses, &mut datatypes, &mut combiner) })?;
        let [integers, addresses, datatypes] = [integers, addresses, datatypes].map(i64::from);
        Ok(Envelope { integers, addresses, datatypes, combiner, large: false })
    }

    /// The inner datatype of a datatype that was made from at most one integer, no address and one datatype.
    pub(crate) fn inner_type(&self, datatype: Handle, integers: c_int) -> Result<Handle, Fault> {
        let (mut numbers, mut address) = ([0; 4], 0_usize);
        let most = integers.min(4);
        let contents = self.functions.type_get_contents;
        let (inner, code) = self.made(|place| {
            // SAFETY: as in `is_inter`; there is room for the announced numbers and the datatype.
            unsafe { contents(datatype.0, most, 0, 1, numbers.as_mut_ptr(), (&raw mut address).cast(), place) }
        });
        raised(code)?;
        Ok(inner)
    }

    pub(crate) fn free_type(&self, datatype: Handle) {
        let mut place = datatype.0;
        // SAFETY: as in `is_inter`; only for a derived type that `inner_type` returned.
        unsafe { (self.functions.type_free)((&raw mut place).cast()) };
    }

    /// Returns true if [`Mpi::pack`] and [`Mpi::unpack`] accept more bytes at once than an `int` can count.
    pub(crate) fn packs_large(&self) -> bool {
        self.functions.pack_c.is_some() && self.functions.unpack_c.is_some()
    }

    /// Packs elements into exactly `length` bytes.
    ///
    /// # Safety
    /// `from` holds the elements, `to` has room for `length` bytes.
    pub(crate) unsafe fn pack(
        &self,
        from: Pointer,
        count: i64,
        datatype: Handle,
        to: Pointer,
        length: i64,
        comm: Handle,
    ) -> Result<(), Fault> {
        if let Some(pack) = self.functions.pack_c {
            let mut position = 0;
            // SAFETY: the caller's promise.
            return quiet(unsafe { pack(from, count, datatype.0, to, length, &mut position, comm.0) });
        }
        let (count, length) = (int(count)?, int(length)?);
        let mut position = 0;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.pack)(from, count, datatype.0, to, length, &mut position, comm.0) })
    }

    /// The reverse of [`Mpi::pack`].
    ///
    /// # Safety
    /// `from` holds `length` bytes, `to` has room for the elements.
    pub(crate) unsafe fn unpack(
        &self,
        from: Pointer,
        length: i64,
        to: Pointer,
        count: i64,
        datatype: Handle,
        comm: Handle,
    ) -> Result<(), Fault> {
        if let Some(unpack) = self.functions.unpack_c {
            let mut position = 0;
            // SAFETY: the caller's promise.
            return quiet(unsafe { unpack(from, length, &mut position, to, count, datatype.0, comm.0) });
        }
        let (count, length) = (int(count)?, int(length)?);
        let mut position = 0;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.unpack)(from, length, &mut position, to, count, datatype.0, comm.0) })
    }
}

pub(crate) fn int(number: i64) -> Result<c_int, Fault> {
    c_int::try_from(number).map_err(|_| Fault::NO_MEMORY)
}
