//! `pbs`: agents over ssh, on the nodes of the PBS job in which `run` is typed.
//!
//! `pbsdsh` is not used, because it does not pass standard input on: agents would have no lifeline.

use std::path::Path;

use gateway_hooks::{AgentOrder, AgentStarter, AllocationHandle, AllocationOrder, StartError};
use types::sites::Ssh;

use super::Started;
use super::own::Held;
use super::ssh::SshStarter;
use super::trial::Trial;

#[derive(Debug)]
pub(super) struct PbsStarter {
    ssh: SshStarter,
}

impl PbsStarter {
    pub(super) fn new(ssh: &Ssh, folder: &Path) -> PbsStarter {
        PbsStarter { ssh: SshStarter::new(ssh, folder) }
    }
}

impl AgentStarter for PbsStarter {
    fn start(&self, order: AgentOrder) -> Started {
        self.ssh.start(order)
    }

    fn allocate(&self, order: AllocationOrder) -> Result<Box<dyn AllocationHandle>, StartError> {
        match order.ask.held {
            Some(held) => Ok(Box::new(Held::new(held))),
            None if order.ask.ranks == 0 => {
                Ok(Box::new(Trial::known("those of the PBS job in which `landbridge run` is typed, which cannot be tried from here")))
            }
            None => Err(StartError(
                "its nodes are those of a PBS job, and Landbridge makes none: type `landbridge run` in the script of one \
                 (qsub), at this site"
                    .into(),
            )),
        }
    }
}
