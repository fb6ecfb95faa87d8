//! A target on this node: requests its blocks, and passes them on to the next node of its site.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memory::Pages;
use pool::HostId;

use super::error::MoverError;
use super::feeding::{Lending, feeder};
use super::flow::{Act, BlockFlow, Offer};
use super::message::{Mode, MoverMessage, Placed, Settings, Take, Task};
use super::message::{Origin, TELL, at_home};
use super::peers::Peers;
use super::pushing::{self, Pushing};
use super::sending::{HASH, Parcels, Supply, split};
use crate::blocks::Hash;
use crate::error::StageError;
use crate::manifest::Manifest;
use crate::pace::Pace;
use crate::supervise::Overlap;
use crate::target::{Check, Target};

/// Runs of blocks in a message: well below the maximum length.
const RUNS: usize = 1000;

pub(super) struct Receiving {
    task: u32,
    /// The target's number within the task.
    number: u32,
    path: PathBuf,
    target: Target,
    feeder: u32,
    flow: BlockFlow,
    pace: Pace,
    arrived: u64,
    total: u64,
    told: Option<(Duration, u64)>,
    /// Number of incomplete nodes that fetch from here.
    hungry: usize,
    /// Requests by other ranks for blocks that have not arrived: rank and block.
    waiting: Vec<(u32, u32)>,
    lent: Lending,
    told_full: bool,
    /// True if blocks have a checksum.
    checks: bool,
    mode: Mode,
    /// The pace last sent to the feeder.
    told_pace: Option<Take>,
    pushing: Pushing,
    parcels: Parcels,
    /// Latest received blocks that go on to the next node.
    held: VecDeque<(u32, Arc<Pages>)>,
    /// Blocks that were damaged when they were read for another node.
    doubtful: HashSet<u32>,
}

impl Receiving {
    pub(super) fn open(
        number: u32,
        task: &Task,
        options: &Settings,
        origin: &Origin,
        manifest: &[u8],
        peers: &Peers,
    ) -> Result<Receiving, MoverError> {
        let manifest: Manifest =
            postcard::from_bytes(manifest).map_err(|error| StageError::Manifest(error.to_string()))?;
        let me = peers.me();
        let Some(target_number) = task.to.iter().position(|spot| spot.rank == me) else {
            return Err(MoverError::Message(format!("{} is moved to other nodes", task.from.typed)));
        };
        let spot = &task.to[target_number];
        let path = task.target(&at_home(&spot.path), &origin.name)?;
        let source = HostId::own().shares_processes(HostId(origin.host)).then_some(origin.identity);
        let total = manifest.bytes();
        let target = Target::open(&path, &task.from.origin(), manifest, source, options.target())?;
        let mode = options.mode_of(task);
        let fed = |other: &usize| *other != target_number && feeder(task, mode, *other, peers) == me;
        // If the source is on this node too, it feeds the others.
        let fed: Vec<u32> = match task.from.rank == me {
            true => Vec::new(),
            false => (0..task.to.len()).filter(fed).map(|other| task.to[other].rank).collect(),
        };
        Ok(Receiving {
            task: number,
            number: target_number as u32,
            path,
            feeder: feeder(task, mode, target_number, peers),
            flow: BlockFlow::new(target.done().missing(), options.block),
            pace: Pace::new(options.rate),
            arrived: target.resumed(),
            total,
            told: None,
            hungry: fed.len(),
            waiting: Vec::new(),
            lent: Lending::default(),
            told_full: false,
            checks: !options.unchecked,
            mode,
            told_pace: None,
            pushing: Pushing::new(mode, fed, target.blocks().count()),
            parcels: Parcels::default(),
            held: VecDeque::new(),
            doubtful: HashSet::new(),
            target,
        })
    }

    pub(super) fn feeder(&self) -> u32 {
        self.feeder
    }

    pub(super) fn next(&mut self, now: Duration) -> Act {
        let act = self.flow.next(now, self.pace.free());
        if let Act::Read(offer) = act {
            self.pace.begins(now, offer.length.into());
        }
        act
    }

    /// Records an offered block. Returns true if it was requested.
    pub(super) fn offered(&mut self, from: u32, offer: Offer) -> bool {
        let expected = self.target.blocks().bytes(offer.block) == u64::from(offer.length);
        from == self.feeder && expected && self.flow.offered(offer)
    }

    /// Writes a block, and compares it with its hash `at_once` or later. Returns the answers for other ranks that wait
    /// for it, with its place in this process's memory.
    pub(super) fn arrived(
        &mut self,
        block: u32,
        bytes: Pages,
        at_once: bool,
        peers: &mut Peers,
    ) -> Result<Vec<(u32, MoverMessage)>, MoverError> {
        let Some(hash) = self.write(block, &bytes, at_once)? else {
            peers.recycle(bytes);
            return Ok(Vec::new());
        };
        let (now, later) = std::mem::take(&mut self.waiting).into_iter().partition(|(_, wanted)| *wanted == block);
        self.waiting = later;
        let mut now: Vec<(u32, u32)> = now;
        let (last, mut ready) = (now.pop(), Vec::new());
        for (to, _) in now {
            ready.push((to, self.ready(to, block, hash, bytes.clone(), peers)?));
        }
        match last {
            Some((to, _)) => ready.push((to, self.ready(to, block, hash, bytes, peers)?)),
            None => peers.recycle(bytes),
        }
        Ok(ready)
    }

    /// Like [`Receiving::arrived`], for a block that its feeder has sent, followed by its hash.
    pub(super) fn came(
        &mut self,
        block: u32,
        parcel: Pages,
        at_once: bool,
        peers: &mut Peers,
    ) -> Result<(), MoverError> {
        let Some((bytes, hash)) = split(&parcel) else { return Ok(()) };
        self.flow.pushed(Offer { block, hash, key: 0, length: bytes.len() as u32 });
        let is_written = self.write(block, bytes, at_once)?.is_some();
        if self.pushing.is_empty() || !is_written {
            peers.recycle(parcel);
            return Ok(());
        }
        self.doubtful.remove(&block);
        while self.held.len() >= self.flow.ahead() {
            let Some((_, oldest)) = self.held.pop_back() else { break };
            if let Ok(pages) = Arc::try_unwrap(oldest) {
                peers.recycle(pages);
            }
        }
        self.held.push_front((block, Arc::new(parcel)));
        Ok(())
    }

    /// Writes a block and returns its hash. `None`: it was damaged or not requested.
    fn write(&mut self, block: u32, bytes: &[u8], at_once: bool) -> Result<Option<Hash>, MoverError> {
        let Some(offer) = self.flow.arrived(block) else { return Ok(None) };
        let check = match (self.checks, at_once) {
            (false, _) => Check::Needless,
            (true, true) => Check::Now(offer.hash),
            (true, false) => Check::Later(offer.hash),
        };
        match self.target.write(block, bytes, check) {
            Ok(()) => {}
            Err(StageError::Damaged { .. }) if self.flow.damaged(block) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        self.arrived += bytes.len() as u64;
        Ok(Some(offer.hash))
    }

    /// Transport of the target's blocks.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns true if blocks are still to be sent here.
    pub(super) fn awaits_blocks(&self) -> bool {
        self.mode != Mode::Pull && !self.target.done().is_full()
    }

    /// Length of a block that is sent, with its hash, in bytes.
    pub(super) fn parcel_length(&self, block: u32) -> usize {
        self.target.blocks().bytes(block) as usize + HASH
    }

    /// The missing blocks, for a feeder that sends.
    pub(super) fn lacks(&self) -> Vec<Take> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for block in self.target.done().missing() {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == block => *count += 1,
                _ => runs.push((block, 1)),
            }
        }
        let mut all: Vec<Take> =
            runs.chunks(RUNS).map(|runs| Take::Lacks { runs: runs.to_vec(), last: false }).collect();
        all.push(Take::Lacks { runs: Vec::new(), last: true });
        all
    }

    /// The pace for a feeder that sends, if it has changed.
    pub(super) fn new_pace(&mut self) -> Option<Take> {
        let pace = Take::Pace { rate: self.pace.rate(), paused: self.flow.is_paused() };
        let is_new = self.awaits_blocks() && self.told_pace.as_ref() != Some(&pace);
        is_new.then(|| self.told_pace.insert(pace).clone())
    }

    /// Reads a block for another node. `None`: it is sent as soon as it has arrived.
    pub(super) fn read(
        &mut self,
        from: u32,
        block: u32,
        peers: &mut Peers,
    ) -> Result<Option<MoverMessage>, MoverError> {
        if !self.target.done().contains(block) {
            self.waiting.push((from, block));
            return Ok(None);
        }
        let mut bytes = peers.room();
        match self.target.block(block, &mut bytes, self.checks) {
            Ok(hash) => self.ready(from, block, hash, bytes, peers).map(Some),
            // The comparison is due soon; then the block is fetched again.
            Err(StageError::Damaged { .. }) => {
                self.waiting.push((from, block));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn ready(
        &mut self,
        to: u32,
        block: u32,
        hash: Hash,
        bytes: Pages,
        peers: &Peers,
    ) -> Result<MoverMessage, MoverError> {
        let length = bytes.len() as u32;
        let key = self.lent.lend(to, block, peers.lend(bytes)?);
        Ok(MoverMessage::Ready { task: self.task, block, hash, key, length })
    }

    pub(super) fn released(&mut self, by: u32, block: u32, peers: &mut Peers) {
        self.lent.released(by, block, peers);
    }

    pub(super) fn follower_is_full(&mut self) {
        self.hungry = self.hungry.saturating_sub(1);
    }

    /// Returns true if this target, and all that it feeds, are complete.
    pub(super) fn is_full(&self) -> bool {
        self.hungry == 0 && self.target.done().is_full() && self.target.unchecked() == 0
    }

    /// Returns true if a comparison is pending and there is time for it, or no other work.
    pub(super) fn may_check(&self, has_time: bool) -> bool {
        self.target.unchecked() > 0 && (has_time || self.target.done().is_full())
    }

    /// Compares a block with its hash.
    pub(super) fn check(&mut self) -> Result<(), MoverError> {
        let Some(block) = self.target.check_one()? else { return Ok(()) };
        self.arrived -= self.target.blocks().bytes(block);
        match self.flow.damaged(block) {
            true => Ok(()),
            false => Err(StageError::Damaged { block, path: self.path.clone() }.into()),
        }
    }

    pub(super) fn tell_full(&mut self, task: u32, peers: &mut Peers) -> Result<(), MoverError> {
        if !std::mem::replace(&mut self.told_full, true) {
            peers.send(self.feeder, &MoverMessage::Full { task })?;
        }
        Ok(())
    }

    /// Reports the progress to the first mover.
    pub(super) fn tell(&mut self, now: Duration, at_once: bool, peers: &mut Peers) -> Result<(), MoverError> {
        let due = self.told.is_none_or(|(when, arrived)| now >= when + TELL && arrived != self.arrived);
        if due || at_once {
            self.told = Some((now, self.arrived));
            let (task, target) = (self.task, self.number);
            peers.send(0, &MoverMessage::Progress { task, target, arrived: self.arrived, total: self.total })?;
        }
        Ok(())
    }

    pub(super) fn pause(&mut self, paused: bool) {
        self.flow.pause(paused);
    }

    /// Bytes that have arrived, and bytes in total.
    pub(super) fn volume(&self) -> (u64, u64) {
        (self.arrived, self.total)
    }

    /// Returns true if blocks are missing and may be requested.
    pub(super) fn is_busy(&self) -> bool {
        !self.target.done().is_full() && !self.flow.is_paused()
    }

    /// Sets the rate of requests, in bytes per second.
    pub(super) fn set_rate(&mut self, now: Duration, rate: Option<u64>) {
        self.pace.set(now, rate);
    }

    /// Puts the target in place. Returns its number within the task too.
    pub(super) fn place(self, overlap: &Overlap) -> Result<(u32, Placed), MoverError> {
        let report = self.target.place()?;
        Ok((self.number, Placed::new(&self.path, report, overlap)))
    }

    /// Gives up, and removes the blocks that have arrived.
    pub(super) fn evict(self) -> Result<(), MoverError> {
        Ok(self.target.evict()?)
    }
}

impl Supply for Receiving {
    fn pushing(&mut self) -> &mut Pushing {
        &mut self.pushing
    }

    fn next(&mut self, now: Duration) -> pushing::Act {
        let (target, doubtful) = (&self.target, &self.doubtful);
        let is_here = |block: &u32| target.done().contains(*block) && !doubtful.contains(block);
        self.pushing.next(now, |block| Some(block).filter(is_here).map(|block| target.blocks().bytes(block)))
    }

    fn parcel(&mut self, block: u32, _readers: usize) -> Result<Option<Arc<Pages>>, MoverError> {
        // A repeated request means that the block was damaged; then the bytes on disk are compared.
        let held = self.held.iter().position(|(held, _)| *held == block);
        if let Some((_, parcel)) = held.and_then(|place| self.held.remove(place)) {
            return Ok(Some(parcel));
        }
        let (target, checks) = (&mut self.target, self.checks);
        match self.parcels.fill(|bytes| target.block(block, bytes, checks)) {
            Ok(parcel) => Ok(Some(parcel)),
            // The comparison is due soon; then the block is received again.
            Err(StageError::Damaged { .. }) => {
                self.doubtful.insert(block);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
