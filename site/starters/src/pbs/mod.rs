//! `pbs`: agents over ssh, on the nodes of the PBS job in which `run` is typed.
//!
//! `pbsdsh` and `pbs_tmrsh` are not used: they start programs only from inside the job, where the gateway does not run,
//! and do not pass standard input on, so agents would have no lifeline. `pbs_attach` makes what ssh started a part of
//! the job instead.

use thiserror::Error;

use crate::batch::{BatchSystem, JobNodes, NodeFile, Variables};

/// The job's file of nodes: one line for each slot.
const NODES: NodeFile =
    NodeFile { variable: "PBS_NODEFILE", form: "a node's name", line: |line| Some((line.trim(), 1)) };

/// A shell's program: makes its process, and so all that it starts, a part of the PBS job `$0`, as far as the node's
/// PBS allows it, and becomes the command `$@`.
///
/// A login without a terminal seldom has PBS's commands in its `PATH`. Shells differ in what they do when they cannot
/// read a file that they run, so it is tried first.
const ATTACHED: &str = "(conf=${PBS_CONF_FILE:-/etc/pbs.conf}; test -r \"$conf\" && . \"$conf\"; \
     PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin; command -v pbs_attach >/dev/null && pbs_attach -j \"$0\" -p $$) </dev/null; \
     exec \"$@\"";

/// The words that run a command as a part of a job, on one of the job's nodes. PBS then counts the command's processes
/// as the job's, limits them, and ends them with it.
pub(crate) fn in_job(job: &str, command: Vec<String>) -> Vec<String> {
    let shell = ["sh", "-c", ATTACHED, job].map(str::to_owned);
    shell.into_iter().chain(command).collect()
}

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
    use std::io::Write;
    use std::path::Path;
    use std::process::Stdio;

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

    /// The output of a command in job `7[1].s` on a node whose PBS is in this folder.
    fn printed(pbs: &Path) -> String {
        let words = in_job("7[1].s", vec!["sh".into(), "-c".into(), "echo ran $$; cat".into()]);
        let mut command = std::process::Command::new(&words[0]);
        command.args(&words[1..]).env("PBS_CONF_FILE", pbs.join("pbs.conf"));
        // Not those of a PBS on this machine.
        command.env("PBS_EXEC", "/nowhere").env("PATH", "/usr/bin:/bin");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"input").unwrap();
        let id = child.id().to_string();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().replace(&id, "PID")
    }

    #[test]
    fn a_command_is_attached_to_the_job_and_keeps_its_input() {
        let pbs = tempfile::tempdir().unwrap();
        let folder = pbs.path().display().to_string();
        std::fs::write(pbs.path().join("pbs.conf"), format!("PBS_EXEC={folder}\n")).unwrap();
        assert_eq!(printed(pbs.path()), "ran PID\ninput", "no pbs_attach there");
        let attach = pbs.path().join("bin/pbs_attach");
        std::fs::create_dir(pbs.path().join("bin")).unwrap();
        // Another process writes it: one that is open for writing, here or in a fresh child, cannot be executed.
        let script = pbs.path().join("script");
        std::fs::write(&script, "#!/bin/sh\necho \"$@\"; cat; exit 1\n").unwrap();
        assert!(std::process::Command::new("install").arg(&script).arg(&attach).status().unwrap().success());
        assert_eq!(printed(pbs.path()), "-j 7[1].s -p PID\nran PID\ninput", "even if it fails");
        assert_eq!(printed(Path::new("/nowhere")), "ran PID\ninput", "no PBS there");
    }
}
