//! `slurm`: agents as steps of a Slurm job, one per node. The job belongs to the user, or `salloc` made it.

mod choices;
mod command;
mod job;
mod queue;
mod salloc;
mod trial;

pub(crate) use self::job::SlurmJobs;
use std::process::Stdio;

use gateway_tasks::{AgentOrder, AgentStarter, AllocationHandle, AllocationOrder, StartError};
use types::sites::Slurm;
use wire::control::{HeldAllocation, NodeAsk};

pub use self::salloc::give_back;

use self::command::{ALLOCATION, slurm_command};
use self::salloc::Salloc;
use self::trial::Trial;
use crate::agent_command::{Started, agent_words, order_line};
use crate::leash::HOLD;
use crate::own::Held;
use crate::remote::process::{AgentProcess, Manner};

/// The script that salloc runs beside the gateway: it prints the job, its tasks and its nodes, then keeps the job until
/// the gateway sends `end`. If the gateway dies without sending it, the job is kept as long as agents run in it,
/// because other gateways may continue.
const SCRIPT: &str = r#"trap '' TERM HUP
kill -USR1 "$LANDBRIDGE_HOLDER"
echo "$SLURM_JOB_ID $SLURM_TASKS_PER_NODE" && scontrol show hostnames "$SLURM_JOB_NODELIST" && echo || exit
read -r word && exit
exec >/dev/null 2>&1
while :; do
    steps=$(squeue --noheader --steps --format=%i --jobs "$SLURM_JOB_ID") && case "$steps" in *.[0-9]*) ;; *) exit ;; esac
    squeue --noheader --format=%T --jobs "$SLURM_JOB_ID" | grep -qx RUNNING || exit
    sleep 0.5
done"#;

/// The subcommand that asks a node's service to start an agent. Its arguments are the node and the port.
const NODE_CALL: [&str; 2] = ["slurm", "call"];

const NO_SERVICE: &str = "its gateway's sites file has no `node_service` in [site.starter], the port of the service that \
                          starts movers without a job";

/// The name of a job made for Landbridge; no job of the user's own has it.
fn job_name(job: impl std::fmt::Display) -> String {
    format!("landbridge-{job}")
}

/// The options with which srun starts a step in a job: `12`, or `12+1` for component 1 of heterogeneous job 12.
fn job_words(id: &str) -> Vec<String> {
    match id.split_once('+') {
        Some((job, component)) => vec![format!("--jobid={job}"), format!("--het-group={component}")],
        None => vec![format!("--jobid={id}")],
    }
}

#[derive(Debug)]
pub(crate) struct SlurmStarter {
    slurm: Slurm,
}

impl SlurmStarter {
    pub(crate) fn new(slurm: &Slurm) -> SlurmStarter {
        SlurmStarter { slurm: slurm.clone() }
    }

    fn salloc_words(&self, name: &str, ask: &NodeAsk) -> Vec<String> {
        let mut words = vec!["salloc".to_owned(), "--no-bell".into(), format!("--job-name={}", job_name(name))];
        words.push(format!("--ntasks={}", ask.ranks));
        if let Some(per_node) = ask.per_node {
            words.push(format!("--nodes={}", ask.ranks.div_ceil(per_node.max(1))));
            words.push(format!("--ntasks-per-node={per_node}"));
        }
        let slurm = &self.slurm;
        let fields =
            [("partition", &slurm.partition), ("account", &slurm.account), ("qos", &slurm.qos), ("time", &slurm.time)];
        words.extend(fields.iter().filter_map(|(name, value)| Some(format!("--{name}={}", value.as_ref()?))));
        words.extend(slurm.options.iter().cloned());
        words
    }
}

impl SlurmStarter {
    /// Starts an agent through a node's service, without a job. The program beside the gateway calls the service.
    fn by_service(&self, order: AgentOrder) -> Started {
        let port = self.slurm.node_service.ok_or_else(|| StartError(NO_SERVICE.into()))?;
        let words = agent_words(None)?;
        let mut command = slurm_command(&words[0]);
        command.args(NODE_CALL).arg(&order.node).arg(port.to_string());
        // A fabric does not move files faster, and the node would not load its library for a user without a job.
        let order = AgentOrder { fabric: None, ..order };
        Ok(Box::new(AgentProcess::start(command, order_line(order)?, Manner::Remote)?))
    }
}

impl AgentStarter for SlurmStarter {
    fn start(&self, order: AgentOrder) -> Started {
        let id = order.allocation.clone().ok_or_else(|| StartError("its Slurm job is over".into()))?;
        if id == HeldAllocation::NODE_SERVICE {
            return self.by_service(order);
        }
        let mut command = slurm_command("srun");
        // One task that may use all resources of the job on the node, in parallel to the user's own steps.
        command.args(["--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--mem=0", "--mpi=none", "--quiet"]);
        command.args(job_words(&id)).arg(format!("--nodelist={}", order.node));
        command.env(ALLOCATION, job_name(order.job));
        // The gateway's working directory may not exist there. Ranks get the user's directory.
        command.args(["--chdir=/", "--"]).args(agent_words(self.slurm.landbridge.as_deref())?);
        Ok(Box::new(AgentProcess::start(command, order_line(order)?, Manner::Remote).map_err(unavailable)?))
    }

    fn allocate(&self, order: AllocationOrder) -> Result<Box<dyn AllocationHandle>, StartError> {
        if let Some(held) = order.ask.held {
            if held.id == HeldAllocation::NODE_SERVICE && self.slurm.node_service.is_none() {
                return Err(StartError(NO_SERVICE.into()));
            }
            return Ok(Box::new(Held::new(held)));
        }
        if order.ask.ranks == 0 {
            let ask = NodeAsk { ranks: 1, ..order.ask };
            let mut words = self.salloc_words(&order.job.to_string(), &ask);
            words.push("--hold".into());
            return Ok(Box::new(Trial::held(start_salloc(&words)?)));
        }
        Ok(Box::new(start_salloc(&self.salloc_words(&order.job.to_string(), &order.ask))?))
    }
}

/// Starts salloc with these words under [`HOLD`]: until its job has begun, it ends with this gateway.
fn start_salloc(words: &[String]) -> Result<Salloc, StartError> {
    let mut command = slurm_command(
        std::env::current_exe().map_err(|e| StartError(format!("cannot find the landbridge command itself: {e}")))?,
    );
    command.arg(HOLD).arg(std::process::id().to_string()).arg("--").args(words).args(["sh", "-c", SCRIPT]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.process_group(0);
    let child = command.spawn().map_err(|e| unavailable(StartError(format!("cannot start salloc: {e}"))))?;
    Ok(Salloc::new(child, words.join(" ")))
}

fn unavailable(StartError(problem): StartError) -> StartError {
    StartError(format!("{problem}: run the gateway on a machine that has Slurm's commands, such as the login node"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_of_a_heterogeneous_job_is_named_by_its_number() {
        assert_eq!(job_words("12"), ["--jobid=12"]);
        assert_eq!(job_words("12+1"), ["--jobid=12", "--het-group=1"]);
    }

    #[test]
    fn options_of_salloc() {
        let slurm = Slurm {
            partition: Some("gpu".into()),
            time: Some("1:00:00".into()),
            options: vec!["--exclusive".into()],
            ..Slurm::default()
        };
        let words = |per_node| {
            let ask = NodeAsk { ranks: 7, per_node, wait_s: 1, held: None, elsewhere: 0, beyond_home: 0 };
            SlurmStarter::new(&slurm).salloc_words("ab", &ask).join(" ")
        };
        let rest = "--partition=gpu --time=1:00:00 --exclusive";
        assert_eq!(words(None), format!("salloc --no-bell --job-name=landbridge-ab --ntasks=7 {rest}"));
        assert!(words(Some(2)).contains("--ntasks=7 --nodes=4 --ntasks-per-node=2 --partition"));
    }
}
