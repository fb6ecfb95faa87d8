//! The handshake of `member::handshake` over any asynchronous byte stream: the initiator's side as a whole, the
//! acceptor's in steps.
//!
//! It reads exactly the handshake and no byte more, so the next byte of the stream is the first one after it.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use member::handshake::{Acceptor, Answer, Fault, Heard, Initiator};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use types::{Identity, JobId, SiteId, Slot};
use wire::frame::HEADER_LEN;
use wire::handshake::{Handshake, Hello, MAX_HANDSHAKE, PREFACE_LEN, Refusal, RefusalCode, Welcome};
use wire::token::{Audience, TOKEN_LEN};
use wire::{Control, FrameHeader, FrameKind, Secret, Token, WireError};

/// Reasons for a failed handshake.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer sent something invalid.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The peer refuses, or violates the order of messages.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The peer does not know the secret.
    #[error("wrong proof: {0}")]
    Proof(&'static str),
    /// The peer closed the connection after this end failed to prove the secret.
    #[error("it closed the connection after seeing our proof: {0}")]
    Distrusted(&'static str),
}

impl HandshakeError {
    /// The refusal to send to the peer. `None` unless the peer is at fault and an honest peer may not know the cause.
    pub fn refusal(&self) -> Option<Refusal> {
        let code = match self {
            HandshakeError::Wire(WireError::Version { .. }) => RefusalCode::Version,
            HandshakeError::Proof(_) => RefusalCode::Proof,
            _ => return None,
        };
        Some(Refusal::new(code, self.to_string()))
    }
}

/// Reads one handshake message. `first`: it starts with a preface.
async fn read<S: AsyncRead + Unpin>(stream: &mut S, first: bool) -> Result<Handshake, HandshakeError> {
    let preface = if first { PREFACE_LEN } else { 0 };
    let mut bytes = vec![0; preface + 4];
    if first {
        stream.read_exact(&mut bytes[..PREFACE_LEN]).await?;
        // The first eight bytes identify a peer that speaks another protocol; check them before waiting for more.
        Handshake::decode(&bytes[..PREFACE_LEN], true)?;
    }
    stream.read_exact(&mut bytes[preface..]).await?;
    let length = u32::from_le_bytes([bytes[preface], bytes[preface + 1], bytes[preface + 2], bytes[preface + 3]]);
    if length as usize > MAX_HANDSHAKE {
        let limit = MAX_HANDSHAKE as u64;
        return Err(WireError::TooLong { what: "handshake", length: length.into(), limit }.into());
    }
    bytes.resize(preface + 4 + length as usize, 0);
    stream.read_exact(&mut bytes[preface + 4..]).await?;
    match Handshake::decode(&bytes, first)? {
        Some((message, _)) => Ok(message),
        None => Err(Fault::OutOfTurn { expected: "a whole message" }.into()),
    }
}

/// Writes one handshake message.
///
/// # Errors
/// [`HandshakeError::Io`].
pub async fn write<S: AsyncWrite + Unpin>(stream: &mut S, message: &Handshake) -> Result<(), HandshakeError> {
    stream.write_all(&message.encode()).await?;
    stream.flush().await?;
    Ok(())
}

/// Writes a control message, as a frame that belongs to no job.
///
/// # Errors
/// [`HandshakeError::Io`], or a message beyond all limits.
pub async fn write_control<S: AsyncWrite + Unpin>(
    stream: &mut S,
    message: impl Into<Control>,
) -> Result<(), HandshakeError> {
    let gateway = Identity { site: SiteId(0), slot: Slot::GATEWAY };
    let header = FrameHeader::plain(FrameKind::Control, JobId::default(), gateway, gateway);
    stream.write_all(&header.with_payload(&message.into().encode()?)?).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads a control message of at most `limit` bytes.
///
/// # Errors
/// [`HandshakeError`]: the connection broke, or another message arrived.
pub async fn read_control<S: AsyncRead + Unpin>(stream: &mut S, limit: u32) -> Result<Control, HandshakeError> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).await?;
    let header = FrameHeader::decode(&header, limit)?;
    if header.kind != FrameKind::Control {
        return Err(Fault::OutOfTurn { expected: "a control message" }.into());
    }
    let mut payload = vec![0; header.length as usize];
    stream.read_exact(&mut payload).await?;
    Ok(Control::decode(&payload)?)
}

/// The initiator's side: sends its identity, has the acceptor prove the secret, proves it too, and receives the limits.
/// The hello's nonce is made here. `key`: the key that the acceptor presented by TLS; empty without TLS.
///
/// # Errors
/// [`HandshakeError`].
pub async fn initiate<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    hello: Hello,
    secret: &Secret,
    key: &[u8],
) -> Result<Welcome, HandshakeError> {
    let nonce = match key {
        [] => admission_token(secret, hello.job.0, Audience { site: &hello.site, gateway: &hello.gateway })?,
        _ => random()?,
    };
    let (mut initiator, mut next) = Initiator::new(Hello { nonce, ..hello }, secret.clone(), key);
    loop {
        write(stream, &next).await?;
        match initiator.step(read(stream, false).await?)? {
            Answer::Send(message) => next = message,
            Answer::Open(welcome) => return Ok(welcome),
        }
    }
}

fn random<const LENGTH: usize>() -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes).map_err(|e| io::Error::other(format!("no random numbers: {e}")))?;
    Ok(bytes)
}

/// Makes a fresh [token](wire::token) for a gateway. `key`: identifies the secret.
///
/// # Errors
/// The system provides no random numbers.
pub fn admission_token(secret: &Secret, key: u32, to: Audience<'_>) -> io::Result<[u8; TOKEN_LEN]> {
    // A clock before 1970 makes a token that is too old, which a gateway treats as none.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Token::make(secret, (key, since.as_secs()), to, random()?))
}

/// The acceptor's side after the first step, with the claimed identity.
#[derive(Debug)]
pub struct Accepting {
    acceptor: Acceptor,
    /// The identity that the initiator claims.
    pub hello: Hello,
}

impl Accepting {
    /// The first step: receives the hello.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub async fn begin<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Accepting, HandshakeError> {
        let mut acceptor = Acceptor::default();
        match acceptor.step(read(stream, true).await?)? {
            Heard::Claimed(hello) => Ok(Accepting { acceptor, hello }),
            Heard::Proved(_) => Err(Fault::OutOfTurn { expected: "a hello" }.into()),
        }
    }

    /// The second step: proves the secret, and checks that the initiator knows it. `whose` names the secret in errors;
    /// `key`: the key that this end presented by TLS; empty without TLS. Only the welcome remains to be sent.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub async fn challenge<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        secret: &Secret,
        whose: &'static str,
        key: &[u8],
    ) -> Result<(), HandshakeError> {
        let message = self.acceptor.challenge(self.hello.clone(), secret.clone(), random()?, key);
        write(stream, &message).await?;
        let answer = read(stream, false).await.map_err(|error| match error {
            HandshakeError::Io(_) => HandshakeError::Distrusted(whose),
            error => error,
        })?;
        match self.acceptor.step(answer) {
            Ok(_) => Ok(()),
            Err(Fault::Proof) => Err(HandshakeError::Proof(whose)),
            Err(fault) => Err(fault.into()),
        }
    }
}
