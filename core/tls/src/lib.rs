//! TLS 1.3 without I/O, the same for users, agents, gateways and ranks.
//!
//! [`Session`] takes ciphertext and returns plaintext, and the reverse; its user decides what is read and written when.
//! [`TlsConfig`] is for ends that present a site's key, [`dial_without_key`] for those that present none, [`Ephemeral`]
//! for ends whose key lives as long as their process. There are no certificate authorities: a key proves only that the
//! peer holds its private half. The caller decides whose key it is before it sends or trusts anything: by a known
//! fingerprint, or by a proof that covers the key.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod ephemeral;
mod hello;
mod session;
#[cfg(test)]
mod tests;

pub use config::{TlsConfig, dial_without_key, fingerprint};
pub use ephemeral::Ephemeral;
pub use hello::{HelloToken, MAX_HELLO, TOKEN_LEN, hello_token};
pub use rustls::Error;
pub use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
pub use session::{MAX_RECORD, Opened, RECORD_LEN, Session, sealed_len};
