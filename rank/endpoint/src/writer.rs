//! Putting frames on a socket: short ones staged together, long payloads straight from the user's memory.

use std::io::{self, IoSlice};

use wire::FrameHeader;

use crate::link::{Outgoing, Sink};
use crate::stream::Stream;

/// Payloads up to this length are copied behind their header; longer ones get their own slice in the `sendmsg`.
const COPY: u64 = 4 << 10;
/// With more bytes than this staged, send first.
const STAGE: usize = 64 << 10;
const MAX_SLICES: usize = 8;

/// Staged bytes waiting for a socket.
pub(crate) struct Writer {
    staged: Vec<u8>,
    written: usize,
    /// Bytes of a payload that come next and are not staged.
    direct: u64,
    pub max_payload: u32,
}

impl Writer {
    pub(crate) fn new(max_payload: u32) -> Writer {
        Writer { staged: Vec::new(), written: 0, direct: 0, max_payload }
    }

    /// True if another frame should be staged before sending.
    pub(crate) fn has_room(&self) -> bool {
        self.direct == 0 && self.staged.len() < STAGE
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.staged.len() == self.written && self.direct == 0
    }

    /// Stages raw bytes (handshakes, frames without an item).
    pub(crate) fn stage(&mut self, bytes: &[u8]) {
        self.staged.extend_from_slice(bytes);
    }

    /// Stages the item's next frame. A long payload stays in place, and the item must then be passed to
    /// [`Writer::send`] until it has been sent. Returns true if that was the item's last frame and all of it is staged.
    pub(crate) fn stage_frame(
        &mut self,
        item: &mut Outgoing,
        header: impl FnOnce(u32) -> FrameHeader,
        sink: &dyn Sink,
    ) -> bool {
        let (message, count) = item.next_frame(self.max_payload);
        if count <= COPY || item.is_region() {
            return item.cut_frame(self.max_payload, header, sink.regions(), &mut self.staged);
        }
        self.staged.extend_from_slice(&header(message.as_slice().len() as u32 + count as u32).encode());
        self.staged.extend_from_slice(message.as_slice());
        self.direct = count;
        item.head = None;
        false
    }

    /// Sends the staged bytes, and the payload of `item` if its frame is direct. `Ok(None)`: the stream takes no more
    /// for now. Otherwise returns true if `item` has been sent entirely.
    pub(crate) fn send(&mut self, stream: &mut Stream, mut item: Option<&mut Outgoing>) -> io::Result<Option<bool>> {
        while !self.is_empty() {
            let staged = self.staged.len() - self.written;
            let empty: &[u8] = &[];
            let mut slices = [IoSlice::new(empty); MAX_SLICES];
            let mut count = 0;
            if staged > 0 {
                slices[0] = IoSlice::new(&self.staged[self.written..]);
                count = 1;
            }
            if let Some(item) = item.as_deref().filter(|_| self.direct > 0) {
                for slice in item.slices(self.direct).take(MAX_SLICES - count) {
                    slices[count] = IoSlice::new(slice);
                    count += 1;
                }
            }
            let Some(sent) = stream.send(&slices[..count])? else { return Ok(None) };
            self.written += sent.min(staged);
            if self.written == self.staged.len() {
                self.staged.clear();
                self.written = 0;
            }
            let direct = sent.saturating_sub(staged) as u64;
            self.direct -= direct;
            if let Some(item) = item.as_deref_mut()
                && direct > 0
                && item.advance(direct)
            {
                return Ok(Some(true));
            }
        }
        Ok(stream.flush()?.then_some(false))
    }
}
