//! The connection after a command took it over: this end of the command's streams.

use std::io::ErrorKind;

use job::signals::ENDING;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use types::untrusted::printable;

use super::{Machine, PATIENCE, STEP};
use crate::SetupError;
use crate::frames::{CarryFrame, Frames, PIECE, send};
use crate::message::SiteRequest;

/// The exit code if the connection is lost while the command runs: "lost something it needs".
const LOST: i32 = 75;
/// The exit code if the output's reader is gone, as after SIGPIPE.
const UNREAD: i32 = 128 + 13;

/// Starts to read standard input, in pieces of at most this many bytes. The channel closes at the end of the input.
pub type Input = Box<dyn FnOnce(usize) -> mpsc::Receiver<Vec<u8>> + Send>;

/// The streams and signals of a carried command on this machine.
pub struct Streams<O, E> {
    pub output: O,
    pub errors: E,
    /// `None`: the command gets an empty input.
    pub input: Option<Input>,
    /// Numbers of the signals that the user sends.
    pub signals: mpsc::Receiver<i32>,
}

impl Machine {
    /// Hands the connection to the command that the request starts; returns its exit code, or 75 with a line on
    /// standard error if the connection breaks. After `PATIENCE` signals that end a job, the connection is closed,
    /// which ends the command too.
    ///
    /// # Errors
    /// The connection breaks before the request is sent, or this process's own output cannot be written.
    pub async fn become_job<O, E>(mut self, request: &SiteRequest, streams: Streams<O, E>) -> Result<i32, SetupError>
    where
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        let Streams { mut output, mut errors, mut input, mut signals } = streams;
        let (sender, mut heard) = mpsc::channel(16);
        if let Some(hear) = self.heard.take() {
            let _ = hear.send(sender);
        }
        self.begin(request).await?;
        let mut frames = Frames::new(self.output);
        let (mut source, mut credit, mut sent, mut heard_open) = (None::<mpsc::Receiver<Vec<u8>>>, 0, 0, true);
        let code = loop {
            let written = tokio::select! {
                frame = frames.next() => match frame {
                    Ok(Some(CarryFrame::Output(bytes))) => pass(&mut output, &bytes).await,
                    Ok(Some(CarryFrame::Errors(bytes))) => pass(&mut errors, &bytes).await,
                    Ok(Some(CarryFrame::Taken(bytes))) => {
                        credit += bytes as usize;
                        source = source.or_else(|| input.take().map(|begin| begin(PIECE)));
                        Ok(())
                    }
                    Ok(Some(CarryFrame::Ended(code))) => break code,
                    _ => {
                        let line = format!(
                            "landbridge: site {}: {}: the connection is lost; what runs there without --detach ends\n",
                            self.site, self.place
                        );
                        let _ = pass(&mut errors, line.as_bytes()).await;
                        break LOST;
                    }
                },
                // Standard error of ssh itself: the command's arrives in frames.
                words = heard.recv(), if heard_open => match words {
                    Some(words) => pass(&mut errors, shown(&words).as_bytes()).await,
                    None => {
                        heard_open = false;
                        Ok(())
                    }
                },
                piece = next(&mut source), if credit >= PIECE => {
                    let piece = piece.unwrap_or_default();
                    if piece.is_empty() {
                        source = None;
                    }
                    credit = credit.saturating_sub(piece.len());
                    // If the connection is lost, reading the next frame fails.
                    let _ = send(&mut self.input, &CarryFrame::Input(piece)).await;
                    Ok(())
                }
                Some(signal) = signals.recv() => {
                    sent += u32::from(ENDING.contains(&signal));
                    if sent >= PATIENCE {
                        break 128 + signal;
                    }
                    // The command may have ended already; its exit code comes next.
                    let _ = send(&mut self.input, &CarryFrame::Signal(signal)).await;
                    Ok(())
                }
            };
            match written {
                Ok(()) => {}
                // The other end then reads the end of its input and ends the command.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => break UNREAD,
                Err(error) => {
                    return Err(SetupError::Request(format!("output: {error}; the job at site {} ends", self.site)));
                }
            }
        };
        drop(self.input);
        // If ssh leaves a master connection, it belongs to the user; ssh itself ends now, or when it is dropped.
        let _ = timeout(STEP, self.child.wait()).await;
        Ok(code)
    }
}

/// The next piece of input; waits forever if there is no input.
async fn next(source: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match source {
        Some(source) => source.recv().await,
        None => std::future::pending().await,
    }
}

async fn pass(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// The text that ssh or the login node wrote, line by line, fit for a terminal.
fn shown(words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    text.lines().map(|line| printable(line.trim_end_matches('\r')) + "\n").collect()
}
