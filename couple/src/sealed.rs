//! Elements with a checksum behind them, by which bytes that were changed on the way are found.
//!
//! A connection's own checksum has 16 bits and ends at each gateway; TLS protects trunks only.

use std::hash::Hasher;

use twox_hash::XxHash3_64;

use crate::Packing;

/// Bytes of the checksum.
pub(crate) const SEAL: usize = 8;

/// The elements of a message at `array`, and their checksum.
///
/// # Safety
/// As [`Packing::pack`]: all elements of the message can be read from there.
pub(crate) unsafe fn pack(packing: &Packing, array: *const u8) -> Vec<u8> {
    let mut bytes = vec![0; packing.bytes() + SEAL];
    // SAFETY: the caller's promise; the buffer was made for them.
    unsafe { packing.pack(array, bytes.as_mut_ptr()) };
    let (elements, seal) = bytes.split_at_mut(packing.bytes());
    seal.copy_from_slice(&XxHash3_64::oneshot(elements).to_le_bytes());
    bytes
}

/// Unpacks elements whose bytes, and then their checksum, come from `read`. Returns whether the checksum is right.
///
/// # Errors
/// Those of `read`.
///
/// # Safety
/// As [`Packing::unpack`]: all elements of the message can be written at `array`.
pub(crate) unsafe fn unpack_from(
    packing: &Packing,
    read: &mut dyn FnMut(&mut [u8]) -> std::io::Result<()>,
    array: *mut u8,
) -> std::io::Result<bool> {
    let (mut hash, mut seal) = (XxHash3_64::new(), [0; SEAL]);
    let mut hashed = |into: &mut [u8]| {
        read(into)?;
        hash.write(into);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { packing.unpack_from(&mut hashed, array)? };
    read(&mut seal)?;
    Ok(seal == hash.finish().to_le_bytes())
}

/// Fills a buffer with elements that come from `read`, and then their checksum. Returns whether that is right.
///
/// # Errors
/// Those of `read`.
pub(crate) fn copy_from(
    read: &mut dyn FnMut(&mut [u8]) -> std::io::Result<()>,
    buffer: &mut [u8],
) -> std::io::Result<bool> {
    let mut seal = [0; SEAL];
    read(buffer)?;
    read(&mut seal)?;
    Ok(seal == XxHash3_64::oneshot(buffer).to_le_bytes())
}

/// The bytes before the checksum.
pub(crate) fn elements(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().saturating_sub(SEAL)]
}

/// Whether the checksum is that of the elements.
pub(crate) fn is_intact(bytes: &[u8]) -> bool {
    bytes.last_chunk() == Some(&XxHash3_64::oneshot(elements(bytes)).to_le_bytes())
}
