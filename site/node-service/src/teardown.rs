//! The end of a job: removes its copies.
//!
//! Slurm starts the teardown, but sometimes never does. When a waiting job is cancelled, Slurm's controller kills the
//! job's hooks and then starts the teardown. Both orders go to a process with a thread for each, so the kill may come
//! second, and a killed teardown is not started again (`slurmscriptd.c` and `burst_buffer_lua.c`, Slurm 22.05 to
//! 24.05). Therefore each time that Slurm polls the burst buffer, twice a minute, forgotten teardowns are done as well.

//!
//! A record outlives every failure: it names exactly the copies that may still exist, and is removed with the last of
//! them.

use std::time::Duration;

use thiserror::Error;
use types::UntrustedText;

use crate::hook::{AGAIN, ATTEMPTS, Cluster, HookError, Steps};
use crate::record::{Copies, Record, RecordError, Records};
use crate::slurm::SlurmError;
use crate::step::{Kept, Step, StepError, joined};

/// Time for Slurm's own teardown to come first.
const PATIENCE: Duration = Duration::from_secs(15);
/// First and longest pause of a sweep after a failed teardown: the pause doubles with each failure.
const FIRST_PAUSE_S: u64 = 30;
const LONGEST_PAUSE_S: u64 = 3600;

/// Reasons for copies of a job being left.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TeardownError {
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Step(#[from] StepError),
    /// The node could not remove its copy.
    #[error("{node}: {reason}")]
    Kept { node: String, reason: UntrustedText },
    /// The record stays, and [`sweep`] tries again after the pause.
    #[error("{}; tried again in {pause_s} s, while {record} is there", joined(.causes))]
    Left { causes: Vec<TeardownError>, pause_s: u64, record: String },
}

/// The jobs whose teardown failed in a sweep.
#[derive(Debug, Error)]
#[error("{}", joined(&.failed.iter().map(|(job, error)| format!("job {job}: {error}")).collect::<Vec<_>>()))]
#[non_exhaustive]
pub struct SweepError {
    pub failed: Vec<(u32, TeardownError)>,
}

/// Removes a job's copies, complete or not. With `keep`, complete copies stay on the nodes where the job has run.
///
/// # Errors
/// [`TeardownError`].
pub fn teardown(job: u32, world: (&dyn Cluster, &dyn Steps), records: &Records) -> Result<(), TeardownError> {
    remove(job, world, records, ATTEMPTS)
}

fn remove(job: u32, world: (&dyn Cluster, &dyn Steps), records: &Records, attempts: u32) -> Result<(), TeardownError> {
    let mut record = records.read(job)?;
    let mut failed = Vec::new();
    for at in 0..record.inputs.len() {
        let kept = if record.keep { kept(&record, at) } else { Vec::new() };
        record.inputs[at].forget(&kept);
        failed = remove_input(world, &mut record, at, attempts, failed);
    }
    if failed.is_empty() {
        return Ok(records.remove(job)?);
    }
    let pause = FIRST_PAUSE_S.saturating_mul(1 << record.failures.min(16)).min(LONGEST_PAUSE_S);
    record.failures = record.failures.saturating_add(1);
    record.retry_at = world.0.now().as_secs() + pause;
    records.write(job, &record)?;
    Err(TeardownError::Left { causes: failed, pause_s: pause, record: records.shown(job) })
}

/// Nodes whose copies stay: the job has run there, and the copies are complete.
fn kept(record: &Record, at: usize) -> Vec<String> {
    let whole = record.inputs[at].whole.iter();
    whole.filter(|node| record.nodes.contains(node)).cloned().collect()
}

/// Removes an input's copies from all nodes, each once: afterwards its path may belong to another job.
fn remove_input(
    (cluster, steps): (&dyn Cluster, &dyn Steps),
    record: &mut Record,
    at: usize,
    attempts: u32,
    mut failed: Vec<TeardownError>,
) -> Vec<TeardownError> {
    let copies = &mut record.inputs[at];
    for attempt in 1..=attempts {
        let mut nodes: Vec<String> = copies.whole.iter().chain(&copies.begun).cloned().collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() {
            break;
        }
        let step = Step::Remove { nodes: nodes.clone(), paths: vec![copies.path.clone()] };
        let kept = steps.run(record.user, &step).and_then(|text| {
            let unreadable = |source| StepError::Output { step: "the removal of", path: copies.path.clone(), source };
            serde_json::from_str::<Vec<Kept>>(&text).map_err(unreadable)
        });
        let causes: Vec<TeardownError> = match kept {
            Ok(left) => {
                let is_left = |node: &String| left.iter().any(|kept| kept.node == *node);
                let gone: Vec<String> = nodes.into_iter().filter(|node| !is_left(node)).collect();
                copies.forget(&gone);
                left.into_iter().map(|Kept { node, problem }| TeardownError::Kept { node, reason: problem }).collect()
            }
            Err(error) => vec![error.into()],
        };
        if attempt == attempts {
            failed.extend(causes);
        } else if !causes.is_empty() {
            cluster.sleep(AGAIN);
        }
    }
    failed
}

/// Removes these nodes, where nothing exists at the path now, from the records of other jobs that are over: a file that
/// appears there later belongs to another job.
///
/// # Errors
/// [`HookError::Record`] or [`HookError::Slurm`].
pub(crate) fn forget_others(
    job: u32,
    cluster: &dyn Cluster,
    records: &Records,
    path: &str,
    nodes: &[String],
) -> Result<(), HookError> {
    for other in records.jobs().into_iter().filter(|other| *other != job) {
        let mut record = records.read(other)?;
        let has = |copies: &Copies| nodes.iter().any(|node| copies.whole.contains(node) || copies.begun.contains(node));
        let is_same = |copies: &Copies| std::path::Path::new(&copies.path) == std::path::Path::new(path);
        if !record.inputs.iter().any(|copies| is_same(copies) && has(copies)) || cluster.over(other)?.is_none() {
            continue;
        }
        record.inputs.iter_mut().filter(|copies| is_same(copies)).for_each(|copies| copies.forget(nodes));
        records.write(other, &record)?;
    }
    Ok(())
}

/// Does the teardown of jobs that are over and whose teardown Slurm has not done or has failed. Returns these jobs.
///
/// # Errors
/// [`SweepError`], after all have been tried.
pub fn sweep(world: (&dyn Cluster, &dyn Steps), records: &Records) -> Result<Vec<u32>, SweepError> {
    let (mut swept, mut failed) = (Vec::new(), Vec::new());
    for job in records.jobs() {
        let tried = match is_due(job, world.0, records) {
            Ok(true) => remove(job, world, records, 1).map(|()| swept.push(job)),
            other => other.map(drop),
        };
        failed.extend(tried.err().map(|error| (job, error)));
    }
    if failed.is_empty() { Ok(swept) } else { Err(SweepError { failed }) }
}

/// True if a job's copies should be gone, and any failure to remove them is old enough to try again.
fn is_due(job: u32, cluster: &dyn Cluster, records: &Records) -> Result<bool, TeardownError> {
    let retry_at = records.read(job)?.retry_at;
    let now = cluster.now().as_secs();
    // The machine's clock restarts with the machine.
    if now < retry_at && retry_at <= now + LONGEST_PAUSE_S {
        return Ok(false);
    }
    Ok(cluster.over(job)?.is_some_and(|since| since >= PATIENCE))
}
