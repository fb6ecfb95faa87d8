//! One end of a TLS connection.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::{ParsedCertificate, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ClientConfig, Error, ServerConfig};
use types::sites::Fingerprint;

use crate::config::fingerprint;
use crate::hello::{self, TOKEN_LEN};

/// Most bytes that TLS adds to each record of at most [`RECORD_LEN`] bytes.
const RECORD_OVERHEAD: usize = 32;
/// The longest plaintext of a record (RFC 8446, 5.1).
pub const RECORD_LEN: usize = 16 << 10;
/// The longest ciphertext of a record, header included (RFC 8446, 5.2).
pub const MAX_RECORD: usize = RECORD_LEN + 256 + 5;

/// Most bytes that [`Session::seal`] may write for this many bytes.
pub const fn sealed_len(plaintext: usize) -> usize {
    plaintext + (plaintext / RECORD_LEN + 1) * RECORD_OVERHEAD + 64
}

/// One end of a TLS connection, without its socket.
pub struct Session {
    side: TlsConnection,
    /// Peers present bare keys (RFC 7250), not certificates.
    bare: bool,
}

enum TlsConnection {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// The result of [`Session::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of the input that were consumed.
    pub consumed: usize,
    /// The handshake is over.
    pub established: bool,
    /// The peer has announced the end of its data.
    pub closed: bool,
}

enum SessionStep {
    Again,
    NeedsMore { established: bool },
    PeerClosed,
}

impl Session {
    pub(crate) fn dialled(
        config: Arc<ClientConfig>,
        bare: bool,
        token: Option<&[u8; TOKEN_LEN]>,
    ) -> Result<Session, Error> {
        // rustls requires a server name, which nothing checks. An address is not sent (RFC 6066, 3).
        let name = match token {
            Some(token) => ServerName::try_from(hello::name(token)).map_err(|e| Error::General(e.to_string()))?,
            None => ServerName::from(Ipv4Addr::UNSPECIFIED),
        };
        let client = UnbufferedClientConnection::new(config, name)?;
        Ok(Session { side: TlsConnection::Client(Box::new(client)), bare })
    }

    pub(crate) fn accepted(config: Arc<ServerConfig>, bare: bool) -> Result<Session, Error> {
        Ok(Session { side: TlsConnection::Server(Box::new(UnbufferedServerConnection::new(config)?)), bare })
    }

    /// Decrypts the complete records in `incoming`, passes plaintext on record by record, and appends the bytes to send
    /// in return to `outgoing`.
    ///
    /// # Errors
    /// The peer violated the protocol; `outgoing` then ends with the alert to send before closing.
    pub fn open(
        &mut self,
        incoming: &mut [u8],
        plaintext: &mut dyn FnMut(&[u8]),
        outgoing: &mut Vec<u8>,
    ) -> Result<Opened, Error> {
        let mut opened = Opened { consumed: 0, established: false, closed: false };
        loop {
            let rest = &mut incoming[opened.consumed..];
            let (discard, result) = match &mut self.side {
                TlsConnection::Client(client) => step(client.process_tls_records(rest), plaintext, outgoing),
                TlsConnection::Server(server) => step(server.process_tls_records(rest), plaintext, outgoing),
            };
            opened.consumed += discard;
            match result {
                Ok(SessionStep::Again) => {}
                Ok(SessionStep::NeedsMore { established }) => {
                    opened.established = established;
                    return Ok(opened);
                }
                Ok(SessionStep::PeerClosed) => {
                    opened.closed = true;
                    return Ok(opened);
                }
                Err(error) => {
                    // One more call collects the alert. Without a pending alert, rustls would process input that it has
                    // given up.
                    let _ = match &mut self.side {
                        TlsConnection::Client(client) if client.wants_write() => {
                            step(client.process_tls_records(&mut []), plaintext, outgoing)
                        }
                        TlsConnection::Server(server) if server.wants_write() => {
                            step(server.process_tls_records(&mut []), plaintext, outgoing)
                        }
                        _ => return Err(error),
                    };
                    return Err(error);
                }
            }
        }
    }

    /// Encrypts `plaintext` to the start of `out`, which has at least [`sealed_len`] bytes; returns the length.
    ///
    /// # Errors
    /// The handshake is not over, the connection is closed, or its keys have reached their limit.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut [u8]) -> Result<usize, Error> {
        let mut at = 0;
        loop {
            let done = match &mut self.side {
                TlsConnection::Client(client) => seal(client.process_tls_records(&mut []), plaintext, out, &mut at)?,
                TlsConnection::Server(server) => seal(server.process_tls_records(&mut []), plaintext, out, &mut at)?,
            };
            if done {
                return Ok(at);
            }
        }
    }

    /// Fingerprint of the peer's key, whose possession the peer has proved; `None` before the handshake is over.
    pub fn peer(&self) -> Option<Fingerprint> {
        let certificates = match &self.side {
            TlsConnection::Client(client) => client.peer_certificates(),
            TlsConnection::Server(server) => server.peer_certificates(),
        };
        let first = certificates?.first()?;
        if self.bare {
            return Some(fingerprint(first));
        }
        let parsed = ParsedCertificate::try_from(first).ok()?;
        Some(fingerprint(&parsed.subject_public_key_info()))
    }
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    plaintext: &mut dyn FnMut(&[u8]),
    outgoing: &mut Vec<u8>,
) -> (usize, Result<SessionStep, Error>) {
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
                None => break Ok(SessionStep::Again),
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
                        break Ok(SessionStep::Again);
                    }
                    Err(EncodeError::InsufficientSize(size)) => room = size.required_size,
                    Err(error) => break Err(Error::General(error.to_string())),
                }
            }
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(SessionStep::Again)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(SessionStep::NeedsMore { established: false }),
        Ok(ConnectionState::WriteTraffic(_)) => Ok(SessionStep::NeedsMore { established: true }),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(SessionStep::PeerClosed),
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
        // A pending key update is sent before the data.
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
        f.write_str(match self.side {
            TlsConnection::Client(_) => "Session(dialled)",
            TlsConnection::Server(_) => "Session(accepted)",
        })
    }
}
