//! A connection that is not admitted yet, with or without TLS, as one byte stream; its parts once it is admitted; and
//! the kinds of peers that dial with TLS.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use client::handshake::Accepting;
use client::tls::{Session, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use types::sites::Fingerprint;

use crate::trunks::trunk::Trunk;

pub(crate) enum Stream {
    /// A connection without TLS, of a rank or of a guest at a meeting.
    Plain(TcpStream),
    /// A connection with TLS, and the fingerprint of the key that this gateway presented.
    Tls(Box<TlsStream>, Fingerprint),
}

/// Parts of a [`Stream`]: the socket, the TLS session if there is one, and the bytes that were read but not used, first
/// the ciphertext, then the plaintext.
pub(crate) type Parts = (TcpStream, Option<Session>, Vec<u8>, Vec<u8>);

impl Stream {
    /// The key that this end presented; empty without TLS.
    pub(crate) fn key(&self) -> Vec<u8> {
        match self {
            Stream::Plain(_) => Vec::new(),
            Stream::Tls(_, key) => key.0.to_vec(),
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Stream::Plain(_))
    }

    pub(crate) fn into_parts(self) -> Parts {
        match self {
            Stream::Plain(tcp) => (tcp, None, Vec::new(), Vec::new()),
            Stream::Tls(tls, _) => {
                let (tcp, session, cipher, plain) = tls.into_parts();
                (tcp, Some(session), cipher, plain)
            }
        }
    }
}

/// A handshake that has begun: the bytes read so far, and the socket.
pub(crate) type Begun = (Vec<u8>, TcpStream);

/// A peer that dialled this gateway with TLS.
pub(crate) enum Arrival {
    Link(Box<Accepted>),
    /// A site that joined.
    Joined,
    /// A user, agent or rank of this site that has sent only its hello, and the key that this gateway presented to it.
    Inside(Box<TlsStream>, Box<Accepting>, Fingerprint),
}

/// A link that the other gateway dialled.
pub(crate) struct Accepted {
    pub trunk: Rc<Trunk>,
    pub index: usize,
    pub stream: TlsStream,
    /// Run number of the other gateway's program.
    pub run: u32,
}

/// Makes the same call on either variant.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Plain($inner) => $call,
            Stream::Tls($inner, _) => {
                let $inner = &mut **$inner;
                $call
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, inner => Pin::new(inner).poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_shutdown(cx))
    }
}
