//! The formats of addresses: 16 bytes (`FI_SOCKADDR_IN`), 28 bytes (`FI_SOCKADDR_IN6`) or text (`FI_ADDR_STR`).
//!
//! MPI libraries exchange addresses as bytes, with one length for all ranks: each rank takes the length of its own
//! address. So if one rank of a job has an IPv6 address, all ranks use the 28 bytes, with IPv4 as mapped addresses; in
//! all other jobs they use the 16. A program that asks for `FI_SOCKADDR_IN` then gets the 28 bytes too, and the answer
//! states that. Intel MPI always asks for `FI_SOCKADDR_IN`, and takes the length that `fi_getname` returns.

use std::ffi::{CStr, c_char, c_void};

use types::Address;
use types::id::{ADDRESS_LEN, SHORT_ADDRESS_LEN};

use super::text;
use crate::abi::border::{array, text as text_behind};
use crate::abi::constants::{FI_ADDR_STR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6};
use crate::errno::{EINVAL, Errno};

/// Format of addresses in one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// 16 bytes that begin like a `sockaddr_in`.
    #[default]
    Ipv4,
    /// 28 bytes that begin like a `sockaddr_in6`.
    Ipv6,
    /// Zero-terminated text.
    Text,
}

impl Format {
    /// Converts from `fi_info::addr_format`. `ipv6`: true if addresses must have room for IPv6
    /// ([`endpoint::Config::ipv6`]).
    pub(crate) fn of(number: u32, ipv6: bool) -> Format {
        match number {
            FI_ADDR_STR => Format::Text,
            FI_SOCKADDR_IN6 => Format::Ipv6,
            _ if ipv6 => Format::Ipv6,
            _ => Format::Ipv4,
        }
    }

    /// Converts to `fi_info::addr_format`.
    pub(crate) fn number(self) -> u32 {
        match self {
            Format::Ipv4 => FI_SOCKADDR_IN,
            Format::Ipv6 => FI_SOCKADDR_IN6,
            Format::Text => FI_ADDR_STR,
        }
    }

    /// Writes an address in this format. An IPv6 address does not fit in 16 bytes and is written as 0.0.0.0, which
    /// nobody dials. Only a peer that another program has named can have one, since the ranks' own addresses decide the
    /// format.
    pub(crate) fn write(self, address: Address) -> Vec<u8> {
        match self {
            Format::Ipv4 => {
                let nowhere = Address { socket: types::id::NOWHERE, ..address };
                address.to_short_bytes().or(nowhere.to_short_bytes()).unwrap_or_default().to_vec()
            }
            Format::Ipv6 => address.to_bytes().to_vec(),
            Format::Text => [text::write(address).as_bytes(), b"\0"].concat(),
        }
    }

    /// Reads an address of `length` bytes; `None` if null, of another length or invalid.
    ///
    /// # Safety
    /// `start` is null or points to `length` valid bytes.
    pub(crate) unsafe fn read(self, start: *const c_void, length: usize) -> Option<Address> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { array(start.cast::<u8>(), length) }.ok()?;
        match self {
            Format::Ipv4 => Address::from_short_bytes(<&[u8; SHORT_ADDRESS_LEN]>::try_from(bytes).ok()?),
            Format::Ipv6 => Address::from_bytes(<&[u8; ADDRESS_LEN]>::try_from(bytes).ok()?),
            Format::Text => text::read(CStr::from_bytes_until_nul(bytes).ok()?.to_str().ok()?),
        }
    }

    /// Reads the addresses passed to `fi_av_insert`. Texts are an array of pointers, fi_av(3), or lie one behind the
    /// other, as libfabric's shm reads them and Mercury and ADIOS2 pass them. The first eight bytes distinguish the two
    /// cases.
    ///
    /// # Errors
    /// `FI_EINVAL`: null with a nonzero count.
    ///
    /// # Safety
    /// `start` points to `total` addresses of this format.
    pub(crate) unsafe fn read_all(self, start: *const c_void, total: usize) -> Result<Vec<Option<Address>>, Errno> {
        match self {
            Format::Ipv4 => {
                // SAFETY: the caller's promise.
                let all = unsafe { array(start.cast::<[u8; SHORT_ADDRESS_LEN]>(), total) }?;
                return Ok(all.iter().map(Address::from_short_bytes).collect());
            }
            Format::Ipv6 => {
                // SAFETY: the caller's promise.
                let all = unsafe { array(start.cast::<[u8; ADDRESS_LEN]>(), total) }?;
                return Ok(all.iter().map(Address::from_bytes).collect());
            }
            Format::Text => {}
        }
        if total == 0 {
            return Ok(Vec::new());
        }
        if start.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: in either case at least one pointer or a text; no byte behind the end of a text is read.
        if unsafe { is_text(start.cast()) } {
            let mut next = start.cast::<c_char>();
            let read = |_| {
                // SAFETY: the caller's promise: zero-terminated texts, one behind the other.
                let (all, text) = unsafe { (CStr::from_ptr(next).count_bytes(), text_behind(next)) };
                // SAFETY: the text ends with the zero, and the next one begins behind it.
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

    /// Converts an address in this format to text for printing.
    ///
    /// # Safety
    /// `start` points to a valid address of this format.
    pub(crate) unsafe fn describe(self, start: *const c_void) -> String {
        match self {
            Format::Ipv4 => {
                // SAFETY: the caller's promise.
                let bytes = unsafe { start.cast::<[u8; SHORT_ADDRESS_LEN]>().read_unaligned() };
                described(Address::from_short_bytes(&bytes), &bytes)
            }
            Format::Ipv6 => {
                // SAFETY: the caller's promise.
                let bytes = unsafe { start.cast::<[u8; ADDRESS_LEN]>().read_unaligned() };
                described(Address::from_bytes(&bytes), &bytes)
            }
            // SAFETY: the caller's promise.
            Format::Text => unsafe { text_behind(start.cast()) }.unwrap_or("unknown://").to_owned(),
        }
    }
}

fn described(address: Option<Address>, bytes: &[u8]) -> String {
    match address {
        Some(address) => text::write(address),
        None => bytes.iter().fold("unknown://".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    }
}

/// Distinguishes a text (true) from a pointer: a pointer to a process's memory has a zero among its eight bytes, and a
/// text shorter than eight bytes is no address.
///
/// # Safety
/// `start` points to a text, or to at least eight valid bytes.
unsafe fn is_text(start: *const u8) -> bool {
    // Stops at the zero that ends a text.
    // SAFETY: the caller's promise.
    (0..8).all(|at| unsafe { *start.add(at) } != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::constants::{FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IP};

    fn two() -> [Address; 2] {
        ["10.1.0.7:40001", "10.1.0.7:40002"].map(|socket| Address::standalone(socket.parse().unwrap()))
    }

    #[test]
    fn what_is_written_is_read_back() {
        for format in [Format::Ipv4, Format::Ipv6, Format::Text] {
            let bytes = format.write(two()[0]);
            // SAFETY: all valid.
            unsafe {
                assert_eq!(format.read(bytes.as_ptr().cast(), bytes.len()), Some(two()[0]));
                assert_eq!(format.read(bytes.as_ptr().cast(), bytes.len() - 1), None, "{format:?} cut");
                assert_eq!(format.read(std::ptr::null(), 0), None);
                assert_eq!(format.describe(bytes.as_ptr().cast()), "fi_sockaddr_in://10.1.0.7:40001");
            }
            assert_eq!(Format::of(format.number(), false), format);
        }
    }

    #[test]
    fn addresses_have_room_for_ipv6_where_one_process_has_such_an_address() {
        for number in [FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IP] {
            assert_eq!(Format::of(number, false), Format::Ipv4);
            assert_eq!(Format::of(number, true), Format::Ipv6);
        }
        assert_eq!(Format::of(FI_SOCKADDR_IN6, false), Format::Ipv6);
        assert_eq!(Format::of(FI_ADDR_STR, true), Format::Text);
        let both = [Address::standalone("[2001:db8::7]:40001".parse().unwrap()), two()[0]];
        let bytes = both.map(|address| Format::Ipv6.write(address)).concat();
        assert_eq!(bytes.len(), 2 * 28);
        // SAFETY: all valid.
        unsafe {
            assert_eq!(Format::Ipv6.read_all(bytes.as_ptr().cast(), 2), Ok(both.map(Some).to_vec()));
            assert_eq!(Format::Ipv6.describe(bytes.as_ptr().cast()), "fi_sockaddr_in6://[2001:db8::7]:40001");
            assert_eq!(Format::Ipv6.describe([7u8; 28].as_ptr().cast()), format!("unknown://{}", "07".repeat(28)));
        }
        let short = Format::Ipv4.write(both[0]);
        // SAFETY: as above.
        assert_eq!(unsafe { Format::Ipv4.describe(short.as_ptr().cast()) }, "fi_sockaddr_in://0.0.0.0:0");
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
