//! Runs a command with a time limit, to read its output.

use std::time::Duration;

use job::capture::capture;
use tokio::process::Command;
use types::untrusted::visible;

const LIMIT: Duration = Duration::from_secs(5);

/// The command's output on both streams, or `None` if the command is missing, fails or exceeds the time limit.
pub(super) async fn output(words: &[&str]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let mut command = Command::new(program);
    let done = capture(command.args(arguments), LIMIT).await.ok()?;
    let text = [done.text(), done.stderr.text()].concat();
    done.status.success().then(|| visible(text.trim()).into_owned())
}
