//! The observer of a job receives the ranks' output, progress and notes. It may block, so it runs on its own thread.

use std::io;
use std::sync::mpsc as std_mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;
use types::{Identity, Roster};

use job::message::Stream;

/// Receives the events of a job.
pub trait Observer: Send + 'static {
    /// Receives the places of all ranks. Called once, before any output.
    fn placed(&mut self, roster: &Roster) {
        let _ = roster;
    }

    /// A rank wrote whole lines.
    ///
    /// # Errors
    /// The output cannot be passed on; the job then ends.
    fn output(&mut self, rank: u32, stream: Stream, bytes: &[u8]) -> io::Result<()>;

    /// The job's current activity, such as `starting 4 ranks`; `None` while ranks run.
    fn progress(&mut self, doing: Option<&str>);

    /// A line for the user.
    fn note(&mut self, text: &str);

    /// Called after each tenth of a second without any of these calls.
    fn tick(&mut self) {}
}

enum Telling {
    Placed(Roster),
    Output { agent: Identity, rank: u32, stream: Stream, bytes: Vec<u8> },
    Progress(Option<String>),
    Note(String),
}

/// Reports of the observer's thread.
#[derive(Debug)]
pub(super) enum WriterReport {
    /// This many bytes of an agent's output have been passed on.
    Gone { agent: Identity, bytes: u64 },
    /// Output could not be passed on.
    Failed(io::Error),
}

/// The observer's thread.
pub(super) struct Teller {
    sender: Option<std_mpsc::Sender<Telling>>,
    pub told: mpsc::UnboundedReceiver<WriterReport>,
    thread: Option<JoinHandle<()>>,
    /// Bytes of output that the observer has not passed on yet.
    pub pending: u64,
}

impl Teller {
    pub(super) fn new(mut observer: impl Observer) -> io::Result<Teller> {
        let (sender, tellings) = std_mpsc::channel();
        let (report, told) = mpsc::unbounded_channel();
        let work = move || {
            loop {
                match tellings.recv_timeout(Duration::from_millis(100)) {
                    Err(std_mpsc::RecvTimeoutError::Timeout) => observer.tick(),
                    Err(std_mpsc::RecvTimeoutError::Disconnected) => return,
                    Ok(Telling::Placed(roster)) => observer.placed(&roster),
                    Ok(Telling::Progress(doing)) => observer.progress(doing.as_deref()),
                    Ok(Telling::Note(text)) => observer.note(&text),
                    Ok(Telling::Output { agent, rank, stream, bytes }) => {
                        if let Err(e) = observer.output(rank, stream, &bytes) {
                            let _ = report.send(WriterReport::Failed(e));
                        }
                        let _ = report.send(WriterReport::Gone { agent, bytes: bytes.len() as u64 });
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("output".into()).spawn(work)?;
        Ok(Teller { sender: Some(sender), told, thread: Some(thread), pending: 0 })
    }

    fn tell(&self, telling: Telling) {
        if let Some(sender) = &self.sender {
            let _ = sender.send(telling);
        }
    }

    pub(super) fn placed(&self, roster: Roster) {
        self.tell(Telling::Placed(roster));
    }

    pub(super) fn output(&mut self, agent: Identity, rank: u32, stream: Stream, bytes: Vec<u8>) {
        self.pending += bytes.len() as u64;
        self.tell(Telling::Output { agent, rank, stream, bytes });
    }

    pub(super) fn progress(&self, doing: Option<String>) {
        self.tell(Telling::Progress(doing));
    }

    pub(super) fn note(&self, text: String) {
        self.tell(Telling::Note(text));
    }

    /// Waits until the observer has handled everything, but not longer than `limit`. A blocked observer is left behind.
    pub(super) async fn finish(&mut self, limit: Duration) {
        self.progress(None);
        self.sender = None;
        let end = tokio::time::Instant::now() + limit;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if let Some(thread) = self.thread.take().filter(JoinHandle::is_finished) {
            let _ = thread.join();
        }
    }
}
