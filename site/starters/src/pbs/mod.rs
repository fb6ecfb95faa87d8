//! `pbs`: agents over ssh, on the nodes of the PBS job in which `run` is typed.
//!
//! `pbsdsh` is not used, because it does not pass standard input on: agents would have no lifeline.

use thiserror::Error;

use crate::batch::{BatchSystem, JobNodes, NodeFile, Variables};

/// The job's file of nodes: one line for each slot.
const NODES: NodeFile =
    NodeFile { variable: "PBS_NODEFILE", form: "a node's name", line: |line| Some((line.trim(), 1)) };

/// The variable of the file of nodes is missing.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{} is not set: run landbridge in the job's script, not under ssh", NODES.variable)]
pub(crate) struct UnsetNodes;

/// PBS's jobs, as their scripts see them.
pub(crate) struct PbsJobs;

impl BatchSystem for PbsJobs {
    fn job(&self, variables: Variables<'_>) -> Option<String> {
        variables("PBS_JOBID")
    }

    fn nodes<'a>(&'a self, variables: Variables<'a>) -> JobNodes<'a> {
        Box::pin(async move {
            let file = variables(NODES.variable).ok_or(UnsetNodes)?;
            Ok(NODES.read(&file)?)
        })
    }
}

#[cfg(test)]
mod tests {
    use wire::control::AllocatedNode;

    use super::*;

    #[test]
    fn lines_of_a_node_file_are_slots() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "n1\nn1\nn2\n\nn1\n").unwrap();
        let nodes = NODES.read(file.path().to_str().unwrap()).unwrap();
        assert_eq!(nodes, [("n1", 3), ("n2", 1)].map(|(name, slots)| AllocatedNode::new(name, slots)));
        let unread = NODES.read("/no/such/file").unwrap_err().to_string();
        assert!(unread.starts_with("PBS_NODEFILE /no/such/file: "), "{unread}");
    }
}
