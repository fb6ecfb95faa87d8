//! Puts connections of the site link into TLS, with a key that this process makes for itself at its first use.
//!
//! TLS alone does not authenticate the peer, because nobody knows its key beforehand. The proofs of the job's secret
//! cover the key that the acceptor presented. An attacker between two ranks has to present its own key to each of them,
//! and then the proofs do not match.

use std::io;
use std::os::fd::OwnedFd;

use tls::Ephemeral;

use crate::stream::{Expected, Stream};

#[derive(Default)]
pub(super) struct Sealing(Option<Ephemeral>);

impl Sealing {
    /// Starts TLS as the dialling end.
    pub(super) fn dial(&mut self, socket: OwnedFd) -> io::Result<Stream> {
        let session = self.key()?.dial().map_err(io::Error::other)?;
        Stream::sealed(socket, session, Expected::Unknown)
    }

    /// Starts TLS as the accepting end.
    pub(super) fn accept(&mut self, socket: OwnedFd) -> io::Result<Stream> {
        let key = self.key()?;
        let session = key.accept().map_err(io::Error::other)?;
        Stream::sealed(socket, session, Expected::Ours(key.fingerprint()))
    }

    fn key(&mut self) -> io::Result<&Ephemeral> {
        if self.0.is_none() {
            self.0 = Some(Ephemeral::new().map_err(io::Error::other)?);
        }
        self.0.as_ref().ok_or_else(|| io::Error::other("no key"))
    }
}
