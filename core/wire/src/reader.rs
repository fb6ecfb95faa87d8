//! Reads fixed-width fields off a slice; reading past its end is an error, not a panic.

use types::id::ADDRESS_LEN;
use types::{Address, Identity, SiteId, Slot};

use crate::error::WireError;
use crate::text::within;

pub(crate) struct FieldReader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> FieldReader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { what, bytes, at: 0 }
    }

    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            let need = self.at.saturating_add(count);
            return Err(WireError::Truncated { what: self.what, have: self.bytes.len(), need });
        };
        let slice = &self.bytes[self.at..end];
        self.at = end;
        Ok(slice)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn identity(&mut self) -> Result<Identity, WireError> {
        Ok(Identity { site: SiteId(self.u16()?), slot: Slot(self.u32()?) })
    }

    pub(crate) fn address(&mut self) -> Result<Address, WireError> {
        Address::from_bytes(&self.array::<ADDRESS_LEN>()?).ok_or_else(|| WireError::Invalid {
            what: self.what,
            problem: "an address of another family than AF_INET6, or a link-local one".into(),
        })
    }

    /// A text preceded by its length in 16 bits.
    pub(crate) fn text(&mut self, limit: usize) -> Result<String, WireError> {
        let length = usize::from(self.u16()?);
        if length > limit {
            return Err(WireError::TooLong { what: self.what, length: length as u64, limit: limit as u64 });
        }
        let bytes = self.take(length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => Err(WireError::Invalid { what: self.what, problem: format!("text is not UTF-8: {e}") }),
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Refuses bytes after the last field.
    pub(crate) fn end(self) -> Result<(), WireError> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        let problem = format!("{} bytes too many", self.bytes.len() - self.at);
        Err(WireError::Invalid { what: self.what, problem })
    }
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str, limit: usize) {
    let text = within(text, limit);
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
