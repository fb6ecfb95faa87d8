//! A site that a test plays: it holds a key that the others trust, and sends any frames over its trunks.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use member::handshake::{Answer, Initiator};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, PublicKeyData};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};
use sha2::{Digest, Sha256};
use types::sites::Fingerprint;
use types::{Address, Identity, JobId, SiteId, Slot};
use wire::frame::{HEADER_LEN, MAX_PAYLOAD};
use wire::handshake::{Handshake, Hello, Purpose};
use wire::{Control, FrameHeader, FrameKind, Secret};

use super::{LIMIT, Running};

/// A gateway's identity in frames that concern no particular job.
pub(crate) const GATEWAY: Identity = Identity { site: SiteId(0), slot: Slot::GATEWAY };

/// The key of the site.
pub(crate) struct Key(KeyPair);

impl Key {
    pub(crate) fn new() -> Key {
        Key(KeyPair::generate_for(&PKCS_ED25519).unwrap())
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(self.0.subject_public_key_info()).into())
    }
}

#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
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
}

/// One link of a trunk to a gateway. It answers nothing by itself, not even pings.
pub(crate) struct Link {
    stream: StreamOwned<ClientConnection, TcpStream>,
    sequence: u32,
    /// Number of control messages received.
    came: u32,
}

impl Link {
    /// Dials a gateway as gateway `gw1` of a site. `run`: run number of its program.
    pub(crate) fn dial(to: &Running, key: &Key, site: &str, run: u32) -> Link {
        let provider = Arc::new(ring::default_provider());
        let certificate = CertificateParams::new(vec!["landbridge".to_owned()]).unwrap().self_signed(&key.0).unwrap();
        let private = PrivatePkcs8KeyDer::from(key.0.serialized_der().to_vec());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
            .with_client_auth_cert(vec![certificate.der().clone()], private.into())
            .unwrap();
        let session = ClientConnection::new(Arc::new(config), ServerName::try_from("landbridge").unwrap()).unwrap();
        // The gateway may still be starting.
        let tcp = super::within_blocking("its port", || TcpStream::connect(&to.inside).ok());
        tcp.set_nodelay(true).unwrap();
        tcp.set_read_timeout(Some(LIMIT)).unwrap();
        tcp.set_write_timeout(Some(LIMIT)).unwrap();
        let mut link = Link { stream: StreamOwned::new(session, tcp), sequence: 0, came: 0 };
        let nowhere = Address::standalone(types::id::NOWHERE);
        let hello = Hello {
            purpose: Purpose::Trunk,
            job: JobId(run),
            from: nowhere,
            to: nowhere,
            site: site.to_owned(),
            gateway: "gw1".to_owned(),
            link: 0,
            nonce: [7; 32],
        };
        let (mut initiator, mut message) = Initiator::new(hello, Secret::NONE, &to.gateway.keys.unwrap().current.0);
        loop {
            link.stream.write_all(&message.encode()).unwrap();
            let heard = link.handshake();
            match initiator.step(heard).unwrap() {
                Answer::Send(next) => message = next,
                Answer::Open(_) => return link,
            }
        }
    }

    fn handshake(&mut self) -> Handshake {
        let mut bytes = vec![0; 4];
        self.stream.read_exact(&mut bytes).unwrap();
        let length = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        bytes.resize(4 + length as usize, 0);
        self.stream.read_exact(&mut bytes[4..]).unwrap();
        Handshake::decode(&bytes, false).unwrap().unwrap().0
    }

    /// Sends bytes; `false` when the gateway has closed the link.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends bytes and reads nothing, unlike `write`, which also reads.
    pub(crate) fn write_only(&mut self, bytes: &[u8]) -> bool {
        let StreamOwned { conn, sock } = &mut self.stream;
        let mut written = conn.writer().write_all(bytes).is_ok();
        while written && conn.wants_write() {
            written = conn.write_tls(sock).is_ok();
        }
        written
    }

    /// Sends bytes, and meanwhile reads all that arrives, so that neither side waits for the other. `arrived`: bytes of
    /// a frame that is not complete yet, kept between calls. `false` when the gateway has closed the link.
    pub(crate) fn exchange(&mut self, bytes: &[u8], arrived: &mut Vec<u8>) -> bool {
        let StreamOwned { conn, sock } = &mut self.stream;
        sock.set_nonblocking(true).unwrap();
        let end = Instant::now() + LIMIT;
        let mut open = conn.writer().write_all(bytes).is_ok();
        let mut idle = false;
        while open && (conn.wants_write() || !idle) {
            assert!(Instant::now() < end, "the gateway neither reads nor closes the link");
            let waits = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            let written = conn.write_tls(sock);
            let read = conn.read_tls(sock);
            idle = matches!(written, Ok(0) | Err(_)) && read.is_err();
            open = written.is_ok() || written.is_err_and(|error| waits(&error));
            open &= read.map_or_else(|error| waits(&error), |count| count > 0) && conn.process_new_packets().is_ok();
            // An error means that no more bytes are there.
            let _ = conn.reader().read_to_end(arrived);
            if idle && conn.wants_write() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        sock.set_nonblocking(false).unwrap();
        let mut at = 0;
        while let Some(header) = arrived.get(at..at + HEADER_LEN) {
            let header = FrameHeader::decode(header, MAX_PAYLOAD).unwrap();
            let next = at + HEADER_LEN + header.length as usize;
            if next > arrived.len() {
                break;
            }
            if header.kind == FrameKind::Control {
                self.came = self.came.max(header.sequence + 1);
            }
            at = next;
        }
        arrived.drain(..at);
        open && self.acknowledge()
    }

    pub(crate) fn frame(&mut self, message: impl Into<Control>) -> Vec<u8> {
        let message = message.into();
        let plain = FrameHeader::plain(FrameKind::Control, message.job().unwrap_or_default(), GATEWAY, GATEWAY);
        let header = FrameHeader { sequence: self.sequence, ack: self.came, ..plain };
        self.sequence += 1;
        header.with_payload(&message.encode().unwrap()).unwrap()
    }

    /// Sends a control message; `false` when the gateway has closed the link.
    pub(crate) fn tell(&mut self, message: impl Into<Control>) -> bool {
        let frame = self.frame(message);
        self.write(&frame)
    }

    /// The next frame; `None` when the link is closed.
    pub(crate) fn hear(&mut self) -> Option<(FrameHeader, Vec<u8>)> {
        let mut header = [0; HEADER_LEN];
        self.stream.read_exact(&mut header).ok()?;
        let header = FrameHeader::decode(&header, MAX_PAYLOAD).unwrap();
        let mut payload = vec![0; header.length as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some((header, payload))
    }

    /// The next control message, except figures of links; all are acknowledged. `None` when the link is closed.
    pub(crate) fn hear_control(&mut self) -> Option<Control> {
        loop {
            let (header, payload) = self.hear()?;
            if header.kind == FrameKind::Control {
                self.came = self.came.max(header.sequence + 1);
                self.acknowledge();
                match Control::decode(&payload).unwrap() {
                    Control::Links(_) => {}
                    message => return Some(message),
                }
            }
        }
    }

    /// Acknowledges the control messages that have come; `false` when the gateway has closed the link.
    fn acknowledge(&mut self) -> bool {
        let ack = FrameHeader::plain(FrameKind::Ack, JobId::default(), GATEWAY, GATEWAY);
        self.write(&FrameHeader { ack: self.came, ..ack }.encode())
    }

    /// The text that the gateway sends before it closes the link.
    pub(crate) fn last_words(&mut self) -> String {
        let mut words = String::new();
        while let Some((header, payload)) = self.hear() {
            if header.kind == FrameKind::Bye {
                words = String::from_utf8_lossy(&payload).into_owned();
            }
        }
        words
    }
}
