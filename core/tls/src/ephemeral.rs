//! A key that lives as long as its process.

use std::sync::Arc;

use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use rustls::crypto::ring::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, Error, ServerConfig};
use types::sites::Fingerprint;

use crate::Session;
use crate::config::{NoClock, fingerprint, provider, without_key};

/// A key made for this process and stored in no file. The accepting end presents it bare (RFC 7250); the dialling end
/// presents none. Nobody knows the key beforehand, so TLS alone does not authenticate the peer: both ends must prove a
/// secret, and the proof must cover the key that the acceptor presented.
#[derive(Clone)]
pub struct Ephemeral {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    fingerprint: Fingerprint,
}

impl Ephemeral {
    /// Makes a key.
    ///
    /// # Errors
    /// The system provides no random numbers.
    pub fn new() -> Result<Ephemeral, Error> {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| Error::General("no random numbers for a key".into()))?;
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(pkcs8.as_ref()))?;
        let public = key.public_key().map(|public| public.to_vec());
        let public = public.ok_or_else(|| Error::General("a key without a public half".into()))?;
        let fingerprint = fingerprint(&public);
        let shown = CertifiedKey::new(vec![CertificateDer::from(public)], key);
        let mut server = ServerConfig::builder_with_details(provider(), Arc::new(NoClock))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(shown))));
        server.send_tls13_tickets = 0;
        Ok(Ephemeral { client: without_key(true)?, server: Arc::new(server), fingerprint })
    }

    /// The fingerprint of the key that the accepting end presents.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The dialling end.
    ///
    /// # Errors
    /// The configuration cannot be used; never in practice.
    pub fn dial(&self) -> Result<Session, Error> {
        Session::dialled(self.client.clone(), true, None)
    }

    /// The accepting end.
    ///
    /// # Errors
    /// As [`Ephemeral::dial`].
    pub fn accept(&self) -> Result<Session, Error> {
        Session::accepted(self.server.clone(), true)
    }
}
