//! TLS over tokio's sockets: version 1.3 only. Gateways present their site's key; users and agents present none; there
//! are no certificate authorities. The part without I/O is in the crate `tls`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tls::RECORD_LEN;
pub use ::tls::{Error, HelloToken, MAX_HELLO, MAX_RECORD, Opened, Session, TlsConfig};
pub use ::tls::{dial_without_key, hello_token, sealed_len};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::key::{KeyError, SiteKey};

/// A configuration in which both ends present this key.
///
/// # Errors
/// [`KeyError::Make`].
pub fn config(key: &SiteKey) -> Result<TlsConfig, KeyError> {
    let (certificate, private) = key.certificate()?;
    TlsConfig::new(certificate, private).map_err(|e| KeyError::Make(format!("TLS: {e}")))
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
    /// The connection broke, or the other end does not use this version of TLS.
    pub async fn handshake(tcp: TcpStream, session: Session) -> io::Result<TlsStream> {
        TlsStream::handshake_after(Vec::new(), tcp, session).await
    }

    /// Does the TLS handshake with a peer whose first bytes, `cipher`, have been read already.
    ///
    /// # Errors
    /// As [`TlsStream::handshake`].
    pub async fn handshake_after(cipher: Vec<u8>, tcp: TcpStream, session: Session) -> io::Result<TlsStream> {
        let (plain, out) = (Vec::new(), Vec::new());
        let mut stream = TlsStream { tcp, session, cipher, plain, out, closed: false };
        std::future::poll_fn(|cx| stream.poll_established(cx)).await?;
        Ok(stream)
    }

    /// The session. Check its [`Session::peer`] before sending anything.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The socket, the session, and the bytes read but not yet used: ciphertext, plaintext.
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
                // Try to send the alert; the connection is over either way.
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

    /// Reads some ciphertext; an end of stream is an error unless TLS announced it.
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
    use ::tls::Error;

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
        let mut client = config(&a).unwrap().dial(None).unwrap();
        let mut server = config(&b).unwrap().accept().unwrap();
        shake(&mut client, &mut server).unwrap();
        assert_eq!(client.peer(), Some(b.fingerprint()));
        assert_eq!(server.peer(), Some(a.fingerprint()));
        let message: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let mut sealed = vec![0; sealed_len(message.len())];
        let length = client.seal(&message, &mut sealed).unwrap();
        sealed.truncate(length);
        // Sockets deliver it in pieces.
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
        let (mut client, mut server) = (dial_without_key(None).unwrap(), config(&key).unwrap().accept().unwrap());
        shake(&mut client, &mut server).unwrap();
        assert_eq!((client.peer(), server.peer()), (Some(key.fingerprint()), None));
    }

    #[test]
    fn strangers_bytes_are_refused() {
        let key = SiteKey::random().unwrap();
        let config = config(&key).unwrap();
        for seed in 0..200u32 {
            let mut bytes: Vec<u8> = (0..300u32).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect();
            bytes[..5].copy_from_slice(&[0x16, 3, 1, 0, 200]);
            let mut server = config.accept().unwrap();
            assert!(server.open(&mut bytes, &mut |_| {}, &mut Vec::new()).is_err());
        }
    }
}
