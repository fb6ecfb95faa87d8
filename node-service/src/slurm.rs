//! What Slurm's own commands say about its configuration and its nodes.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use thiserror::Error;

use crate::credential::socket_of;
use crate::hook::{Cluster, Prediction};

/// Slurm does not say what it was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SlurmError {
    #[error("cannot run {command}: {source}: this needs a machine with Slurm's commands")]
    Command { command: String, source: std::io::Error },
    #[error("`{command}`: {words}")]
    Failed { command: String, words: String },
    #[error("Slurm knows no node `{0}`")]
    Node(String),
    #[error("`{command}` has no {what}")]
    Output { command: String, what: String },
}

/// Runs one of Slurm's commands, and returns its output.
///
/// # Errors
/// [`SlurmError`].
pub fn ask(words: &[&str]) -> Result<String, SlurmError> {
    let command = words.join(" ");
    let (name, rest) = words.split_first().unwrap_or((&"", &[]));
    // Times are seconds since 1970, not in a zone of this machine.
    let done = Command::new(name).args(rest).env("SLURM_TIME_FORMAT", "%s").stdin(Stdio::null()).output();
    let done = done.map_err(|source| SlurmError::Command { command: command.clone(), source })?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => {
            let words = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
            Err(SlurmError::Failed { command, words: words.split_whitespace().collect::<Vec<_>>().join(" ") })
        }
    }
}

/// The configuration in use.
#[derive(Clone, Debug, Default)]
pub struct Config(String);

impl Config {
    /// Asks Slurm's controller.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn ask() -> Result<Config, SlurmError> {
        ask(&["scontrol", "show", "config"]).map(Config)
    }

    /// The value of a parameter; `None` if it is not set.
    pub fn get(&self, key: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once('=').is_some_and(|(name, _)| name.trim() == key);
        let value = self.0.lines().find(|line| of(line))?.split_once('=')?.1.trim();
        (!value.is_empty() && value != "(null)").then_some(value)
    }

    /// The socket of munged, if it is not the usual one.
    pub fn munge_socket(&self) -> Option<PathBuf> {
        Some(socket_of(self.get("AuthInfo")?)?.to_owned())
    }

    /// The user id of the controller, from a value such as `slurm(64030)`.
    pub fn user(&self) -> Option<u32> {
        self.get("SlurmUser")?.split_once('(')?.1.strip_suffix(')')?.parse().ok()
    }
}

/// Whether a text can be the name of one node, and nothing else to Slurm's commands.
pub fn is_node(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 255 && !name.starts_with(['-', '.']) && name.chars().all(plain)
}

/// Where a node is reached, by Slurm's name for it.
///
/// # Errors
/// [`SlurmError`].
pub fn address(node: &str) -> Result<String, SlurmError> {
    if !is_node(node) {
        return Err(SlurmError::Node(node.to_owned()));
    }
    let words = ["scontrol", "--oneliner", "show", "node", node];
    let line = match ask(&words) {
        Err(SlurmError::Failed { words, .. }) if words.contains("not found") => {
            return Err(SlurmError::Node(node.to_owned()));
        }
        other => other?,
    };
    field(&line, "NodeAddr").ok_or_else(|| SlurmError::Output { command: words.join(" "), what: "NodeAddr".into() })
}

/// The names in a list such as `n[1-3,7]`.
///
/// # Errors
/// [`SlurmError`].
pub fn names(list: &str) -> Result<Vec<String>, SlurmError> {
    // Slurm's own lists never begin like an option.
    Ok(ask(&["scontrol", "show", "hostnames", list])?.lines().map(str::to_owned).collect())
}

/// The jobs of the controller's cluster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jobs;

impl Jobs {
    fn line(job: u32) -> Result<String, String> {
        let shown = ask(&["scontrol", "--oneliner", "show", "job", &job.to_string()]).map_err(|e| e.to_string())?;
        own_line(&shown, job).map(str::to_owned).ok_or_else(|| format!("Slurm does not show job {job}"))
    }
}

impl Cluster for Jobs {
    fn user(&self, job: u32) -> Result<u32, String> {
        let line = Jobs::line(job)?;
        let user = field(&line, "UserId").and_then(|user| user.split_once('(')?.1.strip_suffix(')')?.parse().ok());
        user.ok_or_else(|| format!("Slurm does not say whose job {job} is"))
    }

    fn predicted(&self, job: u32) -> Result<Option<Prediction>, String> {
        let line = Jobs::line(job)?;
        if field(&line, "JobState").as_deref() != Some("PENDING") {
            return Ok(None);
        }
        let list = field(&line, "SchedNodeList");
        let nodes = list.map_or_else(|| Ok(Vec::new()), |list| names(&list)).map_err(|e| e.to_string())?;
        // `Unknown` where there is none.
        let start = field(&line, "StartTime").and_then(|seconds| seconds.parse().ok());
        Ok(Some(Prediction { nodes, start }))
    }

    fn nodes(&self, job: u32) -> Result<Vec<String>, String> {
        let list = field(&Jobs::line(job)?, "NodeList").ok_or_else(|| format!("job {job} has no nodes"))?;
        names(&list).map_err(|e| e.to_string())
    }

    fn over(&self, job: u32) -> Result<Option<Duration>, String> {
        match Jobs::line(job) {
            // It has been over for minutes.
            Err(words) if words.contains("Invalid job id") => Ok(Some(Duration::MAX)),
            line => {
                let end = over_since(&line?).and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
                Ok(end.map(|end| end.elapsed().unwrap_or_default()))
            }
        }
    }

    fn pin(&self, job: u32, nodes: &[String]) -> Result<(), String> {
        let (job, nodes) = (format!("JobId={job}"), format!("ReqNodeList={}", nodes.join(",")));
        ask(&["scontrol", "update", &job, &nodes]).map(drop).map_err(|e| e.to_string())
    }

    fn now(&self) -> Duration {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(clock.tv_sec.unsigned_abs(), clock.tv_nsec as u32)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A job's own line: the number of an array's last task is that of the array, for which Slurm shows all its tasks.
fn own_line(shown: &str, job: u32) -> Option<&str> {
    shown.lines().find(|line| field(line, "JobId").is_some_and(|number| number == job.to_string()))
}

/// When a job ended for good, in seconds since 1970, if it did. One whose output is still leaving has the state
/// STAGE_OUT.
fn over_since(line: &str) -> Option<u64> {
    let state = field(line, "JobState")?;
    FINAL.contains(&state.as_str()).then(|| field(line, "EndTime")?.parse().ok())?
}

/// States that a job never leaves.
const FINAL: [&str; 8] =
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"];

/// The value of a word `KEY=value` of a line; `None` if it is missing or empty.
pub fn field(line: &str, key: &str) -> Option<String> {
    let value = line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))?;
    (!value.is_empty() && value != "(null)").then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_slurm_prints_them() {
        let text = "Configuration data as of 2026\nAuthInfo                = socket=/run/m/s\n\
                    SlurmUser               = slurm(64030)\nSlurmUserX = y(1)\nEpilog                  = (null)\n";
        let config = Config(text.to_owned());
        assert_eq!(config.munge_socket(), Some("/run/m/s".into()));
        assert_eq!((config.user(), config.get("Epilog"), config.get("Nothing")), (Some(64030), None, None));
        assert_eq!(Config::default().munge_socket(), None);
    }

    #[test]
    fn a_task_is_not_taken_for_another_of_its_array() {
        let shown = "JobId=7 ArrayJobId=5 ArrayTaskId=1 JobState=COMPLETED\nJobId=5 ArrayJobId=5 JobState=PENDING\n";
        let state = |job| own_line(shown, job).and_then(|line| field(line, "JobState"));
        assert_eq!((state(7).as_deref(), state(5).as_deref()), (Some("COMPLETED"), Some("PENDING")));
        assert_eq!(state(6), None);
    }

    #[test]
    fn a_job_is_over_when_nothing_of_it_is_left_to_do() {
        let line = |state: &str| format!("JobId=5 JobState={state} Reason=None EndTime=1700000000 NodeList=n1");
        assert_eq!(over_since(&line("CANCELLED")), Some(1_700_000_000));
        for state in ["PENDING", "RUNNING", "COMPLETING", "STAGE_OUT", "REQUEUED", "CONFIGURING"] {
            assert_eq!(over_since(&line(state)), None, "{state}");
        }
        assert_eq!(over_since("JobState=CANCELLED EndTime=Unknown"), None);
    }

    #[test]
    fn fields_and_names_of_nodes() {
        let line = "NodeName=n1 Arch=x86_64 NodeAddr=10.1.0.1 NodeHostName=a-n1 Comment=(null)";
        assert_eq!(field(line, "NodeAddr").as_deref(), Some("10.1.0.1"));
        assert_eq!((field(line, "Comment"), field(line, "Node")), (None, None));
        assert!(is_node("n1") && is_node("rack-7.cluster"));
        for wrong in ["", "-n1", "n[1-2]", "n1,n2", "n1 n2", "ALL=", ".."] {
            assert!(!is_node(wrong), "{wrong}");
        }
    }
}
