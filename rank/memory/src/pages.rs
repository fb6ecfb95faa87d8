//! Reusable memory that begins at a page, as direct input and output (`O_DIRECT`) requires.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// Alignment in bytes that every known disk accepts.
pub const PAGE: usize = 4096;

/// Bytes that begin at an address that is a multiple of [`PAGE`].
///
/// Reused memory costs less than new memory, which the kernel provides page by page. So [`Pages::resize`] keeps it.
#[derive(Default)]
pub struct Pages {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Pages {
    /// `length` zeros.
    pub fn new(length: usize) -> Pages {
        let bytes = vec![0; length.saturating_add(2 * PAGE)];
        // If the offset cannot be computed, the kernel refuses the address, and the caller falls back.
        let start = bytes.as_ptr().align_offset(PAGE).min(PAGE);
        Pages { bytes, start, length }
    }

    /// Changes the length. Added bytes are left over from an earlier use, or zero.
    pub fn resize(&mut self, length: usize) {
        match self.start.checked_add(length) {
            Some(end) if end <= self.bytes.len() => self.length = length,
            _ => {
                let mut longer = Pages::new(length);
                longer[..self.length].copy_from_slice(self);
                *self = longer;
            }
        }
    }
}

impl From<&[u8]> for Pages {
    fn from(bytes: &[u8]) -> Pages {
        let mut pages = Pages::new(bytes.len());
        pages.copy_from_slice(bytes);
        pages
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

impl Clone for Pages {
    /// A copy begins at a page too.
    fn clone(&self) -> Pages {
        Pages::from(&self[..])
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_a_page_and_keeps_its_memory() {
        let mut pages = Pages::new(10_000);
        assert!(pages.as_ptr().addr().is_multiple_of(PAGE));
        assert!(pages.iter().all(|byte| *byte == 0));
        pages.fill(7);
        let address = pages.as_ptr().addr();
        for length in [1, 0, 10_000] {
            pages.resize(length);
            assert_eq!((pages.len(), pages.as_ptr().addr()), (length, address));
        }
        assert!(pages.iter().all(|byte| *byte == 7));
        let copy = pages.clone();
        assert!(copy.as_ptr().addr().is_multiple_of(PAGE) && copy[..] == pages[..]);
        pages.resize(100_000);
        assert!(pages[..10_000] == copy[..] && pages[10_000..].iter().all(|byte| *byte == 0));
        assert!(pages.as_ptr().addr().is_multiple_of(PAGE) && pages.len() == 100_000);
        assert!(Pages::default().is_empty());
    }
}
