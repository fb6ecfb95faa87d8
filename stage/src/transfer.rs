//! Moving between places of one machine, without a job.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::control::Aim;
use crate::error::{At, StageError};
use crate::mover::{Event, MoverError, Order, Placed, Settings, Spot, TELL, Task};
use crate::pace::Pace;
use crate::source::Source;
use crate::supervise::{Overlap, Shared, Work, supervise};
use crate::target::{Check, Options, Report, Target, resolve};

/// Called after each block with the bytes that have arrived, those of earlier transfers among them, and all.
pub(crate) type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// The longest time without a look at what the measurements say.
const NAP: Duration = Duration::from_millis(50);

/// Carries out an [`Order`] whose places are all on this machine. `output`: lines of JSON, each an [`Event`]. The
/// process has a session of its own.
///
/// # Errors
/// Those of `output`; what else goes wrong is an event.
pub fn here(order: &Order, output: &mut (dyn Write + Send)) -> Result<(), MoverError> {
    let mut told = None;
    let mut tell = |event: &Event| -> Result<(), MoverError> {
        let mut line = serde_json::to_vec(event).map_err(|error| MoverError::Message(error.to_string()))?;
        line.push(b'\n');
        output.write_all(&line)?;
        Ok(output.flush()?)
    };
    for task in &order.tasks {
        for spot in &task.to {
            let mut progress = |arrived: u64, total: u64| {
                if told.is_none_or(|told: Instant| told.elapsed() >= TELL) {
                    told = Some(Instant::now());
                    // If nobody reads it any more, this process is about to be ended.
                    let _ = tell(&Event::Progress { arrived, total });
                }
            };
            let event = match one(task, spot, &order.options, &mut progress) {
                Ok(report) => Event::Placed { from: task.from.typed.clone(), to: spot.typed.clone(), report },
                Err(error) => return tell(&Event::Failed { text: error.to_string() }),
            };
            tell(&event)?;
        }
    }
    Ok(())
}

fn one(task: &Task, spot: &Spot, options: &Settings, progress: Progress<'_>) -> Result<Placed, StageError> {
    let from = Path::new(OsStr::from_bytes(&task.from.path));
    let whole = std::fs::canonicalize(from).at("find", from)?;
    let name = Path::new(whole.file_name().unwrap_or_default());
    let path = resolve(Path::new(OsStr::from_bytes(&spot.path)), name, task.into)?;
    let mut source = Source::open(from)?;
    let (manifest, identity) = (source.manifest().clone(), source.identity()?);
    let settings = Options { block: options.block, kept: options.kept };
    let target = Target::open(&path, whole.as_os_str().as_bytes(), manifest, Some(identity), settings)?;
    let (report, overlap) = local(&mut source, target, options.aim(), true, progress)?;
    Ok(Placed::new(&path, report, &overlap))
}

/// Reads and writes what is missing, then puts all in place. `alone`: this process's session has no other.
///
/// # Errors
/// [`StageError`]; what has arrived is kept.
pub(crate) fn local(
    source: &mut Source,
    target: Target,
    aim: Aim,
    alone: bool,
    progress: Progress<'_>,
) -> Result<(Report, Overlap), StageError> {
    let mut missing: Vec<u32> = target.done().missing().collect();
    missing.reverse();
    let left: u64 = missing.iter().map(|block| target.blocks().bytes(*block)).sum();
    let arrived = target.resumed();
    let total = arrived + left;
    let pace = Pace::new(aim.rate);
    let mut moving =
        Moving { source, target, missing, pace, began: Instant::now(), bytes: Vec::new(), arrived, total, progress };
    let shared = Shared::new(aim.rate);
    supervise(&mut moving, &shared, aim, alone)?;
    let Moving { source, target, .. } = moving;
    source.check()?;
    Ok((target.place()?, shared.overlap()))
}

struct Moving<'a> {
    source: &'a mut Source,
    target: Target,
    /// The next one is the last.
    missing: Vec<u32>,
    pace: Pace,
    began: Instant,
    bytes: Vec<u8>,
    arrived: u64,
    total: u64,
    progress: Progress<'a>,
}

impl Work for Moving<'_> {
    type Error = StageError;

    fn turn(&mut self, shared: &Shared) -> Result<bool, StageError> {
        shared.tell(self.arrived, self.total, true);
        self.pace.set(shared.rate());
        let now = self.began.elapsed();
        let wait = self.pace.free().saturating_sub(now);
        if !wait.is_zero() {
            std::thread::sleep(wait.min(NAP));
            return Ok(true);
        }
        let Some(block) = self.missing.pop() else { return Ok(false) };
        self.pace.begins(now, self.target.blocks().bytes(block));
        // Hashes are for a crash of the machine. What they cost must not be paid by an application.
        let pieces = self.target.blocks().pieces(block);
        let check = if shared.has_time() {
            Check::Now(self.source.read(pieces, &mut self.bytes)?)
        } else {
            self.source.fill(pieces, &mut self.bytes)?;
            Check::Needless
        };
        self.target.write(block, &self.bytes, check)?;
        self.arrived += self.bytes.len() as u64;
        (self.progress)(self.arrived, self.total);
        Ok(!self.missing.is_empty())
    }
}
