//! The nodes of a Slurm job, from the environment of its script and from what salloc prints.

use std::time::Duration;

use job::capture::capture;
use thiserror::Error;
use tokio::process::Command;
use wire::control::AllocatedNode;

use crate::batch::{BatchSystem, JobNodes, Variables};

const LIMIT: Duration = Duration::from_secs(10);
/// Most components of a heterogeneous job; Slurm's own limit.
const MOST_COMPONENTS: u32 = 128;

/// Problems of a Slurm job's environment.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum SlurmJobError {
    /// A variable is missing.
    #[error("{0} is not set: run landbridge in the job's script, not under srun or ssh")]
    Unset(String),
    /// `SLURM_HET_SIZE` is not a number of components.
    #[error("SLURM_HET_SIZE=`{0}` is not the number of components of a heterogeneous job")]
    Components(String),
    /// srun started a launcher in every task of a step.
    #[error("srun started several copies of `landbridge run`: type it once, in the job's script")]
    Several,
    /// The numbers of tasks do not fit the nodes.
    #[error("SLURM_TASKS_PER_NODE=`{tasks}` does not fit its {nodes} nodes")]
    Tasks {
        /// The variable's value.
        tasks: String,
        /// The number of nodes.
        nodes: usize,
    },
    /// Slurm cannot expand its own list of nodes.
    #[error("`scontrol show hostnames {list}` failed: {problem}")]
    HostNames {
        list: String,
        /// The reason.
        problem: String,
    },
    /// The first line from the script inside the job is not a job and its tasks.
    #[error("`{0}` is not a job and its tasks")]
    Grant(String),
}

/// Slurm's jobs, as their scripts see them.
pub(crate) struct SlurmJobs;

impl BatchSystem for SlurmJobs {
    fn job(&self, variables: Variables<'_>) -> Option<String> {
        variables("SLURM_JOB_ID")
    }

    fn nodes<'a>(&'a self, variables: Variables<'a>) -> JobNodes<'a> {
        Box::pin(async move {
            if variables("SLURM_STEP_NUM_TASKS").is_some_and(|tasks| tasks != "1") {
                return Err(SlurmJobError::Several.into());
            }
            Ok(nodes(variables).await?)
        })
    }
}

/// The nodes of the Slurm job that these variables describe. A heterogeneous job has several components, each with
/// variables of its own.
async fn nodes(variable: Variables<'_>) -> Result<Vec<AllocatedNode>, SlurmJobError> {
    const COMPONENTS: &str = "SLURM_HET_SIZE";
    let part = async |suffix: &str| {
        let get = |name: &str| {
            let name = format!("{name}{suffix}");
            variable(&name).ok_or(SlurmJobError::Unset(name))
        };
        let (list, tasks) = (get("SLURM_JOB_NODELIST")?, get("SLURM_TASKS_PER_NODE")?);
        with_slots(host_names(&list).await?, &tasks)
    };
    let Some(size) = variable(COMPONENTS) else { return part("").await };
    let count = size.parse::<u32>().ok().filter(|count| (1..=MOST_COMPONENTS).contains(count));
    let count = count.ok_or(SlurmJobError::Components(size))?;
    let mut parts = Vec::new();
    for component in 0..count {
        parts.push(part(&format!("_HET_GROUP_{component}")).await?);
    }
    Ok(join_components(parts))
}

/// The nodes of all components of a heterogeneous job. A node of several components belongs to the first of them, and
/// has the tasks of all.
fn join_components(parts: Vec<Vec<AllocatedNode>>) -> Vec<AllocatedNode> {
    let mut nodes: Vec<AllocatedNode> = Vec::new();
    for (component, part) in (0..).zip(parts) {
        for node in part {
            match nodes.iter_mut().find(|known| known.name == node.name) {
                Some(known) => known.slots = known.slots.saturating_add(node.slots),
                None => nodes.push(AllocatedNode { component: Some(component), ..node }),
            }
        }
    }
    nodes
}

/// Pairs nodes with Slurm's numbers of tasks, such as `2(x3),1`.
///
/// # Errors
/// The text has another form, or it does not have one number for each node.
pub(super) fn with_slots(names: Vec<String>, tasks: &str) -> Result<Vec<AllocatedNode>, SlurmJobError> {
    let wrong = || SlurmJobError::Tasks { tasks: tasks.to_owned(), nodes: names.len() };
    let mut slots = Vec::new();
    for part in tasks.split(',') {
        let (number, times) = match part.split_once("(x") {
            Some((number, times)) => (number, times.strip_suffix(')').ok_or_else(wrong)?),
            None => (part, "1"),
        };
        let (number, times): (u32, usize) = number.parse().ok().zip(times.parse().ok()).ok_or_else(wrong)?;
        if slots.len() + times > names.len() {
            return Err(wrong());
        }
        slots.extend(std::iter::repeat_n(number, times));
    }
    if slots.len() != names.len() {
        return Err(wrong());
    }
    Ok(names.into_iter().zip(slots).map(|(name, slots)| AllocatedNode::new(name, slots)).collect())
}

/// Expands a list such as `n[1-3,07]` with Slurm's own command.
async fn host_names(list: &str) -> Result<Vec<String>, SlurmJobError> {
    let mut command = Command::new("scontrol");
    command.args(["show", "hostnames", list]);
    let failed = |problem| SlurmJobError::HostNames { list: list.to_owned(), problem };
    let output = capture(&mut command, LIMIT).await.map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.stderr.last_lines().to_string()));
    }
    Ok(output.text().lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_gets_its_number_of_tasks() {
        let names = |count: usize| (1..=count).map(|n| format!("n{n}")).collect::<Vec<_>>();
        let slots = |tasks: &str, count| {
            with_slots(names(count), tasks).map(|nodes| nodes.iter().map(|node| node.slots).collect::<Vec<_>>())
        };
        assert_eq!(slots("2(x3),1", 4), Ok(vec![2, 2, 2, 1]));
        assert_eq!(slots("7", 1), Ok(vec![7]));
        for (tasks, count) in
            [("2(x3)", 2), ("2", 2), ("", 1), ("2(x", 1), ("x(x1)", 1), ("1(x99999999999999999999)", 1)]
        {
            assert!(slots(tasks, count).is_err(), "{tasks}");
        }
    }

    #[test]
    fn nodes_of_all_components_are_used() {
        let part =
            |nodes: &[(&str, u32)]| nodes.iter().map(|(name, slots)| AllocatedNode::new(*name, *slots)).collect();
        let nodes = join_components(vec![part(&[("n1", 2)]), part(&[("n2", 1), ("n1", 3)])]);
        let shown: Vec<_> = nodes.iter().map(|node| (node.job("7"), node.name.as_str(), node.slots)).collect();
        assert_eq!(shown, [("7+0".to_owned(), "n1", 5), ("7+1".to_owned(), "n2", 1)]);
    }
}
