//! The flags of `landbridge run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use commands::run::{ProgramRequest, RunRequest, SiteShare};
use job::message::{Family, InputTo, MpiChoice};
use launcher::hosts::Host;

use crate::argument::ArgumentError;
use crate::sites::file::SitesFileArgs;
use crate::stage::beside::BesideArgs;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mpi {
    /// The library that the program loads
    Auto,
    /// MPICH and its close relatives
    Mpich,
    /// Intel MPI
    Intel,
    /// Open MPI
    Openmpi,
    /// No MPI: the program uses libfabric itself, as OpenSHMEM programs do
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MapBy {
    /// Evenly over all nodes
    Node,
    /// Each node's slots before the next node
    Slot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BindTo {
    /// All of the node
    None,
    /// One core, with all its threads
    Core,
    /// An equal share of the node's cores
    Share,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Collectives {
    /// Landbridge's, where a communicator spans several sites
    Auto,
    /// Landbridge's, except reductions, so that rounding does not depend on the placement of ranks
    Exact,
    /// The MPI library's own
    Native,
}

impl Mpi {
    fn choice(self) -> MpiChoice {
        match self {
            Mpi::Auto => MpiChoice::Auto,
            Mpi::Mpich => MpiChoice::Named(Family::Mpich),
            Mpi::Intel => MpiChoice::Named(Family::Intel),
            Mpi::Openmpi => MpiChoice::Named(Family::OpenMpi),
            Mpi::None => MpiChoice::Libfabric,
        }
    }
}

impl Collectives {
    /// The value of `LANDBRIDGE_COLLECTIVES`.
    fn value(self) -> &'static str {
        match self {
            Collectives::Auto => "auto",
            Collectives::Exact => "exact",
            Collectives::Native => "native",
        }
    }
}

impl BindTo {
    /// The value of `LANDBRIDGE_BIND`.
    fn value(self) -> &'static str {
        match self {
            BindTo::None => "none",
            BindTo::Core => "core",
            BindTo::Share => "share",
        }
    }
}

/// Run a program on nodes of several sites
#[derive(Debug, Args)]
#[command(
    long_about = "Run a program on nodes of several sites.\n\n\
        Everything after PROGRAM belongs to the program; you may write `--` before it. To start a second \
        program in the same job, write `:` and its own -n, --site, -x and --wdir.\n\n\
        Without --site, ranks are spread evenly over all sites in contiguous blocks, in the order of the sites file, and \
        evenly over each site's nodes. Without a sites file, all ranks run on this machine. The program must be at the \
        same path on every node, unless --site or the sites file names another; it gets your environment and working \
        directory. Its output comes here line by line. If any rank, node or gateway fails, the whole job ends, and the \
        last line names the failure.\n\n\
        Exit code: 0 if every rank ended with 0; otherwise that of the failing rank, or 128+N if signal N killed it; 130 \
        after Ctrl-C; 2 for wrong options; 124 after --timeout; 75 if a running job lost something it needs; 1 for \
        everything else.",
    after_help = "Examples:\n  \
        landbridge run -n 4 ./solver --size 512\n  \
        landbridge run -n 4 -x OMP_NUM_THREADS=2 --timeout 30min ./solver\n  \
        landbridge run -n 1 ./coupler : -n 8 ./ocean : -n 8 ./air   several programs in one job\n  \
        landbridge run --site lyon=32 --site nancy=16 --prefix -- python3 train.py\n  \
        landbridge run --site lyon=32:./solver-avx512 --site nancy=16 -- ./solver\n  \
        landbridge run -n 8 --ranks-per-node 2 --mpi intel --json=run.json -- ./solver"
)]
pub(crate) struct RunArgs {
    /// Number of ranks; -np is the same [default: the sum of --site]
    #[arg(short = 'n', long = "ranks", visible_alias = "np", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks: Option<u32>,
    /// Maximum number of ranks on one node; fills one node before the next
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    pub ranks_per_node: Option<u32>,
    /// Nodes to use, and the number of ranks for each; may be repeated
    #[arg(long = "host", value_name = "SITE/NODE[:N],…", value_delimiter = ',')]
    pub hosts: Vec<Host>,
    /// Read the nodes from a file: one node per line, with `slots=N` or `:N`
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    pub hostfile: Option<PathBuf>,
    /// Fill nodes one after the other (slot), or spread ranks over all nodes (node)
    #[arg(long, value_enum, default_value = "node")]
    pub map_by: MapBy,
    /// Cores of each rank: an equal share of its node, one core, or all [default: $LANDBRIDGE_BIND, else share]
    #[arg(long, value_enum)]
    pub bind_to: Option<BindTo>,
    /// Source of collective operations across sites [default: $LANDBRIDGE_COLLECTIVES, else auto]
    #[arg(long, value_enum)]
    pub collectives: Option<Collectives>,
    /// Ranks at this site, and the program there if it differs; repeat it for each site of the job
    #[arg(long = "site", value_name = "NAME=N[:PROGRAM]", value_parser = site_share)]
    pub per_site: Vec<SiteShare>,
    /// Set an environment variable for every rank; `-x NAME` copies its value from here
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    pub variables: Vec<OsString>,
    /// Working directory of the ranks [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub wdir: Option<PathBuf>,
    /// The rank that reads the standard input of this command: its number, all or none; others read an empty one
    #[arg(long, value_name = "RANK", default_value = "0", value_parser = input_to)]
    pub stdin: InputTo,
    /// Copy this file or folder to the job's sites first, as `sites push` does; may be repeated
    #[arg(long, value_name = "PATH")]
    pub push: Vec<PathBuf>,
    /// End the job after its ranks have run for this time; the exit code is then 124
    #[arg(long, value_name = "TIME", value_parser = types::quantity::parse_duration)]
    pub timeout: Option<Duration>,
    /// Print the job's id and return; the job runs on at the site without you: see `jobs`, `logs` and `cancel`
    #[arg(long, conflicts_with = "dry_run")]
    pub detach: bool,
    /// Show the placement of ranks and their programs; start nothing and contact no site
    #[arg(long)]
    pub dry_run: bool,
    /// Time limit for getting nodes from batch systems
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = types::quantity::parse_duration)]
    pub wait: Duration,
    /// The program's MPI library
    #[arg(long, value_enum, default_value = "auto")]
    pub mpi: Mpi,
    /// Start every line of output with [site/node/rank]
    #[arg(long)]
    pub prefix: bool,
    /// Pass output on byte by byte, as ranks write it; lines of different ranks may mix
    #[arg(long)]
    pub raw: bool,
    /// Write each rank's output to PREFIX.RANK.out and PREFIX.RANK.err, or DIR/rank.RANK.out, instead of here
    #[arg(long, value_name = "DIR_OR_PREFIX")]
    pub output_filename: Option<PathBuf>,
    /// Print each step of the job with its time
    #[arg(short, long)]
    pub verbose: bool,
    /// Write a JSON summary after the job, to FILE or else to standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub json: Option<Option<PathBuf>>,
    #[command(flatten)]
    pub beside: BesideArgs,
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// The site where you type this command [default: $LANDBRIDGE_SITE_NAME, else the first with a key and a gateway
    /// here]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl RunArgs {
    /// `programs`: those of the job, this one's included.
    pub(super) fn request(&self, programs: Vec<ProgramRequest>) -> RunRequest {
        RunRequest {
            programs,
            ranks_per_node: self.ranks_per_node,
            fill: self.map_by == MapBy::Slot,
            hosts: self.hosts.clone(),
            hostfile: self.hostfile.clone(),
            bind: self.bind_to.map(BindTo::value),
            collectives: self.collectives.map(Collectives::value),
            input: self.stdin,
            raw: self.raw,
            mpi: self.mpi.choice(),
            push: self.push.clone(),
            beside: self.beside.request(),
            output_files: self.output_filename.is_some(),
            wait: self.wait,
            timeout: self.timeout,
            from: self.from.clone(),
            sites: self.sites.sites.clone(),
        }
    }
}

fn input_to(text: &str) -> Result<InputTo, ArgumentError> {
    match text {
        "all" => Ok(InputTo::All),
        "none" => Ok(InputTo::None),
        rank => rank.parse().map(InputTo::Rank).map_err(|_| ArgumentError::Input(text.to_owned())),
    }
}

fn site_share(text: &str) -> Result<SiteShare, ArgumentError> {
    let parts = text.split_once('=').and_then(|(site, rest)| {
        let (ranks, program) = match rest.split_once(':') {
            Some((ranks, program)) => (ranks, Some(program.to_owned()).filter(|program| !program.is_empty())?.into()),
            None => (rest, None),
        };
        Some(SiteShare { site: site.to_owned(), ranks: ranks.parse().ok()?, program })
    });
    parts.ok_or_else(|| ArgumentError::Share(text.to_owned()))
}
