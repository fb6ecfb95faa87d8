//! Facts from Slurm's own commands about its configuration, its jobs and its nodes.
//!
//! A record that `scontrol show job` or `show node` prints also holds text of users and administrators (names,
//! comments, reasons), which can look like any other field. So each fact comes from a command that prints only this one
//! field, and the job's own number if Slurm prints several tasks of an array. A value that does not have the field's
//! form is refused.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use thiserror::Error;
use types::UntrustedText;
use types::untrusted::printable;

use crate::bounded::{ProgramLimits, RunError, run};
use crate::credential::socket_of;
use crate::hook::{Cluster, Prediction};

/// A busy controller may take long, and a large array has many tasks.
const LIMITS: ProgramLimits = ProgramLimits { time: Duration::from_secs(120), output: 16 << 20 };
/// Variables that change the output of Slurm's commands.
const CHANGING: [&str; 4] = ["SQUEUE_", "SINFO_", "SCONTROL_", "SLURM_"];

/// Limit on the text shown beside a job, in characters.
const MOST_NOTE: usize = 1000;

/// Reasons for getting no answer from Slurm.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SlurmError {
    #[error("cannot run {command}: {source}: this needs a machine with Slurm's commands")]
    Command { command: String, source: RunError },
    #[error("`{command}`: {words}")]
    Failed { command: String, words: UntrustedText },
    #[error("Slurm knows no node `{0}`, or none in a partition")]
    Node(UntrustedText),
    #[error("`{command}` printed `{line}`, which is not {what}")]
    Output { command: String, line: UntrustedText, what: &'static str },
    /// The printed value of a job does not have its field's form.
    #[error("`{command}` printed `{line}`")]
    Value { command: String, line: UntrustedText },
    #[error("Slurm does not show job {0}")]
    NotShown(u32),
    #[error("Slurm lists job {job} under user id {user}")]
    User { job: u32, user: UntrustedText },
    #[error("job {0} has no nodes")]
    NoNodes(u32),
}

impl SlurmError {
    /// Returns true if the controller has no job of this number, so it has forgotten the job.
    ///
    /// Only the message distinguishes this from other errors: squeue exits with 1 after each of them, and prints the
    /// text of `ESLURM_INVALID_JOB_ID` (`src/common/slurm_errno.c`, the same from Slurm 22.05 to 24.05). With `--json`,
    /// squeue 22.05 ignores `--jobs` and asks the controller for all jobs; 24.05 fails in the same way before it prints
    /// any JSON (`_print_job` in `src/squeue/squeue.c`).
    fn is_forgotten_job(&self) -> bool {
        matches!(self, SlurmError::Failed { words, .. } if words.raw().contains("Invalid job id"))
    }
}

/// Runs one of Slurm's commands; returns its output.
///
/// # Errors
/// [`SlurmError`].
pub fn ask(words: &[&str]) -> Result<String, SlurmError> {
    let line = words.join(" ");
    let (name, rest) = words.split_first().unwrap_or((&"", &[]));
    let mut command = Command::new(name);
    command.args(rest);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name != "SLURM_CONF" && CHANGING.iter().any(|own| name.starts_with(own))) {
            command.env_remove(name);
        }
    }
    // Print times as seconds since 1970, not in this machine's time zone.
    command.env("SLURM_TIME_FORMAT", "%s");
    let done = run(command, b"", LIMITS).map_err(|source| SlurmError::Command { command: line.clone(), source })?;
    match done.code {
        Some(0) => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        _ => {
            let words = String::from_utf8_lossy(&done.stdout).into_owned() + done.stderr.raw();
            let words = words.split_whitespace().collect::<Vec<_>>().join(" ").into();
            Err(SlurmError::Failed { command: line, words })
        }
    }
}

/// The configuration in use. Only administrators write it, so its printed lines are parsed as they are.
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
        (!is_missing_text(value)).then_some(value)
    }

    /// The socket of munged, if it is not the default one.
    pub fn munge_socket(&self) -> Option<PathBuf> {
        Some(socket_of(self.get("AuthInfo")?)?.to_owned())
    }

    /// The user id of the controller, from a value such as `slurm(64030)`.
    pub fn user(&self) -> Option<u32> {
        self.get("SlurmUser")?.split_once('(')?.1.strip_suffix(')')?.parse().ok()
    }
}

/// True if a text can be the name of one node, and means nothing else to Slurm's commands.
pub fn is_node(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 255 && !name.starts_with(['-', '.']) && name.chars().all(plain)
}

/// The address of a node, by Slurm's name for it: a host name or an IP address, in brackets if IPv6.
///
/// # Errors
/// [`SlurmError`].
pub fn address(node: &str) -> Result<String, SlurmError> {
    if !is_node(node) {
        return Err(SlurmError::Node(node.into()));
    }
    let words = ["sinfo", "--noheader", "--all", "--local", "--Node", "--nodes", node, "--format=%o"];
    let shown = ask(&words)?;
    // One line for each of the node's partitions.
    let mut lines = shown.lines().map(str::trim_end);
    let first = lines.next().ok_or_else(|| SlurmError::Node(node.into()))?;
    let wrong = |line: &str| {
        Err(SlurmError::Output { command: words.join(" "), line: line.into(), what: "an address of one node" })
    };
    if let Some(other) = lines.find(|line| *line != first) {
        return wrong(other);
    }
    match first.parse::<Ipv6Addr>() {
        Ok(address) => Ok(format!("[{address}]")),
        // A host name has the same form as a node name.
        Err(_) if is_node(first) => Ok(first.to_owned()),
        Err(_) => wrong(first),
    }
}

/// The names in a list such as `n[1-3,7]`.
///
/// # Errors
/// [`SlurmError`].
pub fn names(list: &str) -> Result<Vec<String>, SlurmError> {
    let words = ["scontrol", "show", "hostnames", list];
    let wrong = |line: &str| SlurmError::Output { command: words.join(" "), line: line.into(), what: "a node's name" };
    if list.starts_with('-') {
        return Err(wrong(list));
    }
    let shown = ask(&words)?;
    shown.lines().map(|name| is_node(name).then(|| name.to_owned()).ok_or_else(|| wrong(name))).collect()
}

/// The jobs of the controller's cluster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Jobs;

/// A field of a job, in squeue's format. No field contains text that a user has chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    User,
    State,
    PredictedNodes,
    Start,
    Nodes,
    End,
}

impl Field {
    fn format(self) -> &'static str {
        match self {
            Field::User => "--format=%A %U",
            Field::State => "--format=%A %T",
            Field::PredictedNodes => "--format=%A %Y",
            Field::Start => "--format=%A %S",
            Field::Nodes => "--format=%A %N",
            Field::End => "--format=%A %e",
        }
    }

    /// True if a value has this field's form. Without a value, Slurm prints nothing, or a word such as `N/A`.
    fn has_form(self, value: &str) -> bool {
        match self {
            Field::User => is_number(value),
            Field::State => !value.is_empty() && value.chars().all(|c| c.is_ascii_uppercase() || c == '_'),
            Field::Start | Field::End => is_number(value) || is_missing_time(value),
            Field::PredictedNodes | Field::Nodes => {
                is_missing_text(value) || value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.[],".contains(c))
            }
        }
    }
}

/// True if Slurm has no text: it prints nothing, or a null string, for which C's library prints `(null)`.
fn is_missing_text(value: &str) -> bool {
    value.is_empty() || value == "(null)"
}

/// True if Slurm has no time. squeue then prints a word even if SLURM_TIME_FORMAT asks for numbers: `N/A` comes from
/// `_print_time` in `src/squeue/print.c`, `Unknown` from `slurm_make_time_str` in `src/common/parse_time.c`.
fn is_missing_time(value: &str) -> bool {
    ["N/A", "NONE", "Unknown"].contains(&value)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

impl Jobs {
    /// A field of a job; empty if Slurm has no value.
    fn field(job: u32, field: Field) -> Result<String, SlurmError> {
        let number = job.to_string();
        let words = ["squeue", "--noheader", "--all", "--local", "--states=all", "--jobs", &number, field.format()];
        own_value(&ask(&words)?, job, field).map_err(|line| match line {
            None => SlurmError::NotShown(job),
            Some(line) => SlurmError::Value { command: words.join(" "), line },
        })
    }

    fn node_list(job: u32, field: Field) -> Result<Vec<String>, SlurmError> {
        match Jobs::field(job, field)?.as_str() {
            list if is_missing_text(list) => Ok(Vec::new()),
            list => names(list),
        }
    }
}

impl Cluster for Jobs {
    fn user(&self, job: u32) -> Result<u32, SlurmError> {
        let user = Jobs::field(job, Field::User)?;
        user.parse().map_err(|_| SlurmError::User { job, user: user.into() })
    }

    fn predicted(&self, job: u32) -> Result<Option<Prediction>, SlurmError> {
        if Jobs::field(job, Field::State)? != "PENDING" {
            return Ok(None);
        }
        let nodes = Jobs::node_list(job, Field::PredictedNodes)?;
        // Without nodes do not ask for the time: the controller is asked as little as possible.
        let start = match nodes.is_empty() {
            true => None,
            false => Jobs::field(job, Field::Start)?.parse().ok(),
        };
        Ok(Some(Prediction { nodes, start }))
    }

    fn nodes(&self, job: u32) -> Result<Vec<String>, SlurmError> {
        let nodes = Jobs::node_list(job, Field::Nodes)?;
        if nodes.is_empty() { Err(SlurmError::NoNodes(job)) } else { Ok(nodes) }
    }

    fn over(&self, job: u32) -> Result<Option<Duration>, SlurmError> {
        let state = match Jobs::field(job, Field::State) {
            // The job has been over for minutes.
            Err(error) if error.is_forgotten_job() => return Ok(Some(Duration::MAX)),
            state => state?,
        };
        if !FINAL.contains(&state.as_str()) {
            return Ok(None);
        }
        let end = Jobs::field(job, Field::End)?.parse().ok();
        let end = end.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        Ok(end.map(|end| end.elapsed().unwrap_or_default()))
    }

    fn note(&self, job: u32, text: &str) -> Result<(), SlurmError> {
        // One line, which its contents cannot break. Slurm does not limit its length, and lists of jobs show it.
        let text: String = printable(text).chars().take(MOST_NOTE).collect();
        let (job, text) = (format!("JobId={job}"), format!("AdminComment=landbridge: {text}"));
        ask(&["scontrol", "update", &job, &text]).map(drop)
    }

    fn pin(&self, job: u32, nodes: &[String]) -> Result<(), SlurmError> {
        let (job, nodes) = (format!("JobId={job}"), format!("ReqNodeList={}", nodes.join(",")));
        ask(&["scontrol", "update", &job, &nodes]).map(drop)
    }

    fn now(&self) -> Duration {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(clock.tv_sec.unsigned_abs(), clock.tv_nsec as u32)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Finds a job's own value in lines of a job's number and a value. The number of an array's last task is also that of
/// the array, for which Slurm prints all its tasks.
///
/// # Errors
/// A line of another form, or no line for this job.
fn own_value(shown: &str, job: u32, field: Field) -> Result<String, Option<UntrustedText>> {
    let mut own = None;
    for line in shown.lines() {
        let wrong = || Some(UntrustedText::from(line));
        let (number, value) = line.split_once(' ').ok_or_else(wrong)?;
        let value = value.trim_end_matches(' ');
        let number = is_number(number).then(|| number.parse().ok()).flatten();
        if number.is_none() || !field.has_form(value) {
            return Err(wrong());
        }
        if number == Some(job) && own.replace(value.to_owned()).is_some_and(|other| other != value) {
            return Err(wrong());
        }
    }
    own.ok_or(None)
}

/// States that a job never leaves. A job whose output is still being moved has the state STAGE_OUT.
const FINAL: [&str; 8] =
    ["BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"];

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
        let shown = "7 COMPLETED\n5 PENDING\n";
        let state = |job| own_value(shown, job, Field::State);
        assert_eq!((state(7), state(5)), (Ok("COMPLETED".to_owned()), Ok("PENDING".to_owned())));
        assert_eq!(state(6), Err(None));
    }

    #[test]
    fn a_value_of_another_form_is_refused() {
        let refused = |field, text: &str| matches!(own_value(text, 5, field), Err(Some(_)));
        assert_eq!(own_value("5 1001\n", 5, Field::User), Ok("1001".to_owned()));
        for text in [
            "5 1001 UserId=other(1002)\n",
            "5 other(1002)\n",
            "5 +7\n",
            "5 -1\n",
            "5\n",
            "5 \n",
            "x\n5 1001\n",
            "\n5 7\n",
            "5 7\n5 8\n",
            "+5 7\n",
            "5  7\n",
        ] {
            assert!(refused(Field::User, text), "{text}");
        }
        assert!(own_value("5 7\n5 7\n", 5, Field::User).is_ok(), "a line for each partition");
        assert!(refused(Field::State, "5 RUNNING UserId=x\n") && refused(Field::State, "5 running\n"));
        assert!(refused(Field::Nodes, "5 n1;reboot\n") && refused(Field::Nodes, "5 n1 n2\n"));
        assert_eq!(own_value("5 n[1-2],x7\n", 5, Field::Nodes), Ok("n[1-2],x7".to_owned()));
        assert_eq!(own_value("5 \n", 5, Field::PredictedNodes), Ok(String::new()));
        assert!(refused(Field::Start, "5 2026-01-01T00:00:00\n"));
        assert_eq!(own_value("5 N/A\n", 5, Field::Start), Ok("N/A".to_owned()));
    }

    #[test]
    fn a_forgotten_job_is_no_other_failure() {
        let failed = |words: &str| SlurmError::Failed { command: "squeue".to_owned(), words: words.into() };
        assert!(failed("slurm_load_jobs error: Invalid job id specified").is_forgotten_job());
        assert!(!failed("slurm_load_jobs error: Unable to contact slurm controller").is_forgotten_job());
        assert!(!SlurmError::NotShown(5).is_forgotten_job());
    }

    #[test]
    fn names_of_nodes() {
        assert!(is_node("n1") && is_node("rack-7.cluster"));
        for wrong in ["", "-n1", "n[1-2]", "n1,n2", "n1 n2", "ALL=", ".."] {
            assert!(!is_node(wrong), "{wrong}");
        }
        assert!(matches!(names("--help"), Err(SlurmError::Output { .. })));
    }
}
