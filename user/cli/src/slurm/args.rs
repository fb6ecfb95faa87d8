//! The flags of `landbridge slurm`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use commands::slurm::install::{InstallRequest, PROGRAMS};
use commands::slurm::service::ServiceRequest;
use node_service::message::PORT;
use types::quantity::parse_bytes;

use crate::argument::ArgumentError;
use crate::sites::file::SitesFileArgs;

/// Stage files while other users' jobs run on a Slurm cluster: for its administrator
#[derive(Debug, Args)]
pub(crate) struct SlurmArgs {
    #[command(subcommand)]
    pub command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SlurmCommand {
    /// Install staging behind other users' jobs on this machine of a Slurm cluster
    Install(InstallArgs),
    /// Undo `slurm install` on this machine
    Uninstall(InstallArgs),
    NodeService(NodeServiceArgs),
    /// Look at the places in a job script's #BB_LUA lines before you submit it
    Check {
        /// The job script
        script: PathBuf,
        #[command(flatten)]
        sites: SitesFileArgs,
    },
    /// Started by gateways: calls a node's service to start an agent
    #[command(hide = true)]
    Call {
        /// Slurm's name of the node
        node: String,
        /// The port of the node's service
        port: u16,
    },
    /// Started by node services: runs a user's program, and ends all its descendants with it
    #[command(hide = true)]
    Supervise {
        /// The control group in which the program runs
        #[arg(long, value_name = "FOLDER")]
        group: Option<PathBuf>,
        /// The process id of the service
        holder: i32,
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<std::ffi::OsString>,
    },
    /// Started by node services: checks whether a path exists
    #[command(hide = true)]
    Look,
    /// Started by node services: removes staged files
    #[command(hide = true)]
    Remove,
    /// Started by node services: runs a step of a hook
    #[command(hide = true)]
    Step,
    /// Started by Slurm's controller
    #[command(hide = true)]
    Hook(HookArgs),
}

/// Run users' orders on this node as those users, until the service is stopped
#[derive(Debug, Args)]
#[command(
    long_about = "Do users' orders on this node as those users: start movers, which only `landbridge stage` uses, and remove \
        staged copies. An order comes with a munge credential, which proves its user. Runs as root, one on each node, \
        started by systemd (`landbridge slurm install`). Its child processes end with it."
)]
pub(crate) struct NodeServiceArgs {
    /// Listening address
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = format!("[::]:{PORT}"))]
    pub listen: String,
    /// Slurm's name of this node [default: the host's name up to the first dot]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// The socket of munged [default: from Slurm's configuration, else munge's own]
    #[arg(long, value_name = "PATH")]
    pub munge_socket: Option<PathBuf>,
    /// A local socket for the hooks of Slurm's controller, on the controller's machine only
    #[arg(long, value_name = "PATH")]
    pub hooks: Option<PathBuf>,
    /// The user id of Slurm's controller [default: from Slurm's configuration]
    #[arg(long, value_name = "UID")]
    pub slurm_user: Option<u32>,
    /// Maximum loss of other users' applications to a mover, in percent of their time; an upper bound for its --harm
    #[arg(long, value_name = "PERCENT", default_value = "3", value_parser = percent)]
    pub most_harm: f64,
    /// Maximum memory for all movers of a user on this node
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = user_memory)]
    pub user_memory: u64,
    /// A folder owned by root for a copy of this program that users can execute but not read, so that they cannot trace
    /// it. Its file system must allow programs
    #[arg(long, value_name = "FOLDER", default_value = PROGRAMS)]
    pub programs: PathBuf,
    /// A variable of the service's environment to pass on to the programs it starts
    #[arg(long, value_name = "NAME", default_values = ["SLURM_CONF", "TZ"])]
    pub keep_variable: Vec<String>,
}

impl NodeServiceArgs {
    pub(super) fn request(&self) -> ServiceRequest {
        ServiceRequest {
            listen: self.listen.clone(),
            node: self.node.clone(),
            munge_socket: self.munge_socket.clone(),
            hooks: self.hooks.clone(),
            slurm_user: self.slurm_user,
            most_harm: self.most_harm,
            user_memory: self.user_memory,
            programs: self.programs.clone(),
            keep_variable: self.keep_variable.clone(),
        }
    }
}

fn percent(text: &str) -> Result<f64, ArgumentError> {
    let percent: Option<f64> = text.parse().ok();
    percent.filter(|percent| (0.0..=100.0).contains(percent)).ok_or(ArgumentError::Percent)
}

/// Minimum of `--user-memory`: less is too little for the blocks of a mover.
const LEAST_USER_MEMORY: u64 = 512 << 20;

fn user_memory(text: &str) -> Result<u64, ArgumentError> {
    let bytes = parse_bytes(text)?;
    if bytes < LEAST_USER_MEMORY { Err(ArgumentError::UserMemory) } else { Ok(bytes) }
}

/// Parts to install, and their places
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// The hooks for the burst buffer of Slurm's controller, which runs on this machine
    #[arg(long)]
    pub controller: bool,
    /// Only show the changes
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Do not start or stop the service: only write files
    #[arg(long)]
    pub no_start: bool,
    /// Slurm's configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/slurm/slurm.conf")]
    pub conf: PathBuf,
    /// The folder of systemd's units
    #[arg(long, value_name = "FOLDER", default_value = "/etc/systemd/system")]
    pub units: PathBuf,
    /// The folder of job records, writable by Slurm's user [default: in Slurm's StateSaveLocation]
    #[arg(long, value_name = "FOLDER")]
    pub state: Option<PathBuf>,
    /// The socket between the hooks and the service on the controller's machine
    #[arg(long, value_name = "PATH", default_value = "/run/landbridge/hooks")]
    pub socket: PathBuf,
}

impl InstallArgs {
    pub(super) fn request(&self) -> InstallRequest {
        InstallRequest {
            controller: self.controller,
            dry_run: self.dry_run,
            no_start: self.no_start,
            conf: self.conf.clone(),
            units: self.units.clone(),
            state: self.state.clone(),
            socket: self.socket.clone(),
        }
    }
}

/// Context of a hook
#[derive(Debug, Args)]
pub(crate) struct HookArgs {
    /// The folder of job records
    #[arg(long, value_name = "FOLDER")]
    pub state: PathBuf,
    /// The socket of this machine's node service
    #[arg(long, value_name = "PATH")]
    pub service: PathBuf,
    #[command(subcommand)]
    pub hook: Hook,
}

/// The hooks, by Slurm's names.
#[derive(Debug, Subcommand)]
pub(crate) enum Hook {
    JobProcess {
        script: PathBuf,
    },
    DataIn {
        job: u32,
        script: PathBuf,
    },
    PreRun {
        job: u32,
        script: PathBuf,
    },
    DataOut {
        job: u32,
        script: PathBuf,
    },
    JobTeardown {
        job: u32,
    },
    /// Not one of Slurm's hooks: removes copies that Slurm should have torn down.
    Sweep,
    GetStatus,
}
