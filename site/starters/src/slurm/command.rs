//! Commands of Slurm, in the environment that they need.

use tokio::process::Command;

/// The variable with the name of the job around a keeper, if the job was made for its agent.
pub(super) const ALLOCATION: &str = "LANDBRIDGE_ALLOCATION";

/// A Slurm command, without the variables of a job in which the gateway itself may run.
pub(super) fn slurm_command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("SLURM_") && name != "SLURM_CONF") {
            command.env_remove(name);
        }
    }
    command
}
