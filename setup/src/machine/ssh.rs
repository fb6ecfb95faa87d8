//! The user's own ssh: how it is called, and what its refusals mean.

use tokio::process::Command;

use crate::place::Place;

/// Options of every call. The user's configuration, agent, keys and jump hosts stay in force.
const OPTIONS: &[&str] = &[
    "-T",
    "-oConnectTimeout=15",
    "-oServerAliveInterval=10",
    "-oServerAliveCountMax=3",
    "-oClearAllForwardings=yes",
    "-oForwardX11=no",
    "-oCompression=yes",
    "-oRemoteCommand=none",
];

/// The command that runs `line` by a shell at a place. `asking`: ssh may ask for passwords and about host keys.
///
/// Ctrl-C at the terminal is for us to interpret: ssh leaves SIGINT alone if it is ignored when it starts.
pub(crate) fn command(place: &Place, line: &str, asking: bool) -> Command {
    let mut command = Command::new("/bin/sh");
    match place {
        Place::Here => {
            command.args(["-c", line]);
        }
        Place::Ssh { .. } => {
            let batch = if asking { "-oBatchMode=no" } else { "-oBatchMode=yes" };
            command.args(["-c", r#"trap "" INT; exec ssh "$@""#, "ssh"]).args(OPTIONS).arg(batch);
            command.args(place.arguments()).arg(line);
        }
    }
    command
}

/// The command line that reads a script of this length from its input and runs it, in the words of every login shell
/// (no newline, no `!`, nothing that csh or fish would look into).
pub(crate) fn reading_script(length: usize) -> String {
    format!("exec /bin/sh -c 'eval \"$(head -c {length})\"'")
}

/// Why a machine was not reached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// What ssh or the machine said.
    pub problem: String,
    /// A person could answer what ssh wants to know.
    pub asks: bool,
}

impl Refusal {
    pub(super) fn new(problem: impl Into<String>) -> Refusal {
        Refusal { problem: problem.into(), asks: false }
    }

    /// Makes sense of how ssh ended: `problem` is what the other end said, `words` what ssh wrote.
    pub(super) fn judge(problem: String, code: Option<i32>, words: &str) -> Refusal {
        let said: Vec<&str> = words.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        // Greetings come before what went wrong.
        let said = said[said.len().saturating_sub(4)..].join("; ");
        let asks = code == Some(255)
            && problem.is_empty()
            && (said.contains("Permission denied") || said.contains("Host key verification failed"));
        let problem = match (problem.is_empty(), said.is_empty()) {
            (false, true) => problem,
            (false, false) => format!("{problem} ({said})"),
            (true, false) => said,
            (true, true) => match code {
                Some(127) => "the command ssh is not there: install an ssh client".to_owned(),
                Some(code) => format!("ended with exit code {code} and no words"),
                None => "the connection closed".to_owned(),
            },
        };
        Refusal { problem, asks }
    }

    /// The problem, and what the user can do.
    pub(super) fn advice(&self, place: &Place) -> String {
        let words = place.arguments().join(" ").replace("-- ", "");
        let advice = if self.problem.contains("Host key verification failed") {
            format!("its host key is not known here, or another: log in once with `ssh {words}` and compare it")
        } else if self.problem.contains("Permission denied") {
            format!("does `ssh {words}` let you in? `ssh -v {words}` says which keys it tries")
        } else {
            format!("`ssh -v {words}` says more")
        };
        format!("{}; {advice}", self.problem)
    }
}
