//! The flags of `landbridge jobs`, `logs` and `cancel`.

use clap::Args;
use commands::site_id::SiteId;

use crate::sites::file::SitesFileArgs;

/// List the jobs that were started with `run --detach`
#[derive(Debug, Args)]
#[command(
    long_about = "List the jobs that were started with `run --detach`: those of this machine and, on a machine that is no \
        site, those of the site to which `run` is carried, as SITE/ID."
)]
pub(crate) struct JobsArgs {
    /// Print an object with all jobs
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub far: JobsFarArgs,
}

/// Location of detached jobs.
#[derive(Debug, Args)]
pub(crate) struct JobsFarArgs {
    /// The site where the job was started [default: the one in the id, else as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Print the output of a detached job
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// Continue until the job ends
    #[arg(short, long)]
    pub follow: bool,
    /// The job, as `run --detach` and `jobs` print it
    #[arg(value_name = "[SITE/]ID")]
    pub id: SiteId,
    #[command(flatten)]
    pub far: JobsFarArgs,
}

/// End a detached job as Ctrl-C would
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// The job, as `run --detach` and `jobs` print it
    #[arg(value_name = "[SITE/]ID")]
    pub id: SiteId,
    #[command(flatten)]
    pub far: JobsFarArgs,
}
