//! The flags of `landbridge stage`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use commands::site_id::SiteId;
use commands::transfers::request::{Pace, TransferRequest};
use launcher::hosts::Host;
use stage::mover;
use types::quantity::{parse_byte_rate, parse_bytes, parse_duration};

use crate::argument::ArgumentError;
use crate::sites::file::SitesFileArgs;

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
    In(InArgs),
    Out(OutArgs),
    /// Show running transfers
    Status(StatusArgs),
    /// Pause a transfer
    Pause(OneArgs),
    /// Continue a paused transfer
    Resume(OneArgs),
    /// Give a transfer up, and remove the parts that have arrived
    Cancel(OneArgs),
    /// Change the limit of a transfer's rate
    Rate(RateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The transfer's id [default: all]
    #[arg(value_name = "[SITE/]ID")]
    pub id: Option<SiteId>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub far: FarArgs,
}

/// Owner of the transfers.
#[derive(Debug, Args)]
pub(crate) struct FarArgs {
    /// The site of the transfers [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

#[derive(Debug, Args)]
pub(crate) struct OneArgs {
    /// The transfer's id, as shown by `stage status` [default: the only one]
    #[arg(value_name = "[SITE/]ID")]
    pub id: Option<SiteId>,
    #[command(flatten)]
    pub far: FarArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RateArgs {
    /// The transfer's id, as shown by `stage status`
    #[arg(value_name = "[SITE/]ID")]
    pub id: SiteId,
    /// Maximum bytes per second at each target, or `none`
    #[arg(value_name = "RATE", value_parser = limit)]
    pub rate: Limit,
    #[command(flatten)]
    pub far: FarArgs,
}

/// A rate in bytes per second. `None`: no limit.
pub(crate) type Limit = Option<u64>;

fn limit(text: &str) -> Result<Limit, ArgumentError> {
    match text {
        "none" => Ok(None),
        _ => parse_byte_rate(text).map(Some).map_err(ArgumentError::Limit),
    }
}

/// Move files and folders between nodes and sites
#[derive(Debug, Args)]
#[command(
    long_about = "Copy files and folders between nodes and sites. The source stays.\n\n\
        A place is PATH on this machine, or SITE:PATH on the machine of a site's gateway, or SITE/NODE:PATH, or SITE/*:PATH \
        for all nodes of a site (as a target). At a site, a relative path begins at your home there. A path with a colon begins with \
        `/` or `./`. DST/, with a slash at its end, is a folder to go into; DST is the name that the source gets, even if something \
        is there: a file is replaced, and a folder is added to.\n\n\
        A target appears as a whole when all of it has arrived and every block had the checksum of its sender. Until \
        then its contents are in a hidden folder beside it. If anything ends the transfer, type the same command again: \
        blocks that have arrived are not sent again. Permissions, times, links, holes and attributes arrive too; owners do not, \
        and access control lists arrive by the names of users and groups.\n\n\
        Where your own processes compute on a node, it takes cores that they leave idle first, watches how long they wait \
        for a core, and slows down when that is more than --harm.",
    after_help = "Examples:\n  \
        landbridge stage move input.h5 lyon:/scratch/me/\n  \
        landbridge stage move --rate 50MB/s lyon:/scratch/me/run7 kyoto:/data/run7\n  \
        landbridge stage move --deadline 20min --harm 2 lyon:next kyoto/n3:/tmp/next\n  \
        landbridge stage move lyon:tables 'kyoto/*:/tmp/tables'        to every node, over the trunk once"
)]
pub(crate) struct MoveArgs {
    /// Sources and the target: [SITE[/NODE]:]PATH
    #[arg(value_name = "SRC… DST", required = true, num_args = 2..)]
    pub places: Vec<OsString>,
    /// SRC is the files of an array's processes in this layout, with %r in their name for the process:
    /// SHAPE/BYTES:AXIS,…, such as 4096x4096/8:block(4),whole
    #[arg(long, value_name = "LAYOUT", requires = "to_layout")]
    pub from_layout: Option<String>,
    /// DST is the files of the processes in this layout, also with %r in their name
    #[arg(long, value_name = "LAYOUT", requires = "from_layout")]
    pub to_layout: Option<String>,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Common options of `move`, `in` and `out`.
#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    pub pace: PaceArgs,
    /// Write a JSON object about the transfer to standard output
    #[arg(long)]
    pub json: bool,
    /// The site where you type this command [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Rate, priority and safety of a transfer.
#[derive(Clone, Debug, Args)]
pub(crate) struct PaceArgs {
    /// Maximum bytes per second at each target [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = parse_byte_rate)]
    pub rate: Option<u64>,
    /// Time limit for the whole transfer, from now: the transfer is only as fast as this requires, and so harms less
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    pub deadline: Option<Duration>,
    /// Maximum slowdown of an application here, in percent; at 1 or less, use idle cores only
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = harm)]
    pub harm: u32,
    /// Size of a block, from 4KiB to 1GiB [default: 4MiB, 1MiB to more than two nodes; less at low --rate]
    #[arg(long, value_name = "SIZE", value_parser = block)]
    pub block: Option<u32>,
    /// Space of the target's file system that stays free for others [default: a hundredth of it, at most 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub keep_free: Option<u64>,
    /// Also write to a folder of another user, who can change and replace its contents
    #[arg(long)]
    pub allow_other_owner: bool,
    /// Drop extended attributes and access control lists. By default, only those are dropped that the target has no
    /// room for or does not support, and a note names them
    #[arg(long)]
    pub no_xattrs: bool,
    /// Omit checksums of blocks: needs less of a core, but does not detect damage in transit
    #[arg(long)]
    pub no_checksum: bool,
    /// Transport of blocks between nodes
    #[arg(long, value_name = "MODE", value_enum, default_value = "pull")]
    pub mode: TransportMode,
}

/// Transport of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportMode {
    /// Each target reads blocks from the memory of the mover that feeds it
    Pull,
    /// The mover that feeds a target sends the blocks
    Send,
    /// The source sends each block once, to all targets in lockstep; gateways copy it
    Bcast,
}

impl TransportMode {
    fn of_movers(self) -> mover::Mode {
        match self {
            TransportMode::Pull => mover::Mode::Pull,
            TransportMode::Send => mover::Mode::Send,
            TransportMode::Bcast => mover::Mode::Bcast,
        }
    }
}

impl PaceArgs {
    fn pace(&self) -> Pace {
        Pace {
            rate: self.rate,
            deadline: self.deadline,
            harm: self.harm,
            block: self.block,
            keep_free: self.keep_free,
            allow_other_owner: self.allow_other_owner,
            no_xattrs: self.no_xattrs,
            no_checksum: self.no_checksum,
            mode: self.mode.of_movers(),
        }
    }
}

impl CommonArgs {
    pub(super) fn request(&self) -> TransferRequest {
        TransferRequest { pace: self.pace.pace(), from: self.from.clone(), sites: self.sites.sites.clone() }
    }
}

/// Move files and folders to all nodes of an allocation
#[derive(Debug, Args)]
#[command(
    long_about = "Copy files and folders to every node of an allocation: in a batch job's script, the job's nodes; else the \
        nodes of your own site that the sites file lists, or those of --host.\n\n\
        SRC is a place as in `stage move`, DST a path on the nodes; a relative one is below the working directory. Each \
        trunk is crossed once, and each node passes blocks on to the next. In SRC and DST, %n is the node's name and \
        %s its site's: with %n in SRC, each node gets a source of its own.",
    after_help = "Examples:\n  \
        landbridge stage in lyon:/data/run7=/tmp/run7\n  \
        landbridge stage in tables=/tmp/tables lyon:parts/%n.h5=/tmp/part.h5"
)]
pub(crate) struct InArgs {
    #[command(flatten)]
    pub nodes: NodesArgs,
}

/// Move files and folders from the nodes of an allocation
#[derive(Debug, Args)]
#[command(
    long_about = "Copy files and folders from the nodes of an allocation: in a batch job's script, the job's nodes; else the \
        nodes of your own site that the sites file lists, or those of --host.\n\n\
        SRC is a path on the nodes, DST a place as in `stage move`. Each node's is named DST.NODE, or DST.SITE.NODE if the \
        nodes are at several sites, and in a folder DST/ it is SRC's name.NODE; or write %n for the node's name and %s for its site's in DST. Nodes on which SRC does \
        not exist are left out, but one must have it. SITE/NODE:PATH as SRC means that node alone.",
    after_help = "Examples:\n  \
        landbridge stage out /tmp/result=lyon:/data/result7\n  \
        landbridge stage out /tmp/trace=lyon:traces/run7-%n"
)]
pub(crate) struct OutArgs {
    #[command(flatten)]
    pub nodes: NodesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NodesArgs {
    /// Source and target of each transfer
    #[arg(value_name = "SRC=DST", required = true)]
    pub specs: Vec<OsString>,
    /// Nodes to use as the allocation
    #[arg(long = "host", value_name = "SITE/NODE,…", value_delimiter = ',')]
    pub hosts: Vec<Host>,
    #[command(flatten)]
    pub common: CommonArgs,
}

fn deadline(text: &str) -> Result<Duration, ArgumentError> {
    let time = parse_duration(text)?;
    if time.is_zero() { Err(ArgumentError::Deadline) } else { Ok(time) }
}

/// Parses percent into millionths.
pub(super) fn harm(text: &str) -> Result<u32, ArgumentError> {
    let percent: Option<f64> = text.trim().trim_end_matches('%').trim().parse().ok();
    let fits = percent.filter(|percent| (0.0..=100.0).contains(percent));
    fits.map(|percent| (percent * 1e4) as u32).ok_or_else(|| ArgumentError::Harm(text.to_owned()))
}

fn block(text: &str) -> Result<u32, ArgumentError> {
    let bytes = parse_bytes(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| stage::SIZES.contains(bytes));
    fits.ok_or(ArgumentError::Block(bytes))
}
