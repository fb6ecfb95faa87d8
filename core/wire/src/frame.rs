//! The frame header: the only part of a frame that a gateway reads.
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0–3 | `length` | payload bytes after the header |
//! | 4 | `kind` | [`FrameKind`] |
//! | 5 | `flags` | bit 0: a gateway made this data frame from a [`FrameKind::Many`] frame; the others are zero |
//! | 6–7 | `route` | the first gateway on the frame's path, by its number at the sender |
//! | 8–11 | `job` | |
//! | 12–17 | `to` | site and slot |
//! | 18–23 | `from` | site and slot |
//! | 24–27 | `sequence` | number of this frame in its channel (`from` → `to`), wrapping |
//! | 28–31 | `ack` | next frame number that `from` expects in the reverse channel, wrapping |
//!
//! 32 bytes; IMPI, which gave MPI implementations the idea of a routed header, used 128.

use types::{Identity, JobId};

use crate::error::WireError;
use crate::reader::FieldReader;

/// Length of a frame header in bytes.
pub const HEADER_LEN: usize = 32;

/// The longest payload of a frame on any connection, in bytes. The handshake agrees on a connection's own limit, which
/// is at most this.
pub const MAX_PAYLOAD: u32 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// A piece of an endpoint's or agent's traffic: relayed unread, numbered in its channel.
    Data = 0,
    /// Only the `ack` field matters: relayed, takes no sequence number; the payload is a [`crate::receipt`].
    Ack = 1,
    /// A [`crate::Control`] message for the gateway (or launcher) at the other end of this connection.
    Control = 2,
    /// Answer with [`FrameKind::Pong`], same payload (at most 64 bytes).
    Ping = 3,
    /// Answer to a ping.
    Pong = 4,
    /// From a gateway to the sender of a frame: `from` cannot be reached; the payload is the reason, as text.
    Undeliverable = 5,
    /// The other end closes this connection on purpose; the payload is the reason, as text (empty: the work is done).
    Bye = 6,
    /// From rank to rank of one site: an [`crate::Introduction`], after which frames use the site's own network.
    Introduction = 7,
    /// From rank to rank of one site: number of frames that the sender has sent on the site's own network so far,
    /// wrapping, in 4 bytes. It reveals a network that silently loses frames.
    Tally = 8,
    /// From a gateway to its members: a change of its route to the site in `from`; the payload is a [`crate::Passage`].
    Passage = 9,
    /// Acknowledgement request. As [`FrameKind::Ack`]; the receiver must answer at once. `sequence` is the number of
    /// the sender's next frame; the upper byte of `route` distinguishes requests.
    Ask = 10,
    /// As [`FrameKind::Ack`]; frames to `from` that it has not acknowledged may be lost and must be retransmitted.
    Again = 11,
    /// Answers [`FrameKind::Ask`] through the gateway that delivered it. As [`FrameKind::Ack`]; `route` is the
    /// request's. `sequence` is the number of the next frame that `from` expects in order, even if `from` has not
    /// acknowledged the frames before it.
    Answer = 12,
    /// From a gateway to the sender of frames: it had no memory for frames to `from`, which reads slowly, and dropped
    /// them. The sender must retransmit them, with less in flight.
    Refused = 13,
    /// A piece of one rank's traffic for several others. Gateways copy it along a tree of sites and make a
    /// [`FrameKind::Data`] frame for each receiver. `to` is a gateway of the site that the frame is going to; the
    /// payload is a [`crate::many`] block and the data.
    Many = 14,
    /// From a gateway to the sender of a [`FrameKind::Many`] frame: the copy for `from`, with this `sequence`, was
    /// dropped. `route` is the frame's; the payload is a [`crate::many::Astray`].
    Astray = 15,
    /// From a gateway to a rank: figures of the links between the job's sites; the payload is a part of a
    /// [`crate::links`] table.
    Links = 16,
}

impl FrameKind {
    /// Returns true if `ack` counts and gateways relay the frame unread.
    pub fn acknowledges(self) -> bool {
        matches!(self, FrameKind::Data | FrameKind::Ack | FrameKind::Ask | FrameKind::Again | FrameKind::Answer)
    }

    fn from_code(code: u8) -> Result<FrameKind, WireError> {
        Ok(match code {
            0 => FrameKind::Data,
            1 => FrameKind::Ack,
            2 => FrameKind::Control,
            3 => FrameKind::Ping,
            4 => FrameKind::Pong,
            5 => FrameKind::Undeliverable,
            6 => FrameKind::Bye,
            7 => FrameKind::Introduction,
            8 => FrameKind::Tally,
            9 => FrameKind::Passage,
            10 => FrameKind::Ask,
            11 => FrameKind::Again,
            12 => FrameKind::Answer,
            13 => FrameKind::Refused,
            14 => FrameKind::Many,
            15 => FrameKind::Astray,
            16 => FrameKind::Links,
            code => return Err(WireError::Unknown { what: "frame kind", code }),
        })
    }
}

/// A frame header; see the table in the module docs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Payload bytes after the header.
    pub length: u32,
    pub kind: FrameKind,
    /// A gateway made this data frame from a [`FrameKind::Many`] frame: `ack` does not count, and only shares are
    /// accepted from it.
    pub relayed: bool,
    /// The first gateway on its path, by its number at the sender.
    pub route: u16,
    /// The job it belongs to.
    pub job: JobId,
    /// The receiver.
    pub to: Identity,
    /// The sender.
    pub from: Identity,
    /// Number in its channel.
    pub sequence: u32,
    /// Next number expected from the other side.
    pub ack: u32,
}

impl FrameHeader {
    /// A header without payload, outside any channel.
    pub fn plain(kind: FrameKind, job: JobId, from: Identity, to: Identity) -> FrameHeader {
        FrameHeader { length: 0, kind, relayed: false, route: 0, job, to, from, sequence: 0, ack: 0 }
    }

    /// The 32 bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0..4].copy_from_slice(&self.length.to_le_bytes());
        out[4] = self.kind as u8;
        out[5] = u8::from(self.relayed);
        out[6..8].copy_from_slice(&self.route.to_le_bytes());
        out[8..12].copy_from_slice(&self.job.0.to_le_bytes());
        out[12..14].copy_from_slice(&self.to.site.0.to_le_bytes());
        out[14..18].copy_from_slice(&self.to.slot.0.to_le_bytes());
        out[18..20].copy_from_slice(&self.from.site.0.to_le_bytes());
        out[20..24].copy_from_slice(&self.from.slot.0.to_le_bytes());
        out[24..28].copy_from_slice(&self.sequence.to_le_bytes());
        out[28..32].copy_from_slice(&self.ack.to_le_bytes());
        out
    }

    /// Reads the header at the start of `bytes` (which may continue). `max_payload` is the connection's limit.
    ///
    /// # Errors
    /// [`WireError`] on fewer than 32 bytes, an unknown kind, or a length beyond the limit.
    pub fn decode(bytes: &[u8], max_payload: u32) -> Result<FrameHeader, WireError> {
        let mut reader = FieldReader::new("frame header", bytes);
        let length = reader.u32()?;
        let kind = FrameKind::from_code(reader.u8()?)?;
        let flags = reader.u8()?;
        // Only data frames have a flag.
        if flags > u8::from(kind == FrameKind::Data) {
            return Err(WireError::Unknown { what: "frame flags", code: flags });
        }
        let header = FrameHeader {
            length,
            kind,
            relayed: flags == 1,
            route: reader.u16()?,
            job: JobId(reader.u32()?),
            to: reader.identity()?,
            from: reader.identity()?,
            sequence: reader.u32()?,
            ack: reader.u32()?,
        };
        if length > max_payload {
            return Err(WireError::TooLong { what: "frame", length: length.into(), limit: max_payload.into() });
        }
        Ok(header)
    }

    /// Returns header and payload in one vector; sets `length`.
    ///
    /// # Errors
    /// The payload is longer than [`MAX_PAYLOAD`].
    pub fn with_payload(mut self, payload: &[u8]) -> Result<Vec<u8>, WireError> {
        self.length = u32::try_from(payload.len())
            .ok()
            .filter(|length| *length <= MAX_PAYLOAD)
            .ok_or(WireError::TooLong { what: "frame", length: payload.len() as u64, limit: MAX_PAYLOAD.into() })?;
        let mut out = Vec::with_capacity(HEADER_LEN + payload.len());
        out.extend_from_slice(&self.encode());
        out.extend_from_slice(payload);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use types::{SiteId, Slot};

    proptest! {
        #[test]
        fn headers_survive(
            length in 0u32..=MAX_PAYLOAD, kind in 0u8..17, relayed: bool, route: u16, job: u32, a: (u16, u32),
            b: (u16, u32), sequence: u32, ack: u32,
        ) {
            let header = FrameHeader {
                length, kind: FrameKind::from_code(kind).unwrap(), relayed: relayed && kind == 0, route,
                job: JobId(job),
                to: Identity { site: SiteId(a.0), slot: Slot(a.1) },
                from: Identity { site: SiteId(b.0), slot: Slot(b.1) },
                sequence, ack,
            };
            prop_assert_eq!(FrameHeader::decode(&header.encode(), MAX_PAYLOAD), Ok(header));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = FrameHeader::decode(&bytes, MAX_PAYLOAD);
        }
    }

    #[test]
    fn plain_headers_name_both_ends() {
        let (from, to) =
            (Identity { site: SiteId(1), slot: Slot(7) }, Identity { site: SiteId(1), slot: Slot::GATEWAY });
        let header = FrameHeader::plain(FrameKind::Bye, JobId(4), from, to);
        assert_eq!((header.from, header.to, header.length, header.sequence), (from, to, 0, 0));
    }

    #[test]
    fn only_data_frames_are_marked() {
        for (kind, flags, is_read) in [(0, 1, true), (0, 2, false), (1, 1, false), (14, 1, false), (14, 0, true)] {
            let mut bytes = [0u8; HEADER_LEN];
            (bytes[4], bytes[5]) = (kind, flags);
            assert_eq!(FrameHeader::decode(&bytes, 0).is_ok(), is_read, "kind {kind}, flags {flags}");
        }
    }

    #[test]
    fn a_frame_beyond_the_limit_is_refused() {
        let mut bytes = [0u8; HEADER_LEN];
        bytes[0..4].copy_from_slice(&1025u32.to_le_bytes());
        assert!(matches!(FrameHeader::decode(&bytes, 1024), Err(WireError::TooLong { length: 1025, .. })));
    }
}
