//! The flags of `landbridge slurm`.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use node_service::message::PORT;

use crate::slurm_service;

/// Staging behind other users' jobs on a Slurm cluster: for its administrator
#[derive(Debug, Args)]
pub(crate) struct SlurmArgs {
    #[command(subcommand)]
    pub command: SlurmCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SlurmCommand {
    NodeService(NodeServiceArgs),
    /// Started by gateways: has a node's service start an agent
    #[command(hide = true)]
    Call {
        /// Slurm's name of the node
        node: String,
        /// The port of its service
        port: u16,
    },
    /// Started by node services: removes what was staged
    #[command(hide = true)]
    Remove,
}

/// Do users' orders on this node as those users, until it is stopped
#[derive(Debug, Args)]
#[command(
    long_about = "Do users' orders on this node as those users: start movers, which only `landbridge stage` uses, and remove \
        what was staged. An order comes with a munge credential, so munge says whose it is. Runs as root, one on each node, \
        started by systemd (`landbridge slurm install`). What it starts ends with it."
)]
pub(crate) struct NodeServiceArgs {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = format!("0.0.0.0:{PORT}"))]
    pub listen: String,
    /// Slurm's name of this node [default: the host's name up to the first dot]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// The socket of munged [default: as Slurm's configuration says, else munge's own]
    #[arg(long, value_name = "PATH")]
    pub munge_socket: Option<PathBuf>,
    /// A local socket for the hooks of Slurm's controller, on its machine alone
    #[arg(long, value_name = "PATH")]
    pub hooks: Option<PathBuf>,
    /// The user id of Slurm's controller [default: as Slurm's configuration says]
    #[arg(long, value_name = "UID")]
    pub slurm_user: Option<u32>,
    /// A variable of the service's environment that what it starts has too
    #[arg(long, value_name = "NAME", default_values = ["SLURM_CONF", "TZ"])]
    pub keep_variable: Vec<String>,
}

/// Does what was typed, and returns the exit code.
pub(crate) fn slurm(args: &SlurmArgs) -> Result<i32> {
    match &args.command {
        SlurmCommand::NodeService(args) => slurm_service::serve(args),
        SlurmCommand::Call { node, port } => slurm_service::call(node, *port),
        SlurmCommand::Remove => slurm_service::remove(),
    }
}
