//! A connection to a gateway of the own site, carrying frames in both directions. Ranks have their own implementation,
//! without an async runtime.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;
use types::sites::{Fingerprint, Keys};
use types::{Address, Identity, JobId, SiteId, Slot};
use wire::frame::{HEADER_LEN, MAX_PAYLOAD};
use wire::handshake::{Hello, Purpose, Welcome};
use wire::token::{Audience, TOKEN_LEN};
use wire::{Control, FrameHeader, FrameKind, Secret};

use crate::dial::dial;
use crate::error::ClientError;
use crate::handshake::{admission_token, initiate};
use crate::patience::patiently_here;
use crate::tls::{self, Session, TlsStream, sealed_len};

/// Time limit for connecting and the handshake together, on a machine that is not overloaded; see [`crate::patience`].
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for a write during which the gateway accepts nothing.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// The purpose of a connection to a gateway.
#[derive(Clone, Debug)]
pub enum Role {
    /// A user's command at its own site. It may open one job, whose launcher it then is.
    Client {
        /// The site's [client secret](crate::key::SiteKey::client_secret).
        secret: Secret,
    },
    /// A member of an open job.
    Member {
        job: JobId,
        /// The job's secret.
        secret: Secret,
        /// The member's identity in the job.
        identity: Identity,
    },
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub header: FrameHeader,
    pub payload: Vec<u8>,
}

/// A gateway to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Name of its site.
    pub site: String,
    pub name: String,
    /// `host:port`, the `inside` of the sites file.
    pub address: String,
    /// The keys of the gateway's site: the connection uses TLS, and nothing is sent to a peer that does not hold one of
    /// them. `None`: without TLS, as ranks connect; only for [`Role::Member`].
    pub keys: Option<Keys>,
}

/// A connection to a gateway after its handshake.
#[derive(Debug)]
pub struct Client {
    receiver: Receiver,
    sender: Sender,
}

/// The half that reads.
#[derive(Debug)]
pub struct Receiver {
    address: String,
    stream: OwnedReadHalf,
    crypt: Option<Crypt>,
    /// Received bytes that are not decrypted yet.
    cipher: Vec<u8>,
    buffer: Vec<u8>,
    used: usize,
}

/// The half that writes.
#[derive(Debug)]
pub struct Sender {
    address: String,
    stream: OwnedWriteHalf,
    crypt: Option<Crypt>,
    welcome: Welcome,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Client {
    /// Connects to a gateway, within [`CONNECT_TIMEOUT`].
    ///
    /// # Errors
    /// [`ClientError`]: nothing listens there, it is not this gateway, or it refuses with a reason.
    pub async fn connect(gateway: &Gateway, role: &Role) -> Result<Client, ClientError> {
        match patiently_here(CONNECT_TIMEOUT, Self::connect_unbounded(gateway, role)).await {
            Ok(result) => result,
            Err(waited) => Err(ClientError::Timeout {
                address: gateway.address.clone(),
                what: "connecting",
                seconds: waited.as_secs(),
            }),
        }
    }

    async fn connect_unbounded(gateway: &Gateway, role: &Role) -> Result<Client, ClientError> {
        let address = || gateway.address.clone();
        let connect = |source| ClientError::Connect { address: address(), source };
        let handshake = |source| ClientError::Handshake { address: address(), source };
        let mut tcp = dial(&gateway.address).await.map_err(connect)?;
        tcp.set_nodelay(true).map_err(connect)?;
        let local = types::id::plain(tcp.local_addr().map_err(connect)?);
        let peer = types::id::plain(tcp.peer_addr().map_err(connect)?);
        let (hello, secret) = role.hello(gateway);
        let (welcome, tcp, crypt, cipher, buffer) = match gateway.keys {
            Some(expected) => {
                let to = Audience { site: &gateway.site, gateway: &gateway.name };
                let token = admission_token(secret, hello.job.0, to).map_err(connect)?;
                let (mut stream, key) = show(tcp, gateway, expected, &token).await?;
                let welcome = initiate(&mut stream, hello, secret, &key.0).await.map_err(handshake)?;
                let (tcp, session, cipher, plain) = stream.into_parts();
                (welcome, tcp, Some(Crypt::new(session)), cipher, plain)
            }
            None if matches!(role, Role::Client { .. }) => {
                return Err(ClientError::UnknownKey { address: address() });
            }
            None => {
                let welcome = initiate(&mut tcp, hello, secret, &[]).await.map_err(handshake)?;
                (welcome, tcp, None, Vec::new(), Vec::new())
            }
        };
        let (read, write) = tcp.into_split();
        let receiver = Receiver { address: address(), stream: read, crypt: crypt.clone(), cipher, buffer, used: 0 };
        let sender = Sender { address: address(), stream: write, crypt, welcome, local, peer };
        Ok(Client { receiver, sender })
    }

    /// The limits that the gateway sent.
    pub fn welcome(&self) -> Welcome {
        self.sender.welcome
    }

    /// This end's address, at which others of the same site can reach this machine.
    pub fn local_address(&self) -> SocketAddr {
        self.sender.local
    }

    /// The gateway's address: of all addresses that its name has, the one that accepted.
    pub fn peer_address(&self) -> SocketAddr {
        self.sender.peer
    }

    /// See [`Sender::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ClientError> {
        self.sender.send(header, payload).await
    }

    /// See [`Sender::send_control`].
    ///
    /// # Errors
    /// As there.
    pub async fn send_control(&mut self, from: Identity, message: impl Into<Control>) -> Result<(), ClientError> {
        self.sender.send_control(from, message).await
    }

    /// See [`Receiver::receive`].
    ///
    /// # Errors
    /// As there.
    pub async fn receive(&mut self) -> Result<Option<Frame>, ClientError> {
        self.receiver.receive().await
    }

    /// See [`Receiver::control`].
    ///
    /// # Errors
    /// As there.
    pub fn control(&self, frame: &Frame) -> Result<Control, ClientError> {
        self.receiver.control(frame)
    }

    /// The gateway's address, as it was dialled.
    pub fn address(&self) -> &str {
        &self.sender.address
    }

    /// The two halves, for two tasks.
    pub fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }

    /// Joins the two halves of a connection.
    pub fn joined(receiver: Receiver, sender: Sender) -> Client {
        Client { receiver, sender }
    }
}

impl Receiver {
    /// True if the gateway is on this machine.
    pub(crate) fn is_on_this_machine(&self) -> bool {
        let socket = self.stream.as_ref();
        matches!((socket.peer_addr(), socket.local_addr()), (Ok(peer), Ok(local)) if peer.ip() == local.ip())
    }

    /// Number of segments that have arrived, if the kernel counts them.
    pub(crate) fn arrived(&self) -> Option<u32> {
        tcp_info::TcpInfo::of(self.stream.as_ref()).ok()?.arrived
    }

    /// Returns the next frame, or `None` after the gateway closed the connection with a goodbye without a reason. The
    /// caller must answer pings. Cancel-safe: nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// [`ClientError::Closed`] with the gateway's reason, [`ClientError::Io`], or [`ClientError::Wire`].
    pub async fn receive(&mut self) -> Result<Option<Frame>, ClientError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                if frame.header.kind != FrameKind::Bye {
                    return Ok(Some(frame));
                }
                let reason = String::from_utf8_lossy(&frame.payload).into_owned();
                if reason.is_empty() {
                    return Ok(None);
                }
                return Err(ClientError::Closed { address: self.address.clone(), reason });
            }
            self.buffer.drain(..self.used);
            self.used = 0;
            let lost = |source| ClientError::Io { address: self.address.clone(), source };
            let closed = match &self.crypt {
                None => {
                    self.buffer.reserve(32 << 10);
                    self.stream.read_buf(&mut self.buffer).await.map_err(lost)? == 0
                }
                Some(crypt) => {
                    // First use the bytes that arrived with the end of the handshake.
                    let had = self.buffer.len();
                    let closed = crypt.open(&mut self.cipher, &mut self.buffer).map_err(lost)?;
                    match closed || self.buffer.len() > had {
                        true => closed && self.buffer.len() == had,
                        false => {
                            self.cipher.reserve(32 << 10);
                            self.stream.read_buf(&mut self.cipher).await.map_err(lost)? == 0
                        }
                    }
                }
            };
            if closed {
                let source = io::Error::new(io::ErrorKind::UnexpectedEof, "closed without goodbye");
                return Err(lost(source));
            }
        }
    }

    /// The message in a control frame.
    ///
    /// # Errors
    /// [`ClientError::Wire`].
    pub fn control(&self, frame: &Frame) -> Result<Control, ClientError> {
        Control::decode(&frame.payload).map_err(|source| ClientError::Wire { address: self.address.clone(), source })
    }

    fn take_frame(&mut self) -> Result<Option<Frame>, ClientError> {
        let bytes = &self.buffer[self.used..];
        if bytes.len() < HEADER_LEN {
            return Ok(None);
        }
        let header = FrameHeader::decode(bytes, MAX_PAYLOAD)
            .map_err(|source| ClientError::Wire { address: self.address.clone(), source })?;
        let end = HEADER_LEN + header.length as usize;
        let Some(payload) = bytes.get(HEADER_LEN..end) else { return Ok(None) };
        let frame = Frame { header, payload: payload.to_vec() };
        self.used += end;
        Ok(Some(frame))
    }
}

impl Sender {
    /// The limits that the gateway sent.
    pub fn welcome(&self) -> Welcome {
        self.welcome
    }

    /// Sends a frame (its length is set here), within [`SEND_TIMEOUT`]. Not cancel-safe: after an error, or if the
    /// future is dropped early, the connection is useless.
    ///
    /// # Errors
    /// [`ClientError::Io`], [`ClientError::Timeout`], or a payload longer than any frame's.
    pub async fn send(&mut self, header: FrameHeader, payload: &[u8]) -> Result<(), ClientError> {
        let mut bytes = header
            .with_payload(payload)
            .map_err(|source| ClientError::Wire { address: self.address.clone(), source })?;
        if let Some(crypt) = &self.crypt {
            let sealed = crypt.seal(&bytes);
            bytes = sealed.map_err(|source| ClientError::Io { address: self.address.clone(), source })?;
        }
        match timeout(SEND_TIMEOUT, self.stream.write_all(&bytes)).await {
            Ok(result) => result.map_err(|source| ClientError::Io { address: self.address.clone(), source }),
            Err(_) => Err(ClientError::Timeout {
                address: self.address.clone(),
                what: "sending",
                seconds: SEND_TIMEOUT.as_secs(),
            }),
        }
    }

    /// Sends a message to the gateway itself.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub async fn send_control(&mut self, from: Identity, message: impl Into<Control>) -> Result<(), ClientError> {
        let message = message.into();
        let payload = message.encode().map_err(|source| ClientError::Wire { address: self.address.clone(), source })?;
        let job = message.job().unwrap_or_default();
        let to = Identity { site: from.site, slot: Slot::GATEWAY };
        self.send(FrameHeader::plain(FrameKind::Control, job, from, to), &payload).await
    }

    /// Announces to the gateway that this end is done.
    ///
    /// # Errors
    /// As [`Sender::send`].
    pub async fn goodbye(&mut self, job: JobId, from: Identity) -> Result<(), ClientError> {
        let to = Identity { site: from.site, slot: Slot::GATEWAY };
        self.send(FrameHeader::plain(FrameKind::Bye, job, from, to), b"").await
    }
}

impl Role {
    fn hello(&self, to: &Gateway) -> (Hello, &Secret) {
        let nowhere = types::id::NOWHERE;
        let (purpose, job, identity, secret) = match self {
            Role::Client { secret } => {
                let identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };
                (Purpose::Client, JobId::default(), identity, secret)
            }
            Role::Member { job, secret, identity } => (Purpose::Member, *job, *identity, secret),
        };
        let short = job.0 as u16;
        let gateway = Identity { site: identity.site, slot: Slot::GATEWAY };
        let hello = Hello {
            purpose,
            job,
            from: Address { socket: nowhere, job: short, identity },
            to: Address { socket: nowhere, job: short, identity: gateway },
            site: to.site.clone(),
            gateway: to.name.clone(),
            link: 0,
            nonce: [0; 32],
        };
        (hello, secret)
    }
}

/// Starts TLS, and checks that the other end holds a key of the gateway's site before sending anything. Returns the
/// key.
async fn show(
    tcp: TcpStream,
    gateway: &Gateway,
    expected: Keys,
    token: &[u8; TOKEN_LEN],
) -> Result<(TlsStream, Fingerprint), ClientError> {
    let address = || gateway.address.clone();
    let no_key = |source| ClientError::NoKey { address: address(), expected: Box::new(expected), source };
    let session = tls::dial_without_key(Some(token)).map_err(|e| no_key(io::Error::other(e)))?;
    let stream = TlsStream::handshake(tcp, session).await.map_err(no_key)?;
    match stream.session().peer() {
        Some(shown) if expected.accept(Some(shown)) => Ok((stream, shown)),
        Some(shown) => Err(ClientError::OtherKey { address: address(), shown, expected: Box::new(expected) }),
        None => Err(no_key(io::Error::other("no key"))),
    }
}

/// The TLS session of both halves of a connection.
#[derive(Clone, Debug)]
struct Crypt(Arc<Mutex<CryptState>>);

#[derive(Debug)]
struct CryptState {
    session: Session,
    /// Bytes that TLS itself has to send; they precede the next payload.
    due: Vec<u8>,
}

impl Crypt {
    fn new(session: Session) -> Crypt {
        Crypt(Arc::new(Mutex::new(CryptState { session, due: Vec::new() })))
    }

    fn state(&self) -> MutexGuard<'_, CryptState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decrypts all complete records; returns true if the gateway has closed its side.
    fn open(&self, cipher: &mut Vec<u8>, plain: &mut Vec<u8>) -> io::Result<bool> {
        let CryptState { session, due } = &mut *self.state();
        let opened = session.open(cipher, &mut |bytes| plain.extend_from_slice(bytes), due);
        let opened = opened.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {e}")))?;
        cipher.drain(..opened.consumed);
        Ok(opened.closed)
    }

    /// Encrypts the plaintext; returns the bytes to write, in order.
    fn seal(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let CryptState { session, due } = &mut *self.state();
        let mut out = std::mem::take(due);
        let start = out.len();
        out.resize(start + sealed_len(plain.len()), 0);
        let length = session.seal(plain, &mut out[start..]).map_err(|e| io::Error::other(format!("TLS: {e}")))?;
        out.truncate(start + length);
        Ok(out)
    }
}
