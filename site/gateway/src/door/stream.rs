//! A connection that is not admitted yet, with or without TLS, as one byte stream; and its parts once it is
//! admitted.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use client::tls::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use types::sites::Fingerprint;

use crate::path::member::Parts;

pub(crate) enum DoorStream {
    /// A connection without TLS, of a rank or of a guest at a meeting.
    Plain(TcpStream),
    /// A connection with TLS, and the fingerprint of the key that this gateway presented.
    Tls(Box<TlsStream>, Fingerprint),
}

impl DoorStream {
    /// The key that this end presented; empty without TLS.
    pub(crate) fn key(&self) -> Vec<u8> {
        match self {
            DoorStream::Plain(_) => Vec::new(),
            DoorStream::Tls(_, key) => key.0.to_vec(),
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, DoorStream::Plain(_))
    }

    pub(crate) fn into_parts(self) -> Parts {
        match self {
            DoorStream::Plain(tcp) => (tcp, None, Vec::new(), Vec::new()),
            DoorStream::Tls(tls, _) => {
                let (tcp, session, cipher, plain) = tls.into_parts();
                (tcp, Some(session), cipher, plain)
            }
        }
    }
}

/// Makes the same call on either variant.
macro_rules! either {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            DoorStream::Plain($inner) => $call,
            DoorStream::Tls($inner, _) => {
                let $inner = &mut **$inner;
                $call
            }
        }
    };
}

impl AsyncRead for DoorStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        either!(self, inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for DoorStream {
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
