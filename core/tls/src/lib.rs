//! TLS 1.3 without I/O, the same for users, agents, gateways and ranks.
//!
//! [`Session`] turns ciphertext into plaintext and back; its user decides when to read and write. [`TlsConfig`] is for
//! ends that present a site's key, [`dial_without_key`] for dialling ends without a key, [`Ephemeral`] for ends whose
//! key lives as long as their process. There are no certificate authorities: a key proves only that the peer holds its
//! private half. Before the caller sends or trusts anything, it must establish whose key it is: by a known fingerprint,
//! or by a proof that covers the key.

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
