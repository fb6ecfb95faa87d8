//! Memory that the provider reads and fills: blocks of equal frames, registered if the provider requires it.
//!
//! While a provider holds memory, the memory must not move, and Rust must not borrow it. So a block is kept behind raw
//! pointers, and a caller that asks for a frame's bytes guarantees that the provider does not hold the frame.

use std::ffi::c_void;

use crate::abi::objects::fid_mr;

/// The state of a frame besides its bytes. The provider may overwrite `context` (`FI_CONTEXT2`) while it holds the
/// frame, and returns its address with the completion.
#[repr(C)]
pub(crate) struct Control {
    context: [u64; 8],
    /// The frame's number in its port.
    pub number: usize,
    /// A value for the port's user, returned when the frame has been sent.
    pub ticket: u64,
}

/// A block of `count` frames of `length` bytes each.
pub(crate) struct Block {
    controls: *mut Control,
    bytes: *mut u8,
    count: usize,
    length: usize,
    /// Its registration; null if the provider needs none.
    pub registration: *mut fid_mr,
}

impl Block {
    /// `first` is the number of the block's first frame.
    pub(crate) fn new(count: usize, length: usize, first: usize) -> Block {
        let controls: Box<[Control]> =
            (0..count).map(|at| Control { context: [0; 8], number: first + at, ticket: 0 }).collect();
        let bytes = vec![0u8; count * length].into_boxed_slice();
        Block {
            controls: Box::into_raw(controls).cast(),
            bytes: Box::into_raw(bytes).cast(),
            count,
            length,
            registration: std::ptr::null_mut(),
        }
    }

    /// All of the block's memory, for registration.
    pub(crate) fn memory(&self) -> (*mut u8, usize) {
        (self.bytes, self.count * self.length)
    }

    pub(crate) fn control(&self, at: usize) -> *mut Control {
        debug_assert!(at < self.count);
        self.controls.wrapping_add(at)
    }

    /// The context that the provider returns with the completion.
    pub(crate) fn context(&self, at: usize) -> *mut c_void {
        self.control(at).cast()
    }

    /// Returns true if the frame with this number and context belongs to this block.
    pub(crate) fn holds(&self, context: *mut c_void, number: usize) -> bool {
        number < self.count && context == self.context(number)
    }

    pub(crate) fn start(&self, at: usize) -> *mut u8 {
        assert!(at < self.count);
        self.bytes.wrapping_add(at * self.length)
    }

    /// The descriptor that the provider requires with the memory.
    pub(crate) fn descriptor(&self) -> *mut c_void {
        // SAFETY: null, or the registration of this block, closed only when the block is dropped.
        unsafe { self.registration.as_ref() }.map_or(std::ptr::null_mut(), |registration| registration.mem_desc)
    }

    /// The bytes of a frame.
    ///
    /// # Safety
    /// The provider does not hold the frame.
    pub(crate) unsafe fn bytes(&self, at: usize, count: usize) -> &[u8] {
        // SAFETY: within the block, initialised; not written meanwhile, by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start(at), count.min(self.length)) }
    }

    /// The bytes of a frame, to be written.
    ///
    /// # Safety
    /// The provider does not hold the frame.
    pub(crate) unsafe fn bytes_mut(&mut self, at: usize) -> &mut [u8] {
        // SAFETY: within the block, initialised; nobody else uses it, by the caller's promise and `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start(at), self.length) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: both were made from boxes of these lengths in `new`; the port drops blocks only after it has closed
        // its endpoint, and nothing else knows their addresses.
        unsafe {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.controls, self.count)));
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.bytes, self.count * self.length)));
        }
    }
}
