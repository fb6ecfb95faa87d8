//! A lane: the state that two ranks keep of their connection through the site's own network.
//!
//! Every frame on a lane starts with 16 bytes. First comes a token that the receiver handed out over TCP, so frames
//! from anybody else are ignored. Then comes the frame's number on the lane, because a provider may report a short
//! frame before a long one that was sent earlier. The last part is its kind. A message header and bytes follow, as in a
//! frame on TCP.

use std::collections::BTreeMap;
use std::time::Instant;

use libfabric::{PeerAddress, Staged};
use memory::Regions;
use wire::Message;
use wire::message::MAX_HEADER;

use super::tally::Tally;
use crate::link::{Misbehaved, Outgoing, Sink};
use crate::operation::PeerId;

pub(super) const PREFIX: usize = 16;
/// Maximum number of frames that may arrive before a missing one. Providers report out of order only among the posted
/// receives.
const MAX_AHEAD: u32 = 1024;

const DATA: u8 = 0;
const BYE: u8 = 1;

pub(super) struct Lane {
    /// The token with which the peer starts its frames.
    pub token: u64,
    /// The peer's port and our token there; unknown until it has introduced itself.
    pub peer: Option<(PeerAddress, u64)>,
    /// Number of our frames that the provider holds.
    pub under_way: usize,
    /// A frame that the provider had no room for, and its length.
    pub pending: Option<(Staged, usize)>,
    /// The lane is broken, or the peer is gone. The lane ends at this time for this reason, unless the peer's goodbye
    /// arrives before.
    pub ending: Option<(Instant, String)>,
    pub said_goodbye: bool,
    pub tally: Tally,
    next_out: u32,
    next_in: u32,
    ahead: BTreeMap<u32, Vec<u8>>,
}

impl Lane {
    pub(super) fn new(token: u64) -> Lane {
        Lane {
            token,
            peer: None,
            under_way: 0,
            pending: None,
            ending: None,
            said_goodbye: false,
            tally: Tally::new(),
            next_out: 0,
            next_in: 0,
            ahead: BTreeMap::new(),
        }
    }

    /// True if all its frames have been sent.
    pub(super) fn is_idle(&self) -> bool {
        self.under_way == 0 && self.pending.is_none()
    }

    /// Number of frames put on the lane, and number received in order. Both wrap.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.next_out, self.next_in)
    }

    /// Writes the item's next frame into `bytes`. Returns its length, and true if it was the item's last.
    pub(super) fn write_frame(
        &mut self,
        theirs: u64,
        item: &mut Outgoing,
        regions: &Regions,
        bytes: &mut [u8],
    ) -> (usize, bool) {
        self.write_prefix(theirs, DATA, bytes);
        let bytes = &mut bytes[PREFIX..];
        let (message, count) = item.next_frame(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        let head = message.as_slice().len();
        bytes[..head].copy_from_slice(message.as_slice());
        match item.copy_into(regions, &mut bytes[head..head + count as usize]) {
            Ok(()) => (PREFIX + head + count as usize, item.advance(count)),
            Err(status) => {
                // The region was closed while it was being read: send a refusal instead.
                let message = Message::Fetched { id: item.id, status }.encode(0);
                let head = message.as_slice().len();
                bytes[..head].copy_from_slice(message.as_slice());
                item.at = item.end;
                (PREFIX + head, true)
            }
        }
    }

    /// Writes a goodbye. Returns its length.
    pub(super) fn write_goodbye(&mut self, theirs: u64, bytes: &mut [u8]) -> usize {
        self.said_goodbye = true;
        self.write_prefix(theirs, BYE, bytes);
        PREFIX
    }

    fn write_prefix(&mut self, theirs: u64, kind: u8, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&theirs.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.next_out.to_le_bytes());
        bytes[12..PREFIX].copy_from_slice(&[kind, 0, 0, 0]);
        self.next_out = self.next_out.wrapping_add(1);
    }

    /// Takes a frame that has arrived, and the later ones that waited for it. Returns true if one of them was the
    /// goodbye.
    pub(super) fn take(&mut self, frame: &[u8], from: PeerId, sink: &mut dyn Sink) -> Result<bool, Misbehaved> {
        let number = number_of(frame);
        match number.wrapping_sub(self.next_in) {
            0 => {}
            early if early <= MAX_AHEAD => {
                self.ahead.insert(number, frame.to_vec());
                return Ok(false);
            }
            _ => return Err(Misbehaved::Protocol("a frame that is far out of order")),
        }
        self.next_in = self.next_in.wrapping_add(1);
        let mut goodbye = accept(frame, from, sink)?;
        while let Some(frame) = self.ahead.remove(&self.next_in) {
            self.next_in = self.next_in.wrapping_add(1);
            goodbye |= accept(&frame, from, sink)?;
        }
        Ok(goodbye)
    }
}

/// The token of a frame; `None` if it is too short to be one.
pub(super) fn token_of(frame: &[u8]) -> Option<u64> {
    let token = frame.get(..PREFIX)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*token))
}

/// True if a frame is a goodbye. It must be long enough to have a prefix.
pub(super) fn is_goodbye(frame: &[u8]) -> bool {
    frame[12] == BYE
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_le_bytes([frame[8], frame[9], frame[10], frame[11]])
}

/// Takes the content of the frame that is next in order. Returns true if it is a goodbye.
fn accept(frame: &[u8], from: PeerId, sink: &mut dyn Sink) -> Result<bool, Misbehaved> {
    let (kind, content) = (frame[12], &frame[PREFIX..]);
    match kind {
        BYE => return Ok(true),
        DATA => {}
        _ => return Err(Misbehaved::Protocol("a frame of a kind that lanes do not carry")),
    }
    let head = &content[..content.len().min(MAX_HEADER)];
    // A frame is at most as long as a port's limit, far below 4 GiB.
    let (message, used) = Message::decode(head, content.len() as u32)?;
    let payload = content.get(used..).unwrap_or_default();
    let mut place = sink.begin(from, message, payload.len() as u32)?;
    sink.put(&mut place, payload);
    sink.end(place);
    Ok(false)
}

#[cfg(test)]
mod tests;
