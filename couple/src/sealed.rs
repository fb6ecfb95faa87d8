//! Elements with a checksum behind them, by which bytes that were changed on the way are found.
//!
//! A connection's own checksum has 16 bits and ends at each gateway; TLS protects trunks only. Elements that are read
//! out of another process's memory have a number there instead, by which the reader knows that it is still that memory.

use std::io;

use twox_hash::XxHash3_64;

use crate::Packing;

/// Bytes of the checksum.
pub(crate) const SEAL: usize = 8;

/// The elements of a message at `array`, in a buffer of as many bytes and [`SEAL`] more.
///
/// # Safety
/// As [`Packing::pack`]: all elements of the message can be read from there.
pub(crate) unsafe fn pack(packing: &Packing, array: *const u8, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(packing.bytes() + SEAL, 0);
    // SAFETY: the caller's promise; the buffer has room for them.
    unsafe { packing.pack(array, bytes.as_mut_ptr()) };
    bytes
}

/// Puts the checksum behind the elements.
pub(crate) fn seal(bytes: &mut [u8]) {
    let hash = XxHash3_64::oneshot(elements(bytes));
    mark(bytes, hash);
}

/// Puts a number behind the elements.
pub(crate) fn mark(bytes: &mut [u8], number: u64) {
    if let Some(end) = bytes.last_chunk_mut() {
        *end = number.to_le_bytes();
    }
}

/// Unpacks elements whose bytes, and then a number, come from `read`. Returns the number.
///
/// # Errors
/// Those of `read`.
///
/// # Safety
/// As [`Packing::unpack`]: all elements of the message can be written at `array`.
pub(crate) unsafe fn unpack_from(
    packing: &Packing,
    read: &mut dyn FnMut(&mut [u8]) -> io::Result<()>,
    array: *mut u8,
) -> io::Result<u64> {
    // SAFETY: the caller's promise.
    unsafe { packing.unpack_from(read, array)? };
    number(read)
}

/// Fills a buffer with elements that come from `read`, and then a number. Returns the number.
///
/// # Errors
/// Those of `read`.
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

/// Whether the checksum is that of the elements.
pub(crate) fn is_intact(bytes: &[u8]) -> bool {
    bytes.last_chunk() == Some(&XxHash3_64::oneshot(elements(bytes)).to_le_bytes())
}
