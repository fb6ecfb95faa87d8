//! One payload for several receivers: the tree of sites along which gateways copy it.
//!
//! The payload of a [`FrameKind::Many`] frame is a *block*, then the bytes for each receiver's data frame. The block
//! describes the tree below the site that the frame has reached, so gateways copy the frame without keeping any state.
//! A gateway makes a data frame for each receiver of its own site. It sends each branch, with that branch's block
//! alone, to the next site.
//!
//! | part | bytes | |
//! |---|---|---|
//! | receivers | 1 | number of receivers at this site |
//! | branches | 1 | number of sites that get the frame from this one |
//! | for each receiver | 8 | its slot, the number of the frame in its channel |
//! | for each branch | 4 + length | its site and the length of its block in 16 bits each, the block |
//!
//! A site appears once, the root's site never, and every leaf has a receiver.

use types::{Identity, SiteId, Slot};

use crate::error::WireError;
use crate::frame::MAX_PAYLOAD;
use crate::frame::{FrameHeader, FrameKind};
use crate::reader::FieldReader;

/// Most receivers of a frame.
pub const MAX_RECEIVERS: usize = 64;
/// Most sites of a frame besides the root's.
pub const MAX_SITES: usize = 64;
/// The longest block in bytes.
pub const MAX_BLOCK: usize = 1 << 10;

const WHAT: &str = "block of a Many frame";
/// Bytes before the receivers, of a receiver, and of a branch before its block.
const HEAD: usize = 2;
const RECEIVER: usize = 8;
const BRANCH: usize = 4;

/// A receiver at the site of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockReceiver {
    pub slot: Slot,
    /// Number of the frame in its channel.
    pub sequence: u32,
}

/// A checked block, as in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a>(&'a [u8]);

impl<'a> Block<'a> {
    /// Checks the block at the start of a frame's payload, at site `at`, in a frame from `root`. Returns the block and
    /// the bytes after it.
    ///
    /// # Errors
    /// [`WireError`]: truncated, too long, too many receivers or sites, a site that occurs twice or is the root's, a
    /// receiver at the root's site, a branch without receivers.
    pub fn split(payload: &'a [u8], at: SiteId, root: SiteId) -> Result<(Block<'a>, &'a [u8]), WireError> {
        let mut check = Check { sites: Vec::with_capacity(8), receivers: 0 };
        check.sites.push(root);
        if at != root {
            check.sites.push(at);
        } else if payload.first().is_some_and(|count| *count > 0) {
            return Err(invalid("a receiver at the root's own site".into()));
        }
        let limited = &payload[..payload.len().min(MAX_BLOCK)];
        let length = check.block(limited).map_err(|error| match error {
            WireError::Truncated { need, .. } if need > MAX_BLOCK && payload.len() >= need => {
                WireError::TooLong { what: WHAT, length: need as u64, limit: MAX_BLOCK as u64 }
            }
            error => error,
        })?;
        let (block, data) = payload.split_at(length);
        Ok((Block(block), data))
    }

    /// The block's own bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The receivers at this site.
    pub fn receivers(self) -> impl Iterator<Item = BlockReceiver> + use<'a> {
        let count = usize::from(self.0[0]);
        self.0[HEAD..HEAD + count * RECEIVER].chunks_exact(RECEIVER).map(|bytes| {
            let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            BlockReceiver { slot: Slot(number(0)), sequence: number(4) }
        })
    }

    /// The sites that get the frame from this one, each with its block.
    pub fn branches(self) -> impl Iterator<Item = (SiteId, Block<'a>)> + use<'a> {
        let mut rest = &self.0[HEAD + usize::from(self.0[0]) * RECEIVER..];
        std::iter::from_fn(move || {
            let (head, behind) = rest.split_first_chunk::<BRANCH>()?;
            let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
            let (block, behind) = behind.split_at(length);
            rest = behind;
            Some((SiteId(u16::from_le_bytes([head[0], head[1]])), Block(block)))
        })
    }

    /// Calls `visit` with every receiver at this site (`at`) and below.
    ///
    /// # Errors
    /// The first error of `visit`.
    pub fn each<E>(self, at: SiteId, visit: &mut dyn FnMut(SiteId, BlockReceiver) -> Result<(), E>) -> Result<(), E> {
        self.receivers().try_for_each(|receiver| visit(at, receiver))?;
        self.branches().try_for_each(|(site, block)| block.each(site, visit))
    }
}

/// The sites and receivers seen so far in a block.
struct Check {
    sites: Vec<SiteId>,
    receivers: usize,
}

impl Check {
    /// Checks the block at the start of `bytes`; returns its length.
    fn block(&mut self, bytes: &[u8]) -> Result<usize, WireError> {
        let mut reader = FieldReader::new(WHAT, bytes);
        let (receivers, branches) = (usize::from(reader.u8()?), usize::from(reader.u8()?));
        if receivers + branches == 0 {
            return Err(invalid("a branch without receivers".into()));
        }
        self.receivers += receivers;
        if self.receivers > MAX_RECEIVERS {
            return Err(invalid(format!("more than {MAX_RECEIVERS} receivers")));
        }
        reader.take(receivers * RECEIVER)?;
        for _ in 0..branches {
            let (site, length) = (SiteId(reader.u16()?), usize::from(reader.u16()?));
            if self.sites.contains(&site) {
                return Err(invalid(format!("site #{} twice", site.0)));
            }
            self.sites.push(site);
            // The list includes the root's own site.
            if self.sites.len() > MAX_SITES + 1 {
                return Err(invalid(format!("more than {MAX_SITES} sites")));
            }
            let used = self.block(reader.take(length)?)?;
            if used != length {
                return Err(invalid(format!("site #{}: {} bytes too many", site.0, length - used)));
            }
        }
        Ok(reader.used())
    }
}

fn invalid(problem: String) -> WireError {
    WireError::Invalid { what: WHAT, problem }
}

/// A tree below one site, as a root plans it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The receivers at this site.
    pub receivers: Vec<Slot>,
    /// The sites below, each with its tree.
    pub branches: Vec<(SiteId, Tree)>,
}

/// The block of a tree, complete except for the frame's sequence numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    bytes: Vec<u8>,
    places: Vec<(Identity, usize)>,
}

impl Tree {
    /// The block of this tree, whose top is the root's site.
    ///
    /// # Errors
    /// The tree breaks a rule of [`Block::split`], or the block is longer than [`MAX_BLOCK`].
    pub fn template(&self, root: SiteId) -> Result<Template, WireError> {
        let mut template = Template { bytes: Vec::new(), places: Vec::new() };
        template.put(self, root)?;
        let length = template.bytes.len();
        if length > MAX_BLOCK {
            return Err(WireError::TooLong { what: WHAT, length: length as u64, limit: MAX_BLOCK as u64 });
        }
        Block::split(&template.bytes, root, root)?;
        Ok(template)
    }
}

impl Template {
    fn put(&mut self, tree: &Tree, site: SiteId) -> Result<(), WireError> {
        let count = |count: usize| u8::try_from(count).map_err(|_| invalid("more than 255 of anything".into()));
        self.bytes.extend([count(tree.receivers.len())?, count(tree.branches.len())?]);
        for slot in &tree.receivers {
            self.bytes.extend_from_slice(&slot.0.to_le_bytes());
            self.places.push((Identity { site, slot: *slot }, self.bytes.len()));
            self.bytes.extend_from_slice(&[0; 4]);
        }
        for (site, below) in &tree.branches {
            self.bytes.extend_from_slice(&site.0.to_le_bytes());
            let at = self.bytes.len();
            self.bytes.extend_from_slice(&[0; 2]);
            self.put(below, *site)?;
            let length = self.bytes.len() - at - 2;
            let limit = WireError::TooLong { what: WHAT, length: length as u64, limit: MAX_BLOCK as u64 };
            let length = u16::try_from(length).map_err(|_| limit)?;
            self.bytes[at..at + 2].copy_from_slice(&length.to_le_bytes());
        }
        Ok(())
    }

    /// Its receivers, in the order of [`Template::fill`].
    pub fn receivers(&self) -> impl Iterator<Item = Identity> {
        self.places.iter().map(|(receiver, _)| *receiver)
    }

    /// The block for a frame with these sequence numbers, one for each receiver.
    pub fn fill(&mut self, sequences: impl IntoIterator<Item = u32>) -> &[u8] {
        for ((_, at), sequence) in self.places.iter().zip(sequences) {
            self.bytes[*at..*at + 4].copy_from_slice(&sequence.to_le_bytes());
        }
        &self.bytes
    }

    /// The block's length in bytes.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }
}

impl FrameHeader {
    /// The header of the data frame that a gateway makes of this `Many` frame, for a receiver at site `at`. `length`:
    /// bytes of its payload.
    pub fn data_of_many(&self, at: SiteId, receiver: BlockReceiver, length: usize) -> FrameHeader {
        FrameHeader {
            length: bounded(length),
            kind: FrameKind::Data,
            relayed: true,
            to: Identity { site: at, slot: receiver.slot },
            sequence: receiver.sequence,
            ..*self
        }
    }

    /// The header of the `Many` frame that is sent on to a site. `length`: bytes of its payload.
    pub fn onward(&self, site: SiteId, length: usize) -> FrameHeader {
        FrameHeader { length: bounded(length), to: Identity { site, slot: Slot::GATEWAY }, ..*self }
    }

    /// The notice to the root that the copy of this `Many` frame for this receiver was dropped. Its payload is an
    /// [`Astray`].
    pub fn astray(&self, receiver: Identity, sequence: u32) -> FrameHeader {
        let plain = FrameHeader::plain(FrameKind::Astray, self.job, receiver, self.from);
        FrameHeader { route: self.route, sequence, ..plain }
    }
}

/// A part of a frame is never longer than the frame.
fn bounded(length: usize) -> u32 {
    length.min(MAX_PAYLOAD as usize) as u32
}

/// Reasons for dropping a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Why {
    /// The receiver is not connected to this gateway.
    Absent = 0,
    /// There is no route to the next site.
    Away = 1,
    /// No memory is left for frames to the next site or receiver, which reads slowly.
    Refused = 2,
}

/// The payload of a [`FrameKind::Astray`] frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Astray {
    /// The site that the copy reached.
    pub at: SiteId,
    /// The site that it did not reach; equal to `at` if only the receiver was not reached.
    pub towards: SiteId,
    pub why: Why,
}

/// The length of an [`Astray`] in bytes.
pub const ASTRAY_LEN: u32 = 5;

impl Astray {
    /// The payload.
    pub fn encode(self) -> [u8; ASTRAY_LEN as usize] {
        let ([a, b], [c, d]) = (self.at.0.to_le_bytes(), self.towards.0.to_le_bytes());
        [a, b, c, d, self.why as u8]
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// It is too short or too long, or names an unknown reason.
    pub fn decode(bytes: &[u8]) -> Result<Astray, WireError> {
        let mut reader = FieldReader::new("Astray frame", bytes);
        let (at, towards) = (SiteId(reader.u16()?), SiteId(reader.u16()?));
        let why = match reader.u8()? {
            0 => Why::Absent,
            1 => Why::Away,
            2 => Why::Refused,
            code => return Err(WireError::Unknown { what: "reason of an Astray frame", code }),
        };
        reader.end()?;
        Ok(Astray { at, towards, why })
    }
}

#[cfg(test)]
mod tests;
