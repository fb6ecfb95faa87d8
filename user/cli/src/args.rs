//! The command line: every flag, its meaning and its default. Other files execute the commands.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use job::message::InputTo;
use launcher::hosts::Host;
use thiserror::Error;
use types::quantity::QuantityError;

use crate::couple::CoupleArgs;
use crate::doctor::DoctorArgs;
use crate::forward::ForwardArgs;
use crate::key::KeyArgs;
#[cfg(feature = "lab")]
use crate::lab_args::LabArgs;
use crate::plan::PlanArgs;
use crate::site_id::SiteId;
use crate::sites_args::SitesArgs;
use crate::slurm_args::SlurmArgs;
use crate::stage_args::{BesideArgs, StageArgs};

/// Run one unmodified MPI program across private clusters that cannot reach each other.
///
/// Each cluster is a "site" with a gateway; a sites file describes them. Gateways join the sites by encrypted trunks,
/// and a libfabric provider beside this command lets MPICH and Intel MPI use them without change.
#[derive(Debug, Parser)]
#[command(
    name = "landbridge",
    version = crate::version::TEXT,
    after_help = examples()
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Examples of commands in this build.
fn examples() -> String {
    let line = |command: &str, what: &str| format!("  {command:<76}  {what}\n");
    let mut text = "Examples:\n".to_owned();
    if cfg!(feature = "lab") {
        let lab = "landbridge lab -- landbridge run -n 4 -- python3 -m mpi4py.bench helloworld";
        text += &line(lab, "two sites on this machine");
    }
    text += &line("landbridge run -n 64 --prefix -- ./simulation input.dat", "across your sites");
    text += &line("landbridge sites check", "what works and what does not");
    if cfg!(feature = "top") {
        text += &line("landbridge top", "what your gateways carry");
    }
    text + "\n`landbridge COMMAND --help` explains each command."
}

/// The commands. Each is documented at its flags; a doc comment here would replace its long help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Jobs(JobsArgs),
    Logs(LogsArgs),
    Cancel(CancelArgs),
    /// Started by `run --detach`
    #[command(hide = true)]
    Detached {
        /// The job's folder
        folder: PathBuf,
        /// The command as typed, without --detach
        #[arg(last = true, required = true)]
        typed: Vec<OsString>,
    },
    Gateway(GatewayArgs),
    Key(KeyArgs),
    Sites(SitesArgs),
    #[cfg(feature = "top")]
    Top(TopArgs),
    Forward(ForwardArgs),
    Doctor(DoctorArgs),
    Page(PageArgs),
    Plan(PlanArgs),
    Slurm(SlurmArgs),
    Stage(StageArgs),
    Couple(CoupleArgs),
    #[cfg(feature = "lab")]
    Lab(LabArgs),
    /// Write completions for bash, fish and zsh, and man pages, for a package's share folder
    #[cfg(feature = "share")]
    #[command(hide = true)]
    Share {
        /// The folder; all files are written below it, each where its shell or man looks for it
        folder: PathBuf,
    },
    /// Started by gateways
    #[command(hide = true)]
    Agent {
        /// Run only movers: a node service has started this agent where the user has no job
        #[arg(long = agent::keeper::ONLY_MOVERS)]
        only_movers: bool,
    },
    /// Started by gateways: a program that ends with them
    #[command(hide = true, name = starters::leash::LEASH)]
    Leash {
        /// Process id of the gateway
        holder: i32,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// Started by gateways: like the previous one, until the program reports that it has started
    #[command(hide = true, name = starters::leash::HOLD)]
    Hold {
        /// Process id of the gateway
        holder: i32,
        /// The program and its arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
    /// Started by the `sites` commands on a site's machine
    #[command(hide = true)]
    SiteEnd,
    /// Started by `stage` as the ranks of a job
    #[command(hide = true)]
    Mover {
        /// Without a job: both ends are on this machine
        #[arg(long)]
        here: bool,
    },
    /// Started by agents
    #[command(hide = true, name = agent::keeper::WORKER)]
    AgentWorker {
        /// Process id of the keeper
        keeper: i32,
        /// Folder for the files of the node's ranks
        folder: PathBuf,
        /// Run only movers
        #[arg(long = agent::keeper::ONLY_MOVERS)]
        only_movers: bool,
    },
}

#[derive(Clone, Debug, Args)]
pub(crate) struct SitesFileArgs {
    /// The sites file [default: $LANDBRIDGE_SITES, else ~/.config/landbridge/sites.toml]
    #[arg(long, value_name = "FILE")]
    pub sites: Option<PathBuf>,
}

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

impl Collectives {
    /// The value of `LANDBRIDGE_COLLECTIVES`.
    pub(crate) fn value(self) -> &'static str {
        match self {
            Collectives::Auto => "auto",
            Collectives::Exact => "exact",
            Collectives::Native => "native",
        }
    }
}

impl BindTo {
    /// The value of `LANDBRIDGE_BIND`.
    pub(crate) fn value(self) -> &'static str {
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
        Everything after PROGRAM belongs to the program; `--` before it is allowed and never needed. `:` and an option \
        begin another program of the same job, with its own -n, --site, -x and --wdir.\n\n\
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
    /// Maximum number of ranks on one node; nodes are then filled in order
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
    /// Set a variable for every rank; without VALUE, to its value here
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    pub variables: Vec<OsString>,
    /// Working directory of the ranks [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub wdir: Option<PathBuf>,
    /// The rank that gets standard input: a rank's number, all or none; the other ranks read an empty one
    #[arg(long, value_name = "RANK", default_value = "0", value_parser = input_to)]
    pub stdin: InputTo,
    /// Copy this file or folder to the job's sites first, as `sites push` does; may be repeated
    #[arg(long, value_name = "PATH")]
    pub push: Vec<PathBuf>,
    /// End the job after its ranks have run for this time; the exit code is then 124
    #[arg(long, value_name = "TIME", value_parser = types::quantity::parse_duration)]
    pub timeout: Option<Duration>,
    /// Run without this terminal: print the job's id and return; see jobs, logs and cancel. The job belongs to the site
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

/// A site's share of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SiteShare {
    pub site: String,
    pub ranks: u32,
    /// The program at this site, if it differs.
    pub program: Option<String>,
}

/// A value that its option does not accept.
#[derive(Debug, Error)]
pub(crate) enum ArgumentError {
    #[error("`{0}` is not NAME=N or NAME=N:PROGRAM, such as lyon=4 or lyon=4:./solver-avx512")]
    Share(String),
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    #[error("`{0}` is neither a rank's number nor `all` nor `none`")]
    Input(String),
    #[error("give a number from 0 to 100")]
    Percent,
    #[error("give 512MiB or more: a mover has several blocks in memory")]
    UserMemory,
    #[cfg(feature = "top")]
    #[error("`{0}` is not from 100ms to 1h")]
    Interval(String),
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

/// Run the gateway of a site
#[derive(Debug, Args)]
#[command(
    long_about = "Run the gateway of a site, until it is ended by SIGTERM or SIGINT.\n\n\
        It needs one port, which the site's nodes and the gateways of other sites dial; sites that cannot be dialled dial \
        out. It starts the agents of jobs on the site's nodes with the starter of the sites file.\n\n\
        LANDBRIDGE_LOG sets what is logged to standard error: off, error, warn, info (default), debug or trace, and \
        PART=LEVEL for one part of the program, as in info,gateway::trunks=debug.",
    after_help = "Example:\n  landbridge gateway --sites sites.toml --site lyon"
)]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// Name of the site
    #[arg(long, value_name = "NAME")]
    pub site: String,
    /// Name of the gateway [default: the site's only one]
    #[arg(long, value_name = "NAME")]
    pub gateway: Option<String>,
    /// Leave the session that this command was started in, as `sites add` requires
    #[arg(long, hide = true)]
    pub background: bool,
}

/// Watch the gateways of your site
#[cfg(feature = "top")]
#[derive(Debug, Args)]
#[command(
    long_about = "Watch what the gateways of your own site do: trunks to other sites and what they carry, round trips, \
        retransmitted segments, memory, jobs. Asks every gateway of the site once per interval; one that does not answer is \
        shown with its error and asked again.\n\n\
        Keys: q ends, l shows links, s sorts by rate, arrows scroll, ? explains. If standard output is not a terminal, \
        prints one table after one interval. Exit code 1 if no gateway answers.",
    after_help = "Examples:\n  landbridge top\n  landbridge top --once\n  \
        landbridge top --json --interval 10s >> gateways.jsonl   an object every ten seconds, until interrupted"
)]
pub(crate) struct TopArgs {
    /// Interval between requests to the gateways, from 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Print one table (or one object) after one interval, then exit
    #[arg(long)]
    pub once: bool,
    /// Print the gateways' state and rates as JSON, one object per interval
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// The site of the gateways; its key must be on this machine [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
}

/// Show the address of a gateway's page
#[derive(Debug, Args)]
#[command(
    long_about = "Print the address of the page that a gateway of your site serves on its own machine. On a machine \
        outside all sites, ssh makes the page reachable here as well, until this command ends (Ctrl-C).",
    after_help = "Examples:\n  landbridge page\n  landbridge page --from kyoto --port 8080"
)]
pub(crate) struct PageArgs {
    /// The port on this machine [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// The site [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
}

#[cfg(feature = "top")]
fn interval(text: &str) -> Result<Duration, ArgumentError> {
    let interval = types::quantity::parse_duration(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(3600);
    if allowed.contains(&interval) { Ok(interval) } else { Err(ArgumentError::Interval(text.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab_args::LabCommand;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// All visible commands below this one.
    fn commands(of: &clap::Command) -> Vec<clap::Command> {
        let below = of.get_subcommands().filter(|command| !command.is_hide_set());
        below.flat_map(|command| [vec![command.clone()], commands(command)].concat()).collect()
    }

    #[test]
    fn long_help_is_longer_than_short_help() {
        let all = commands(&Cli::command());
        let explained = ["run", "gateway", "key", "add", "invite", "join", "remove", "check", "top", "lab"];
        for name in explained {
            let command = all.iter().find(|command| command.get_name() == name).expect(name);
            let (about, long) =
                (command.get_about().expect(name).to_string(), command.get_long_about().expect(name).to_string());
            assert!(long.len() > about.len() + 50, "{name}: {long}");
            assert!(!about.starts_with('`') && !about.is_empty(), "{name}: {about}");
        }
        for command in all {
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }

    #[test]
    fn the_contract_is_understood() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.command);
        let Ok(Command::Run(run)) = parse(
            "landbridge run -n 4 --ranks-per-node 2 --site a=1 --site b=3:./x:y --mpi mpich --prefix --json -- prog --json x",
        ) else {
            panic!("run")
        };
        assert_eq!((run.ranks, run.ranks_per_node, run.json), (Some(4), Some(2), Some(None)));
        let shares: Vec<_> = run.per_site.iter().map(|s| (s.site.as_str(), s.ranks, s.program.as_deref())).collect();
        assert_eq!(shares, [("a", 1, None), ("b", 3, Some("./x:y"))]);
        assert_eq!(run.program, ["prog", "--json", "x"]);
        let Ok(Command::Run(run)) = parse("landbridge run -n 4 --json=f -- prog") else { panic!("run --json=f") };
        assert_eq!(run.json, Some(Some("f".into())));
        let Ok(Command::Lab(lab)) = parse(
            "landbridge lab --sites 2 --nodes 2 --gateways 1 --delay 5ms --wan-rate 1gbit --nic-rate 200mbit --loss 0 -- a -b",
        ) else {
            panic!("lab")
        };
        assert_eq!((lab.sites, lab.program), (2, vec!["a".into(), "-b".into()]));
        assert!(matches!(
            parse("landbridge lab enter b-n1 -- ip addr"),
            Ok(Command::Lab(LabArgs { command: Some(LabCommand::Enter { .. }), .. }))
        ));
        assert!(parse("landbridge gateway --sites f --site a --gateway gw1").is_ok());
        assert!(parse("landbridge sites check --json -- prog").is_ok());
        for wrong in [
            "landbridge run -n 0 -- p",
            "landbridge run --site a=1: -- p",
            "landbridge run -n 1",
            "landbridge run --site a -- p",
            "landbridge lab",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
