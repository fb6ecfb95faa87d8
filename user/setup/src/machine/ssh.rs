//! Runs the user's own ssh, and interprets its refusals.

use job::capture::Tail;
use tokio::process::Command;
use types::{UntrustedText, shell};

use crate::place::MachinePlace;

/// Options of every call. The user's configuration, agent, keys and jump hosts stay in effect.
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

/// The command that runs `line` in a shell at a place. `asking`: ssh may ask for passwords and about host keys.
///
/// This program handles Ctrl-C at the terminal. ssh ignores SIGINT if SIGINT is ignored when ssh starts.
pub(crate) fn command(place: &MachinePlace, line: &str, asking: bool) -> Command {
    let mut command = Command::new("/bin/sh");
    match place {
        MachinePlace::Here => {
            command.args(["-c", line]);
        }
        MachinePlace::Ssh(_) => {
            let batch = if asking { "-oBatchMode=no" } else { "-oBatchMode=yes" };
            command.args(["-c", r#"trap "" INT; exec ssh "$@""#, "ssh"]).args(OPTIONS).arg(batch);
            command.args(place.arguments()).arg(line);
        }
    }
    command
}

/// The command line that reports `MARK begin` on a line of its own, skips its input until a line is the mark, reads a
/// script of this length and runs it. It is valid in every login shell: it has no newline, no `!`, and nothing that csh
/// or fish would expand.
pub(crate) fn reading_script(mark: &str, length: usize) -> String {
    format!(
        "exec /bin/sh -c 'echo; echo {mark} begin; until [ \"$line\" = {mark} ]; do read -r line || exit 1; done; \
         eval \"$(head -c {length})\"'"
    )
}

/// The reason why a machine could not be reached.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreachable {
    /// The error from ssh or from the machine.
    pub problem: String,
    /// ssh requests an answer that a user could give.
    pub asks: bool,
}

impl Unreachable {
    pub(super) fn new(problem: impl Into<String>) -> Unreachable {
        Unreachable { problem: problem.into(), asks: false }
    }

    /// Interprets the end of ssh. `problem`: the error that the other end reported. `words`: the standard error of ssh.
    /// `printed`: the login's standard output.
    pub(super) fn judge(problem: String, code: Option<i32>, words: &Tail, printed: &Tail) -> Unreachable {
        // Greetings come before the error. A refusal by the login itself may come on either stream.
        let said = [words.last_lines(), printed.last_lines()];
        let said = said.iter().find(|text| !text.is_blank()).map(UntrustedText::to_string).unwrap_or_default();
        let asks = code == Some(255)
            && problem.is_empty()
            && (said.contains("Permission denied") || said.contains("Host key verification failed"));
        let problem = match (problem.is_empty(), said.is_empty()) {
            (false, true) => problem,
            (false, false) => format!("{problem} ({said})"),
            (true, false) => said,
            (true, true) => match code {
                Some(127) => "the command ssh is not there: install an ssh client".to_owned(),
                Some(code) => format!("ended with exit code {code} and without a message"),
                None => "the connection closed".to_owned(),
            },
        };
        Unreachable { problem, asks }
    }

    /// The problem and its remedy for the user.
    pub(super) fn advice(&self, place: &MachinePlace) -> String {
        let words = shell::line(&place.arguments()).replace("-- ", "");
        let advice = if self.problem.contains("Host key verification failed") {
            format!("its host key is not known here, or another: log in once with `ssh {words}` and compare it")
        } else if self.problem.contains("assword has expired") || self.problem.contains("assword change required") {
            format!("log in with `ssh {words}` and change it")
        } else if self.problem.contains("no answer within") {
            format!("does `ssh {words} true` end? A start-up file of the login shell there must not wait for input")
        } else if self.problem.contains("Permission denied") {
            format!("does `ssh {words}` let you in? `ssh -v {words}` shows which keys it tries")
        } else {
            format!("`ssh -v {words}` shows more")
        };
        format!("{}; {advice}", self.problem)
    }
}
