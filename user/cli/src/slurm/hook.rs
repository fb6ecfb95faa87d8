//! `landbridge slurm hook`, called by `burst_buffer.lua`, and `slurm check`.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use commands::slurm::hook::{HookStep, Hooks, plan};
use node_service::step::Checked;

use super::args::{Hook, HookArgs};
use crate::output;
use crate::sites::file::SitesFileArgs;

/// Runs a hook. Slurm shows the message of an error to the job's user.
pub(super) fn hook(args: &HookArgs) -> Result<i32> {
    let hooks = Hooks::new(&args.state, &args.service);
    match &args.hook {
        Hook::JobProcess { script } => plan(script).map(drop)?,
        Hook::DataIn { job, script } => hooks.run(HookStep::DataIn, *job, script)?,
        Hook::PreRun { job, script } => hooks.run(HookStep::PreRun, *job, script)?,
        Hook::DataOut { job, script } => hooks.run(HookStep::DataOut, *job, script)?,
        Hook::JobTeardown { job } => hooks.tear_down(*job)?,
        Hook::Sweep => {
            for job in hooks.sweep()? {
                output::note(&format!("job {job}: its copies were removed, which Slurm has forgotten"));
            }
        }
        Hook::GetStatus => {
            for input in hooks.inputs()? {
                let (job, whole, begun) = (input.job, input.whole.join(","), input.begun.join(","));
                writeln!(output::stdout(), "job {job}: input on {whole}; on its way to {begun}")?;
            }
        }
    }
    Ok(0)
}

/// Checks the places of a job script that are at sites. The exit code is 1 if one is not usable.
pub(super) fn check(script: &Path, sites: &SitesFileArgs) -> Result<i32> {
    let (places, Checked { unusable, unknown }) = commands::slurm::check::check(script, sites.named())?;
    if places == 0 {
        writeln!(output::stdout(), "{}: no places at sites in its #BB_LUA lines", script.display())?;
        return Ok(0);
    }
    for problem in unknown.iter().chain(&unusable) {
        output::note(&problem.to_string());
    }
    if unusable.is_empty() {
        let usable = places.saturating_sub(unknown.len());
        writeln!(output::stdout(), "{usable} place(s) usable, {} unknown", unknown.len())?;
    }
    Ok(i32::from(!unusable.is_empty()))
}
