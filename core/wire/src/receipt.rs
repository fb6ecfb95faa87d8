//! A receiver's report of the bytes that have arrived by each route. Senders stripe accordingly.

use crate::error::WireError;
use crate::reader::FieldReader;

/// Most routes in a report.
pub const MAX_ROUTES: usize = 64;
/// The longest receipt in bytes.
pub const MAX_RECEIPT: u32 = (MAX_ROUTES * 9) as u32;

/// The payload of an acknowledging frame without data: for each route in the frames' headers, the bytes (headers
/// included) that have arrived on it so far. Empty if there is only one route.
pub fn encode(arrived: &[(u8, u64)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(arrived.len() * 9);
    for (route, bytes) in arrived.iter().take(MAX_ROUTES) {
        out.push(*route);
        out.extend_from_slice(&bytes.to_le_bytes());
    }
    out
}

/// Reads a receipt.
///
/// # Errors
/// It ends in the middle of an entry, or is longer than [`MAX_RECEIPT`].
pub fn decode(bytes: &[u8]) -> Result<Vec<(u8, u64)>, WireError> {
    if bytes.len() > MAX_RECEIPT as usize {
        let limit = MAX_RECEIPT.into();
        return Err(WireError::TooLong { what: "receipt", length: bytes.len() as u64, limit });
    }
    let mut reader = FieldReader::new("receipt", bytes);
    (0..bytes.len().div_ceil(9)).map(|_| Ok((reader.u8()?, reader.u64()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_survive() {
        for arrived in [vec![], vec![(0, 1), (255, u64::MAX)], vec![(7, 9); MAX_ROUTES]] {
            assert_eq!(decode(&encode(&arrived)), Ok(arrived));
        }
        assert!(decode(&[1, 2, 3]).is_err());
        assert!(matches!(decode(&[0; 9 * (MAX_ROUTES + 1)]), Err(WireError::TooLong { .. })));
    }
}
