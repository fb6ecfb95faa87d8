//! `landbridge slurm hook`: called by `burst_buffer.lua`.

use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::{Context, Result};
use node_service::client;
use node_service::directive::{Plan, parse};
use node_service::hook::{self, HookError, Steps};
use node_service::message::{HookRequest, VERSION};
use node_service::record::Records;
use node_service::slurm::Jobs;
use node_service::step::{Step, StepError};
use node_service::teardown::{sweep, teardown};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use types::UntrustedText;

use crate::slurm::args::{Hook, HookArgs};

/// Runs a hook. Slurm shows the message of an error to the job's user.
pub(crate) fn hook(args: &HookArgs) -> Result<i32> {
    let records = Records(args.state.clone());
    let service = Service { socket: &args.service };
    let with = |job: u32, script: &Path, act: fn(&hook::Hook<'_>) -> Result<(), HookError>| -> Result<i32> {
        let plan = plan(script)?;
        if plan.is_empty() {
            return Ok(0);
        }
        act(&hook::Hook { job, plan: &plan, cluster: &Jobs, steps: &service, records: &records })?;
        Ok(0)
    };
    match &args.hook {
        Hook::JobProcess { script } => plan(script).map(|_| 0),
        Hook::DataIn { job, script } => with(*job, script, |hook| hook.data_in()),
        Hook::PreRun { job, script } => with(*job, script, |hook| hook.pre_run()),
        Hook::DataOut { job, script } => with(*job, script, |hook| hook.data_out()),
        Hook::JobTeardown { job } => {
            teardown(*job, (&Jobs, &service), &records)?;
            Ok(0)
        }
        Hook::Sweep => swept(&records, &service),
        Hook::GetStatus => {
            for job in records.jobs() {
                for copies in records.read(job)?.inputs {
                    let (whole, begun) = (copies.whole.join(","), copies.begun.join(","));
                    writeln!(crate::output::stdout(), "job {job}: input on {whole}; on its way to {begun}")?;
                }
            }
            Ok(0)
        }
    }
}

/// Only one sweep at a time: the next one starts soon, and a node may be slow.
fn swept(records: &Records, service: &Service<'_>) -> Result<i32> {
    let folder = match std::fs::File::open(&records.0) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        folder => folder.with_context(|| records.0.display().to_string())?,
    };
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(0),
        locked => locked.with_context(|| format!("the lock of {}", records.0.display()))?,
    }
    for job in sweep((&Jobs, service), records)? {
        crate::output::note(&format!("job {job}: its copies were removed, which Slurm has forgotten"));
    }
    Ok(0)
}

/// The staging plan of a job script.
pub(crate) fn plan(script: &Path) -> Result<Plan> {
    let text = std::fs::read(script).with_context(|| script.display().to_string())?;
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
