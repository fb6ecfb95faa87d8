//! The connection after a command took it over: this end of the command's streams.

use std::io::ErrorKind;

use job::signals::ENDING;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use types::untrusted::printable;

use super::{Machine, PATIENCE, STEP};
use crate::error::SetupError;
use crate::frames::{CarryFrame, Frames, PIECE, send};
use crate::message::SiteRequest;
use crate::place::MachinePlace;

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
    pub async fn become_job<O, E>(
        mut self,
        request: &SiteRequest,
        mut streams: Streams<O, E>,
    ) -> Result<i32, SetupError>
    where
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        let (sender, mut heard) = mpsc::channel(16);
        if let Some(hear) = self.heard.take() {
            let _ = hear.send(sender);
        }
        self.begin(request).await?;
        let mut input = CarriedInput::new(streams.input.take());
        let code = self.pass_streams(&mut heard, &mut input, &mut streams).await?;
        drop(self.input);
        // If ssh leaves a master connection, it belongs to the user; ssh itself ends now, or when it is dropped.
        let _ = timeout(STEP, self.child.wait()).await;
        Ok(code)
    }

    /// Passes the streams on until the command ends; returns its exit code. `heard`: standard error of ssh itself.
    async fn pass_streams(
        &mut self,
        heard: &mut mpsc::Receiver<Vec<u8>>,
        input: &mut CarriedInput,
        Streams { output, errors, signals, .. }: &mut Streams<impl AsyncWrite + Unpin, impl AsyncWrite + Unpin>,
    ) -> Result<i32, SetupError> {
        let mut frames = Frames::new(&mut self.output);
        let (mut sent, mut heard_open) = (0, true);
        loop {
            let written = tokio::select! {
                frame = frames.next() => match frame {
                    Ok(Some(CarryFrame::Output(bytes))) => pass(output, &bytes).await,
                    Ok(Some(CarryFrame::Errors(bytes))) => pass(errors, &bytes).await,
                    Ok(Some(CarryFrame::Taken(bytes))) => {
                        input.taken(bytes);
                        Ok(())
                    }
                    Ok(Some(CarryFrame::Ended(code))) => return Ok(code),
                    _ => {
                        let _ = pass(errors, lost(&self.site, &self.place).as_bytes()).await;
                        return Ok(launcher::LOST_CODE);
                    }
                },
                // Standard error of ssh itself: the command's arrives in frames.
                words = heard.recv(), if heard_open => match words {
                    Some(words) => pass(errors, shown(&words).as_bytes()).await,
                    None => {
                        heard_open = false;
                        Ok(())
                    }
                },
                piece = input.next(), if input.has_credit() => {
                    // If the connection is lost, reading the next frame fails.
                    let _ = send(&mut self.input, &CarryFrame::Input(piece)).await;
                    Ok(())
                }
                Some(signal) = signals.recv() => {
                    sent += u32::from(ENDING.contains(&signal));
                    if sent >= PATIENCE {
                        return Ok(128 + signal);
                    }
                    // The command may have ended already; its exit code comes next.
                    let _ = send(&mut self.input, &CarryFrame::Signal(signal)).await;
                    Ok(())
                }
            };
            match written {
                Ok(()) => {}
                // The other end then reads the end of its input and ends the command.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(UNREAD),
                Err(error) => {
                    return Err(SetupError::Request(format!("output: {error}; the job at site {} ends", self.site)));
                }
            }
        }
    }
}

/// The user's input, which is read only as fast as the command takes it.
struct CarriedInput {
    /// Begins to read, once the command takes input.
    begin: Option<Input>,
    source: Option<mpsc::Receiver<Vec<u8>>>,
    /// Number of bytes that may be sent.
    credit: usize,
}

impl CarriedInput {
    fn new(begin: Option<Input>) -> CarriedInput {
        CarriedInput { begin, source: None, credit: 0 }
    }

    /// The command has taken this many bytes, or takes its first ones.
    fn taken(&mut self, bytes: u32) {
        self.credit += bytes as usize;
        if self.source.is_none() {
            self.source = self.begin.take().map(|begin| begin(PIECE));
        }
    }

    /// True if a whole piece may be sent.
    fn has_credit(&self) -> bool {
        self.credit >= PIECE
    }

    /// The next piece, empty at the end of the input; waits forever if there is no input. Cancel-safe.
    async fn next(&mut self) -> Vec<u8> {
        let Some(source) = &mut self.source else { return std::future::pending().await };
        let piece = source.recv().await.unwrap_or_default();
        if piece.is_empty() {
            self.source = None;
        }
        self.credit = self.credit.saturating_sub(piece.len());
        piece
    }
}

/// The line for the user if the connection breaks while the command runs.
fn lost(site: &str, place: &MachinePlace) -> String {
    format!("landbridge: site {site}: {place}: the connection is lost; programs there end, but those with --detach\n")
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
