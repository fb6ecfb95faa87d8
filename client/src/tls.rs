//! TLS: version 1.3 only, gateways show the key of their site, users and agents none, nobody else vouches for anybody.
//!
//! [`Session`] does no I/O: ciphertext in, plaintext out and back, so that its user decides what is written when.
//! A certificate proves only that the peer holds the private key of what is in it. Whose key that is, the caller decides by
//! comparing [`Session::peer`] with the sites file *before* it sends or believes anything.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, io};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection, WantsClientCert};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, DistinguishedName, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use types::sites::Fingerprint;

pub use rustls::Error;

use crate::key::{KeyError, SiteKey, fingerprint};

/// Bytes that TLS adds to each record of at most [`RECORD_LEN`] bytes, at most.
const RECORD_OVERHEAD: usize = 32;
const RECORD_LEN: usize = 16 << 10;
/// The longest ciphertext of a record, header included (RFC 8446, 5.2).
pub const MAX_RECORD: usize = RECORD_LEN + 256 + 5;

/// How much room [`Session::seal`] may need for this many bytes.
pub const fn sealed_len(plaintext: usize) -> usize {
    plaintext + (plaintext / RECORD_LEN + 1) * RECORD_OVERHEAD + 64
}

/// What both ends of a trunk link are configured with.
#[derive(Clone)]
pub struct TlsConfig {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl TlsConfig {
    /// Both ends show this key.
    ///
    /// # Errors
    /// [`KeyError::Make`].
    pub fn new(key: &SiteKey) -> Result<TlsConfig, KeyError> {
        let (certificate, private) = key.certificate()?;
        let provider = provider();
        let verifier = Arc::new(Possession(provider.clone()));
        let make = |e: Error| KeyError::Make(format!("TLS: {e}"));
        let mut client = client_builder(&provider)
            .map_err(make)?
            .with_client_auth_cert(vec![certificate.clone()], private.clone_key())
            .map_err(make)?;
        restrict(&mut client);
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(make)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], private)
            .map_err(make)?;
        server.send_tls13_tickets = 0;
        Ok(TlsConfig { client: Arc::new(client), server: Arc::new(server) })
    }

    /// The dialling end.
    ///
    /// # Errors
    /// The configuration cannot be used; never in practice.
    pub fn dial(&self) -> Result<Session, Error> {
        dial_with(self.client.clone())
    }

    /// The accepting end.
    ///
    /// # Errors
    /// As [`TlsConfig::dial`].
    pub fn accept(&self) -> Result<Session, Error> {
        UnbufferedServerConnection::new(self.server.clone()).map(|c| Session(Side::Server(Box::new(c))))
    }
}

/// The dialling end of who has no key to show.
///
/// # Errors
/// The configuration cannot be used; never in practice.
pub fn dial_without_key() -> Result<Session, Error> {
    let mut config = client_builder(&provider())?.with_no_client_auth();
    restrict(&mut config);
    dial_with(Arc::new(config))
}

fn dial_with(config: Arc<ClientConfig>) -> Result<Session, Error> {
    let name = ServerName::try_from("landbridge").map_err(|e| Error::General(e.to_string()))?;
    UnbufferedClientConnection::new(config, name).map(|c| Session(Side::Client(Box::new(c))))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        // 128 bits are enough and a fifth faster; any of the three is accepted.
        cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256],
        ..ring::default_provider()
    })
}

fn client_builder(provider: &Arc<CryptoProvider>) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13])?;
    Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(Possession(provider.clone()))))
}

/// No session is taken up again, no name is sent.
fn restrict(config: &mut ClientConfig) {
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
}

/// Accepts any self-signed certificate whose private key signed the handshake.
#[derive(Debug)]
struct Possession(Arc<CryptoProvider>);

/// What rustls asks of either side's verifier in the same words: TLS 1.3's signatures by Ed25519, and no others.
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
            verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
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
        ParsedCertificate::try_from(end_entity).map(|_| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Possession {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    /// Users and agents have none: they prove a secret.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        ParsedCertificate::try_from(end_entity).map(|_| ClientCertVerified::assertion())
    }

    signatures!();
}

/// One end of a TLS connection, without its socket.
pub struct Session(Side);

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// What [`Session::open`] made of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of the input that are used up.
    pub consumed: usize,
    /// The handshake is over.
    pub established: bool,
    /// The peer has said that it sends no more.
    pub closed: bool,
}

enum Step {
    Again,
    NeedsMore { established: bool },
    PeerClosed,
}

impl Session {
    /// Decrypts what it can of `incoming`, hands plaintext over record by record, and appends to `outgoing` what must be
    /// sent in turn.
    ///
    /// # Errors
    /// The peer broke the protocol; `outgoing` then ends with the alert to send before closing.
    pub fn open(
        &mut self,
        incoming: &mut [u8],
        plaintext: &mut dyn FnMut(&[u8]),
        outgoing: &mut Vec<u8>,
    ) -> Result<Opened, Error> {
        let mut opened = Opened { consumed: 0, established: false, closed: false };
        loop {
            let rest = &mut incoming[opened.consumed..];
            let (discard, result) = match &mut self.0 {
                Side::Client(client) => step(client.process_tls_records(rest), plaintext, outgoing),
                Side::Server(server) => step(server.process_tls_records(rest), plaintext, outgoing),
            };
            opened.consumed += discard;
            match result {
                Ok(Step::Again) => {}
                Ok(Step::NeedsMore { established }) => {
                    opened.established = established;
                    return Ok(opened);
                }
                Ok(Step::PeerClosed) => {
                    opened.closed = true;
                    return Ok(opened);
                }
                Err(error) => {
                    // Once more, to collect the alert; without one, rustls would look at input it has given up.
                    let _ = match &mut self.0 {
                        Side::Client(client) if client.wants_write() => {
                            step(client.process_tls_records(&mut []), plaintext, outgoing)
                        }
                        Side::Server(server) if server.wants_write() => {
                            step(server.process_tls_records(&mut []), plaintext, outgoing)
                        }
                        _ => return Err(error),
                    };
                    return Err(error);
                }
            }
        }
    }

    /// Encrypts `plaintext` to the start of `out`, which has [`sealed_len`] bytes at least; gives the length.
    ///
    /// # Errors
    /// The handshake is not over, the connection is closed, or its keys are worn out.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let mut at = 0;
        loop {
            let done = match &mut self.0 {
                Side::Client(client) => seal(client.process_tls_records(&mut []), plaintext, out, &mut at)?,
                Side::Server(server) => seal(server.process_tls_records(&mut []), plaintext, out, &mut at)?,
            };
            if done {
                return Ok(at);
            }
        }
    }

    /// The key the peer has shown to hold, once the handshake is over.
    pub fn peer(&self) -> Option<Fingerprint> {
        let certificates = match &self.0 {
            Side::Client(client) => client.peer_certificates(),
            Side::Server(server) => server.peer_certificates(),
        };
        let parsed = ParsedCertificate::try_from(certificates?.first()?).ok()?;
        Some(fingerprint(&parsed.subject_public_key_info()))
    }
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plaintext: &mut dyn FnMut(&[u8]),
    outgoing: &mut Vec<u8>,
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state, .. } = status;
    let step = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    plaintext(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Step::Again),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let start = outgoing.len();
            let mut room = RECORD_LEN;
            loop {
                outgoing.resize(start + room, 0);
                match data.encode(&mut outgoing[start..]) {
                    Ok(length) => {
                        outgoing.truncate(start + length);
                        break Ok(Step::Again);
                    }
                    Err(EncodeError::InsufficientSize(size)) => room = size.required_size,
                    Err(error) => break Err(Error::General(error.to_string())),
                }
            }
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Step::NeedsMore { established: false }),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(Step::NeedsMore { established: true }),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Step::PeerClosed),
        Ok(_) => Err(Error::General("early data, which is never offered".into())),
    };
    (discard, step)
}

fn seal<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plaintext: &[u8],
    out: &mut [u8],
    at: &mut usize,
) -> Result<bool, Error> {
    match status.state? {
        ConnectionState::WriteTraffic(mut traffic) => {
            let encrypted = traffic.encrypt(plaintext, &mut out[*at..]);
            *at += encrypted.map_err(|e: EncryptError| Error::General(e.to_string()))?;
            Ok(true)
        }
        // A key update of ours goes out before the data.
        ConnectionState::EncodeTlsData(mut data) => {
            *at += data.encode(&mut out[*at..]).map_err(|e| Error::General(e.to_string()))?;
            Ok(false)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(false)
        }
        other => Err(Error::General(format!("cannot send in state {other:?}"))),
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Side::Client(_) => "Session(dialled)",
            Side::Server(_) => "Session(accepted)",
        })
    }
}

/// A [`Session`] and its socket as a byte stream, for the handshake of a link.
pub struct TlsStream {
    tcp: TcpStream,
    session: Session,
    cipher: Vec<u8>,
    plain: Vec<u8>,
    out: Vec<u8>,
    closed: bool,
}

impl TlsStream {
    /// Does the TLS handshake.
    ///
    /// # Errors
    /// The connection broke, or the other end does not speak TLS as we do.
    pub async fn handshake(tcp: TcpStream, session: Session) -> io::Result<TlsStream> {
        let (cipher, plain, out) = (Vec::new(), Vec::new(), Vec::new());
        let mut stream = TlsStream { tcp, session, cipher, plain, out, closed: false };
        std::future::poll_fn(|cx| stream.poll_established(cx)).await?;
        Ok(stream)
    }

    /// The session, whose [`Session::peer`] is to be looked at before anything is said.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The socket, the session, and what has been read but not used: ciphertext, plaintext.
    pub fn into_parts(self) -> (TcpStream, Session, Vec<u8>, Vec<u8>) {
        (self.tcp, self.session, self.cipher, self.plain)
    }

    fn open(&mut self) -> io::Result<bool> {
        let plain = &mut self.plain;
        let opened = self.session.open(&mut self.cipher, &mut |bytes| plain.extend_from_slice(bytes), &mut self.out);
        match opened {
            Ok(opened) => {
                self.cipher.drain(..opened.consumed);
                self.closed |= opened.closed;
                Ok(opened.established)
            }
            Err(error) => {
                // The alert is worth a try; the connection is over either way.
                let _ = self.tcp.try_write(&self.out);
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}")))
            }
        }
    }

    fn poll_flush_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            let written = std::task::ready!(Pin::new(&mut self.tcp).poll_write(cx, &self.out))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.out.drain(..written);
        }
        Poll::Ready(Ok(()))
    }

    /// Reads some ciphertext; an end of stream is an error unless TLS said it before.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut chunk = [0; 4096];
        let mut buf = ReadBuf::new(&mut chunk);
        std::task::ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut buf))?;
        if buf.filled().is_empty() {
            let text = "connection closed during the handshake";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
        }
        self.cipher.extend_from_slice(buf.filled());
        Poll::Ready(Ok(()))
    }

    fn poll_established(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let established = self.open()?;
            std::task::ready!(self.poll_flush_out(cx))?;
            if established {
                return Poll::Ready(Ok(()));
            }
            if self.closed || self.cipher.len() > 4 * MAX_RECORD {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "TLS handshake cut short")));
            }
            std::task::ready!(self.poll_fill(cx))?;
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.plain.is_empty() {
                let take = this.plain.len().min(buf.remaining());
                buf.put_slice(&this.plain[..take]);
                this.plain.drain(..take);
                return Poll::Ready(Ok(()));
            }
            if this.closed {
                return Poll::Ready(Ok(()));
            }
            std::task::ready!(this.poll_fill(cx))?;
            this.open()?;
            std::task::ready!(this.poll_flush_out(cx))?;
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        std::task::ready!(this.poll_flush_out(cx))?;
        let bytes = &bytes[..bytes.len().min(RECORD_LEN)];
        let mut sealed = vec![0; sealed_len(bytes.len())];
        let length = this.session.seal(bytes, &mut sealed).map_err(io::Error::other)?;
        this.out.extend_from_slice(&sealed[..length]);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_out(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_flush_out(cx))?;
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shake(client: &mut Session, server: &mut Session) -> Result<(), Error> {
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            let one = client.open(&mut to_client, &mut |_| {}, &mut to_server)?;
            to_client.drain(..one.consumed);
            let two = server.open(&mut to_server, &mut |_| {}, &mut to_client)?;
            to_server.drain(..two.consumed);
            if one.established && two.established && to_server.is_empty() && to_client.is_empty() {
                return Ok(());
            }
        }
        Err(Error::HandshakeNotComplete)
    }

    #[test]
    fn both_ends_learn_the_key_of_the_other_and_bytes_pass() {
        let (a, b) = (SiteKey::random().unwrap(), SiteKey::random().unwrap());
        let mut client = TlsConfig::new(&a).unwrap().dial().unwrap();
        let mut server = TlsConfig::new(&b).unwrap().accept().unwrap();
        shake(&mut client, &mut server).unwrap();
        assert_eq!(client.peer(), Some(b.fingerprint()));
        assert_eq!(server.peer(), Some(a.fingerprint()));
        let message: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut sealed = vec![0; sealed_len(message.len())];
        let length = client.seal(&message, &mut sealed).unwrap();
        sealed.truncate(length);
        // In pieces, as sockets do.
        let (mut got, mut pending, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for piece in sealed.chunks(7000) {
            pending.extend_from_slice(piece);
            let opened = server.open(&mut pending, &mut |bytes| got.extend_from_slice(bytes), &mut out).unwrap();
            pending.drain(..opened.consumed);
        }
        assert_eq!(got, message);
        sealed[100] ^= 1;
        let mut alert = Vec::new();
        assert!(server.open(&mut sealed, &mut |_| {}, &mut alert).is_err());
        assert!(!alert.is_empty());
    }

    #[test]
    fn who_has_no_key_learns_that_of_the_other() {
        let key = SiteKey::random().unwrap();
        let (mut client, mut server) = (dial_without_key().unwrap(), TlsConfig::new(&key).unwrap().accept().unwrap());
        shake(&mut client, &mut server).unwrap();
        assert_eq!((client.peer(), server.peer()), (Some(key.fingerprint()), None));
    }

    #[test]
    fn strangers_bytes_are_refused() {
        let key = SiteKey::random().unwrap();
        let config = TlsConfig::new(&key).unwrap();
        for seed in 0..200u32 {
            let mut bytes: Vec<u8> = (0..300u32).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect();
            bytes[..5].copy_from_slice(&[0x16, 3, 1, 0, 200]);
            let mut server = config.accept().unwrap();
            assert!(server.open(&mut bytes, &mut |_| {}, &mut Vec::new()).is_err());
        }
    }
}
