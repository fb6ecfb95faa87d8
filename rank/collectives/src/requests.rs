//! An array of MPI requests, each with a number from its owner.

use std::ffi::{c_int, c_void};

use crate::abi::Handle;
use crate::calls::Elements;
use crate::mpi::{Fault, Mpi};

/// Requests in flight. Dropping this abandons all unfinished requests, so it must not outlive a buffer they use.
pub(crate) struct Requests<'a> {
    mpi: &'a Mpi,
    /// Adjacent handles, of 4 or 8 bytes each.
    handles: Vec<u64>,
    owners: Vec<Option<usize>>,
    in_flight: usize,
}

impl<'a> Requests<'a> {
    /// Room for `room` requests.
    pub(crate) fn new(mpi: &'a Mpi, room: usize) -> Requests<'a> {
        let null = mpi.abi.request_null;
        let mut requests = Requests { mpi, handles: vec![0; room], owners: vec![None; room], in_flight: 0 };
        (0..room).for_each(|index| requests.write(index, null));
        requests
    }

    /// Returns true if there is room for another request.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight < self.owners.len()
    }

    /// Begins a request; `begin` writes its handle. There must be room.
    pub(crate) fn begin(
        &mut self,
        owner: usize,
        begin: impl FnOnce(*mut c_void) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(index) = self.owners.iter().position(Option::is_none) else { return Err(Fault::NO_MEMORY) };
        let place = self.place(index);
        begin(place)?;
        self.owners[index] = Some(owner);
        self.in_flight += 1;
        Ok(())
    }

    /// Begins to send elements to a rank of `comm`.
    ///
    /// # Safety
    /// As [`Mpi::send_elements`].
    pub(crate) unsafe fn send(&mut self, from: Elements, to: (u32, c_int), comm: Handle) -> Result<(), Fault> {
        let mpi = self.mpi;
        // SAFETY: the caller's promise, and room for a handle.
        self.begin(0, |request| unsafe { mpi.send_elements(from, to, comm, request) })
    }

    /// Begins to receive elements from a rank of `comm`.
    ///
    /// # Safety
    /// As [`Mpi::receive_elements`].
    pub(crate) unsafe fn receive(&mut self, into: Elements, from: (u32, c_int), comm: Handle) -> Result<(), Fault> {
        let mpi = self.mpi;
        // SAFETY: the caller's promise, and room for a handle.
        self.begin(0, |request| unsafe { mpi.receive_elements(into, from, comm, request) })
    }

    /// Waits for a request to complete, and returns its owner. `None`: no request is in flight.
    pub(crate) fn next(&mut self) -> Result<Option<usize>, Fault> {
        if self.in_flight == 0 {
            return Ok(None);
        }
        let count = self.owners.len() as c_int;
        let array = self.place(0);
        // SAFETY: the array holds `count` handles, null where nothing is in flight.
        let (found, result) = unsafe { self.mpi.wait_any(array, count) };
        self.completed(found, result)
    }

    /// Returns the owner of a completed request, if any. Makes progress, in communicator `comm` if no request is in
    /// flight.
    pub(crate) fn test(&mut self, comm: Handle) -> Result<Option<usize>, Fault> {
        if self.in_flight == 0 {
            self.mpi.poke(comm)?;
            return Ok(None);
        }
        let count = self.owners.len() as c_int;
        let array = self.place(0);
        // SAFETY: as in `next`.
        let (found, result) = unsafe { self.mpi.test_any(array, count) };
        self.completed(found, result)
    }

    /// Returns true if all requests have completed. Makes progress, in communicator `comm` if no request is in flight.
    pub(crate) fn have_ended(&mut self, comm: Handle) -> Result<bool, Fault> {
        while self.test(comm)?.is_some() {}
        Ok(self.in_flight == 0)
    }

    fn completed(&mut self, found: Option<usize>, result: Result<(), Fault>) -> Result<Option<usize>, Fault> {
        // MPI also frees a request that failed.
        let owner = found.and_then(|index| self.owners.get_mut(index)?.take());
        self.in_flight -= usize::from(owner.is_some());
        result.map(|()| owner)
    }

    /// Waits for all requests, even after one has failed: an unreceived message would be taken for a later one.
    pub(crate) fn finish(&mut self) -> Result<(), Fault> {
        let mut result = Ok(());
        loop {
            let before = self.in_flight;
            match self.next() {
                Ok(Some(_)) => {}
                Ok(None) => return result,
                Err(fault) => result = result.and(Err(fault)),
            }
            if self.in_flight == before {
                return result;
            }
        }
    }

    fn place(&mut self, index: usize) -> *mut c_void {
        let start = self.handles.as_mut_ptr();
        match self.mpi.abi.small_handles {
            true => start.cast::<u32>().wrapping_add(index).cast(),
            false => start.wrapping_add(index).cast(),
        }
    }

    fn write(&mut self, index: usize, handle: Handle) {
        let place = self.place(index);
        // SAFETY: `index` is within the room, which has 8 bytes for each handle.
        unsafe {
            match self.mpi.abi.small_handles {
                true => place.cast::<u32>().write(handle.0 as u32),
                false => place.cast::<usize>().write(handle.0),
            }
        }
    }
}

impl Drop for Requests<'_> {
    fn drop(&mut self) {
        for index in 0..self.owners.len() {
            if self.owners[index].is_some() {
                let place = self.place(index);
                // SAFETY: it is in flight, so its handle is not null.
                unsafe { self.mpi.abandon(place) };
            }
        }
    }
}
