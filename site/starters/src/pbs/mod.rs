//! `pbs`: agents over ssh, on the nodes of the PBS job in which `run` is typed.
//!
//! `pbsdsh` is not used, because it does not pass standard input on: agents would have no lifeline.

use std::path::Path;

use thiserror::Error;
use wire::control::AllocatedNode;

use crate::batch::{BatchSystem, JobNodes, Variables, sum_of_slots};

/// The variable that holds the path of the job's file of nodes.
const NODE_FILE: &str = "PBS_NODEFILE";

/// Problems of a PBS job's environment.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum PbsJobError {
    /// The variable is missing.
    #[error("{NODE_FILE} is not set: run landbridge in the job's script, not under ssh")]
    Unset,
    /// The file of nodes cannot be read.
    #[error("{NODE_FILE} {path}: {problem}")]
    Unread {
        /// Its path.
        path: String,
        /// The system's error.
        problem: String,
    },
    /// The file of nodes is empty.
    #[error("{NODE_FILE} {0} names no node")]
    NoNode(String),
}

/// PBS's jobs, as their scripts see them.
pub(crate) struct PbsJobs;

impl BatchSystem for PbsJobs {
    fn job(&self, variables: Variables<'_>) -> Option<String> {
        variables("PBS_JOBID")
    }

    fn nodes<'a>(&'a self, variables: Variables<'a>) -> JobNodes<'a> {
        Box::pin(async move {
            let file = variables(NODE_FILE).ok_or(PbsJobError::Unset)?;
            Ok(node_file(Path::new(&file))?)
        })
    }
}

/// Reads PBS's file, which has one line for each slot. Nodes keep the order of their first lines.
fn node_file(path: &Path) -> Result<Vec<AllocatedNode>, PbsJobError> {
    let name = || path.display().to_string();
    let unread = |e: std::io::Error| PbsJobError::Unread { path: name(), problem: e.to_string() };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let nodes = sum_of_slots(lines.map(|name| (name, 1)));
    if nodes.is_empty() {
        return Err(PbsJobError::NoNode(name()));
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_node_file_are_slots() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "n1\nn1\nn2\n\nn1\n").unwrap();
        let nodes = node_file(file.path()).unwrap();
        assert_eq!(nodes, [("n1", 3), ("n2", 1)].map(|(name, slots)| AllocatedNode::new(name, slots)));
        std::fs::write(file.path(), "\n").unwrap();
        assert!(node_file(file.path()).unwrap_err().to_string().contains("names no node"));
        assert!(node_file(Path::new("/no/such/file")).unwrap_err().to_string().contains("/no/such/file"));
    }
}
