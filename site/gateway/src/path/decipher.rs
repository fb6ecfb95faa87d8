//! The reading side of a TLS connection, of a link or a member: ciphertext from the socket, plaintext into scratch
//! space.

use std::cell::RefCell;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use client::tls::Session;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;

use crate::path::Path;
use crate::path::limits::READ;
use crate::path::outlet::Outlet;
use crate::path::reading::{Partial, Stop};

pub(crate) struct Decipher {
    /// The start of a record whose rest has not arrived.
    sealed: Partial,
    /// True while bytes that arrived with the end of the handshake are still to be processed.
    first: bool,
}

impl Decipher {
    /// `left`: ciphertext that was read with the handshake.
    pub(crate) fn new(path: &Path, left: &[u8]) -> Decipher {
        let mut sealed = path.partial();
        sealed.save(left);
        Decipher { sealed, first: true }
    }

    /// Reads the available bytes, decrypts them into `plain`, and sends the replies that TLS requires. Returns the
    /// number of bytes of plaintext, and true if the peer has closed its side. `plain` has room for everything one read
    /// can hold.
    pub(crate) fn read(
        &mut self,
        cx: &mut Context<'_>,
        read: &mut OwnedReadHalf,
        path: &Path,
        session: &RefCell<Session>,
        outlet: &Outlet,
        plain: &mut [u8],
    ) -> Poll<Result<(usize, bool), Stop>> {
        let mut cipher = path.cipher.borrow_mut();
        let start = self.sealed.len();
        let mut count = 0;
        if !self.first {
            count = match ready!(read_some(read, cx, &mut cipher[start..start + READ])) {
                Ok(count) => count,
                Err(stop) => return Poll::Ready(Err(stop)),
            };
        }
        self.first = false;
        self.sealed.restore(&mut cipher);
        let input = &mut cipher[..start + count];
        let (mut length, mut answer) = (0, Vec::new());
        let mut put = |bytes: &[u8]| {
            plain[length..length + bytes.len()].copy_from_slice(bytes);
            length += bytes.len();
        };
        let opened = session.borrow_mut().open(input, &mut put, &mut answer);
        if !answer.is_empty() {
            outlet.send(&[IoSlice::new(&answer)]);
        }
        match opened {
            Ok(opened) => {
                self.sealed.save(&input[opened.consumed..]);
                Poll::Ready(Ok((length, opened.closed)))
            }
            Err(error) => Poll::Ready(Err(Stop::Violation(format!("TLS: {error}")))),
        }
    }
}

/// Reads the available bytes; end of stream is an error.
pub(crate) fn read_some(read: &mut OwnedReadHalf, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<Result<usize, Stop>> {
    let mut buf = ReadBuf::new(into);
    Poll::Ready(match ready!(Pin::new(read).poll_read(cx, &mut buf)) {
        Err(error) => Err(Stop::Lost(error.to_string())),
        Ok(()) if buf.filled().is_empty() => Err(Stop::closed()),
        Ok(()) => Ok(buf.filled().len()),
    })
}
