//! A socket, with or without TLS, as its readers and writers see it: bytes in, bytes out, without blocking.
//!
//! Without TLS it only makes system calls. With TLS it decrypts received bytes, encrypts bytes to send, and holds the
//! bytes that the socket does not take: [`Stream::wants_write`] returns true while epoll should watch for room.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg, send, sendmsg,
};
use tls::{MAX_RECORD, RECORD_LEN, Session, sealed_len};
use types::sites::{Fingerprint, Keys};
use wire::handshake::PREFACE;

/// Number of ciphertext bytes read at once.
const CIPHER: usize = 4 * MAX_RECORD;
/// Maximum number of plaintext bytes encrypted before the socket has its turn.
const SEAL: usize = 64 << 10;
/// Shorter pieces are gathered into one record, longer ones are encrypted in place.
const GATHER: usize = 4 << 10;

/// The family of sockets that dial an address.
pub(crate) fn family(address: SocketAddr) -> AddressFamily {
    match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    }
}

pub(crate) struct Stream {
    socket: OwnedFd,
    tls: Option<Box<Tls>>,
}

/// The state of TLS.
struct Tls {
    session: Session,
    expected: Expected,
    /// The key that the acceptor presented: the peer's, or ours.
    key: Option<Fingerprint>,
    established: bool,
    /// The peer has announced that it sends no more.
    closed: bool,
    /// Received ciphertext that is not decrypted yet: the first `held` bytes of it.
    cipher: Vec<u8>,
    held: usize,
    /// Decrypted bytes not delivered yet: from `taken` on.
    plain: Vec<u8>,
    taken: usize,
    /// Encrypted bytes not sent yet: from `sent` on.
    sealed: Vec<u8>,
    sent: usize,
    /// Short pieces to be put into one record.
    gathered: Vec<u8>,
}

/// The dialling end, and the key that the acceptor must present.
pub(crate) enum Expected {
    /// We dialled: one of these keys and no other.
    Site(Keys),
    /// We dialled: any key, because nobody knows it beforehand. The handshake inside has to prove a secret that covers
    /// it.
    Unknown,
    /// We accepted, and present this key.
    Ours(Fingerprint),
}

impl From<OwnedFd> for Stream {
    fn from(socket: OwnedFd) -> Stream {
        Stream { socket, tls: None }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream {
    /// A connection that uses TLS from its first byte on.
    pub(crate) fn sealed(socket: OwnedFd, mut session: Session, expected: Expected) -> io::Result<Stream> {
        let mut sealed = Vec::new();
        // The dialling end speaks first.
        session.open(&mut [], &mut |_| {}, &mut sealed).map_err(broken)?;
        let key = match &expected {
            Expected::Ours(key) => Some(*key),
            Expected::Site(_) | Expected::Unknown => None,
        };
        let tls = Tls {
            session,
            expected,
            key,
            established: false,
            closed: false,
            cipher: Vec::new(),
            held: 0,
            plain: Vec::new(),
            taken: 0,
            sealed,
            sent: 0,
            gathered: Vec::new(),
        };
        Ok(Stream { socket, tls: Some(Box::new(tls)) })
    }

    /// The acceptor's key, which proofs have to cover. Empty without TLS, and before it is known.
    pub(crate) fn key(&self) -> &[u8] {
        self.tls.as_ref().and_then(|tls| tls.key.as_ref()).map_or(&[], |key| &key.0)
    }

    /// True if bytes accepted for sending have not been sent yet.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.sent < tls.sealed.len())
    }

    /// True if this stream holds bytes that epoll does not know of.
    pub(crate) fn has_unread(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.taken < tls.plain.len())
    }

    /// True if epoll should watch for room in the socket. `waiting`: the user has something to send.
    pub(crate) fn wants_write(&self, waiting: bool) -> bool {
        match &self.tls {
            None => waiting,
            // Until both ends have their keys, no user data can be sent.
            Some(tls) => self.has_unsent() || (waiting && tls.established),
        }
    }

    /// Reads available bytes. `None`: there are none; 0: nothing more will arrive. Fewer bytes than requested: the
    /// socket is empty, and nothing is left here.
    pub(crate) fn recv(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match &mut self.tls {
            None => read_some(self.socket.as_fd(), into),
            Some(tls) => tls.recv(self.socket.as_fd(), into, &mut []),
        }
    }

    /// Like [`Stream::recv`], into one buffer after the other.
    pub(crate) fn recv_both(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<Option<usize>> {
        match &mut self.tls {
            None => read_both(self.socket.as_fd(), first, second),
            Some(tls) => tls.recv(self.socket.as_fd(), first, second),
        }
    }

    /// Accepts bytes for sending. Returns their number. `None`: no more are accepted until the socket has room or the
    /// peer has sent something.
    pub(crate) fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match &mut self.tls {
            None => write_some(self.socket.as_fd(), slices),
            Some(tls) => tls.send(self.socket.as_fd(), slices),
        }
    }

    /// Sends the accepted bytes. Returns true if all of them have been sent.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        self.tls.as_mut().map_or(Ok(true), |tls| tls.flush(self.socket.as_fd()))
    }

    /// Sends a last message to a peer that does not use TLS, without TLS too.
    pub(crate) fn refuse_in_clear(&mut self, bytes: &[u8]) {
        // The peer is refused even if it does not receive the reason.
        let _ = write_some(self.socket.as_fd(), &[IoSlice::new(bytes)]);
    }

    /// True if a peer that should have used TLS started with one of our plaintext handshakes.
    pub(crate) fn in_clear(&self) -> bool {
        self.tls.as_deref().is_some_and(Tls::in_clear)
    }
}

impl Tls {
    fn in_clear(&self) -> bool {
        !self.established && self.held > 0 && self.cipher[0] == PREFACE[0]
    }

    fn recv(&mut self, socket: BorrowedFd<'_>, first: &mut [u8], second: &mut [u8]) -> io::Result<Option<usize>> {
        let mut filled = 0;
        let wanted = first.len() + second.len();
        while filled < wanted {
            if self.taken < self.plain.len() {
                let count = put(&self.plain[self.taken..], filled, first, second);
                self.taken += count;
                filled += count;
                if self.taken == self.plain.len() {
                    self.plain.clear();
                    self.taken = 0;
                }
                continue;
            }
            if self.closed {
                return Ok(Some(filled));
            }
            if self.cipher.is_empty() {
                self.cipher.resize(CIPHER, 0);
            }
            let room = self.cipher.len() - self.held;
            let count = match read_some(socket, &mut self.cipher[self.held..])? {
                None => break,
                Some(0) => {
                    self.closed = true;
                    continue;
                }
                Some(count) => count,
            };
            self.held += count;
            filled = self.open(socket, filled, first, second)?;
            if count < room {
                break;
            }
        }
        Ok((filled > 0 || self.closed).then_some(filled))
    }

    /// Decrypts the complete records.
    fn open(
        &mut self,
        socket: BorrowedFd<'_>,
        mut filled: usize,
        first: &mut [u8],
        second: &mut [u8],
    ) -> io::Result<usize> {
        if self.in_clear() {
            // The peer would not understand an alert.
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it connected without TLS"));
        }
        let (plain, cipher) = (&mut self.plain, &mut self.cipher[..self.held]);
        let mut keep = |bytes: &[u8]| {
            let count = put(bytes, filled, first, second);
            filled += count;
            plain.extend_from_slice(&bytes[count..]);
        };
        let opened = self.session.open(cipher, &mut keep, &mut self.sealed);
        let opened = opened.map_err(|error| {
            // Sending the alert is worth a try; the connection is over either way.
            let _ = self.flush(socket);
            broken(error)
        })?;
        self.cipher.copy_within(opened.consumed..self.held, 0);
        self.held -= opened.consumed;
        self.closed |= opened.closed;
        if opened.established && !self.established {
            self.judge()?;
            self.established = true;
        }
        if self.held == self.cipher.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "TLS: a record that exceeds the maximum length"));
        }
        self.flush(socket)?;
        Ok(filled)
    }

    /// Checks the acceptor's identity, as far as its key shows it.
    fn judge(&mut self) -> io::Result<()> {
        let keys = match &self.expected {
            Expected::Ours(_) => return Ok(()),
            Expected::Unknown => None,
            Expected::Site(keys) => Some(keys),
        };
        let shown = self.session.peer();
        self.key = shown;
        let problem = match (shown, keys) {
            (None, _) => "it presented no key".to_owned(),
            (Some(key), Some(keys)) if !keys.accept(shown) => format!(
                "it presented the key {key}, but the sites file has {keys}: another program uses its port, or its \
                 site's key was changed; nothing was sent to it"
            ),
            (Some(_), _) => return Ok(()),
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, problem))
    }

    fn send(&mut self, socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        if !self.flush(socket)? || !self.established {
            return Ok(None);
        }
        let mut count = 0;
        for slice in slices {
            let slice = &slice[..slice.len().min(SEAL - count)];
            if slice.len() >= GATHER || self.gathered.len() + slice.len() > RECORD_LEN {
                self.seal_gathered()?;
            }
            if slice.len() >= GATHER {
                seal(&mut self.session, slice, &mut self.sealed)?;
            } else {
                self.gathered.extend_from_slice(slice);
            }
            count += slice.len();
            if count == SEAL {
                break;
            }
        }
        self.seal_gathered()?;
        self.flush(socket)?;
        Ok(Some(count))
    }

    fn seal_gathered(&mut self) -> io::Result<()> {
        if !self.gathered.is_empty() {
            seal(&mut self.session, &self.gathered, &mut self.sealed)?;
            self.gathered.clear();
        }
        Ok(())
    }

    fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while self.sent < self.sealed.len() {
            match write_some(socket, &[IoSlice::new(&self.sealed[self.sent..])])? {
                Some(count) => self.sent += count,
                None => return Ok(false),
            }
        }
        self.sealed.clear();
        self.sent = 0;
        Ok(true)
    }
}

/// Appends the encrypted `plaintext` to `sealed`.
fn seal(session: &mut Session, plaintext: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
    let start = sealed.len();
    sealed.resize(start + sealed_len(plaintext.len()), 0);
    let length = session.seal(plaintext, &mut sealed[start..]).map_err(broken)?;
    sealed.truncate(start + length);
    Ok(())
}

/// Copies bytes into two buffers whose first `filled` bytes are taken. Returns the number of bytes that fit.
fn put(bytes: &[u8], filled: usize, first: &mut [u8], second: &mut [u8]) -> usize {
    let in_first = first.len().saturating_sub(filled).min(bytes.len());
    let start = filled.min(first.len());
    first[start..start + in_first].copy_from_slice(&bytes[..in_first]);
    let rest = &bytes[in_first..];
    let at = (filled + in_first).saturating_sub(first.len());
    let in_second = (second.len() - at).min(rest.len());
    second[at..at + in_second].copy_from_slice(&rest[..in_second]);
    in_first + in_second
}

fn broken(error: tls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
}

/// One `recvmsg` into one buffer after the other; `None`: there is nothing to read.
fn read_both(socket: BorrowedFd<'_>, first: &mut [u8], second: &mut [u8]) -> io::Result<Option<usize>> {
    if second.is_empty() {
        return read_some(socket, first);
    }
    loop {
        let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
        return match recvmsg(socket, &mut slices, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT) {
            Ok(message) => Ok(Some(message.bytes)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e.into()),
        };
    }
}

/// One `recv`; `None`: there is nothing to read.
fn read_some(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        return match recv(socket, &mut *into, RecvFlags::DONTWAIT) {
            Ok((count, _)) => Ok(Some(count)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e.into()),
        };
    }
}

/// One `send` or `sendmsg`; `None`: the socket is full.
fn write_some(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        let result = match slices {
            [one] => send(socket, one, flags),
            several => sendmsg(socket, several, &mut SendAncillaryBuffer::default(), flags),
        };
        return match result {
            Ok(sent) => Ok(Some(sent)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(e) => Err(e.into()),
        };
    }
}

#[cfg(test)]
mod tests;
