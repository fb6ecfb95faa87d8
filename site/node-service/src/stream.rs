//! Reads a line from a connection, within limits of time and length.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use thiserror::Error;

/// Idle time before a keepalive probe, and between probes; and the number of probes after which a silent peer is lost.
const SILENCE: Duration = Duration::from_secs(5);
const SILENCES: u32 = 3;
/// Time limit for a peer to receive a line.
const WRITE: Duration = Duration::from_secs(5);

/// Reasons for getting no line.
#[derive(Debug, Error)]
pub enum LineError {
    #[error("the connection ended before its line did")]
    Ended,
    #[error("no whole line came within {0} s")]
    Slow(u64),
    #[error("a line of more than {0} bytes")]
    Long(usize),
    #[error("reading: {0}")]
    Io(#[from] std::io::Error),
}

/// A stream with a time limit on reads.
pub(crate) trait Timed: Read {
    fn limit(&self, limit: Duration) -> std::io::Result<()>;
}

impl Timed for std::net::TcpStream {
    fn limit(&self, limit: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(limit))
    }
}

impl Timed for std::os::unix::net::UnixStream {
    fn limit(&self, limit: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(limit))
    }
}

/// Reads a line, without its end. Bytes after it stay in `bytes`, for the next line.
///
/// # Errors
/// [`LineError`]. The longest accepted line has `longest` bytes.
pub(crate) fn line(
    stream: &mut impl Timed,
    bytes: &mut Vec<u8>,
    longest: usize,
    within: Duration,
) -> Result<Vec<u8>, LineError> {
    let deadline = Instant::now() + within;
    let (mut buffer, mut looked) = ([0; 8192], 0);
    loop {
        if let Some(line) = first_line(bytes, looked, longest)? {
            return Ok(line);
        }
        looked = bytes.len();
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LineError::Slow(within.as_secs()));
        }
        stream.limit(left)?;
        match stream.read(&mut buffer) {
            Ok(0) => return Err(LineError::Ended),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes the first line off `bytes`, if its end has arrived, without that end. The first `looked` bytes hold no end.
///
/// # Errors
/// [`LineError::Long`], in whatever pieces the line has arrived.
pub(crate) fn first_line(bytes: &mut Vec<u8>, looked: usize, longest: usize) -> Result<Option<Vec<u8>>, LineError> {
    let end = bytes[looked..].iter().position(|byte| *byte == b'\n').map(|end| looked + end);
    if end.unwrap_or(bytes.len()) > longest {
        return Err(LineError::Long(longest));
    }
    let Some(end) = end else { return Ok(None) };
    let rest = bytes.split_off(end + 1);
    let mut line = std::mem::replace(bytes, rest);
    line.pop();
    Ok(Some(line))
}

/// Enables keepalive: a caller whose machine is lost must not keep its program running.
pub(crate) fn keep_alive(stream: &TcpStream) {
    let set = || {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, SILENCE)?;
        sockopt::set_tcp_keepintvl(stream, SILENCE)?;
        sockopt::set_tcp_keepcnt(stream, SILENCES)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "no keep-alive");
    }
    let _ = stream.set_nodelay(true);
    let _ = stream.set_write_timeout(Some(WRITE));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first line of what arrives in pieces of `piece` bytes, and what is left behind it.
    fn arrived(text: &[u8], piece: usize, longest: usize) -> (Result<Option<Vec<u8>>, LineError>, Vec<u8>) {
        let mut bytes = Vec::new();
        for piece in text.chunks(piece) {
            let looked = bytes.len();
            bytes.extend_from_slice(piece);
            match first_line(&mut bytes, looked, longest) {
                Ok(None) => {}
                done => return (done, bytes),
            }
        }
        (Ok(None), bytes)
    }

    #[test]
    fn the_longest_line_is_the_same_in_whatever_pieces_it_arrives() {
        for piece in 1..12 {
            assert!(matches!(arrived(b"12345678\n", piece, 8), (Ok(Some(line)), _) if line == b"12345678"), "{piece}");
            for long in [&b"123456789\n"[..], b"123456789", b"123456789\n\n"] {
                assert!(matches!(arrived(long, piece, 8), (Err(LineError::Long(8)), _)), "{piece}: {long:?}");
            }
        }
        assert!(
            matches!(arrived(b"1\n234567890", 20, 8), (Ok(Some(line)), rest) if line == b"1" && rest == b"234567890")
        );
    }
}
