//! `landbridge jobs`, `logs` and `cancel`, and `run --detach`.

pub(crate) mod args;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use commands::jobs::{self, Detached, DetachedJob, JobOutput, JobState};
use commands::site_id::{SiteId, far};
use job::message::Stream;
use launcher::Sites;
use serde::{Deserialize, Serialize};
use types::sites::Site;
use types::untrusted::one_line;

use self::args::{CancelArgs, JobsArgs, JobsFarArgs, LogsArgs};
use crate::quantity::duration;
use crate::{carried, json, output};

/// Starts `landbridge` with these words in a process without a terminal, and prints the job's id. `from`: the site
/// given by `--from`.
pub(crate) fn detach(words: &[OsString], from: Option<&str>, json: bool) -> Result<i32> {
    let id = SiteId::shown(jobs::detach(words)?, from);
    match json {
        true => writeln!(output::stdout(), "{}", json::object(StartedJob { job: id.number, site: id.site })?)?,
        false => writeln!(output::stdout(), "{id}")?,
    }
    Ok(0)
}

/// The JSON object about a job that was started.
#[derive(Serialize)]
struct StartedJob {
    job: u32,
    /// The job's site, if its user is elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    site: Option<String>,
}

/// Becomes a detached job: runs `work` in a session of its own and leaves its exit code in the folder.
pub(crate) fn become_detached(folder: &Path, work: impl FnOnce() -> Result<i32>) -> Result<i32> {
    let detached = Detached::enter(folder)?;
    let result = work();
    let code = match &result {
        Ok(code) => *code,
        Err(error) => crate::error::code(error).into(),
    };
    detached.leave(code)?;
    result
}

/// Shows the jobs of this machine, and those of the site that jobs are carried to.
pub(crate) fn jobs(args: &JobsArgs) -> Result<i32> {
    let from = args.far.from.as_deref();
    let mut jobs = jobs::all()?;
    jobs.iter_mut().for_each(|job| job.site = SiteId::shown(job.id, from).site);
    let far = far(args.far.sites.named(), from)?;
    let mut out = output::stdout();
    if args.json {
        return print_json(&jobs, far);
    }
    for job in &jobs {
        let state = match (&job.state, job.exit_code) {
            (JobState::Running, _) => "running".to_owned(),
            (JobState::Ended, code) => format!("ended {}", code.unwrap_or(0)),
            (JobState::Killed, _) => "killed".to_owned(),
            (JobState::Elsewhere, _) => format!("on {}", job.typed.host),
        };
        let words = job.typed.command.join(" ");
        let words = one_line(&words);
        let id = SiteId { site: job.site.clone(), number: job.id }.to_string();
        let time = job.seconds().map_or("-".to_owned(), duration);
        writeln!(out, "{id:>4}  {state:10}  {time:>8}  {words}")?;
    }
    if let Some((sites, site)) = &far {
        return carried::command(sites, site, &["jobs"], Vec::new());
    }
    if jobs.is_empty() {
        writeln!(out, "no jobs: `landbridge run --detach -n N PROGRAM` starts one")?;
    }
    Ok(0)
}

fn print_json(jobs: &[DetachedJob], far: Option<(Sites, Site)>) -> Result<i32> {
    let mut jobs = jobs.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    if let Some((sites, site)) = &far {
        let (code, printed) = carried::answer(sites, site, &["jobs"], vec!["--json".into()])?;
        if code != 0 {
            return Ok(code);
        }
        let there: SiteJobs =
            serde_json::from_slice(&printed).with_context(|| format!("output of site {}", site.name))?;
        jobs.extend(there.jobs);
    }
    writeln!(output::stdout(), "{}", json::object(serde_json::json!({ "jobs": jobs }))?)?;
    Ok(0)
}

/// The jobs listed by a site.
#[derive(Deserialize)]
struct SiteJobs {
    jobs: Vec<serde_json::Value>,
}

/// The site of a job that is not on this machine.
fn site_of(id: &SiteId, args: &JobsFarArgs) -> Result<Option<(Sites, Site)>> {
    match id.site.as_deref().or(args.from.as_deref()) {
        Some(name) => Ok(far(args.sites.named(), Some(name))?),
        None => Ok(None),
    }
}

/// Prints a job's output so far, and with `-f` further output until the job ends.
pub(crate) fn logs(args: &LogsArgs) -> Result<i32> {
    let number = args.id.number;
    if let Some((sites, site)) = site_of(&args.id, &args.far)? {
        let follow = args.follow.then(|| "--follow".into());
        let words = follow.into_iter().chain([number.to_string().into()]).collect();
        return carried::command(&sites, &site, &["logs"], words);
    }
    let mut output = JobOutput::open(number)?;
    while let Some(piece) = output.next(args.follow)? {
        output::raw(Stream::Out, &piece).map_err(output::of_stdout)?;
    }
    Ok(0)
}

/// Ends a job as Ctrl-C would.
pub(crate) fn cancel(args: &CancelArgs) -> Result<i32> {
    let number = args.id.number;
    if let Some((sites, site)) = site_of(&args.id, &args.far)? {
        return carried::command(&sites, &site, &["cancel"], vec![number.to_string().into()]);
    }
    jobs::cancel(number)?;
    let id = SiteId::shown(number, args.far.from.as_deref());
    writeln!(output::stdout(), "job {id} is cancelled")?;
    Ok(0)
}
