//! Starters: the ways in which a gateway starts the agents of its site, one file or folder for each kind in the sites
//! file.
//!
//! Every starter runs one program per node, which passes its standard input on to the node's agent. The input is first
//! the agent's order and then its lifeline: it ends with the gateway, however the gateway ends. The agent then ends
//! too, unless it is connected to another gateway of the site.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod agent_command;
mod batch;
mod grid_engine;
pub mod held;
pub mod leash;
mod own;
mod pbs;
mod remote;
mod slurm;
pub mod tunnel;

use std::path::Path;

use gateway_tasks::AgentStarter;
use types::sites::Starter;

pub use self::slurm::give_back;

use self::batch::BatchSystem;
use self::own::OwnJobStarter;
use self::remote::ssh::SshStarter;
use self::remote::{local, template};

/// The starter of a site. `folder`: the sites file's folder.
pub fn starter(site: &Starter, folder: &Path) -> Box<dyn AgentStarter> {
    let own_job = |system, ssh, in_job| {
        let submits = site.submits_with().unwrap_or_default();
        Box::new(OwnJobStarter::new((system, submits), SshStarter::new(ssh, folder), in_job))
    };
    match site {
        Starter::Local => Box::new(local::LocalStarter),
        Starter::Ssh(ssh) => Box::new(SshStarter::new(ssh, folder)),
        Starter::Template(template) => Box::new(template::TemplateStarter::new(template)),
        Starter::Slurm(slurm) => Box::new(slurm::SlurmStarter::new(slurm)),
        Starter::Pbs(ssh) => own_job("PBS", ssh, Some(pbs::in_job)),
        Starter::GridEngine(ssh) => own_job("Grid Engine", ssh, None),
    }
}

/// The batch system of a site.
fn batch_system(site: &Starter) -> Option<&'static dyn BatchSystem> {
    match site {
        Starter::Slurm(_) => Some(&slurm::SlurmJobs),
        Starter::Pbs(_) => Some(&pbs::PbsJobs),
        Starter::GridEngine(_) => Some(&grid_engine::GridEngineJobs),
        Starter::Local | Starter::Ssh(_) | Starter::Template(_) => None,
    }
}

/// The starter of the agents that run beside a gateway and forward ports.
pub fn beside() -> Box<dyn AgentStarter> {
    Box::new(local::LocalStarter)
}
