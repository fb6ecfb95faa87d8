//! A buffer of an operation: up to [`MAX_PIECES`] pieces of user memory, or memory of our own.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::pages::Pages;

/// Maximum number of pieces (`iovec`s) of a buffer.
pub const MAX_PIECES: usize = 4;

/// Source or target of an operation's bytes.
///
/// Behaves as one sequence of [`Buffer::len`] bytes, however many pieces it has.
pub struct Buffer {
    length: usize,
    store: Store,
}

enum Store {
    One(MemorySpan),
    /// Boxed, because few operations have several pieces, and all operations are moved around.
    Several(Box<[MemorySpan; MAX_PIECES]>),
    Owned(Vec<u8>),
    Pages(Pages),
    Shared(Arc<Pages>),
}

#[derive(Clone, Copy)]
struct MemorySpan {
    start: *mut u8,
    length: usize,
}

const NOTHING: MemorySpan = MemorySpan { start: std::ptr::NonNull::dangling().as_ptr(), length: 0 };

// SAFETY: a piece is plain memory, with no tie to a thread; the caller that created it promised that nobody else
// touches it until the operation completes (`Buffer::from_raw`).
unsafe impl Send for MemorySpan {}
// SAFETY: a shared buffer is only read.
unsafe impl Sync for MemorySpan {}

impl MemorySpan {
    fn new(start: *mut u8, length: usize) -> MemorySpan {
        if length == 0 || start.is_null() { NOTHING } else { MemorySpan { start, length } }
    }

    fn as_slice(&self) -> &[u8] {
        // SAFETY: `from_raw`'s caller promised validity for as long as the buffer lives; `NOTHING` is empty and
        // aligned.
        unsafe { std::slice::from_raw_parts(self.start, self.length) }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and exclusive: `&mut self` of the only buffer over this memory.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }
}

impl Buffer {
    /// A buffer over user memory; `None` if there are more than [`MAX_PIECES`] pieces or more than 2⁶³ bytes.
    ///
    /// # Safety
    /// Each piece must be valid memory until the buffer is dropped: readable for a buffer that is sent, writable and
    /// not otherwise used for one that is received into.
    pub unsafe fn from_raw(pieces: impl IntoIterator<Item = (*mut u8, usize)>) -> Option<Buffer> {
        let mut several = [NOTHING; MAX_PIECES];
        let (mut count, mut total) = (0, 0usize);
        for (start, length) in pieces {
            *several.get_mut(count)? = MemorySpan::new(start, length);
            count += 1;
            total = total.checked_add(length).filter(|total| isize::try_from(*total).is_ok())?;
        }
        let store = if count <= 1 { Store::One(several[0]) } else { Store::Several(Box::new(several)) };
        Some(Buffer { length: total, store })
    }

    /// A buffer of our own memory.
    pub fn owned(bytes: Vec<u8>) -> Buffer {
        Buffer { length: bytes.len(), store: Store::Owned(bytes) }
    }

    /// A buffer of our own memory that begins at a page.
    pub fn pages(pages: Pages) -> Buffer {
        Buffer { length: pages.len(), store: Store::Pages(pages) }
    }

    /// A buffer over memory that others read too. It can be sent, but not received into.
    pub fn shared(pages: Arc<Pages>) -> Buffer {
        Buffer { length: pages.len(), store: Store::Shared(pages) }
    }

    /// A buffer of no bytes.
    pub fn empty() -> Buffer {
        Buffer { length: 0, store: Store::One(NOTHING) }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The slices that make up `range`, in order. Bytes beyond the end are left out.
    pub fn slices(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let one: &[MemorySpan];
        let owned: &[u8];
        match &self.store {
            Store::One(piece) => (one, owned) = (std::slice::from_ref(piece), &[]),
            Store::Several(pieces) => (one, owned) = (pieces.as_slice(), &[]),
            Store::Owned(bytes) => (one, owned) = (&[], bytes),
            Store::Pages(pages) => (one, owned) = (&[], pages),
            Store::Shared(pages) => (one, owned) = (&[], pages),
        }
        let mut skip = range.start;
        let mut left = range.end.saturating_sub(range.start);
        one.iter().map(MemorySpan::as_slice).chain(std::iter::once(owned)).filter_map(move |slice| {
            let start = skip.min(slice.len());
            skip -= start;
            let end = start + left.min(slice.len() - start);
            left -= end - start;
            (end > start).then(|| &slice[start..end])
        })
    }

    /// Its bytes, if they are in one piece.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.store {
            Store::One(piece) => Some(piece.as_slice()),
            Store::Several(_) => None,
            Store::Owned(bytes) => Some(bytes),
            Store::Pages(pages) => Some(pages),
            Store::Shared(pages) => Some(pages),
        }
    }

    /// The contiguous memory that starts at `offset`. Empty at the end, and if the buffer is shared.
    pub fn contiguous_mut(&mut self, offset: usize) -> &mut [u8] {
        let pieces: &mut [MemorySpan] = match &mut self.store {
            Store::One(piece) => std::slice::from_mut(piece),
            Store::Several(pieces) => pieces.as_mut_slice(),
            Store::Owned(bytes) => return bytes.get_mut(offset..).unwrap_or_default(),
            Store::Pages(pages) => return pages.get_mut(offset..).unwrap_or_default(),
            Store::Shared(_) => return &mut [],
        };
        let mut skip = offset;
        for piece in pieces {
            if skip < piece.length {
                return &mut piece.as_mut_slice()[skip..];
            }
            skip -= piece.length;
        }
        &mut []
    }

    /// Copies bytes in at `offset`, as many as fit. Returns the number of bytes copied.
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let place = self.contiguous_mut(offset + done);
            if place.is_empty() {
                break;
            }
            let count = place.len().min(bytes.len() - done);
            place[..count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        done
    }

    /// A copy of the bytes in `range`.
    pub fn to_vec(&self, range: Range<usize>) -> Vec<u8> {
        let mut out = Vec::with_capacity(range.len().min(self.length));
        self.slices(range).for_each(|slice| out.extend_from_slice(slice));
        out
    }

    /// Its bytes. Those of [`Buffer::owned`] are not copied.
    pub fn into_vec(self) -> Vec<u8> {
        match self.store {
            Store::Owned(bytes) => bytes,
            _ => self.to_vec(0..self.length),
        }
    }

    /// Its bytes, beginning at a page. Those of [`Buffer::pages`] are not copied.
    pub fn into_pages(self) -> Pages {
        match self.store {
            Store::Pages(pages) => pages,
            _ => Pages::from(&self.into_vec()[..]),
        }
    }

    /// The same bytes in memory of our own, so that the user's memory may be reused.
    pub fn into_owned(self) -> Buffer {
        match self.store {
            Store::Owned(_) | Store::Pages(_) | Store::Shared(_) => self,
            _ => Buffer::owned(self.to_vec(0..self.length)),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shared_is_read_and_not_written() {
        let bytes = Arc::new(Pages::from(&b"abc"[..]));
        let (mut one, other) = (Buffer::shared(bytes.clone()), Buffer::shared(bytes.clone()));
        assert_eq!((one.copy_in(0, b"xyz"), one.to_vec(1..3)), (0, b"bc".to_vec()));
        assert_eq!((one.as_slice(), other.into_owned().into_vec()), (Some(&b"abc"[..]), b"abc".to_vec()));
        drop(one);
        assert_eq!(Arc::strong_count(&bytes), 1);
    }

    #[test]
    fn pieces_behave_as_one_sequence() {
        let (mut a, mut b) = (*b"abc", *b"defgh");
        // SAFETY: both arrays outlive the buffer and are not touched meanwhile.
        let mut buffer =
            unsafe { Buffer::from_raw([(a.as_mut_ptr(), 3), (std::ptr::null_mut(), 0), (b.as_mut_ptr(), 5)]).unwrap() };
        assert_eq!(buffer.len(), 8);
        assert_eq!(buffer.to_vec(2..5), b"cde");
        assert_eq!(buffer.to_vec(0..100), b"abcdefgh");
        assert_eq!(buffer.copy_in(2, b"XYZ"), 3);
        assert_eq!(buffer.copy_in(7, b"12"), 1);
        assert_eq!(buffer.contiguous_mut(4), b"Zfg1".as_slice());
        assert!(buffer.contiguous_mut(8).is_empty());
        drop(buffer);
        assert_eq!((&a, &b), (b"abX", b"YZfg1"));
    }

    #[test]
    fn owned_memory_and_too_many_pieces() {
        let mut buffer = Buffer::owned(vec![0; 4]);
        assert_eq!(buffer.copy_in(1, &[1, 2]), 2);
        assert_eq!(buffer.to_vec(0..4), [0, 1, 2, 0]);
        assert!(Buffer::empty().slices(0..9).next().is_none());
        // SAFETY: no piece has a byte.
        assert!(unsafe { Buffer::from_raw([(std::ptr::null_mut(), 0); 5]) }.is_none());
    }
}
