//! Limits of frames and of buffers on their path, and the gateway's identity in frames.

use types::{Identity, SiteId, Slot};
use wire::frame::{HEADER_LEN, MAX_PAYLOAD};

/// The longest payload of a frame between members, in bytes.
pub(crate) const MAX_DATA: u32 = 16 << 10;
/// The longest ping from a member, and the longest reply. Between gateways, pings may be as long as data, to measure
/// the rate of a trunk.
pub(crate) const MAX_PING: u32 = 64;
/// Most bytes per read.
pub(crate) const READ: usize = 128 << 10;
/// Bytes encrypted at once.
pub(crate) const PIECE: usize = READ;
/// Bytes of scratch space: the remainder that one read may leave (a control message), plus the next read.
pub(crate) const SCRATCH: usize = HEADER_LEN + MAX_PAYLOAD as usize + 2 * READ;

/// A gateway's identity in frames that concern no particular job.
pub(crate) const GATEWAY: Identity = Identity { site: SiteId(0), slot: Slot::GATEWAY };
