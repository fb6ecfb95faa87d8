//! Taking frames off a socket: headers through a buffer, long payloads straight to their destination.

use std::io;

use member::handshake::Fault;
use wire::frame::{FrameKind, HEADER_LEN};
use wire::handshake::{Handshake, Refusal, RefusalCode};
use wire::message::MAX_HEADER;
use wire::{FrameHeader, Message};

use crate::link::{Misbehaved, Sink};
use crate::operation::PeerId;
use crate::protocol::FramePlace;
use crate::stream::Stream;

const BUFFER: usize = 64 << 10;
/// Payloads with at least this many bytes still to arrive bypass the buffer.
const DIRECT: u32 = 8 << 10;
/// After a payload of this length, another one is likely. Then only `AHEAD` bytes are read ahead into the buffer,
/// because payload bytes in the buffer are copied once more.
const LONG: u32 = 20 << 10;
const AHEAD: usize = 4 << 10;
/// Maximum number of bytes taken from one connection before the other connections have their turn, and the program,
/// which posts receives for the next messages.
const TURN: usize = 256 << 10;
/// The longest payload of a frame that is not data.
const MAX_OTHER: u32 = 4096;

/// The handler of a connection's frames.
pub(crate) trait Frames {
    /// A data frame starts. Returns its sender.
    fn data(&mut self, header: &FrameHeader, sink: &mut dyn Sink) -> Result<PeerId, Misbehaved>;
    /// A frame of another kind; on a connection that takes whole frames, of any kind.
    fn other(&mut self, header: &FrameHeader, payload: &[u8], sink: &mut dyn Sink) -> Result<(), Misbehaved>;
}

/// Reasons for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("connection closed by the other end")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("protocol error: {0}")]
    Misbehaved(Misbehaved),
    #[error("{0}")]
    Refused(String),
    /// Frozen machines and pulled cables do not close connections.
    #[error("no sign of life for {0} s")]
    Silent(u64),
    /// The other end has dialled, or is dialling, a connection that replaces this one.
    #[error("duplicate: the other side has already dialled us")]
    Duplicate,
    /// The lane through the site's own network, as opposed to its TCP connection.
    #[error("{0}")]
    Lane(String),
}

impl Broken {
    /// True if the connection broke for a reason that does not mean that the other end is down: a single reset, or an
    /// end without a goodbye.
    pub(crate) fn is_break(&self) -> bool {
        matches!(self, Broken::Closed | Broken::Io(_))
    }
}

impl From<Misbehaved> for Broken {
    fn from(misbehaved: Misbehaved) -> Broken {
        match misbehaved {
            Misbehaved::Said(reason) => Broken::Refused(reason),
            other => Broken::Misbehaved(other),
        }
    }
}

impl From<wire::WireError> for Broken {
    fn from(error: wire::WireError) -> Broken {
        Broken::Misbehaved(error.into())
    }
}

impl From<Refusal> for Broken {
    fn from(refusal: Refusal) -> Broken {
        match refusal.code {
            RefusalCode::Duplicate => Broken::Duplicate,
            _ => Broken::Refused(refusal.text),
        }
    }
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Broken {
        match fault {
            Fault::Refused(refusal) => refusal.into(),
            fault => Broken::Misbehaved(Misbehaved::Handshake(fault)),
        }
    }
}

pub(crate) struct FrameReader {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<(FramePlace, u32)>,
    /// Number of bytes read at once when a header is next.
    ahead: usize,
    /// Data frames also go to [`Frames::other`], frame by frame.
    whole: bool,
    pub max_payload: u32,
}

impl FrameReader {
    pub(crate) fn new(max_payload: u32) -> FrameReader {
        FrameReader {
            buffer: vec![0; BUFFER].into(),
            start: 0,
            end: 0,
            payload: None,
            ahead: BUFFER,
            whole: false,
            max_payload,
        }
    }

    /// Takes data as whole frames too, for connections that may be lost in the middle of a frame, which is then
    /// retransmitted. Frames must be shorter than the buffer.
    pub(crate) fn take_whole(&mut self, max_payload: u32) -> Result<(), Misbehaved> {
        if max_payload as usize > BUFFER / 2 {
            return Err(Misbehaved::Protocol("a frame length limit that is out of bounds"));
        }
        self.max_payload = max_payload;
        self.whole = true;
        Ok(())
    }

    /// Reads available bytes without blocking. Returns true if there were any.
    pub(crate) fn fill(&mut self, stream: &mut Stream) -> Result<bool, Broken> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let limit = BUFFER.min(self.end + self.ahead);
        match stream.recv(&mut self.buffer[self.end..limit])? {
            None => Ok(false),
            Some(0) => Err(Broken::Closed),
            Some(count) => {
                self.end += count;
                Ok(true)
            }
        }
    }

    /// The next handshake message in the buffer.
    pub(crate) fn handshake(&mut self, first: bool) -> Result<Option<Handshake>, Broken> {
        let Some((message, used)) = Handshake::decode(&self.buffer[self.start..self.end], first)? else {
            return Ok(None);
        };
        self.start += used;
        Ok(Some(message))
    }

    /// Skips the next frame in the buffer, which must not be data. Returns its kind; `None`: it is not complete yet.
    pub(crate) fn skip_other(&mut self) -> Result<Option<FrameKind>, Misbehaved> {
        let bytes = &self.buffer[self.start..self.end];
        if bytes.len() < HEADER_LEN {
            return Ok(None);
        }
        let header = FrameHeader::decode(bytes, MAX_OTHER)?;
        let length = HEADER_LEN + header.length as usize;
        if header.kind == FrameKind::Data {
            return Err(Misbehaved::Protocol("data where none is allowed"));
        }
        if bytes.len() < length {
            return Ok(None);
        }
        self.start += length;
        Ok(Some(header.kind))
    }

    /// Takes frames until the socket has no more, or its turn is over. Returns true if anything arrived.
    pub(crate) fn pump(
        &mut self,
        stream: &mut Stream,
        frames: &mut dyn Frames,
        sink: &mut dyn Sink,
    ) -> Result<bool, Broken> {
        let mut taken = 0;
        self.parse(frames, sink)?;
        loop {
            let (count, asked) = match &mut self.payload {
                Some((place, left)) if *left >= DIRECT && self.start == self.end => {
                    let (mut asked, mut beyond, whole) = (0, 0, *left as usize);
                    let next = &mut self.buffer[..AHEAD];
                    let mut read = |into: &mut [u8]| {
                        // The next header is read in the same call as the end of this payload, which saves a call.
                        let after = if into.len() == whole { &mut *next } else { &mut [] };
                        asked = into.len() + after.len();
                        let count = stream.recv_both(into, after)?.ok_or(io::ErrorKind::WouldBlock)?;
                        beyond = count.saturating_sub(into.len());
                        Ok(count - beyond)
                    };
                    match sink.fill(place, whole, &mut read) {
                        Ok(0) => return Err(Broken::Closed),
                        Ok(count) => {
                            *left -= count as u32;
                            (self.start, self.end) = (0, beyond);
                            (count + beyond, asked)
                        }
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(taken > 0),
                        Err(e) => return Err(e.into()),
                    }
                }
                _ => {
                    let before = self.end - self.start;
                    if !self.fill(stream)? {
                        return Ok(taken > 0);
                    }
                    (self.end - before, BUFFER.min(before + self.ahead) - before)
                }
            };
            taken += count;
            self.parse(frames, sink)?;
            // Fewer bytes than requested: the socket is empty, so the call that would confirm that is saved. A turn
            // does not end while the stream itself holds bytes, because epoll would not wake us for those.
            if count < asked || (taken >= TURN && !stream.has_unread()) {
                return Ok(true);
            }
        }
    }

    /// Processes the bytes in the buffer.
    fn parse(&mut self, frames: &mut dyn Frames, sink: &mut dyn Sink) -> Result<(), Misbehaved> {
        loop {
            let bytes = &self.buffer[self.start..self.end];
            if let Some((place, left)) = &mut self.payload {
                let count = bytes.len().min(*left as usize);
                sink.put(place, &bytes[..count]);
                self.start += count;
                *left -= count as u32;
                if *left > 0 {
                    return Ok(());
                }
                if let Some((place, _)) = self.payload.take() {
                    sink.end(place);
                }
                continue;
            }
            if bytes.len() < HEADER_LEN {
                return Ok(());
            }
            let header = FrameHeader::decode(bytes, self.max_payload)?;
            let payload = &bytes[HEADER_LEN..];
            if self.whole || header.kind != FrameKind::Data {
                if header.kind != FrameKind::Data && header.length > MAX_OTHER {
                    return Err(Misbehaved::Protocol("a control frame that is too long"));
                }
                let Some(payload) = payload.get(..header.length as usize) else { return Ok(()) };
                frames.other(&header, payload, sink)?;
                self.start += HEADER_LEN + header.length as usize;
                continue;
            }
            let needed = MAX_HEADER.min(header.length as usize);
            let Some(head) = payload.get(..needed) else { return Ok(()) };
            let (message, used) = Message::decode(head, header.length)?;
            let from = frames.data(&header, sink)?;
            let following = header.length - used as u32;
            let place = sink.begin(from, message, following)?;
            self.start += HEADER_LEN + used;
            self.ahead = if following >= LONG { AHEAD } else { BUFFER };
            self.payload = Some((place, following));
        }
    }
}
