//! TLS 1.3 without I/O, the same for users, agents, gateways and ranks.
//!
//! [`Session`] takes ciphertext and gives plaintext, and back; its user decides what is read and written when. [`TlsConfig`] is for
//! ends that show a site's key, [`dial_without_key`] for those that show none, [`Ephemeral`] for ends whose key
//! lives as long as their process. Nobody vouches for a key: it proves that the peer holds its private half and nothing else. Whose key it is,
//! the caller decides before it sends or believes anything: by a fingerprint it knows, or by a proof that covers the key.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod ephemeral;
mod session;
#[cfg(test)]
mod tests;

pub use config::{TlsConfig, dial_without_key, fingerprint};
pub use ephemeral::Ephemeral;
pub use rustls::Error;
pub use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
pub use session::{MAX_RECORD, Opened, RECORD_LEN, Session, sealed_len};
