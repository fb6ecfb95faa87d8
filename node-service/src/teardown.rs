//! The end of a job: its copies go.
//!
//! Slurm says when, and sometimes never does. When a job is cancelled that waits, its controller kills the job's hooks
//! and then starts the teardown. Both orders go to a process with a thread for each, so the kill may come second, and a
//! teardown that was killed is not started again (`slurmscriptd.c` and `burst_buffer_lua.c`, Slurm 22.05 to 24.05).
//! Therefore every look of Slurm's at the burst buffer, twice a minute, also does what was forgotten.

use std::time::Duration;

use crate::hook::{Cluster, Steps, run};
use crate::record::{Copies, Records};
use crate::step::Step;

/// Slurm's own teardown comes first.
const PATIENCE: Duration = Duration::from_secs(15);

/// Removes a job's copies, complete or not, except those that it has used and wants kept.
///
/// # Errors
/// What could not be removed, and where. It is not tried again.
pub fn teardown(job: u32, world: (&dyn Cluster, &dyn Steps), records: &Records) -> Result<(), String> {
    let record = records.read(job)?;
    let mut failed = Vec::new();
    for copies in &record.inputs {
        let kept = |node: &String| record.keep && record.nodes.contains(node) && copies.whole.contains(node);
        let Copies { path, whole, begun } = copies;
        let mut nodes: Vec<String> = whole.iter().chain(begun).filter(|node| !kept(node)).cloned().collect();
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() {
            continue;
        }
        failed.extend(run(world, record.user, &Step::Remove { nodes, paths: vec![path.clone()] }).err());
    }
    records.remove(job)?;
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// Does the teardown of jobs that are over and that Slurm has forgotten. Returns which they were.
///
/// # Errors
/// As [`teardown`], after all have been tried.
pub fn sweep(world: (&dyn Cluster, &dyn Steps), records: &Records) -> Result<Vec<u32>, String> {
    let (mut swept, mut failed) = (Vec::new(), Vec::new());
    for job in records.jobs() {
        match world.0.over(job) {
            Ok(Some(since)) if since >= PATIENCE => {
                swept.push(job);
                failed.extend(teardown(job, world, records).err().map(|problem| format!("job {job}: {problem}")));
            }
            Ok(_) => {}
            Err(problem) => failed.push(format!("job {job}: {problem}")),
        }
    }
    if failed.is_empty() { Ok(swept) } else { Err(failed.join("; ")) }
}
