//! `gridengine`: agents over ssh, on the nodes of the Grid Engine job in which `run` is typed.
//!
//! `qrsh -inherit` is not used: it starts programs only from inside the job, where the gateway does not run.

use std::path::Path;

use job::host_name;
use thiserror::Error;
use wire::control::AllocatedNode;

use crate::batch::{BatchSystem, JobNodes, NodeFile, Variables};

/// The file with the hosts of a parallel job. Each line has a host, its slots, the queue and processors (man page
/// `sge_pe(5)`); a host may have a line for each queue.
const HOSTS: NodeFile = NodeFile { variable: "PE_HOSTFILE", form: "a host and its number of slots", line: host };
/// The variable that holds the number of a job; other programs use this name too.
const JOB: &str = "JOB_ID";
/// The variable that Grid Engine alone sets in each job: the number of an array's task, or `undefined`.
const TASK: &str = "SGE_TASK_ID";

/// The variable of the file of hosts is missing in a parallel job.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("{} is not set, although NSLOTS is above 1: run landbridge in the job's script, not under ssh", HOSTS.variable)]
pub(crate) struct UnsetHosts;

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
            let slots: Option<u32> = variables("NSLOTS").and_then(|slots| slots.parse().ok());
            // A job without a parallel environment has one slot, on this machine. If it was submitted with `qsub -V`
            // from within a parallel job, it has that job's variable.
            let another_jobs = |file: &str| {
                slots == Some(1)
                    && variables("SGE_JOB_SPOOL_DIR").is_some_and(|own| Path::new(file).parent() != Some(own.as_ref()))
            };
            match variables(HOSTS.variable).filter(|file| !another_jobs(file)) {
                Some(file) => Ok(HOSTS.read(&file)?),
                None if slots.is_some_and(|slots| slots > 1) => Err(UnsetHosts.into()),
                None => Ok(vec![AllocatedNode::new(host_name(), 1)]),
            }
        })
    }
}

fn host(line: &str) -> Option<(&str, u32)> {
    let mut words = line.split_whitespace();
    let host = words.next()?;
    let slots = words.next()?.parse().ok().filter(|slots| *slots > 0)?;
    Some((host, slots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_host_and_its_slots() {
        for (line, expected) in [
            ("n1 2 main.q@n1 UNDEFINED", Some(("n1", 2))),
            ("n1 1 other.q@n1 0,1:0,2", Some(("n1", 1))),
            ("n1", None),
            ("n1 0 q U", None),
            ("n1 -1 q U", None),
            ("n1 4294967296 q U", None),
        ] {
            assert_eq!(host(line), expected, "{line}");
        }
    }

    #[tokio::test]
    async fn a_job_is_known_by_its_own_variables() {
        let with = |variables: &'static [(&str, &str)]| {
            move |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(GridEngineJobs.job(&with(&[("JOB_ID", "7")])), None, "some other program's");
        assert_eq!(GridEngineJobs.job(&with(&[("JOB_ID", "7"), ("SGE_TASK_ID", "undefined")])), Some("7".into()));
        assert_eq!(GridEngineJobs.job(&with(&[("JOB_ID", "7"), ("SGE_TASK_ID", "3")])), Some("7.3".into()));
    }

    #[tokio::test]
    async fn only_the_jobs_own_hosts_are_used() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = own.path().to_str().unwrap();
        let file = |folder: &Path| {
            std::fs::write(folder.join("pe_hostfile"), "n1 2 q U\nn2 1 q U\n").unwrap();
            folder.join("pe_hostfile").to_str().unwrap().to_owned()
        };
        let (of_own, of_other) = (file(own.path()), file(other.path()));
        let here = vec![AllocatedNode::new(host_name(), 1)];
        let both = [("n1", 2), ("n2", 1)].map(|(name, slots)| AllocatedNode::new(name, slots)).to_vec();
        for (file, slots, expected) in [
            (None, None, Some(&here)),
            (None, Some("1"), Some(&here)),
            (None, Some("3"), None),
            (Some(&of_own), Some("3"), Some(&both)),
            (Some(&of_own), Some("1"), Some(&both)),
            (Some(&of_other), Some("1"), Some(&here)),
            (Some(&of_other), Some("3"), Some(&both)),
        ] {
            let variables = |name: &str| match name {
                "PE_HOSTFILE" => file.cloned(),
                "NSLOTS" => slots.map(str::to_owned),
                "SGE_JOB_SPOOL_DIR" => Some(folder.to_owned()),
                _ => None,
            };
            let nodes = GridEngineJobs.nodes(&variables).await;
            assert_eq!(nodes.ok().as_ref(), expected, "{file:?} {slots:?}");
        }
    }
}
