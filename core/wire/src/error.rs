//! The error of every decoder.

use thiserror::Error;

/// Bytes that violate the protocol. The peer is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Fewer bytes than the value needs.
    #[error("{what}: truncated at {have} bytes, needs {need}")]
    Truncated {
        /// The value being read.
        what: &'static str,
        /// Bytes available.
        have: usize,
        /// Bytes needed.
        need: usize,
    },
    /// The first bytes are not Landbridge's preface.
    #[error("not a Landbridge connection: it begins with {0:02x?}")]
    Magic([u8; 7]),
    /// Another version of the protocol.
    #[error("peer speaks protocol version {theirs}, we speak {ours}: install the same release on both sides")]
    Version {
        /// The peer's version.
        theirs: u8,
        ours: u8,
    },
    /// An unknown code number.
    #[error("{what}: unknown code {code}")]
    Unknown {
        /// The field with the code.
        what: &'static str,
        /// The number.
        code: u8,
    },
    /// A length beyond the limit.
    #[error("{what}: {length} bytes; at most {limit} are allowed")]
    TooLong {
        /// The value with this length.
        what: &'static str,
        /// Its length in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Any other invalid value.
    #[error("{what}: {problem}")]
    Invalid {
        /// The value being read.
        what: &'static str,
        /// The reason.
        problem: String,
    },
}
