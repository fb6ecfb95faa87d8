//! `landbridge stage`: moves files and folders, on this machine or by a job of movers.

pub(crate) mod args;
pub(crate) mod beside;
mod control;

use std::io::Write;
use std::os::fd::AsFd;
use std::time::Instant;

use anyhow::Result;
use commands::transfers::allocation::{self, AllocationRequest, Way};
use commands::transfers::job::{self, Moved, PreparedTransfer, TransferObserver};
use commands::transfers::moving::{self, MoveRequest};
use commands::transfers::request::PlannedTransfer;
use stage::transfer;
use types::untrusted::one_line;

use self::args::{MoveArgs, NodesArgs, StageArgs, StageCommand};
use crate::bar::RedrawnLine;
use crate::quantity::decimal;
use crate::{carried, json};

/// Runs the command, and returns the exit code.
pub(crate) fn stage(args: &StageArgs) -> Result<i32> {
    match &args.command {
        StageCommand::Move(args) => move_all(args),
        StageCommand::In(args) => move_nodes(&args.nodes, Way::In, "in"),
        StageCommand::Out(args) => move_nodes(&args.nodes, Way::Out, "out"),
        StageCommand::Status(args) => control::status(args),
        StageCommand::Pause(args) => control::pause(args),
        StageCommand::Resume(args) => control::resume(args),
        StageCommand::Cancel(args) => control::cancel(args),
        StageCommand::Rate(args) => control::rate(args),
    }
}

/// A rank of a job that moves files, or a process that moves them `here`.
pub(crate) fn mover(here: bool) -> Result<i32> {
    if here {
        // A session of its own, so that its threads can give way to others. It ends with the command that started it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        rustix::process::setsid()?;
        transfer::here(std::io::stdin().as_fd(), &mut crate::output::raw_std())?;
        return Ok(0);
    }
    let secret = std::env::var("LANDBRIDGE_SECRET_FD").ok();
    let secret = secret.and_then(|number| std::fs::read_to_string(format!("/proc/self/fd/{number}")).ok());
    let lookup = |name: &str| match name {
        "LANDBRIDGE_SECRET" => secret.clone(),
        _ => std::env::var(name).ok(),
    };
    stage::mover::run(lookup, std::io::stdin().as_fd(), &mut crate::output::raw_std())?;
    Ok(0)
}

fn move_all(args: &MoveArgs) -> Result<i32> {
    let request = MoveRequest {
        places: args.places.clone(),
        layouts: args.from_layout.clone().zip(args.to_layout.clone()),
        common: args.common.request(),
    };
    carry_out_planned(moving::plan(&request)?, "move", args.common.json)
}

fn move_nodes(args: &NodesArgs, way: Way, word: &str) -> Result<i32> {
    let (specs, hosts) = (args.specs.clone(), args.hosts.clone());
    let request = AllocationRequest { way, specs, hosts, common: args.common.request() };
    carry_out_planned(allocation::plan(&request)?, word, args.common.json)
}

fn carry_out_planned(planned: PlannedTransfer, word: &str, as_json: bool) -> Result<i32> {
    match planned {
        PlannedTransfer::Elsewhere(elsewhere) => {
            let (sites, site) = *elsewhere;
            carried::command(&sites, &site, &["stage", word], carried::typed_after(word))
        }
        PlannedTransfer::Here(transfer) => carry_out(*transfer, as_json),
    }
}

/// Runs the transfer and prints its result. Returns the exit code.
fn carry_out(transfer: PreparedTransfer, as_json: bool) -> Result<i32> {
    let began = Instant::now();
    let mut view = ProgressView::new();
    let moved = job::carry_out(transfer, &mut view)?;
    let seconds = began.elapsed().as_secs_f64();
    let Some(moved) = moved else { return Ok(1) };
    let mut out = crate::output::stdout();
    if as_json {
        let object = serde_json::json!({ "seconds": seconds, "moved": moved });
        writeln!(out, "{}", json::object(object)?)?;
        return Ok(0);
    }
    for Moved { from, to, placed } in &moved {
        for note in &placed.notes {
            crate::output::note(&format!("{}: {}", one_line(to), one_line(note)));
        }
        let resumed = match placed.resumed {
            0 => String::new(),
            bytes => format!(", {} of them by an earlier transfer", decimal(bytes)),
        };
        let harm = placed.harm.map_or(String::new(), |harm| {
            format!("; the application there lost {:.1} % of its time to it", harm * 100.0)
        });
        let (files, bytes) = (placed.files, decimal(placed.bytes));
        let (from, to, path) = (one_line(from), one_line(to), one_line(&placed.path));
        writeln!(out, "{from} is at {to} ({path}): {files} file(s), {bytes}{resumed}{harm}")?;
    }
    let fresh: u64 = moved.iter().map(|moved| moved.placed.bytes - moved.placed.resumed).sum();
    writeln!(out, "{} in {seconds:.1} s, {}/s", decimal(fresh), decimal((fresh as f64 / seconds) as u64))?;
    Ok(0)
}

/// Progress display on a terminal.
struct ProgressView {
    line: RedrawnLine,
    began: Instant,
    /// Bytes that had arrived at the first drawing.
    first: Option<u64>,
}

impl ProgressView {
    fn new() -> ProgressView {
        ProgressView { line: RedrawnLine::new(), began: Instant::now(), first: None }
    }
}

impl TransferObserver for ProgressView {
    fn progress(&mut self, arrived: u64, total: u64) {
        let first = *self.first.get_or_insert(arrived);
        let began = self.began;
        self.line.draw(|| {
            let share = if total == 0 { 100.0 } else { arrived as f64 / total as f64 * 100.0 };
            let rate = arrived.saturating_sub(first) as f64 / began.elapsed().as_secs_f64().max(0.1);
            let left = match rate > 0.0 {
                true => format!(", {:.0} s left", total.saturating_sub(arrived) as f64 / rate),
                false => String::new(),
            };
            format!("{} of {} ({share:.0} %), {}/s{left}", decimal(arrived), decimal(total), decimal(rate as u64))
        });
    }

    fn ended(&mut self) {
        self.line.clear();
    }
}
