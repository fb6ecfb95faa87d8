//! `run --stage-in` and `--stage-out`: moves files of the next and the previous run while this one computes.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use launcher::Summary;
use launcher::placement::SitePlacement;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use starters::leash::LEASH;

use super::allocation::{self, Way, is_here};
use crate::error::{Context, Result, refuse};

/// Time that staging may continue after the program before a note is printed.
const QUIET: Duration = Duration::from_secs(1);
/// Polling interval for the transfers.
const LOOK: Duration = Duration::from_millis(20);

/// A request for transfers beside a run.
#[derive(Clone, Debug, Default)]
pub struct BesideRequest {
    /// Moved to the nodes: `SRC=DST`, as for `stage in`.
    pub stage_in: Vec<OsString>,
    /// Moved from the nodes: `SRC=DST`, as for `stage out`.
    pub stage_out: Vec<OsString>,
    /// Maximum bytes per second of either at each target.
    pub rate: Option<u64>,
    /// Maximum loss of the program to either, in millionths.
    pub harm: Option<u32>,
    /// Transport of blocks, as typed.
    pub mode: Option<String>,
    pub allow_other_owner: bool,
}

impl BesideRequest {
    /// Checks the form of the transfers.
    ///
    /// # Errors
    /// One is not `SRC=DST`.
    pub fn check(&self) -> Result<()> {
        self.stage_in.iter().chain(&self.stage_out).try_for_each(|spec| allocation::check(spec))
    }

    pub fn is_wanted(&self) -> bool {
        !self.stage_in.is_empty() || !self.stage_out.is_empty()
    }

    /// Returns true if a source of `--stage-in` or a target of `--stage-out` is a path on the machine where it was
    /// typed.
    pub fn names_this_machine(&self) -> bool {
        let ins = self.stage_in.iter().map(|spec| is_here(spec, Way::In));
        ins.chain(self.stage_out.iter().map(|spec| is_here(spec, Way::Out))).any(|here| here)
    }
}

/// Transfers beside a run.
pub struct Beside {
    children: Vec<(&'static str, Child)>,
    began: Instant,
}

/// Result of staging beside a run, and the overlap of both.
#[derive(Debug, Default, Serialize)]
pub struct Overlap {
    /// Bytes moved.
    pub bytes: u64,
    /// Seconds from the start to the end of the slowest transfer.
    pub staging: f64,
    /// Seconds that the program would have needed without staging: its running time, less its loss.
    pub computing: f64,
    /// Seconds that both took together.
    pub together: f64,
    /// The program's largest loss on a node, as a share of its time. `None`: nothing computed beside the transfers.
    pub harm: Option<f64>,
    /// (Tcomp + Tio) / Tconc of Reid and Stumm: 1 means no overlap.
    pub speedup: f64,
    /// The largest possible speedup.
    pub optimum: f64,
    /// Output of each transfer: objects as of `stage move --json`.
    pub transfers: Vec<serde_json::Value>,
}

/// Starts the requested transfers. `nodes`: the nodes of the ranks. `sites`: the sites file, and the own site in it.
///
/// # Errors
/// The nodes are not known yet, or a process cannot be started.
pub fn start(request: &BesideRequest, sites: Option<(&Path, &str)>, nodes: &[SitePlacement]) -> Result<Option<Beside>> {
    if !request.is_wanted() {
        return Ok(None);
    }
    let mut hosts = Vec::new();
    for place in nodes {
        let Some(nodes) = &place.nodes else {
            refuse!(
                "--stage-in and --stage-out need nodes that you have already: site {} gets them from a batch job that is made \
                 for the run. Type `landbridge run` in the script of a batch job",
                place.name
            );
        };
        hosts.extend(nodes.iter().map(|node| format!("{}/{}", place.name, node.name)));
    }
    let own = std::env::current_exe()?;
    let mut children = Vec::new();
    for (way, specs) in [("in", &request.stage_in), ("out", &request.stage_out)] {
        if specs.is_empty() {
            continue;
        }
        let mut command = Command::new(&own);
        command.args([LEASH, &std::process::id().to_string(), "--"]).arg(&own).args(["stage", way, "--json"]);
        if let Some((file, home)) = sites {
            command.arg("--sites").arg(file).args(["--from", home, "--host", &hosts.join(",")]);
        }
        if let Some(rate) = request.rate {
            command.args(["--rate", &format!("{rate}B/s")]);
        }
        if let Some(harm) = request.harm {
            command.args(["--harm", &format!("{}", f64::from(harm) / 1e4)]);
        }
        if let Some(mode) = &request.mode {
            command.args(["--mode", mode]);
        }
        if request.allow_other_owner {
            command.arg("--allow-other-owner");
        }
        command.arg("--").args(specs).stdin(Stdio::null()).stdout(Stdio::piped());
        children.push((way, command.spawn().with_context(|| format!("starting stage {way}"))?));
    }
    Ok(Some(Beside { children, began: Instant::now() }))
}

/// The fields of `stage --json` that are used here.
#[derive(Deserialize)]
struct Printed {
    seconds: f64,
    moved: Vec<PrintedTarget>,
}

#[derive(Deserialize)]
struct PrintedTarget {
    bytes: u64,
    resumed: u64,
    harm: Option<f64>,
}

impl Beside {
    /// Ends the transfers; arrived blocks are kept for another attempt.
    fn end(mut self) {
        for (_, child) in &mut self.children {
            if let Some(id) = Pid::from_raw(child.id() as i32) {
                // An error means that it has already ended.
                let _ = kill_process(id, Signal::TERM);
            }
            let _ = child.wait();
        }
    }

    /// Waits for the transfers after the program, or ends them if the user has interrupted the program.
    /// `note`: gets a message for the user if this takes long.
    ///
    /// # Errors
    /// A transfer's result cannot be read.
    pub fn finish_after(self, summary: &Summary, note: impl FnMut(&str)) -> Result<Option<Overlap>> {
        if summary.is_interrupted() {
            self.end();
            return Ok(None);
        }
        self.finish(summary.seconds, note)
    }

    /// Waits for the transfers after the program, which ran for `seconds`. `None`: one failed, and has printed the
    /// reason.
    fn finish(mut self, seconds: f64, mut note: impl FnMut(&str)) -> Result<Option<Overlap>> {
        let ended = Instant::now();
        let mut noted = false;
        while self.children.iter_mut().any(|(_, child)| child.try_wait().is_ok_and(|status| status.is_none())) {
            if !noted && ended.elapsed() > QUIET {
                noted = true;
                note("the program has ended, its staging has not: `landbridge stage status` shows how far it is");
            }
            std::thread::sleep(LOOK);
        }
        let together = self.began.elapsed().as_secs_f64();
        let (mut overlap, mut failed) = (Overlap { together, ..Overlap::default() }, false);
        for (way, mut child) in self.children {
            let mut text = String::new();
            // The command has ended, so the pipe holds all of its output.
            child.stdout.take().context("standard output")?.read_to_string(&mut text)?;
            if !child.wait()?.success() {
                failed = true;
                continue;
            }
            let whole: serde_json::Value =
                serde_json::from_str(&text).with_context(|| format!("output of stage {way}: `{text}`"))?;
            let printed = Printed::deserialize(&whole)?;
            overlap.staging = overlap.staging.max(printed.seconds);
            overlap.bytes += printed.moved.iter().map(|target| target.bytes - target.resumed).sum::<u64>();
            let harms = printed.moved.iter().filter_map(|target| target.harm).chain(overlap.harm);
            overlap.harm = harms.max_by(f64::total_cmp);
            overlap.transfers.push(whole);
        }
        if failed {
            return Ok(None);
        }
        let beside = overlap.staging.min(seconds);
        overlap.computing = seconds - beside * overlap.harm.unwrap_or(0.0);
        let serial = overlap.computing + overlap.staging;
        overlap.speedup = serial / overlap.together.max(1e-3);
        overlap.optimum = serial / overlap.computing.max(overlap.staging).max(1e-3);
        Ok(Some(overlap))
    }
}
