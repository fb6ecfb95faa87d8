//! Running a command with a time limit, to read its output.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(5);

/// What a command prints on both outputs, or `None` if it is missing, fails or exceeds the time limit.
pub(super) async fn output(words: &[&str]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let done = timeout(LIMIT, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    done.status.success().then(|| text.trim().to_owned())
}
