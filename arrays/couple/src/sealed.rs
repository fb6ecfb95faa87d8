//! Elements followed by a checksum, which detects bytes changed in transit.
//!
//! A connection's own checksum has 16 bits and ends at each gateway; TLS protects trunks only. Elements that are read
//! from another process's memory are followed by a number instead: if it matches, the memory still holds these
//! elements.

use std::io;

use pool::read_process;
use twox_hash::XxHash3_64;

use crate::pack::Cursor;
use crate::pack::Packing;
use crate::pieces::PIECE;

/// Bytes of the checksum.
pub(crate) const SEAL: usize = 8;

/// Packs the elements of messages at `array` into their buffers, and leaves [`SEAL`] more bytes in each. The messages'
/// pieces are packed in turns: pieces of the same number are from the same part of the array, which stays in the cache.
///
/// # Safety
/// As [`Packing::pack`]: all elements of the messages can be read at `array`.
pub(crate) unsafe fn pack<'a>(messages: impl Iterator<Item = (&'a Packing, &'a mut Vec<u8>)>, array: *const u8) {
    let mut left: Vec<(&Packing, Cursor, &mut Vec<u8>)> = messages
        .map(|(packing, buffer)| {
            buffer.resize(packing.bytes() + SEAL, 0);
            (packing, packing.begin(), buffer)
        })
        .collect();
    while !left.is_empty() {
        left.retain_mut(|(packing, cursor, buffer)| {
            let (at, bytes) = (cursor.at(), PIECE.min(packing.bytes() - cursor.at()));
            // SAFETY: the caller's promise; the buffer has room for the message.
            unsafe { packing.pack_next(cursor, array, buffer[at..].as_mut_ptr(), bytes) };
            cursor.at() < packing.bytes()
        });
    }
}

/// Writes the checksum behind the elements.
pub(crate) fn seal(bytes: &mut [u8]) {
    let hash = XxHash3_64::oneshot(elements(bytes));
    mark(bytes, hash);
}

/// A copy of the elements, followed by their checksum.
pub(crate) fn piece(elements: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements.len() + SEAL);
    bytes.extend_from_slice(elements);
    bytes.extend_from_slice(&[0; SEAL]);
    seal(&mut bytes);
    bytes
}

/// Writes a number behind the elements.
pub(crate) fn mark(bytes: &mut [u8], number: u64) {
    if let Some(end) = bytes.last_chunk_mut() {
        *end = number.to_le_bytes();
    }
}

/// A function that fills a buffer with the next bytes of a message followed by its number.
pub(crate) type SealedReader = Box<dyn FnMut(&mut [u8]) -> io::Result<()>>;

/// A reader of another process's memory, from an address onwards.
pub(crate) fn reader(pid: u32, mut address: u64) -> SealedReader {
    Box::new(move |into| {
        let mut done = 0;
        while done < into.len() {
            let left = (into.len() - done) as u64;
            match read_process(pid, &[(address, left)], 0, &mut into[done..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    done += count;
                    address += count as u64;
                }
            }
        }
        Ok(())
    })
}

/// Unpacks messages whose bytes, followed by a number, come from their readers. Returns the number of each message, or
/// its reader's error; after an error, some of the elements may have been written. Pieces are unpacked in turns, as in
/// [`pack`].
///
/// # Safety
/// As [`Packing::unpack`]: all elements of the messages can be written at `array`.
pub(crate) unsafe fn unpack_from(messages: Vec<(&Packing, SealedReader)>, array: *mut u8) -> Vec<io::Result<u64>> {
    let mut moving: Vec<_> = messages.into_iter().map(|(packing, read)| (packing, packing.begin(), read)).collect();
    let mut results: Vec<Option<io::Result<u64>>> = moving.iter().map(|_| None).collect();
    let mut buffer = Vec::new();
    while results.iter().any(Option::is_none) {
        for ((packing, cursor, read), result) in moving.iter_mut().zip(&mut results).filter(|(_, r)| r.is_none()) {
            if cursor.at() == packing.bytes() {
                *result = Some(number(read));
                continue;
            }
            // SAFETY: the caller's promise.
            if let Err(error) = unsafe { packing.unpack_some(cursor, &mut buffer, read, array) } {
                *result = Some(Err(error));
            }
        }
    }
    results.into_iter().flatten().collect()
}

/// Fills a buffer with elements from `read`, and returns the number that follows them.
///
/// # Errors
/// The errors of `read`.
pub(crate) fn copy_from(read: &mut dyn FnMut(&mut [u8]) -> io::Result<()>, buffer: &mut [u8]) -> io::Result<u64> {
    read(buffer)?;
    number(read)
}

fn number(read: &mut dyn FnMut(&mut [u8]) -> io::Result<()>) -> io::Result<u64> {
    let mut number = [0; SEAL];
    read(&mut number)?;
    Ok(u64::from_le_bytes(number))
}

/// The bytes before the checksum.
pub(crate) fn elements(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().saturating_sub(SEAL)]
}

/// Returns true if the checksum matches the elements.
pub(crate) fn is_intact(bytes: &[u8]) -> bool {
    bytes.last_chunk() == Some(&XxHash3_64::oneshot(elements(bytes)).to_le_bytes())
}
