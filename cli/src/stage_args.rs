//! The flags of `landbridge stage`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use types::quantity::{parse_byte_rate, parse_bytes, parse_duration};

use crate::args::SitesFileArgs;

/// Move files and folders to where a job needs them
#[derive(Debug, Args)]
pub(crate) struct StageArgs {
    #[command(subcommand)]
    pub command: StageCommand,
}

/// As in `Command`, a doc comment on a variant would hide the long help of its flags.
#[derive(Debug, Subcommand)]
pub(crate) enum StageCommand {
    Move(MoveArgs),
    /// Show the transfers that are running
    Status(StatusArgs),
    /// Have a transfer wait
    Pause(OneArgs),
    /// Have it go on
    Resume(OneArgs),
    /// Give a transfer up, and remove what has arrived
    Cancel(OneArgs),
    /// Change the limit of a transfer's rate
    Rate(RateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The transfer's id [default: all]
    #[arg(value_name = "ID")]
    pub id: Option<u32>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct OneArgs {
    /// The transfer's id, as `stage status` shows it [default: the only one]
    #[arg(value_name = "ID")]
    pub id: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct RateArgs {
    /// The transfer's id, as `stage status` shows it
    #[arg(value_name = "ID")]
    pub id: u32,
    /// Most bytes per second at each target, or `none`
    #[arg(value_name = "RATE", value_parser = limit)]
    pub rate: Limit,
}

/// A rate in bytes per second, or none.
pub(crate) type Limit = Option<u64>;

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(None),
        _ => parse_byte_rate(text).map(Some).map_err(|error| format!("{error}, or `none`")),
    }
}

/// Move files and folders between nodes and sites
#[derive(Debug, Args)]
#[command(
    long_about = "Copy files and folders between nodes and sites. The source stays.\n\n\
        A place is PATH on this machine, or SITE:PATH on the first node of a site, or SITE/NODE:PATH, or SITE/*:PATH for all \
        nodes of a site (as a target). At a site, a relative path begins at your home there. A path with a colon begins with \
        `/` or `./`. If DST is a folder that exists, the source goes into it, else it gets that name.\n\n\
        A target appears as a whole when all of it has arrived and every block had the checksum of its sender. Until \
        then its contents are in a hidden folder beside it. If anything ends the transfer, type the same command again: \
        what has arrived is not moved again. Permissions, times, links, holes and attributes arrive too; owners do not.\n\n\
        Where your own processes compute on a node, it takes cores that they leave idle first, watches how long they wait \
        for a core, and slows down when that is more than --harm.",
    after_help = "Examples:\n  \
        landbridge stage move input.h5 lyon:/scratch/me/\n  \
        landbridge stage move --rate 50MB/s lyon:/scratch/me/run7 kyoto:/data/run7\n  \
        landbridge stage move --deadline 20min --harm 2 lyon:next kyoto/n3:/tmp/next\n  \
        landbridge stage move lyon:tables 'kyoto/*:/tmp/tables'        to every node, over the trunk once"
)]
pub(crate) struct MoveArgs {
    /// What to move, and where to: [SITE[/NODE]:]PATH
    #[arg(value_name = "SRC… DST", required = true, num_args = 2..)]
    pub places: Vec<OsString>,
    /// Most bytes per second at each target [default: as fast as it goes]
    #[arg(long, value_name = "RATE", value_parser = parse_byte_rate)]
    pub rate: Option<u64>,
    /// When all should be there, from now: as late as that is enough, the transfer is as slow, and harms less
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    pub deadline: Option<Duration>,
    /// The share of its time that an application on these nodes may lose, in percent; up to 1, only cores are used that
    /// it leaves idle
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = harm)]
    pub harm: u32,
    /// Bytes moved at a time, from 4KiB to 1GiB
    #[arg(long, value_name = "SIZE", default_value = "4MiB", value_parser = block)]
    pub block: u32,
    /// Space of the target's file system that is left to others [default: a hundredth of it, at most 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub keep_free: Option<u64>,
    /// Write a JSON object about what was moved to standard output
    #[arg(long)]
    pub json: bool,
    /// The site where you type this [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

fn deadline(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    (!time.is_zero()).then_some(time).ok_or_else(|| "it has passed already: give a time from now".to_owned())
}

/// In parts of a million.
fn harm(text: &str) -> Result<u32, String> {
    let percent: Option<f64> = text.trim().trim_end_matches('%').trim().parse().ok();
    let fits = percent.filter(|percent| (0.0..=100.0).contains(percent));
    fits.map(|percent| (percent * 1e4) as u32).ok_or_else(|| format!("`{text}` is no number from 0 to 100"))
}

fn block(text: &str) -> Result<u32, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| stage::SIZES.contains(bytes));
    fits.ok_or_else(|| format!("{bytes} bytes: it must be from 4KiB to 1GiB"))
}
