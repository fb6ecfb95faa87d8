//! The flags of `landbridge sites`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use setup::slurm::SlurmSetting;

use crate::sites::file::SitesFileArgs;

/// Add, remove and check sites
#[derive(Debug, Args)]
pub(crate) struct SitesArgs {
    #[command(subcommand)]
    pub command: SitesCommand,
}

/// As in `Command`, a doc comment on a variant would hide the long help of its flags.
#[derive(Debug, Subcommand)]
pub(crate) enum SitesCommand {
    Add(AddArgs),
    Invite(InviteArgs),
    Join(JoinArgs),
    Remove(RemoveArgs),
    /// Show the sites of the sites file
    List(ListArgs),
    /// Ask every site for the state of its gateway
    Status(ListArgs),
    Start(StartArgs),
    Push(PushArgs),
    Apply(ApplyArgs),
    Check(CheckArgs),
    Links(LinksArgs),
}

/// Make a cluster you have an account on a site, or repair one
#[derive(Debug, Args)]
#[command(
    long_about = "Make a cluster you have an account on a site, or repair one. No root, there or here.\n\n\
        Logs in with your own ssh (its configuration, agent, keys and jump hosts), copies this command and the provider to \
        ~/.local/share/landbridge there, makes the site's key there (it never leaves the site), starts the site's gateway \
        in the background, distributes the sites file to every site, and tries every connection. If something does not \
        work, all sites stay as they were and the sites file is not written. Type the same command again to repair a \
        site: it copies missing files and restarts a gateway that has ended.\n\n\
        Without HOST, a site of the sites file is reached at the address in that file; a new site is this machine.",
    after_help = "Examples:\n  \
        landbridge sites add lyon user@login.lyon.example\n  \
        landbridge sites add kyoto other@login.kyoto.example:2222 --nodes 'n[1-4]'\n  \
        landbridge sites add kyoto other@login.kyoto.example --slurm account=physics --slurm partition=main\n  \
        landbridge sites add lyon                                 repair it\n  \
        landbridge sites add home --dial-out                      this machine, which nobody can dial"
)]
pub(crate) struct AddArgs {
    /// The site's name: letters, digits, `.`, `_` and `-`
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Its login node in ssh's syntax: `[USER@]HOST[:PORT]`
    #[arg(value_name = "HOST")]
    pub place: Option<String>,
    /// Its nodes, such as n[1-4,7],big1, reached by ssh from the login node [default: from Slurm, else the login node]
    #[arg(long, value_name = "LIST")]
    pub nodes: Option<String>,
    /// A field of `[site.starter]` for Slurm, such as account, partition, qos, time or node_service; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub slurm: Vec<SlurmSetting>,
    /// Port of its gateway [default: the first free one from 7700]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Address at which other sites dial its gateway [default: HOST and the port]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub advertise: Option<String>,
    /// Let it dial the other sites, because they cannot dial it
    #[arg(long)]
    pub dial_out: bool,
    /// Never give other sites' gateways keys to log in there, even where a firewall lets only ssh through
    #[arg(long)]
    pub no_trunk_ssh: bool,
    /// Address at which its own nodes dial its gateway [default: the address towards the first node]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub inside: Option<String>,
    /// Folder there for the copies [default: ~/.local/share/landbridge]
    #[arg(long, value_name = "DIR")]
    pub folder: Option<String>,
    /// Copy the programs in this folder, built for that site's machines, instead of this command's own
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// Let its machine restart the gateway by itself, also after a reboot, through your systemd or your crontab there
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub newcomers: NewcomersArgs,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Sites to take over from other sites files.
#[derive(Debug, Args)]
pub(crate) struct NewcomersArgs {
    /// Take over site SITE from another machine's sites file without a question; may be given several times
    #[arg(long, value_name = "SITE")]
    pub accept: Vec<String>,
}

/// Make a ticket for a site that can only dial out
#[derive(Debug, Args)]
#[command(
    long_about = "Make a ticket for a cluster that you cannot log in to from here, or that nobody can dial. It is one \
        word and works once. Type `landbridge sites join NAME` at that cluster, which asks for it. Anybody who has it \
        can add a site to yours, so treat it as a password.",
    after_help = "Examples:\n  landbridge sites invite --minutes 30\n  landbridge sites invite --ticket FILE"
)]
pub(crate) struct InviteArgs {
    /// The site whose gateway the new site dials [default: the first that can be dialled]
    #[arg(long, value_name = "SITE")]
    pub at: Option<String>,
    /// Validity of the ticket, in minutes
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub minutes: u32,
    /// Write the ticket to this new file, readable by you only, instead of printing it
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub ticket: Option<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Make this machine a site, with a ticket
#[derive(Debug, Args)]
#[command(
    long_about = "Make this machine a site by a ticket that `landbridge sites invite` printed elsewhere. No ssh from \
        outside is needed, because its gateway, in the background, dials the others. Type it again with a new ticket \
        to repair the site.",
    after_help = "Examples:\n  landbridge sites join kyoto                 asks for the ticket\n  \
        landbridge sites join kyoto --ticket FILE"
)]
pub(crate) struct JoinArgs {
    /// The name of the new site
    #[arg(value_name = "NAME")]
    pub name: String,
    /// The ticket; other users of the machine can read it here [default: from standard input, as with `-`]
    #[arg(value_name = "TICKET", hide = true, conflicts_with = "file")]
    pub ticket: Option<String>,
    /// Read the ticket from this file [default: from standard input, which asks for it on a terminal]
    #[arg(long = "ticket", id = "file", value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Its nodes, as for `sites add`
    #[arg(long, value_name = "LIST")]
    pub nodes: Option<String>,
    /// Port of its gateway [default: the first free one from 7700]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Address at which other sites can dial it, if there is one
    #[arg(long, value_name = "HOST[:PORT]")]
    pub advertise: Option<String>,
    /// Address at which its own nodes dial its gateway
    #[arg(long, value_name = "HOST[:PORT]")]
    pub inside: Option<String>,
    /// Folder for the copies [default: ~/.local/share/landbridge]
    #[arg(long, value_name = "DIR")]
    pub folder: Option<String>,
    #[command(flatten)]
    pub newcomers: NewcomersArgs,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Remove a site and clean up there
#[derive(Debug, Args)]
#[command(
    long_about = "Remove a site from the sites file here and at all other sites, end its gateway, and remove the files that `sites add` \
        put there: the key, the log and, with the account's last site, the copies and the sites file.",
    after_help = "Example:\n  landbridge sites remove lyon"
)]
pub(crate) struct RemoveArgs {
    /// The site
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Remove it even if it has open jobs or cannot be reached
    #[arg(long)]
    pub force: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Start gateways that have ended
#[derive(Debug, Args)]
#[command(
    long_about = "Restart the gateways of these sites if they have ended, here or over ssh. A running gateway is left \
        alone, and no other site is contacted.",
    after_help = "Examples:\n  landbridge sites start lyon\n  landbridge sites start   every site of the sites file"
)]
pub(crate) struct StartArgs {
    /// The sites [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Copy files and folders to the sites
#[derive(Debug, Args)]
#[command(
    long_about = "Copy files and folders, such as a program or a Python environment, to the sites over ssh. A path below your home \
        directory here goes to the same place below your home directory there, any other path to the same path. \
        Permissions and symbolic links inside a folder are kept, unchanged files are not sent again, and nothing is \
        deleted there.",
    after_help = "Examples:\n  landbridge sites push ./solver\n  landbridge sites push ~/venv --to kyoto"
)]
pub(crate) struct PushArgs {
    /// Files and folders here
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,
    /// Only to this site; may be given several times [default: all sites]
    #[arg(long, value_name = "SITE")]
    pub to: Vec<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Distribute the sites file after you edited it; restarts only the gateways that need it
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub newcomers: NewcomersArgs,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// The flags of `landbridge sites list` and `status`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Show round trip and rate between all sites
#[derive(Debug, Args)]
#[command(
    long_about = "Show the network between all sites as your site's gateways know it: from each to each other the round trip, \
        the rate, its age, and whether it was seen on the traffic of jobs (passive) or by a transfer for this purpose \
        (active). Gateways watch their own trunks and tell each other; nothing is sent for this command unless --measure is \
        given. A rate that is older than five minutes is stale. Exit code 1 if no gateway of your site answers.",
    after_help = "Examples:\n  landbridge sites links\n  landbridge sites links --measure     measure unknown or stale paths now\n  \
        landbridge sites links --watch --json >> links.jsonl"
)]
pub(crate) struct LinksArgs {
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// The site where you type this command [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// Print again every second until interrupted
    #[arg(long)]
    pub watch: bool,
    /// First measure unknown and stale figures, pair by pair; waits until ranks are quiet
    #[arg(long)]
    pub measure: bool,
}

/// Try everything a run needs, link by link
#[derive(Debug, Args)]
#[command(
    long_about = "Try everything a run needs: the sites file, keys, your site's gateway, a trunk to every other site, an \
        agent on every node, the provider there, and a program if one is given. Prints a table of the tests with their \
        results and remedies. Then measures the path from each site to each other one: its round trip, and the rate of one \
        trunk in a transfer of 8 MiB or half a second (up to two on long paths), one pair at a time, in turns with running \
        jobs. Exit code 1 if a test fails.",
    after_help = "Examples:\n  landbridge sites check\n  landbridge sites check --quick\n  landbridge sites check --json -- ./solver"
)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// The site where you type this command [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    /// Measure only round trips, without transfers between sites
    #[arg(long)]
    pub quick: bool,
    /// At sites with Slurm, run one task as a job; by default only ask whether Slurm would accept one
    #[arg(long)]
    pub job: bool,
    /// Time limit for the job in the queue
    #[arg(long, value_name = "TIME", default_value = "10min", requires = "job", value_parser = types::quantity::parse_duration)]
    pub wait: Duration,
    /// A program (and its MPI) to look for on every node
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
