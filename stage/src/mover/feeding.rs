//! A source on this node, and its blocks that other movers are reading.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use folder::Folder;
use memory::Pages;
use pool::HostId;

use super::error::MoverError;
use super::lent::Lent;
use super::message::at_home;
use super::message::{Mode, MoverMessage, Settings, Task};
use super::peers::Peers;
use super::pushing::{Act, Pushing};
use super::sending::{Parcels, Supply};
use crate::blocks::Blocks;
use crate::source::Source;

pub(super) struct Feeding {
    task: u32,
    source: Source,
    blocks: Blocks,
    lent: Lending,
    pushing: Pushing,
    parcels: Parcels,
    targets: Vec<u32>,
    /// Bytes read so far, and bytes that all targets together will read.
    read: u64,
    total: u64,
    /// Number of incomplete targets that fetch from this source.
    hungry: usize,
    /// True if blocks have a checksum.
    checks: bool,
    _manifest: Lent,
}

impl Feeding {
    /// Lists the source. Also returns the message for its targets. `None`: it is missing, and the task permits that.
    pub(super) fn open(
        number: u32,
        task: &Task,
        options: &Settings,
        peers: &Peers,
    ) -> Result<Option<(Feeding, MoverMessage)>, MoverError> {
        let path = at_home(&task.from.path);
        let missing = || {
            let found = Folder::of(&path).and_then(|named| Ok(named.stat()?));
            found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        if task.optional && missing() {
            return Ok(None);
        }
        let (source, name) = (task.source(&path)?, task.name(&path)?);
        let manifest = postcard::to_stdvec(source.manifest()).map_err(|e| MoverError::Message(e.to_string()))?;
        let (length, manifest) = (manifest.len() as u64, peers.lend(Pages::from(&manifest[..]))?);
        let (host, identity) = (HostId::own().0, source.identity()?);
        let announcement = MoverMessage::Manifest { task: number, key: manifest.key(), length, host, identity, name };
        let targets: Vec<u32> = task.to.iter().map(|spot| spot.rank).collect();
        let mode = options.mode_of(task);
        let fed = (0..targets.len()).filter(|target| feeder(task, mode, *target, peers) == task.from.rank);
        let fed: Vec<u32> = fed.map(|target| targets[target]).collect();
        let hungry = fed.len();
        let blocks = Blocks::cut(source.manifest(), options.block)?;
        let pushing = Pushing::new(mode, fed, blocks.count());
        let (lent, parcels) = Default::default();
        let total = source.manifest().bytes() * hungry as u64;
        let (task, read, checks, _manifest) = (number, 0, !options.unchecked, manifest);
        let feeding =
            Feeding { task, source, blocks, lent, pushing, parcels, targets, read, total, hungry, checks, _manifest };
        Ok(Some((feeding, announcement)))
    }

    pub(super) fn targets(&self) -> &[u32] {
        &self.targets
    }

    /// Reads a block into memory that rank `from` may read.
    pub(super) fn read(&mut self, from: u32, block: u32, peers: &mut Peers) -> Result<MoverMessage, MoverError> {
        let pieces = self.blocks.pieces(block);
        if pieces.is_empty() {
            return Err(MoverError::Message(format!("{}: there is no block {block}", peers.place(from))));
        }
        let mut bytes = peers.room();
        let hash = self.source.block(pieces, &mut bytes, self.checks)?;
        let length = bytes.len() as u32;
        self.read += u64::from(length);
        let key = self.lent.lend(from, block, peers.lend(bytes)?);
        Ok(MoverMessage::Ready { task: self.task, block, hash, key, length })
    }

    pub(super) fn released(&mut self, by: u32, block: u32, peers: &mut Peers) {
        self.lent.released(by, block, peers);
    }

    /// Bytes read so far, and bytes that all targets together will read.
    pub(super) fn volume(&self) -> (u64, u64) {
        (self.read, self.total)
    }

    /// Returns true if some rank is reading, or may be sent a block.
    pub(super) fn is_busy(&self) -> bool {
        !self.lent.lent.is_empty() || self.pushing.is_busy()
    }

    /// One more target is complete. Returns true if all are, after a check that the files have not changed.
    pub(super) fn full(&mut self) -> Result<bool, MoverError> {
        self.hungry = self.hungry.saturating_sub(1);
        if self.hungry == 0 {
            self.source.check()?;
        }
        Ok(self.hungry == 0)
    }
}

impl Supply for Feeding {
    fn pushing(&mut self) -> &mut Pushing {
        &mut self.pushing
    }

    fn next(&mut self, now: Duration) -> Act {
        self.pushing.next(now, |block| Some(self.blocks.bytes(block)))
    }

    fn parcel(&mut self, block: u32, readers: usize) -> Result<Option<Arc<Pages>>, MoverError> {
        let (source, pieces, checks) = (&mut self.source, self.blocks.pieces(block), self.checks);
        let parcel = self.parcels.fill(|bytes| source.block(pieces, bytes, checks))?;
        self.read += self.blocks.bytes(block) * readers as u64;
        Ok(Some(parcel))
    }
}

/// Blocks that other ranks are reading, by reader and block number.
#[derive(Default)]
pub(super) struct Lending {
    lent: HashMap<(u32, u32), Lent>,
}

impl Lending {
    /// Lends a block. Returns its key.
    pub(super) fn lend(&mut self, to: u32, block: u32, lent: Lent) -> u64 {
        let key = lent.key();
        self.lent.insert((to, block), lent);
        key
    }

    pub(super) fn released(&mut self, by: u32, block: u32, peers: &mut Peers) {
        if let Some(lent) = self.lent.remove(&(by, block)) {
            peers.recycle(lent.take());
        }
    }
}

/// The rank that feeds a target: the previous target at its site, or the source. A broadcast's source feeds all.
pub(super) fn feeder(task: &Task, mode: Mode, target: usize, peers: &Peers) -> u32 {
    let Some(own) = task.to.get(target).filter(|_| mode != Mode::Bcast) else { return task.from.rank };
    let before = task.to[..target].iter().rev().find(|other| peers.are_together(other.rank, own.rank));
    before.map_or(task.from.rank, |other| other.rank)
}
