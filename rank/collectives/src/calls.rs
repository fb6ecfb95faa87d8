//! Point-to-point messages, and the MPI library's own collective operations, which carry data inside a site.

use std::ffi::c_int;

use crate::abi::{Abi, Handle};
use crate::mpi::{Fault, Mpi, Pointer, int, quiet, raised};
use crate::requests::Requests;

/// Elements in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elements {
    pub start: Pointer,
    pub count: i64,
    pub datatype: Handle,
}

impl Elements {
    pub(crate) fn bytes(mpi: &Mpi, bytes: &mut [u8]) -> Elements {
        Elements { start: bytes.as_mut_ptr().cast(), count: bytes.len() as i64, datatype: mpi.abi.byte }
    }
}

/// Byte range of each rank of a communicator in an array.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    pub counts: Vec<c_int>,
    pub starts: Vec<c_int>,
}

/// Tag of messages that the receiver expects in the order of sending.
pub(crate) const IN_ORDER: c_int = 0;
/// Tag of a rank's block that goes directly to its receiver.
pub(crate) const ALONE: c_int = 1;
/// MPI guarantees tags of at least 15 bits. No message uses the last of these tags.
const NOBODYS_TAG: c_int = (1 << 15) - 1;

impl Mpi {
    /// The minimum of each number over all ranks, by the library's own allreduce.
    pub(crate) fn least<const N: usize>(&self, comm: Handle, mut numbers: [c_int; N]) -> Result<[c_int; N], Fault> {
        let mut found = [0; N];
        let (from, to) = (numbers.as_mut_ptr().cast(), found.as_mut_ptr().cast());
        let Abi { int, min, .. } = self.abi;
        // SAFETY: as in `is_inter`; both arrays have `N` elements.
        raised(unsafe { (self.functions.allreduce)(from, to, N as c_int, int.0, min.0, comm.0) })?;
        Ok(found)
    }

    /// Begins to send bytes; the request is written to `request`.
    ///
    /// # Safety
    /// `from` holds `length` bytes until the request has completed; `request` has room for a handle.
    pub(crate) unsafe fn isend(
        &self,
        from: *const u8,
        length: c_int,
        (to, tag): (c_int, c_int),
        comm: Handle,
        request: Pointer,
    ) -> Result<(), Fault> {
        let byte = self.abi.byte.0;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.isend)(from.cast_mut().cast(), length, byte, to, tag, comm.0, request) })
    }

    /// Begins to receive bytes; the request is written to `request`.
    ///
    /// # Safety
    /// `to` has room for `length` bytes, which nobody else touches until the request has completed; `request` has room
    /// for a handle.
    pub(crate) unsafe fn irecv(
        &self,
        to: *mut u8,
        length: c_int,
        (from, tag): (c_int, c_int),
        comm: Handle,
        request: Pointer,
    ) -> Result<(), Fault> {
        let byte = self.abi.byte.0;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.irecv)(to.cast(), length, byte, from, tag, comm.0, request) })
    }

    /// Waits until one of `count` requests has completed. Returns its index, or `None` if all are null, and its result.
    ///
    /// # Safety
    /// `requests` holds `count` handles of requests.
    pub(crate) unsafe fn wait_any(&self, requests: Pointer, count: c_int) -> (Option<usize>, Result<(), Fault>) {
        let mut index = -1;
        // SAFETY: the caller's promise.
        let code = unsafe { (self.functions.waitany)(count, requests, &mut index, self.abi.status_ignore) };
        (usize::try_from(index).ok(), quiet(code))
    }

    /// Returns the index of one of `count` requests that has completed, if any, and its result. Makes progress.
    ///
    /// # Safety
    /// As [`Mpi::wait_any`].
    pub(crate) unsafe fn test_any(&self, requests: Pointer, count: c_int) -> (Option<usize>, Result<(), Fault>) {
        let (mut index, mut flag) = (-1, 0);
        let call = self.functions.testany;
        // SAFETY: the caller's promise.
        let code = unsafe { call(count, requests, &mut index, &mut flag, self.abi.status_ignore) };
        (usize::try_from(index).ok().filter(|_| flag != 0 || code != 0), quiet(code))
    }

    /// Makes progress without a request, by probing for a message that nobody sends.
    pub(crate) fn poke(&self, comm: Handle) -> Result<(), Fault> {
        let mut flag = 0;
        let call = self.functions.iprobe;
        // SAFETY: as in `is_inter`; rank 0 exists.
        quiet(unsafe { call(0, NOBODYS_TAG, comm.0, &mut flag, self.abi.status_ignore) })
    }

    /// `MPI_Allgather` of an array of bytes: returns the arrays of all ranks, in rank order.
    pub(crate) fn all<const N: usize>(
        &self,
        comm: Handle,
        mut own: [u8; N],
        size: usize,
    ) -> Result<Vec<[u8; N]>, Fault> {
        let mut found = vec![[0; N]; size];
        let (from, to, byte) = (own.as_mut_ptr().cast(), found.as_mut_ptr().cast(), self.abi.byte.0);
        // SAFETY: as in `is_inter`; there is room for an array of each rank.
        quiet(unsafe { (self.functions.allgather)(from, N as c_int, byte, to, N as c_int, byte, comm.0) })?;
        Ok(found)
    }

    /// Abandons a request, after an error.
    ///
    /// # Safety
    /// `request` holds the handle of a request that is not null.
    pub(crate) unsafe fn abandon(&self, request: Pointer) {
        // SAFETY: the caller's promise.
        unsafe {
            (self.functions.cancel)(request);
            (self.functions.request_free)(request);
        }
    }

    /// Begins to send elements; the request is written to `request`.
    ///
    /// # Safety
    /// As for [`Mpi::isend`].
    pub(crate) unsafe fn send_elements(
        &self,
        from: Elements,
        (to, tag): (u32, c_int),
        comm: Handle,
        request: Pointer,
    ) -> Result<(), Fault> {
        let Elements { start, count, datatype } = from;
        let to = to as c_int;
        if let (Err(_), Some(isend)) = (c_int::try_from(count), self.functions.isend_c) {
            // SAFETY: the caller's promise.
            return quiet(unsafe { isend(start, count, datatype.0, to, tag, comm.0, request) });
        }
        let count = int(count)?;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.isend)(start, count, datatype.0, to, tag, comm.0, request) })
    }

    /// Begins to receive elements; the request is written to `request`.
    ///
    /// # Safety
    /// As for [`Mpi::irecv`].
    pub(crate) unsafe fn receive_elements(
        &self,
        into: Elements,
        (from, tag): (u32, c_int),
        comm: Handle,
        request: Pointer,
    ) -> Result<(), Fault> {
        let Elements { start, count, datatype } = into;
        let from = from as c_int;
        if let (Err(_), Some(irecv)) = (c_int::try_from(count), self.functions.irecv_c) {
            // SAFETY: the caller's promise.
            return quiet(unsafe { irecv(start, count, datatype.0, from, tag, comm.0, request) });
        }
        let count = int(count)?;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.irecv)(start, count, datatype.0, from, tag, comm.0, request) })
    }

    /// Sends elements from rank `own` to itself.
    ///
    /// # Safety
    /// Both places are as MPI demands, and do not overlap.
    pub(crate) unsafe fn copy(&self, from: Elements, to: Elements, own: u32, comm: Handle) -> Result<(), Fault> {
        let (mut requests, own) = (Requests::new(self, 2), (own, IN_ORDER));
        // SAFETY: the caller's promise.
        unsafe { requests.receive(to, own, comm) }?;
        // SAFETY: the caller's promise.
        unsafe { requests.send(from, own, comm) }?;
        requests.finish()
    }

    /// `MPI_Barrier`.
    pub(crate) fn barrier(&self, comm: Handle) -> Result<(), Fault> {
        // SAFETY: as in `is_inter`.
        quiet(unsafe { (self.functions.barrier)(comm.0) })
    }

    /// `MPI_Bcast`.
    ///
    /// # Safety
    /// `elements` are as MPI demands, as in the calls below.
    pub(crate) unsafe fn broadcast(&self, elements: Elements, root: u32, comm: Handle) -> Result<(), Fault> {
        let Elements { start, count, datatype } = elements;
        let count = int(count)?;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.bcast)(start, count, datatype.0, root as c_int, comm.0) })
    }

    /// `MPI_Reduce`; `to` is used only at the root.
    ///
    /// # Safety
    /// As above.
    pub(crate) unsafe fn reduce(
        &self,
        from: Elements,
        to: Pointer,
        operation: Handle,
        root: u32,
        comm: Handle,
    ) -> Result<(), Fault> {
        let Elements { start, count, datatype } = from;
        let count = int(count)?;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.reduce)(start, to, count, datatype.0, operation.0, root as c_int, comm.0) })
    }

    /// `MPI_Reduce_local`: combines `from` and `into`, with the result in `into`.
    ///
    /// # Safety
    /// As above.
    pub(crate) unsafe fn combine(&self, from: Elements, into: Pointer, operation: Handle) -> Result<(), Fault> {
        let Elements { start, count, datatype } = from;
        let count = int(count)?;
        // SAFETY: the caller's promise.
        quiet(unsafe { (self.functions.reduce_local)(start, into, count, datatype.0, operation.0) })
    }

    /// `MPI_Gatherv` of this rank's bytes; `all` is used only at the root.
    ///
    /// # Safety
    /// As above; `parts` has an entry for each rank of the communicator.
    pub(crate) unsafe fn gather_bytes(
        &self,
        own: Elements,
        all: Pointer,
        parts: &Parts,
        root: u32,
        comm: Handle,
    ) -> Result<(), Fault> {
        let (counts, starts) = (parts.counts.as_ptr().cast_mut(), parts.starts.as_ptr().cast_mut());
        let (call, byte, root, count) = (self.functions.gatherv, self.abi.byte.0, root as c_int, int(own.count)?);
        // SAFETY: the caller's promise; MPI only reads counts and starts.
        quiet(unsafe { call(own.start, count, byte, all, counts, starts, byte, root, comm.0) })
    }

    /// In-place `MPI_Allgatherv` of bytes.
    ///
    /// # Safety
    /// As above.
    pub(crate) unsafe fn allgather_bytes(&self, all: Pointer, parts: &Parts, comm: Handle) -> Result<(), Fault> {
        let (counts, starts) = (parts.counts.as_ptr().cast_mut(), parts.starts.as_ptr().cast_mut());
        let (call, byte, in_place) = (self.functions.allgatherv, self.abi.byte.0, self.abi.in_place as Pointer);
        // SAFETY: the caller's promise; MPI only reads counts and starts.
        quiet(unsafe { call(in_place, 0, byte, all, counts, starts, byte, comm.0) })
    }
}
