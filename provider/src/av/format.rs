//! The two formats of addresses that a program may choose: 16 bytes (`FI_SOCKADDR_IN`) or text (`FI_ADDR_STR`).

use std::ffi::{CStr, c_char, c_void};

use types::Address;

use super::{ADDRESS_LEN, text};
use crate::abi::border::{array, text as text_behind};
use crate::abi::constants::{FI_ADDR_STR, FI_SOCKADDR_IN};
use crate::errno::{EINVAL, Errno};

/// How the addresses of one domain look to its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// 16 bytes that begin like a `sockaddr_in`.
    #[default]
    Binary,
    /// Text that ends with a zero.
    Text,
}

impl Format {
    /// As in `fi_info::addr_format`.
    pub(crate) fn of(number: u32) -> Format {
        if number == FI_ADDR_STR { Format::Text } else { Format::Binary }
    }

    /// For `fi_info::addr_format`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Format::Binary => FI_SOCKADDR_IN,
            Format::Text => FI_ADDR_STR,
        }
    }

    /// An address in this format.
    pub(crate) fn write(self, address: Address) -> Vec<u8> {
        match self {
            Format::Binary => address.to_bytes().to_vec(),
            Format::Text => [text::write(address).as_bytes(), b"\0"].concat(),
        }
    }

    /// An address of `length` bytes; `None` if null, of another length or without a meaning.
    ///
    /// # Safety
    /// Null, or `length` valid bytes.
    pub(crate) unsafe fn read(self, start: *const c_void, length: usize) -> Option<Address> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { array(start.cast::<u8>(), length) }.ok()?;
        match self {
            Format::Binary => Address::from_bytes(<&[u8; ADDRESS_LEN]>::try_from(bytes).ok()?),
            Format::Text => text::read(CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok()?),
        }
    }

    /// The addresses that `fi_av_insert` is given. As text they are an array of pointers, fi_av(3), or lie one behind
    /// the other, as libfabric's shm reads them and Mercury and ADIOS2 pass them. The first eight bytes tell which.
    ///
    /// # Errors
    /// `FI_EINVAL`: null with a count.
    ///
    /// # Safety
    /// `total` addresses of this format.
    pub(crate) unsafe fn read_all(self, start: *const c_void, total: usize) -> Result<Vec<Option<Address>>, Errno> {
        if self == Format::Binary {
            // SAFETY: the caller's promise.
            let all = unsafe { array(start.cast::<[u8; ADDRESS_LEN]>(), total) }?;
            return Ok(all.iter().map(Address::from_bytes).collect());
        }
        if total == 0 {
            return Ok(Vec::new());
        }
        if start.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: either way at least one pointer, or a text; no byte behind the end of a text is read.
        if unsafe { is_text(start.cast()) } {
            let mut next = start.cast::<c_char>();
            let read = |_| {
                // SAFETY: the caller's promise: texts that end with a zero, one behind the other.
                let (all, text) = unsafe { (CStr::from_ptr(next).count_bytes(), text_behind(next)) };
                // SAFETY: it ends behind the zero, where the next one begins.
                next = unsafe { next.add(all + 1) };
                text.and_then(text::read)
            };
            return Ok((0..total).map(read).collect());
        }
        // SAFETY: the caller's promise.
        let pointers = unsafe { std::slice::from_raw_parts(start.cast::<*const c_char>(), total) };
        // SAFETY: as above: null or a text.
        Ok(pointers.iter().map(|pointer| unsafe { text_behind(*pointer) }.and_then(text::read)).collect())
    }

    /// An address in this format as text to print.
    ///
    /// # Safety
    /// A valid address of this format.
    pub(crate) unsafe fn describe(self, start: *const c_void) -> String {
        match self {
            Format::Binary => {
                // SAFETY: the caller's promise.
                let bytes = unsafe { start.cast::<[u8; ADDRESS_LEN]>().read_unaligned() };
                match Address::from_bytes(&bytes) {
                    Some(address) => text::write(address),
                    None => format!("unknown://{:032x}", u128::from_be_bytes(bytes)),
                }
            }
            // SAFETY: the caller's promise.
            Format::Text => unsafe { text_behind(start.cast()) }.unwrap_or("unknown://").to_owned(),
        }
    }
}

/// Whether a text begins here, rather than a pointer: a pointer to a process's memory has a zero among its eight bytes,
/// and a text that is shorter than that is no address.
///
/// # Safety
/// A text, or at least eight valid bytes.
unsafe fn is_text(start: *const u8) -> bool {
    // Stops at the zero that ends a text.
    // SAFETY: the caller's promise.
    (0..8).all(|at| unsafe { *start.add(at) } != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [Address; 2] {
        ["10.1.0.7:40001", "10.1.0.7:40002"].map(|socket| Address::standalone(socket.parse().unwrap()))
    }

    #[test]
    fn what_is_written_is_read_back() {
        for format in [Format::Binary, Format::Text] {
            let bytes = format.write(two()[0]);
            // SAFETY: all valid.
            unsafe {
                assert_eq!(format.read(bytes.as_ptr().cast(), bytes.len()), Some(two()[0]));
                assert_eq!(format.read(bytes.as_ptr().cast(), bytes.len() - 1), None, "{format:?} cut");
                assert_eq!(format.read(std::ptr::null(), 0), None);
                assert_eq!(format.describe(bytes.as_ptr().cast()), "fi_sockaddr_in://10.1.0.7:40001");
            }
            assert_eq!(Format::of(format.number()), format);
        }
    }

    #[test]
    fn text_may_be_an_array_of_pointers_or_lie_in_a_row() {
        let texts = two().map(|address| Format::Text.write(address));
        let (row, pointers) = (texts.concat(), [texts[0].as_ptr(), texts[1].as_ptr()]);
        let expected = Ok(two().map(Some).to_vec());
        // SAFETY: all valid.
        unsafe {
            assert_eq!(Format::Text.read_all(row.as_ptr().cast(), 2), expected);
            assert_eq!(Format::Text.read_all(pointers.as_ptr().cast(), 2), expected);
            let foreign = c"tcp://10.1.0.7:40001";
            assert_eq!(Format::Text.read_all(foreign.as_ptr().cast(), 1), Ok(vec![None]));
            assert_eq!(Format::Text.read_all(std::ptr::null(), 0), Ok(vec![]));
            assert_eq!(Format::Text.read_all(std::ptr::null(), 1), Err(EINVAL));
        }
    }
}
