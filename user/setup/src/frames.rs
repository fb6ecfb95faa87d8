//! The streams of a command that ssh carried to a site: its input, output, signals and exit code, as frames over one
//! connection.
//!
//! A frame is a byte for its kind, the length of its content in four bytes (big-endian), and the content. The credit
//! granted by the other end ([`CarryFrame::Taken`]) bounds the input, so a command that does not read its input never
//! delays a signal.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Limit on the bytes of a stream in one frame.
pub(crate) const PIECE: usize = 16 << 10;
/// Bytes of input that may be in flight.
pub(crate) const WINDOW: u32 = 4 * PIECE as u32;
const HEAD: usize = 5;
/// The longest accepted content.
const LONGEST: usize = 64 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CarryFrame {
    // To the site.
    /// Standard input. Empty: its end.
    Input(Vec<u8>),
    /// The number of a signal that the user sends.
    Signal(i32),
    // From the site.
    /// Standard output.
    Output(Vec<u8>),
    /// Standard error.
    Errors(Vec<u8>),
    /// The command has started, or has read input: this many more bytes may be sent.
    Taken(u32),
    /// The exit code. The last frame.
    Ended(i32),
}

impl CarryFrame {
    fn encode(&self) -> Vec<u8> {
        let number;
        let (kind, content) = match self {
            CarryFrame::Input(bytes) => (b'i', &bytes[..]),
            CarryFrame::Output(bytes) => (b'o', &bytes[..]),
            CarryFrame::Errors(bytes) => (b'e', &bytes[..]),
            CarryFrame::Signal(signal) => {
                number = signal.to_be_bytes();
                (b's', &number[..])
            }
            CarryFrame::Taken(bytes) => {
                number = bytes.to_be_bytes();
                (b't', &number[..])
            }
            CarryFrame::Ended(code) => {
                number = code.to_be_bytes();
                (b'x', &number[..])
            }
        };
        [&[kind][..], &(content.len() as u32).to_be_bytes(), content].concat()
    }

    fn decode(kind: u8, content: &[u8]) -> Result<CarryFrame> {
        let number = || content.try_into().map_err(|_| malformed());
        match kind {
            b'i' => Ok(CarryFrame::Input(content.to_vec())),
            b'o' => Ok(CarryFrame::Output(content.to_vec())),
            b'e' => Ok(CarryFrame::Errors(content.to_vec())),
            b's' => number().map(i32::from_be_bytes).map(CarryFrame::Signal),
            b't' => number().map(u32::from_be_bytes).map(CarryFrame::Taken),
            b'x' => number().map(i32::from_be_bytes).map(CarryFrame::Ended),
            _ => Err(malformed()),
        }
    }
}

fn malformed() -> Error {
    Error::new(ErrorKind::InvalidData, "a frame that makes no sense")
}

/// Sends a frame.
pub(crate) async fn send(to: &mut (impl AsyncWrite + Unpin), frame: &CarryFrame) -> Result<()> {
    to.write_all(&frame.encode()).await?;
    to.flush().await
}

/// A reader of frames.
pub(crate) struct Frames<R> {
    from: R,
    /// Bytes of frames that have not arrived completely.
    held: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(crate) fn new(from: R) -> Frames<R> {
        Frames { from, held: Vec::new() }
    }

    /// Returns the next frame; `None` at the end of the stream. Cancel-safe: nothing is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Result<Option<CarryFrame>> {
        loop {
            if let Some(frame) = self.whole()? {
                return Ok(Some(frame));
            }
            self.held.reserve(LONGEST);
            if self.from.read_buf(&mut self.held).await? == 0 {
                return if self.held.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    fn whole(&mut self) -> Result<Option<CarryFrame>> {
        let Some((&[kind, ref length @ ..], rest)) = self.held.split_first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > LONGEST {
            return Err(malformed());
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let frame = CarryFrame::decode(kind, content)?;
        self.held.drain(..HEAD + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8]) -> (Vec<CarryFrame>, Result<()>) {
        let (mut frames, mut found) = (Frames::new(bytes), Vec::new());
        loop {
            match frames.next().await {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => return (found, Ok(())),
                Err(error) => return (found, Err(error)),
            }
        }
    }

    #[tokio::test]
    async fn frames_arrive_as_they_were_sent() {
        let sent = [
            CarryFrame::Taken(WINDOW),
            CarryFrame::Input(b"a\0b".to_vec()),
            CarryFrame::Input(Vec::new()),
            CarryFrame::Signal(2),
            CarryFrame::Output(vec![7; PIECE]),
            CarryFrame::Errors(b"\n".to_vec()),
            CarryFrame::Ended(-1),
        ];
        let mut bytes = Vec::new();
        for frame in &sent {
            send(&mut bytes, frame).await.unwrap();
        }
        let (found, end) = all(&bytes).await;
        assert_eq!(found, sent);
        assert!(end.is_ok());
        let (found, end) = all(&bytes[..bytes.len() - 1]).await;
        assert_eq!((found.len(), end.unwrap_err().kind()), (sent.len() - 1, ErrorKind::UnexpectedEof));
    }

    #[tokio::test]
    async fn other_bytes_are_refused() {
        for bytes in [&b"Welcome to lyon"[..], b"i\xff\xff\xff\xff", b"s\0\0\0\x01\x02", b"?\0\0\0\0"] {
            assert_eq!(all(bytes).await.1.unwrap_err().kind(), ErrorKind::InvalidData, "{bytes:?}");
        }
    }
}
