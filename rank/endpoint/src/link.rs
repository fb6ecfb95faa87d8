//! The interface between links and the protocol.
//!
//! A [`Link`] carries [`Outgoing`] items to peers, split into frames, and passes arriving frames to a [`Sink`]. It
//! knows how to reach peers and nothing about matching; the protocol knows matching and nothing about sockets.

use std::io;
use std::sync::Arc;

use memory::{Buffer, Regions};
use types::Address;
use wire::frame::HEADER_LEN;
use wire::message::{Encoded, MAX_HEADER, Status, TransferId};
use wire::{FrameHeader, Message, WireError};

use crate::operation::{OperationKind, PeerId, UserData};
use crate::protocol::FramePlace;

/// Location of an item's bytes.
#[derive(Debug)]
pub(crate) enum Bytes {
    None,
    /// A buffer that belongs to this item alone.
    Buffer(Buffer),
    /// A buffer that a transfer keeps for further items.
    Shared(Arc<Buffer>),
    /// The rest of a share, for one receiver that gets it alone.
    Share {
        key: u64,
        buffer: Arc<Buffer>,
    },
    /// In a registered region, which is read when a frame is made.
    Region {
        key: u64,
        address: u64,
    },
}

/// A message with nothing queued behind it goes through gateways in this many frames: its delay at each gateway is then
/// a sixteenth of its transmission time.
const PIPELINE: u64 = 16;
/// Minimum size of such a part in bytes: smaller frames would cost more than they gain.
const LEAST_PART: u64 = 4 << 10;

/// Something to send to a peer: a message header followed by bytes `at..end` of a transfer, in one or more frames.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// The first frame's message; `None`: all frames are `More`.
    pub head: Option<Message>,
    pub id: TransferId,
    /// The bytes answer a read.
    pub reply: bool,
    pub at: u64,
    pub end: u64,
    pub bytes: Bytes,
    /// The user's buffer may be reused once `Link::send` has returned.
    pub detach: bool,
    /// Reported to the sink once the last byte has been sent.
    pub sent: Option<Sent>,
}

impl Outgoing {
    /// An item that is only a header.
    pub(crate) fn header(message: Message) -> Outgoing {
        let bytes = Bytes::None;
        Outgoing { head: Some(message), id: 0, reply: false, at: 0, end: 0, bytes, detach: false, sent: None }
    }

    /// Replaces the user's memory by a copy. Returns the number of bytes copied.
    pub(crate) fn detach_now(&mut self) -> u64 {
        match std::mem::replace(&mut self.bytes, Bytes::None) {
            Bytes::Buffer(buffer) => {
                let length = buffer.len() as u64;
                self.bytes = Bytes::Buffer(buffer.into_owned());
                length
            }
            other => {
                self.bytes = other;
                0
            }
        }
    }

    /// Bytes that have not been sent.
    pub(crate) fn left(&self) -> u64 {
        self.end - self.at
    }

    /// The longest payload of its frames if nothing is queued behind it: the item is split into several frames, so that
    /// a gateway forwards the first ones while the others arrive. If more is queued, full frames are cheaper.
    pub(crate) fn pipelined(&self, max_payload: u32) -> u32 {
        let part = (self.end / PIPELINE).max(LEAST_PART) + MAX_HEADER as u64;
        part.min(max_payload.into()) as u32
    }

    /// The message header of the next frame and the number of bytes after it, for payloads of at most `max_payload`.
    pub(crate) fn next_frame(&self, max_payload: u32) -> (Encoded, u64) {
        let room = u64::from(max_payload) - MAX_HEADER as u64;
        let count = room.min(self.left());
        let next = match &self.bytes {
            Bytes::Share { key, .. } => Message::Share { key: *key, offset: self.at, total: self.end },
            _ => Message::More { id: self.id, offset: self.at, reply: self.reply },
        };
        let message = self.head.unwrap_or(next);
        (message.encode(count), count)
    }

    /// Length of the next frame in bytes, header included.
    pub(crate) fn next_frame_len(&self, max_payload: u32) -> u32 {
        let (header, count) = self.next_frame(max_payload);
        (HEADER_LEN + header.as_slice().len()) as u32 + count as u32
    }

    /// Records that `count` bytes have been sent. Returns true if those were the last.
    pub(crate) fn advance(&mut self, count: u64) -> bool {
        self.head = None;
        self.at += count;
        self.at == self.end
    }

    /// Appends the next frame to `out`, with the header for its length. Returns true if it was the last.
    pub(crate) fn cut_frame(
        &mut self,
        max_payload: u32,
        header: impl FnOnce(u32) -> FrameHeader,
        regions: &Regions,
        out: &mut Vec<u8>,
    ) -> bool {
        let (message, count) = self.next_frame(max_payload);
        let begin = out.len();
        let header = header(message.as_slice().len() as u32 + count as u32);
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(message.as_slice());
        let Err(status) = self.copy_to(count, regions, out) else { return self.advance(count) };
        // The region was closed while it was being read: send a refusal instead.
        out.truncate(begin);
        let message = Message::Fetched { id: self.id, status }.encode(0);
        let header = FrameHeader { length: message.as_slice().len() as u32, ..header };
        out.extend_from_slice(&header.encode());
        out.extend_from_slice(message.as_slice());
        self.at = self.end;
        true
    }

    /// Appends bytes `at..at + count` to `out`. The error is the status for a region that is gone.
    pub(crate) fn copy_to(&self, count: u64, regions: &Regions, out: &mut Vec<u8>) -> Result<(), Status> {
        let range = self.at as usize..(self.at + count) as usize;
        match &self.bytes {
            Bytes::None => {}
            Bytes::Buffer(buffer) => buffer.slices(range).for_each(|slice| out.extend_from_slice(slice)),
            Bytes::Shared(buffer) | Bytes::Share { buffer, .. } => {
                buffer.slices(range).for_each(|slice| out.extend_from_slice(slice))
            }
            Bytes::Region { key, address } => {
                regions.read(*key, address + self.at, count as usize, out).map_err(status_of)?;
            }
        }
        Ok(())
    }

    /// Copies the next bytes, as many as fit, into `out`. The error is the status for a region that is gone.
    pub(crate) fn copy_into(&self, regions: &Regions, out: &mut [u8]) -> Result<(), Status> {
        if self.is_region() {
            let mut copy = Vec::with_capacity(out.len());
            self.copy_to(out.len() as u64, regions, &mut copy)?;
            out.copy_from_slice(&copy);
            return Ok(());
        }
        let mut at = 0;
        for slice in self.slices(out.len() as u64) {
            out[at..at + slice.len()].copy_from_slice(slice);
            at += slice.len();
        }
        Ok(())
    }

    /// True if the bytes have to be copied under the regions' lock.
    pub(crate) fn is_region(&self) -> bool {
        matches!(self.bytes, Bytes::Region { .. })
    }

    /// The slices of bytes `at..at + count`.
    pub(crate) fn slices(&self, count: u64) -> impl Iterator<Item = &[u8]> {
        let buffer = match &self.bytes {
            Bytes::Buffer(buffer) => Some(buffer),
            Bytes::Shared(buffer) | Bytes::Share { buffer, .. } => Some(buffer.as_ref()),
            Bytes::None | Bytes::Region { .. } => None,
        };
        let range = self.at as usize..(self.at + count) as usize;
        buffer.into_iter().flat_map(move |buffer| buffer.slices(range.clone()))
    }
}

/// The wire status for a region's error.
pub(crate) fn status_of(error: memory::RegionError) -> Status {
    match error {
        memory::RegionError::UnknownKey(_) => Status::UnknownKey,
        memory::RegionError::NotPermitted(_) => Status::NotPermitted,
        _ => Status::OutOfBounds,
    }
}

/// A part of the work that a link has finished.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sent {
    /// A send or write that is now complete for the user.
    Complete { kind: OperationKind, user: UserData, tagged: bool, tag: u64, length: u64 },
    /// The last bytes of this transfer have been sent.
    Transfer(TransferId),
    /// One of the senders of the share with this number has sent all its frames.
    Share(usize),
}

/// Reports from a link to the protocol.
pub(crate) trait Sink {
    /// A frame from a peer starts, with `following` bytes after its message header. Returns the place for these bytes.
    fn begin(&mut self, from: PeerId, message: Message, following: u32) -> Result<FramePlace, Misbehaved>;
    /// Takes a frame whose `following` bytes are all available, if it is a whole message with a posted receive. `read`
    /// copies the bytes out. Otherwise returns false, and the frame must go through `begin`.
    fn take_whole(
        &mut self,
        from: PeerId,
        message: &Message,
        following: u32,
        read: &mut dyn FnMut(&mut [u8]),
    ) -> Result<bool, Misbehaved>;
    /// Stores bytes of the frame that were already read.
    fn put(&mut self, place: &mut FramePlace, bytes: &[u8]);
    /// Has `read` read bytes of the frame straight into their memory, at most `limit`. Returns the number of bytes
    /// read.
    fn fill(
        &mut self,
        place: &mut FramePlace,
        limit: usize,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize>;
    /// The frame is complete.
    fn end(&mut self, place: FramePlace);
    /// An item was sent.
    fn sent(&mut self, sent: Sent);
    /// An item will never be sent: its peer is lost.
    fn unsent(&mut self, to: PeerId, sent: Sent);
    /// One receiver gets the rest of the share with this number alone.
    fn alone(&mut self, share: usize);
    /// A peer can no longer be reached. `reason` is for the user; `None`: the peer sent a goodbye.
    fn lost(&mut self, peer: PeerId, reason: Option<String>);
    /// The peer with this address.
    fn peer(&mut self, address: Address) -> PeerId;
    /// The peer with this address, if it is known.
    fn known(&self, address: Address) -> Option<PeerId>;
    /// A peer's address.
    fn address(&self, peer: PeerId) -> Option<Address>;
    /// The regions that items refer to.
    fn regions(&self) -> &Regions;
}

/// A peer broke the protocol; its connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Misbehaved {
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Channel(#[from] channel::ChannelError),
    #[error("{0}")]
    Handshake(member::handshake::Fault),
    #[error("{0}")]
    Protocol(&'static str),
    #[error("{0}")]
    Member(#[from] member::Misbehaved),
    /// Not misbehaviour: the other end closes on purpose, with this reason.
    #[error("{0}")]
    Said(String),
}

/// A way to reach peers.
pub(crate) trait Link {
    /// Sends or queues an item for a peer that this link reaches. `more`: another item for this peer follows at once,
    /// so both may go out with one system call.
    fn send(&mut self, to: PeerId, item: Outgoing, more: bool, sink: &mut dyn Sink);
    /// Moves bytes without blocking. Returns true if any moved.
    fn progress(&mut self, sink: &mut dyn Sink) -> bool;
    /// True if nothing is queued.
    fn is_idle(&self) -> bool;
    /// Bytes of our own copies waiting to be sent.
    fn buffered(&self) -> u64;
    /// Sends a goodbye on every connection whose queue is empty, and closes.
    fn close(&mut self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_alone_is_cut_into_parts() {
        const MOST: u32 = 16 << 10;
        let parts = |length: u64| {
            let mut item =
                Outgoing { end: length, ..Outgoing::header(Message::More { id: 1, offset: 0, reply: false }) };
            let most = item.pipelined(MOST);
            let mut count = 1;
            while !item.advance(item.next_frame(most).1) {
                count += 1;
            }
            (count, most)
        };
        assert_eq!(parts(100).0, 1);
        assert_eq!(parts(8 << 10).0, 2, "no part is smaller than 4 KiB");
        assert_eq!(parts(64 << 10).0, 16);
        assert_eq!(parts(128 << 10).0, 16);
        assert_eq!(parts(1 << 20).1, MOST);
    }
}
