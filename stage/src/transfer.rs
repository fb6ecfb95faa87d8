//! Moves files between places of one machine, without a job.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use memory::Pages;

use crate::error::StageError;
use crate::look::look;
use crate::mover::{Console, Control, Event, Look, MoverError, Order, Placed, Settings, Spot, TELL, Task, check};
use crate::pace::Pace;
use crate::pressure::Whose;
use crate::source::Source;
use crate::supervise::{Before, Overlap, Work, WorkState, supervise};
use crate::target::{Check, Report, Target};

/// Called repeatedly with the bytes that have arrived, including those of earlier transfers, and the total. Returns the
/// user's new controls.
pub(crate) type Steer<'a> = &'a mut (dyn FnMut(u64, u64) -> Vec<Control> + Send);

/// Longest sleep between two looks at the measurements.
const NAP: Duration = Duration::from_millis(50);

/// Executes an [`Order`] whose places are all on this machine. `input` carries the order, then [`Control`]s, one line
/// of JSON each; [`Event`]s go to `output`. The process must have a session of its own.
///
/// # Errors
/// Faults of `input` and `output`; all other failures are events.
pub fn here(input: BorrowedFd<'_>, output: &mut (dyn Write + Send)) -> Result<(), MoverError> {
    let mut console = Console::new(input, output);
    let mut lines = VecDeque::from(console.wait()?);
    // The command has ended before it sent an order.
    let Some(line) = lines.pop_front() else { return Ok(()) };
    let order: Order = serde_json::from_str(&line).map_err(|error| MoverError::Order(error.to_string()))?;
    check(&order, 1)?;
    for Look { at, role } in &order.looks {
        let found = look(Path::new(OsStr::from_bytes(&at.path)), *role);
        console.write(&Event::Looked { place: at.typed.clone(), role: *role, found })?;
    }
    let (mut told, mut trouble) = (None, None);
    for task in &order.tasks {
        for spot in &task.to {
            let mut steer = |arrived: u64, total: u64| {
                let mut talk = || -> Result<Vec<Control>, MoverError> {
                    if told.is_none_or(|told: Instant| told.elapsed() >= TELL) {
                        told = Some(Instant::now());
                        console.write(&Event::Progress { arrived, total })?;
                    }
                    lines.extend(console.lines()?);
                    let parse = |line: String| serde_json::from_str(&line);
                    let controls = lines.drain(..).map(parse).collect::<Result<_, _>>();
                    controls.map_err(|error| MoverError::Order(error.to_string()))
                };
                talk().unwrap_or_else(|error| {
                    trouble.get_or_insert(error);
                    Vec::new()
                })
            };
            let done = one(task, spot, &order.options, &mut steer);
            if let Some(error) = trouble.take() {
                return Err(error);
            }
            let event = match done {
                Ok(Some(report)) => Event::Placed { from: task.from.typed.clone(), to: spot.typed.clone(), report },
                Ok(None) => return console.write(&Event::Cancelled),
                Err(error) => return console.write(&Event::Failed { text: error.to_string() }),
            };
            console.write(&event)?;
        }
    }
    Ok(())
}

/// Moves one task to one target. `None`: cancelled.
fn one(task: &Task, spot: &Spot, options: &Settings, steer: Steer<'_>) -> Result<Option<Placed>, StageError> {
    let before = Before::look(Whose::Users);
    let from = Path::new(OsStr::from_bytes(&task.from.path));
    let (name, origin) = (task.name(from)?, task.origin(from)?);
    let mut source = task.source(from)?;
    let (manifest, identity) = (source.manifest().clone(), source.identity()?);
    let path = task.target(Path::new(OsStr::from_bytes(&spot.path)), &name)?;
    let target = Target::open(&path, &origin, manifest, Some(identity), options.target())?;
    let done = local(&mut source, target, options, before, true, steer)?;
    Ok(done.map(|(report, overlap)| Placed::new(&path, report, &overlap)))
}

/// Moves the missing blocks, then puts everything in place. `alone`: this process's session contains no other transfer.
/// `None`: cancelled, and its leftovers are removed.
///
/// # Errors
/// [`StageError`]; blocks that have arrived are kept.
pub(crate) fn local(
    source: &mut Source,
    target: Target,
    options: &Settings,
    before: Before,
    alone: bool,
    steer: Steer<'_>,
) -> Result<Option<(Report, Overlap)>, StageError> {
    let mut missing: Vec<u32> = target.done().missing().collect();
    missing.reverse();
    let left: u64 = missing.iter().map(|block| target.blocks().bytes(*block)).sum();
    let arrived = target.resumed();
    let total = arrived + left;
    let (aim, checks) = (options.aim(), !options.unchecked);
    let pace = Pace::new(aim.rate);
    let mut moving = Moving {
        source,
        target,
        missing,
        pace,
        began: Instant::now(),
        bytes: Pages::default(),
        checks,
        arrived,
        total,
        paused: false,
        cancelled: false,
        steer,
    };
    let shared = WorkState::new(aim.rate);
    supervise(&mut moving, &shared, aim, alone, before)?;
    let Moving { source, target, cancelled, .. } = moving;
    if cancelled {
        target.evict()?;
        return Ok(None);
    }
    source.check()?;
    Ok(Some((target.place()?, shared.overlap())))
}

struct Moving<'a> {
    source: &'a mut Source,
    target: Target,
    /// In reverse order: the next block is the last of the list.
    missing: Vec<u32>,
    pace: Pace,
    began: Instant,
    bytes: Pages,
    checks: bool,
    arrived: u64,
    total: u64,
    paused: bool,
    cancelled: bool,
    steer: Steer<'a>,
}

impl Work for Moving<'_> {
    type Error = StageError;

    fn turn(&mut self, shared: &WorkState) -> Result<bool, StageError> {
        for control in (self.steer)(self.arrived, self.total) {
            match control {
                Control::Pause => self.paused = true,
                Control::Resume => self.paused = false,
                Control::Rate(rate) => shared.limit(rate),
                Control::Cancel => self.cancelled = true,
            }
        }
        if self.cancelled {
            return Ok(false);
        }
        shared.tell(self.arrived, self.total, !self.paused);
        let now = self.began.elapsed();
        self.pace.set(now, shared.rate());
        let wait = match (self.paused, self.missing.is_empty()) {
            (true, _) => NAP,
            (false, true) => Duration::ZERO,
            (false, false) => self.pace.free().saturating_sub(now),
        };
        if !wait.is_zero() {
            std::thread::sleep(wait.min(NAP));
            return Ok(true);
        }
        let Some(block) = self.missing.pop() else { return Ok(false) };
        self.pace.begins(now, self.target.blocks().bytes(block));
        // Hashes protect against a crash of the machine. An application must not pay for them.
        let pieces = self.target.blocks().pieces(block);
        let hashed = self.checks && shared.has_time();
        let hash = self.source.block(pieces, &mut self.bytes, hashed)?;
        let check = if hashed { Check::Now(hash) } else { Check::Needless };
        self.target.write(block, &self.bytes, check)?;
        self.arrived += self.bytes.len() as u64;
        Ok(true)
    }
}
