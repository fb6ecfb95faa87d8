//! `landbridge slurm hook`: called by `burst_buffer.lua`.

use std::io::ErrorKind;
use std::path::Path;

use folder::{bytes_of, open_named};
use node_service::client;
use node_service::directive::{Plan, parse};
use node_service::hook::{self, Steps};
use node_service::message::{HookRequest, VERSION};
use node_service::record::Records;
use node_service::slurm::Jobs;
use node_service::step::{Step, StepError};
use node_service::teardown::{sweep, teardown};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use setup::here::folders::MOST_TEXT;
use types::UntrustedText;

use crate::error::{Context, Result};

/// A step of Slurm's burst buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookStep {
    DataIn,
    PreRun,
    DataOut,
}

/// The hooks of this machine.
pub struct Hooks<'a> {
    records: Records,
    service: Service<'a>,
}

impl<'a> Hooks<'a> {
    /// `state`: the folder of job records. `socket`: that of this machine's node service.
    pub fn new(state: &Path, socket: &'a Path) -> Hooks<'a> {
        Hooks { records: Records(state.to_owned()), service: Service { socket } }
    }

    /// Runs a hook for a job. Slurm shows the text of an error to the job's user.
    ///
    /// # Errors
    /// The script's directives make no sense, or the transfers failed.
    pub fn run(&self, step: HookStep, job: u32, script: &Path) -> Result<()> {
        let plan = plan(script)?;
        if plan.is_empty() {
            return Ok(());
        }
        let hook = hook::Hook { job, plan: &plan, cluster: &Jobs, steps: &self.service, records: &self.records };
        match step {
            HookStep::DataIn => hook.data_in()?,
            HookStep::PreRun => hook.pre_run()?,
            HookStep::DataOut => hook.data_out()?,
        }
        Ok(())
    }

    /// Removes a job's copies.
    ///
    /// # Errors
    /// A copy cannot be removed.
    pub fn tear_down(&self, job: u32) -> Result<()> {
        Ok(teardown(job, (&Jobs, &self.service), &self.records)?)
    }

    /// The jobs with input on nodes.
    ///
    /// # Errors
    /// A record cannot be read.
    pub fn inputs(&self) -> Result<Vec<JobInput>> {
        let mut found = Vec::new();
        for job in self.records.jobs() {
            let inputs = self.records.read(job)?.inputs.into_iter();
            found.extend(inputs.map(|copies| JobInput { job, whole: copies.whole, begun: copies.begun }));
        }
        Ok(found)
    }

    /// Removes copies that Slurm should have torn down, and returns their jobs. Only one sweep at a time: the next one
    /// starts soon, and a node may be slow.
    ///
    /// # Errors
    /// The records cannot be locked, or a copy cannot be removed.
    pub fn sweep(&self) -> Result<Vec<u32>> {
        let records = &self.records;
        let folder = match std::fs::File::open(&records.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            folder => folder.with_context(|| records.0.display().to_string())?,
        };
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(Vec::new()),
            locked => locked.with_context(|| format!("the lock of {}", records.0.display()))?,
        }
        Ok(sweep((&Jobs, &self.service), records)?)
    }
}

/// An input of a job.
pub struct JobInput {
    pub job: u32,
    /// Nodes with all of it.
    pub whole: Vec<String>,
    /// Nodes that it is on its way to.
    pub begun: Vec<String>,
}

/// The staging plan of a job script.
pub fn plan(script: &Path) -> Result<Plan> {
    let text = open_named(script).and_then(|file| bytes_of(file, MOST_TEXT));
    let text = text.with_context(|| script.display().to_string())?;
    Ok(parse(&text)?)
}

/// The node service of this machine, which runs steps as the job's user.
struct Service<'a> {
    socket: &'a Path,
}

impl Steps for Service<'_> {
    fn run(&self, user: u32, step: &Step) -> Result<String, StepError> {
        let step = serde_json::to_string(step).map_err(|e| StepError::System(e.into()))?;
        let request = HookRequest { landbridge_node_service: VERSION, user, step };
        // When this process ends, its end of the pipe closes, and the step is given up.
        let (held, _hold) = std::io::pipe().map_err(StepError::System)?;
        let ended = client::hook(self.socket, &request, held)?;
        match ended.code {
            0 => Ok(ended.output),
            code if ended.words.is_blank() => Err(StepError::Status(code)),
            _ => {
                let lines = ended.words.raw().lines();
                let lines = lines.map(|line| UntrustedText::from(line.trim_start_matches("landbridge: ")));
                Err(StepError::Failed { lines: lines.collect() })
            }
        }
    }
}
