//! `gridengine`: agents over ssh, on the nodes of the Grid Engine job in which `run` is typed.
//!
//! `qrsh -inherit` is not used: it starts programs only from inside the job, where the gateway does not run.

use std::path::Path;

use job::host_name;
use thiserror::Error;
use wire::control::AllocatedNode;

use crate::batch::{BatchSystem, JobNodes, Variables, sum_of_slots};

/// The variable that holds the path of the file with the hosts of a parallel job.
const HOST_FILE: &str = "PE_HOSTFILE";
/// The variable that holds the number of a job; other programs use this name too.
const JOB: &str = "JOB_ID";
/// The variable that Grid Engine alone sets in each job: the number of an array's task, or `undefined`.
const TASK: &str = "SGE_TASK_ID";

/// Problems of a Grid Engine job's environment.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum GridEngineJobError {
    /// The file of hosts cannot be read.
    #[error("{HOST_FILE} {path}: {problem}")]
    Unread {
        /// Its path.
        path: String,
        /// The system's error.
        problem: String,
    },
    /// A line of the file does not name a host and its slots.
    #[error("{HOST_FILE} {path}, line {line}: `{text}` is not a host and its number of slots")]
    Malformed { path: String, line: usize, text: String },
    /// The file of hosts is empty.
    #[error("{HOST_FILE} {0} names no host")]
    NoHost(String),
}

/// Grid Engine's jobs, as their scripts see them.
pub(crate) struct GridEngineJobs;

impl BatchSystem for GridEngineJobs {
    fn job(&self, variables: Variables<'_>) -> Option<String> {
        let task = variables(TASK)?;
        let job = variables(JOB)?;
        Some(if task == "undefined" { job } else { format!("{job}.{task}") })
    }

    fn nodes<'a>(&'a self, variables: Variables<'a>) -> JobNodes<'a> {
        Box::pin(async move {
            match variables(HOST_FILE) {
                Some(file) => Ok(host_file(Path::new(&file))?),
                // A job without a parallel environment has one slot, on this machine.
                None => Ok(vec![AllocatedNode::new(host_name(), 1)]),
            }
        })
    }
}

/// Reads Grid Engine's file. Each line has a host, its slots, the queue and processors (man page `sge_pe(5)`); a host
/// may have a line for each queue.
fn host_file(path: &Path) -> Result<Vec<AllocatedNode>, GridEngineJobError> {
    let name = || path.display().to_string();
    let unread = |e: std::io::Error| GridEngineJobError::Unread { path: name(), problem: e.to_string() };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    let mut hosts = Vec::new();
    for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
        let mut words = text.split_whitespace();
        let slots = |word: &str| word.parse().ok().filter(|slots| *slots > 0);
        let host = words.next().zip(words.next().and_then(slots));
        let malformed = || GridEngineJobError::Malformed { path: name(), line, text: text.escape_debug().to_string() };
        hosts.push(host.ok_or_else(malformed)?);
    }
    if hosts.is_empty() {
        return Err(GridEngineJobError::NoHost(name()));
    }
    Ok(sum_of_slots(hosts.into_iter()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<AllocatedNode>, GridEngineJobError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        host_file(file.path())
    }

    #[test]
    fn each_host_has_the_slots_of_its_lines() {
        let text = "n1 2 main.q@n1 UNDEFINED\nn2 1 main.q@n2 UNDEFINED\nn1 1 other.q@n1 0,1:0,2\n";
        assert_eq!(read(text).unwrap(), [("n1", 3), ("n2", 1)].map(|(name, slots)| AllocatedNode::new(name, slots)));
    }

    #[test]
    fn other_files_are_refused_with_the_line() {
        for (text, problem) in [
            ("", "names no host"),
            ("\n \n", "names no host"),
            ("n1 2 q U\nn2\n", "line 2: `n2` is not"),
            ("n1 0 q U\n", "line 1: `n1 0 q U`"),
            ("n1 -1 q U\n", "line 1"),
            ("\u{1b}[2J x\n", "line 1: `\\u{1b}[2J x`"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with("PE_HOSTFILE /") && error.contains(problem), "{error}");
        }
        assert!(host_file(Path::new("/no/such/file")).unwrap_err().to_string().contains("/no/such/file"));
    }

    #[tokio::test]
    async fn a_job_is_known_by_its_own_variables() {
        let with = |variables: &'static [(&str, &str)]| {
            move |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(GridEngineJobs.job(&with(&[("JOB_ID", "7")])), None, "some other program's");
        assert_eq!(GridEngineJobs.job(&with(&[("JOB_ID", "7"), ("SGE_TASK_ID", "undefined")])), Some("7".into()));
        assert_eq!(GridEngineJobs.job(&with(&[("JOB_ID", "7"), ("SGE_TASK_ID", "3")])), Some("7.3".into()));
        let nodes = GridEngineJobs.nodes(&with(&[])).await.unwrap();
        assert_eq!(nodes, [AllocatedNode::new(host_name(), 1)]);
    }
}
