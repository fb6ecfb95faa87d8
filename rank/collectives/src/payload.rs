//! The bytes of a message: the program's own memory if its datatype allows, else a packed copy.

use std::ffi::c_void;

use crate::abi::Handle;
use crate::calls::Elements;
use crate::datatype::is_plain;
use crate::mpi::{Fault, Mpi};

/// Location of the data of an MPI call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypedBuffer {
    pub buffer: *mut c_void,
    pub count: i64,
    pub datatype: Handle,
    /// Length of an element's data, in bytes.
    pub size: i64,
}

impl TypedBuffer {
    pub(crate) fn elements(&self) -> Elements {
        Elements { start: self.buffer, count: self.count, datatype: self.datatype }
    }

    /// Length of the data of all elements, in bytes.
    ///
    /// # Errors
    /// The length exceeds any memory.
    pub(crate) fn bytes(&self) -> Result<u64, Fault> {
        self.count.checked_mul(self.size).and_then(|bytes| u64::try_from(bytes).ok()).ok_or(Fault::NO_MEMORY)
    }

    /// Calls `work` for each portion, with the start and number of its elements, and the place and length of their
    /// packed bytes.
    fn each_portion(
        &self,
        mpi: &Mpi,
        bytes: *mut u8,
        mut work: impl FnMut(*mut c_void, i64, *mut c_void, i64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let TypedBuffer { buffer, count, datatype, size } = *self;
        let (_, extent) = mpi.extent(datatype)?;
        let most = if mpi.packs_large() { count } else { (PORTION / size.max(1)).max(1) };
        let mut done = 0;
        while done < count {
            let now = most.min(count - done);
            // Lower bounds are relative to an element's address, so only that address moves.
            let start = buffer.wrapping_byte_offset((done * extent) as isize);
            let packed = bytes.wrapping_add((done * size) as usize);
            work(start, now, packed.cast(), now * size)?;
            done += now;
        }
        Ok(())
    }
}

/// Maximum bytes packed by one call of a library that counts them with an `int`.
const PORTION: i64 = 1 << 30;

/// The bytes of a message, to be sent or filled.
pub(crate) struct Payload {
    place: TypedBuffer,
    packed: Option<Vec<u8>>,
    length: usize,
}

impl Payload {
    /// The bytes at `place`. `full`: true if they already hold data.
    ///
    /// # Safety
    /// `place` is a buffer as MPI demands.
    pub(crate) unsafe fn of(mpi: &Mpi, place: TypedBuffer, full: bool, comm: Handle) -> Result<Payload, Fault> {
        let length = usize::try_from(place.count.checked_mul(place.size).ok_or(Fault::NO_MEMORY)?);
        let length = length.map_err(|_| Fault::NO_MEMORY)?;
        if is_plain(mpi, place.datatype, place.size)? {
            return Ok(Payload { place, packed: None, length });
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| Fault::NO_MEMORY)?;
        bytes.resize(length, 0);
        let mut payload = Payload { place, packed: Some(bytes), length };
        if full {
            payload.each_portion(mpi, |start, count, bytes, length| {
                // SAFETY: the portion lies in the program's buffer and in ours.
                unsafe { mpi.pack(start, count, place.datatype, bytes, length, comm) }
            })?;
        }
        Ok(payload)
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Start of the bytes.
    pub(crate) fn start(&mut self) -> *mut u8 {
        match &mut self.packed {
            Some(bytes) => bytes.as_mut_ptr(),
            None => self.place.buffer.cast(),
        }
    }

    /// The bytes.
    ///
    /// # Safety
    /// The place holds data, as MPI demands, which nobody changes meanwhile.
    pub(crate) unsafe fn bytes(&mut self) -> &[u8] {
        let (start, length) = (self.start(), self.length);
        // SAFETY: the caller's promise. A place without data may be anywhere.
        if length == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start, length) } }
    }

    /// Unpacks a received message into the program's memory.
    ///
    /// # Safety
    /// As [`Payload::of`].
    pub(crate) unsafe fn deliver(mut self, mpi: &Mpi, comm: Handle) -> Result<(), Fault> {
        let datatype = self.place.datatype;
        self.each_portion(mpi, |start, count, bytes, length| {
            // SAFETY: the portion lies in the program's buffer and in ours.
            unsafe { mpi.unpack(bytes, length, start, count, datatype, comm) }
        })
    }

    /// Copies `bytes` into the program's block. If they are fewer than the block holds, they fill its first elements.
    ///
    /// # Errors
    /// The bytes exceed the block: the MPI error of a truncated message.
    ///
    /// # Safety
    /// `place` is as MPI demands.
    pub(crate) unsafe fn fill(mpi: &Mpi, place: TypedBuffer, bytes: &[u8], comm: Handle) -> Result<(), Fault> {
        if bytes.len() as u64 > place.bytes()? {
            return Err(mpi.truncated());
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if is_plain(mpi, place.datatype, place.size)? {
            // SAFETY: the place has room for its elements, and `bytes` are in our own memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.buffer.cast(), bytes.len()) };
            return Ok(());
        }
        let whole = bytes.len() as i64 / place.size.max(1);
        let part = TypedBuffer { count: whole, ..place };
        part.each_portion(mpi, bytes.as_ptr().cast_mut(), |start, count, bytes, length| {
            // SAFETY: the caller's promise; MPI only reads the bytes.
            unsafe { mpi.unpack(bytes, length, start, count, place.datatype, comm) }
        })
    }

    /// Calls `work` for each portion; see [`TypedBuffer::each_portion`]. Does nothing if the bytes are not packed.
    fn each_portion(
        &mut self,
        mpi: &Mpi,
        work: impl FnMut(*mut c_void, i64, *mut c_void, i64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let Some(bytes) = &mut self.packed else { return Ok(()) };
        self.place.each_portion(mpi, bytes.as_mut_ptr(), work)
    }
}
