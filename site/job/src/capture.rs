//! The output of other programs, captured within bounds: a time limit and a limit on the kept output.
//!
//! Every program whose output decides something is run through this module. Another user, a login file or a broken
//! installation may make it print without end.

use std::io::{Read, Write};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::timeout;
use types::UntrustedText;
use types::untrusted::SHOWN;

/// Most bytes of standard output. Slurm's list of 100,000 nodes is shorter.
pub const MOST_OUTPUT: usize = 4 << 20;
/// Bytes kept of the end of standard error.
pub const MOST_WORDS: usize = 4 << 10;

/// Interval between checks of a program that has closed its output but not ended.
const LOOK: Duration = Duration::from_millis(1);
/// Lines of standard error that messages quote.
const LINES: usize = 4;

/// The output of a program, and its exit status.
#[derive(Debug)]
pub struct Captured {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    /// The end of standard error.
    pub stderr: Tail,
}

impl Captured {
    /// Its standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// The program's output cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("no answer in {0} s")]
    Silent(u64),
    #[error("it printed more than {MOST_OUTPUT} bytes")]
    Endless,
}

/// Runs a program without input to its end. The program is killed after `limit`, or when it prints too much.
///
/// # Errors
/// [`CaptureError`]. An exit status other than 0 is not an error here.
pub async fn capture(command: &mut Command, limit: Duration) -> Result<Captured, CaptureError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let work = async {
        let words = async { Ok::<_, CaptureError>(tail(stderr).await) };
        let (stdout, words) = tokio::try_join!(head(stdout), words)?;
        Ok(Captured { status: child.wait().await?, stdout, stderr: words })
    };
    timeout(limit, work).await.unwrap_or(Err(CaptureError::Silent(limit.as_secs())))
}

async fn head(pipe: Option<impl AsyncRead + Unpin>) -> Result<Vec<u8>, CaptureError> {
    let mut kept = Vec::new();
    if let Some(pipe) = pipe {
        pipe.take(MOST_OUTPUT as u64 + 1).read_to_end(&mut kept).await?;
    }
    if kept.len() > MOST_OUTPUT { Err(CaptureError::Endless) } else { Ok(kept) }
}

/// Reads a stream to its end. Keeps the last [`MOST_WORDS`] bytes.
pub async fn tail(pipe: Option<impl AsyncRead + Unpin>) -> Tail {
    let (mut kept, mut buffer) = (Tail::default(), [0; 4096]);
    let Some(mut pipe) = pipe else { return kept };
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        kept.push(&buffer[..count]);
    }
    kept
}

/// Like [`tail`], without an async runtime.
pub fn tail_blocking(pipe: Option<impl Read>) -> Tail {
    let (mut kept, mut buffer) = (Tail::default(), [0; 4096]);
    let Some(mut pipe) = pipe else { return kept };
    while let Ok(count @ 1..) = pipe.read(&mut buffer) {
        kept.push(&buffer[..count]);
    }
    kept
}

/// Like [`capture`], without an async runtime, and with `input` on the program's standard input.
///
/// # Errors
/// [`CaptureError`].
pub fn capture_blocking(
    command: &mut std::process::Command,
    input: &[u8],
    limit: Duration,
) -> Result<Captured, CaptureError> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let until = Instant::now() + limit;
    let mut child = command.spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (out, ended) = mpsc::channel();
    let (words, said) = mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    let is_over = over.clone();
    let input = input.to_vec();
    // These threads end with their pipes. A write error is ignored: a program that does not read its input reports the
    // reason itself.
    std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)));
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let read = stdout.map_or(Ok(0), |pipe| pipe.take(MOST_OUTPUT as u64 + 1).read_to_end(&mut kept));
        let _ = out.send(read.map(|_| kept));
    });
    std::thread::spawn(move || {
        let (mut kept, mut buffer) = (Tail::default(), [0; 4096]);
        if let Some(mut pipe) = stderr {
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                if is_over.load(Relaxed) {
                    return;
                }
                kept.push(&buffer[..count]);
            }
        }
        let _ = words.send(kept);
    });
    let mut stdout = match ended.recv_timeout(limit) {
        Ok(Ok(stdout)) if stdout.len() > MOST_OUTPUT => Err(CaptureError::Endless),
        Ok(Ok(stdout)) => Ok(stdout),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(CaptureError::Silent(limit.as_secs())),
    };
    if stdout.is_err() {
        let _ = child.kill();
    }
    // Both pipes close when the program ends, unless another process holds them open.
    let left = if stdout.is_ok() { until.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
    let words = said.recv_timeout(left).unwrap_or_default();
    // The program may run on after it has closed its pipes.
    while stdout.is_ok() && child.try_wait()?.is_none() {
        if Instant::now() >= until {
            let _ = child.kill();
            stdout = Err(CaptureError::Silent(limit.as_secs()));
        }
        std::thread::sleep(LOOK);
    }
    let status = child.wait()?;
    over.store(true, Relaxed);
    Ok(Captured { status, stdout: stdout?, stderr: words })
}

/// The last bytes of a stream.
#[derive(Clone, Debug, Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Adds bytes at the end; only the last [`MOST_WORDS`] of all bytes are kept.
    pub fn push(&mut self, bytes: &[u8]) {
        let bytes = &bytes[bytes.len().saturating_sub(MOST_WORDS)..];
        let excess = (self.0.len() + bytes.len()).saturating_sub(MOST_WORDS);
        self.0.drain(..excess);
        self.0.extend_from_slice(bytes);
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// The last lines of the stream, joined into one.
    pub fn last_lines(&self) -> UntrustedText {
        let text = self.text();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let joined = lines[lines.len().saturating_sub(LINES)..].join("; ");
        let shown = joined.char_indices().rev().nth(SHOWN - 1).map_or(0, |(at, _)| at);
        UntrustedText::from(&joined[shown..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn script(text: &str) -> std::process::Command {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", text]);
        command
    }

    #[tokio::test]
    async fn a_program_without_end_is_killed() {
        for endless in ["yes", "yes | tr -d '\\n'", "exec cat /dev/zero", "yes >&2 & yes"] {
            let error = capture(&mut Command::from(script(endless)), LIMIT).await.unwrap_err();
            assert!(matches!(error, CaptureError::Endless), "{endless}: {error}");
            let error = capture_blocking(&mut script(endless), b"", LIMIT).unwrap_err();
            assert!(matches!(error, CaptureError::Endless), "{endless}: {error}");
        }
        let short = Duration::from_millis(50);
        for silent in ["exec sleep 60", "exec sleep 60 >&- 2>&-"] {
            let error = capture(&mut Command::from(script(silent)), short).await.unwrap_err();
            assert!(matches!(error, CaptureError::Silent(_)), "{silent}: {error}");
            let error = capture_blocking(&mut script(silent), b"", short).unwrap_err();
            assert!(matches!(error, CaptureError::Silent(_)), "{silent}: {error}");
        }
    }

    #[tokio::test]
    async fn the_end_of_standard_error_is_kept_and_prints_safely() {
        let text = "head -c 100000 /dev/zero | tr '\\0' x >&2; printf 'last\\033[2J\\nforged' >&2; printf out; exit 3";
        for captured in [
            capture(&mut Command::from(script(text)), LIMIT).await.unwrap(),
            capture_blocking(&mut script(text), b"", LIMIT).unwrap(),
        ] {
            assert_eq!((captured.text().as_str(), captured.status.code()), ("out", Some(3)));
            assert_eq!(captured.stderr.0.len(), MOST_WORDS);
            let shown = captured.stderr.last_lines().to_string();
            assert!(shown.ends_with("xlast\\u{1b}[2J; forged") && shown.starts_with("xxx"), "{shown}");
        }
        let answer = capture_blocking(&mut script("cat"), b"in", LIMIT).unwrap();
        assert_eq!(answer.text(), "in");
        assert!(capture_blocking(&mut script("exit 0"), &[0; 1 << 20], LIMIT).is_ok(), "it reads nothing");
    }
}
