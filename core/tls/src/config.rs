//! Configuration of the ends of a connection: the key that each presents, and a verifier that accepts any key whose
//! holder signs.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WantsClientCert};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use sha2::{Digest, Sha256};
use types::sites::Fingerprint;

use crate::Session;
use crate::hello::TOKEN_LEN;

/// The fingerprint of a public key given as SubjectPublicKeyInfo in DER.
pub fn fingerprint(public_key_info: &[u8]) -> Fingerprint {
    Fingerprint(Sha256::digest(public_key_info).into())
}

/// The configuration of both ends of a trunk link.
#[derive(Clone)]
pub struct TlsConfig {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsConfig {
    /// Both ends present this certificate, which is signed by its own Ed25519 key. Only its key matters.
    ///
    /// # Errors
    /// The key is not the certificate's, or is of another kind.
    pub fn new(certificate: CertificateDer<'static>, private: PrivateKeyDer<'static>) -> Result<TlsConfig, Error> {
        let provider = provider();
        let mut client = client_builder(&provider, Possession { provider: provider.clone(), bare: false })?
            .with_client_auth_cert(vec![certificate.clone()], private.clone_key())?;
        restrict(&mut client);
        let mut server = ServerConfig::builder_with_details(provider.clone(), Arc::new(NoClock))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(Possession { provider, bare: false }))
            .with_single_cert(vec![certificate], private)?;
        server.send_tls13_tickets = 0;
        Ok(TlsConfig { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The dialling end. `token`: sent in the ClientHello, for [`hello_token`](crate::hello_token).
    ///
    /// # Errors
    /// The configuration cannot be used; never in practice.
    pub fn dial(&self, token: Option<&[u8; TOKEN_LEN]>) -> Result<Session, Error> {
        Session::dialled(self.client.clone(), false, token)
    }

    /// The accepting end.
    ///
    /// # Errors
    /// As [`TlsConfig::dial`].
    pub fn accept(&self) -> Result<Session, Error> {
        Session::accepted(self.server.clone(), false)
    }
}

/// The dialling end of a peer without a key; the acceptor presents a site's key. `token`: sent in the ClientHello, for
/// [`hello_token`](crate::hello_token).
///
/// # Errors
/// The configuration cannot be used; never in practice.
pub fn dial_without_key(token: Option<&[u8; TOKEN_LEN]>) -> Result<Session, Error> {
    Session::dialled(without_key(false)?, false, token)
}

/// Configuration for dialling without a key. `bare`: acceptors present keys without certificates.
pub(crate) fn without_key(bare: bool) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let mut config = client_builder(&provider, Possession { provider: provider.clone(), bare })?.with_no_client_auth();
    restrict(&mut config);
    Ok(Arc::new(config))
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        // 128 bits are enough and a fifth faster; any of the three is accepted.
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256],
        ..ring::default_provider()
    })
}

/// A constant time for rustls. Keys are pinned, and nothing here expires. rustls's own clock panics on a machine whose
/// time is before 1970.
#[derive(Debug)]
pub(crate) struct NoClock;

impl TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}

fn client_builder(
    provider: &Arc<CryptoProvider>,
    verifier: Possession,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let builder = ClientConfig::builder_with_details(provider.clone(), Arc::new(NoClock));
    let builder = builder.with_protocol_versions(&[&TLS13])?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

/// Disables session resumption, and allows server names, which carry tokens.
fn restrict(config: &mut ClientConfig) {
    config.resumption = Resumption::disabled();
    config.enable_sni = true;
}

/// Accepts any self-signed certificate, or bare key, whose private key signed the handshake.
#[derive(Debug)]
struct Possession {
    provider: Arc<CryptoProvider>,
    /// Keys come without certificates (RFC 7250).
    bare: bool,
}

impl Possession {
    fn judge(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        // A bare key is parsed when its signature is verified.
        if self.bare { Ok(()) } else { ParsedCertificate::try_from(shown).map(|_| ()) }
    }
}

/// The methods that rustls requires of both sides' verifiers: only TLS 1.3 signatures by Ed25519 are valid.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::InvalidCertificate(CertificateError::BadEncoding))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            if self.bare {
                let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
                return verify_tls13_signature_with_raw_key(message, &key, dss, algorithms);
            }
            verify_tls13_signature(message, cert, dss, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            self.bare
        }
    };
}

impl ServerCertVerifier for Possession {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge(end_entity).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Possession {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Users and agents have no certificate: they prove a secret.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.judge(end_entity).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}
