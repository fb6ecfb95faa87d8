//! The first exchange of two ranks of a site, over TCP, before they use the site's own network.

use crate::error::WireError;
use crate::reader::{FieldReader, put_text};

/// Longest address of a port, in bytes.
pub const MAX_NAME: usize = 256;
const MAX_PROVIDER: usize = 64;

/// The address of the sender's port, and the mark for frames to it. The connection that carries an introduction has
/// proved the job's secret, so a peer that knows the token belongs to the job.
#[derive(Clone, PartialEq, Eq)]
pub struct Introduction {
    /// The first bytes of every frame to the sender.
    pub token: u64,
    /// The full name of the libfabric provider, such as `verbs;ofi_rxm`; both ends must use the same one.
    pub provider: String,
    /// The port's address, in the provider's format.
    pub name: Vec<u8>,
}

impl std::fmt::Debug for Introduction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Introduction({}, {:02x?})", self.provider, self.name)
    }
}

impl Introduction {
    /// A frame's payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&self.token.to_le_bytes());
        put_text(&mut out, &self.provider, MAX_PROVIDER);
        let count = self.name.len().min(MAX_NAME);
        out.extend_from_slice(&(count as u16).to_le_bytes());
        out.extend_from_slice(&self.name[..count]);
        out
    }

    /// Decodes a frame's payload.
    ///
    /// # Errors
    /// [`WireError`]: it is not an introduction.
    pub fn decode(bytes: &[u8]) -> Result<Introduction, WireError> {
        let mut reader = FieldReader::new("introduction", bytes);
        let (token, provider) = (reader.u64()?, reader.text(MAX_PROVIDER)?);
        let count = usize::from(reader.u16()?);
        if count > MAX_NAME {
            let (length, limit) = (count as u64, MAX_NAME as u64);
            return Err(WireError::TooLong { what: "introduction: name", length, limit });
        }
        let name = reader.take(count)?.to_vec();
        reader.end()?;
        Ok(Introduction { token, provider, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn introductions_survive(
            token: u64, provider in "[a-z;_]{0,64}", name in prop::collection::vec(any::<u8>(), 0..256),
        ) {
            let introduction = Introduction { token, provider, name };
            prop_assert_eq!(Introduction::decode(&introduction.encode()), Ok(introduction));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = Introduction::decode(&bytes);
        }
    }

    #[test]
    fn the_token_is_not_shown() {
        let introduction = Introduction { token: 0x1234_5678, provider: "tcp".into(), name: vec![1] };
        assert_eq!(format!("{introduction:?}"), "Introduction(tcp, [01])");
    }
}
