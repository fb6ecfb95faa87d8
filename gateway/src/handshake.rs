//! The handshake of `wire::handshake` over any byte stream: the initiator's side whole, the acceptor's in steps.
//!
//! Reads not one byte more than the handshake, so that whatever follows is still in the stream.

use std::io;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use wire::handshake::{Handshake, Hello, MAX_HANDSHAKE, PREFACE_LEN, Welcome};
use wire::{Secret, WireError};

/// Why a handshake did not end well.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer sent what cannot be.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// The peer said no.
    #[error("refused: {0}")]
    Refused(String),
    /// The peer sent another message than the one that is due.
    #[error("expected {expected} in the handshake, got something else")]
    Unexpected {
        /// What was due.
        expected: &'static str,
    },
    /// The peer does not know the secret.
    #[error("wrong proof: {0}")]
    Proof(&'static str),
}

/// Reads one handshake message. `first` says that a preface comes before it.
pub(crate) async fn read<S: AsyncRead + Unpin>(stream: &mut S, first: bool) -> Result<Handshake, HandshakeError> {
    let preface = if first { PREFACE_LEN } else { 0 };
    let mut bytes = vec![0; preface + 4];
    if first {
        stream.read_exact(&mut bytes[..PREFACE_LEN]).await?;
        // A stranger is told apart by its first eight bytes, before more are waited for.
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
        None => Err(HandshakeError::Unexpected { expected: "a whole message" }),
    }
}

/// Writes one handshake message.
pub(crate) async fn write<S: AsyncWrite + Unpin>(stream: &mut S, message: &Handshake) -> Result<(), HandshakeError> {
    stream.write_all(&message.encode()).await?;
    stream.flush().await?;
    Ok(())
}

/// The initiator's side: says who it is, proves the secret, learns the limits.
pub(crate) async fn initiate<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    hello: Hello,
    secret: &Secret,
) -> Result<Welcome, HandshakeError> {
    let claims = hello.claims();
    write(stream, &Handshake::Hello(hello)).await?;
    let challenge = match read(stream, false).await? {
        Handshake::Challenge(challenge) => challenge,
        Handshake::Refuse(reason) => return Err(HandshakeError::Refused(reason)),
        _ => return Err(HandshakeError::Unexpected { expected: "a challenge" }),
    };
    write(stream, &Handshake::Proof(secret.prove(&challenge, &claims))).await?;
    match read(stream, false).await? {
        Handshake::Welcome(welcome) => Ok(welcome),
        Handshake::Refuse(reason) => Err(HandshakeError::Refused(reason)),
        _ => Err(HandshakeError::Unexpected { expected: "a welcome" }),
    }
}

/// The acceptor's first step: who is there.
pub(crate) async fn read_hello<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Hello, HandshakeError> {
    match read(stream, true).await? {
        Handshake::Hello(hello) => Ok(hello),
        _ => Err(HandshakeError::Unexpected { expected: "a hello" }),
    }
}

/// The acceptor's second step: whether the peer knows the secret. `whose` names it for the error.
pub(crate) async fn challenge<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    hello: &Hello,
    secret: &Secret,
    whose: &'static str,
) -> Result<(), HandshakeError> {
    let mut challenge = [0; 32];
    getrandom::fill(&mut challenge).map_err(|e| io::Error::other(format!("no random numbers: {e}")))?;
    write(stream, &Handshake::Challenge(challenge)).await?;
    match read(stream, false).await? {
        Handshake::Proof(proof) if secret.verify(&challenge, &hello.claims(), &proof) => Ok(()),
        Handshake::Proof(_) => Err(HandshakeError::Proof(whose)),
        _ => Err(HandshakeError::Unexpected { expected: "a proof" }),
    }
}
