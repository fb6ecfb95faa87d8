//! A target of this node: what it asks for, and what it passes on to the next node of its site.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pool::HostId;

use super::feeding::{Lending, feeder};
use super::flow::{Act, Flow, Offer};
use super::message::{Control, Message, Placed, Settings, Task};
use super::peers::Peers;
use super::{MoverError, Origin, TELL, at_home};
use crate::Hash;
use crate::error::StageError;
use crate::manifest::Manifest;
use crate::pace::Pace;
use crate::target::{Options, Target};

pub(super) struct Receiving {
    task: u32,
    /// Its number among the targets of the task.
    number: u32,
    path: PathBuf,
    target: Target,
    feeder: u32,
    flow: Flow,
    pace: Pace,
    arrived: u64,
    total: u64,
    told: Option<(Duration, u64)>,
    /// Nodes that fetch from here, and have not everything yet.
    hungry: usize,
    /// Who wants blocks that have not arrived.
    waiting: Vec<(u32, u32)>,
    lent: Lending,
    told_full: bool,
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
        let path = resolve(&spot.path, &origin.name, task.into)?;
        let source = HostId::own().shares_processes(HostId(origin.host)).then_some(origin.identity);
        let total = manifest.bytes();
        let settings = Options { block: options.block, kept: options.kept };
        let target = Target::open(&path, task.from.typed.as_bytes(), manifest, source, settings)?;
        let hungry = (0..task.to.len()).filter(|other| *other != target_number && feeder(task, *other, peers) == me);
        // Where the source is on this node too, it feeds the others.
        let hungry = if task.from.rank == me { 0 } else { hungry.count() };
        Ok(Receiving {
            task: number,
            number: target_number as u32,
            path,
            feeder: feeder(task, target_number, peers),
            flow: Flow::new(target.done().missing()),
            pace: Pace::new(options.rate),
            arrived: target.resumed(),
            total,
            told: None,
            hungry,
            waiting: Vec::new(),
            lent: Lending::default(),
            told_full: false,
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

    /// Returns whether it was asked for.
    pub(super) fn offered(&mut self, from: u32, offer: Offer) -> bool {
        let expected = self.target.blocks().bytes(offer.block) == u64::from(offer.length);
        from == self.feeder && expected && self.flow.offered(offer)
    }

    /// Writes a block. Returns who else waits for it, and where it is in this process's memory.
    pub(super) fn arrived(
        &mut self,
        block: u32,
        bytes: Vec<u8>,
        peers: &Peers,
    ) -> Result<Vec<(u32, Message)>, MoverError> {
        let Some(offer) = self.flow.arrived(block) else { return Ok(Vec::new()) };
        match self.target.write(block, &bytes, &offer.hash) {
            Ok(()) => {}
            Err(StageError::Damaged { .. }) if self.flow.damaged(block) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        self.arrived += bytes.len() as u64;
        let (now, later) = std::mem::take(&mut self.waiting).into_iter().partition(|(_, wanted)| *wanted == block);
        self.waiting = later;
        let now: Vec<(u32, u32)> = now;
        now.into_iter().map(|(to, _)| Ok((to, self.ready(to, block, offer.hash, bytes.clone(), peers)?))).collect()
    }

    /// A block that another node wants. `None`: as soon as it has arrived.
    pub(super) fn read(&mut self, from: u32, block: u32, peers: &Peers) -> Result<Option<Message>, MoverError> {
        if !self.target.done().contains(block) {
            self.waiting.push((from, block));
            return Ok(None);
        }
        let mut bytes = self.lent.spare();
        let hash = self.target.read(block, &mut bytes)?;
        self.ready(from, block, hash, bytes, peers).map(Some)
    }

    fn ready(&mut self, to: u32, block: u32, hash: Hash, bytes: Vec<u8>, peers: &Peers) -> Result<Message, MoverError> {
        let length = bytes.len() as u32;
        let key = self.lent.lend(to, block, peers.lend(bytes)?);
        Ok(Message::Ready { task: self.task, block, hash, key, length })
    }

    pub(super) fn released(&mut self, by: u32, block: u32) {
        self.lent.released(by, block);
    }

    pub(super) fn follower_is_full(&mut self) {
        self.hungry = self.hungry.saturating_sub(1);
    }

    /// Whether it, and all that it feeds, have everything.
    pub(super) fn is_full(&self) -> bool {
        self.hungry == 0 && self.target.done().is_full()
    }

    pub(super) fn tell_full(&mut self, task: u32, peers: &mut Peers) -> Result<(), MoverError> {
        if !std::mem::replace(&mut self.told_full, true) {
            peers.send(self.feeder, &Message::Full { task })?;
        }
        Ok(())
    }

    /// Tells the first mover how far it is.
    pub(super) fn tell(&mut self, now: Duration, at_once: bool, peers: &mut Peers) -> Result<(), MoverError> {
        let due = self.told.is_none_or(|(when, arrived)| now >= when + TELL && arrived != self.arrived);
        if due || at_once {
            self.told = Some((now, self.arrived));
            let (task, target) = (self.task, self.number);
            peers.send(0, &Message::Progress { task, target, arrived: self.arrived, total: self.total })?;
        }
        Ok(())
    }

    pub(super) fn control(&mut self, control: Control) {
        match control {
            Control::Pause => self.flow.pause(true),
            Control::Resume => self.flow.pause(false),
            Control::Rate(rate) => self.pace.set(rate),
            Control::Cancel => {}
        }
    }

    /// Puts it in place. Returns its number among the targets too.
    pub(super) fn place(self) -> Result<(u32, Placed), MoverError> {
        let report = self.target.place()?;
        let path = self.path.display().to_string();
        let notes = report.notes;
        Ok((self.number, Placed { path, files: report.files, bytes: report.bytes, resumed: report.resumed, notes }))
    }

    /// Gives up, and removes what has arrived.
    pub(super) fn evict(self) -> Result<(), MoverError> {
        Ok(self.target.evict()?)
    }
}

/// Where a source of this name goes: into a folder that is there, or to the path itself.
fn resolve(typed: &[u8], name: &[u8], into: bool) -> Result<PathBuf, StageError> {
    crate::target::resolve(&at_home(typed), Path::new(OsStr::from_bytes(name)), into)
}
