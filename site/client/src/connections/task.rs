//! The task of one connection: dials its gateway, serves the connection, and dials again after a loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use member::Beat;
use member::last_route::AGAIN;
use member::pulse::LINK_SILENCE_S;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep};
use types::{Identity, JobId, Slot};
use wire::{Control, FrameHeader, FrameKind};

use super::vigil::Vigil;
use super::{Entry, News};
use crate::client::{Client, Frame, Receiver, Sender};
use crate::error::ClientError;

/// A gateway that has sent nothing for this many seconds counts as silent: it sends a frame each second.
const SILENT_S: u64 = 2;
/// Delay before dialling a gateway again whose connection broke.
const SOON: Duration = Duration::from_millis(100);

/// A task's report.
#[derive(Debug)]
pub(super) enum TaskReport {
    News(News),
    /// The gateway could not be reached after a loss.
    Gone(ClientError),
}

/// Commands for a task. Flow-control windows limit the number queued.
#[derive(Debug)]
pub(super) enum Errand {
    Frame(FrameHeader, Vec<u8>),
    Control(Control),
    Opening(Control),
    Goodbye(JobId),
}

/// See the module docs.
pub(super) struct Task {
    pub(super) number: usize,
    pub(super) entry: Entry,
    pub(super) me: Identity,
    pub(super) errands: UnboundedReceiver<Errand>,
    pub(super) reports: UnboundedSender<(usize, TaskReport)>,
    /// True once a failure to reach the gateway has been reported.
    pub(super) has_failed: bool,
    pub(super) standing_by: Arc<AtomicBool>,
    pub(super) impatient: Arc<AtomicBool>,
    /// Set if the gateway is silent.
    pub(super) silent: Arc<AtomicBool>,
}

impl Task {
    pub(super) async fn run(mut self, mut client: Option<Client>) {
        let mut lost = false;
        loop {
            let mut again = AGAIN;
            let connected = match client.take() {
                Some(client) => Ok(client),
                None => Client::connect(&self.entry.gateway, &self.entry.role).await,
            };
            match connected {
                Ok(client) => {
                    self.silent.store(false, Ordering::Relaxed);
                    self.tell(News::Open);
                    let (mut receiver, mut sender) = client.split();
                    match self.serve(&mut receiver, &mut sender).await {
                        Err(error) => {
                            // A single reset does not mean that the gateway is down.
                            (lost, again) = (true, SOON);
                            self.tell(News::Lost(error));
                        }
                        Ok(()) => return,
                    }
                }
                Err(error) if lost => self.report(TaskReport::Gone(error)),
                Err(error) if !std::mem::replace(&mut self.has_failed, true) => self.tell(News::Failed(error)),
                Err(_) => {}
            }
            if self.pause(again).await.is_err() {
                return;
            }
        }
    }

    /// Waits before the next attempt; returns an error if there will be none.
    async fn pause(&mut self, again: Duration) -> Result<(), ()> {
        let until = sleep(again);
        tokio::pin!(until);
        loop {
            tokio::select! {
                () = &mut until => return Ok(()),
                errand = self.errands.recv() => match errand {
                    None | Some(Errand::Goodbye(_)) => return Err(()),
                    Some(Errand::Opening(opening)) => self.entry.opening = Some(opening),
                    // Frames for the previous connection are useless now: the component that keeps them retransmits
                    // them.
                    Some(Errand::Frame(..) | Errand::Control(_)) => {}
                },
            }
        }
    }

    /// Serves a connection until this member is done or the connection is lost.
    async fn serve(&mut self, receiver: &mut Receiver, sender: &mut Sender) -> Result<(), ClientError> {
        let mut vigil = Vigil::new();
        let served = self.serve_watched(receiver, sender, &mut vigil).await;
        served.map_err(|error| vigil.explained(error, Instant::now()))
    }

    async fn serve_watched(
        &mut self,
        receiver: &mut Receiver,
        sender: &mut Sender,
        vigil: &mut Vigil,
    ) -> Result<(), ClientError> {
        if let Some(opening) = &self.entry.opening {
            sender.send_control(self.me, opening.clone()).await?;
        }
        loop {
            let mut word = None;
            tokio::select! {
                frame = receiver.receive() => self.heard(frame, vigil)?,
                () = vigil.due() => match self.beat(vigil, receiver) {
                    Beat::Quiet => {}
                    Beat::Ping => word = Some(FrameKind::Ping),
                    Beat::Lost(seconds) => return Err(self.silent(seconds)),
                },
                errand = self.errands.recv() => match errand {
                    Some(Errand::Frame(header, payload)) => {
                        self.while_listening(sender.send(header, &payload), receiver, vigil).await?;
                    }
                    Some(Errand::Opening(opening)) => self.entry.opening = Some(opening),
                    Some(Errand::Control(message)) => {
                        self.while_listening(sender.send_control(self.me, message), receiver, vigil).await?;
                    }
                    Some(Errand::Goodbye(job)) => {
                        if sender.goodbye(job, self.me).await.is_ok() {
                            while let Ok(Some(_)) = receiver.receive().await {}
                        }
                        return Ok(());
                    }
                    None => return Ok(()),
                },
            }
            if let Some(kind) = word.or_else(|| vigil.owes_a_word().then_some(FrameKind::Pong)) {
                let sending = sender.send(self.about_life(kind), &[]);
                self.while_listening(sending, receiver, vigil).await?;
            }
        }
    }

    /// Completes a send, and listens meanwhile: a live gateway sends signs of life even while it does not read; a hung
    /// one does neither.
    async fn while_listening(
        &self,
        sending: impl Future<Output = Result<(), ClientError>>,
        receiver: &mut Receiver,
        vigil: &mut Vigil,
    ) -> Result<(), ClientError> {
        tokio::pin!(sending);
        loop {
            tokio::select! {
                done = &mut sending => return done,
                frame = receiver.receive() => self.heard(frame, vigil)?,
                () = vigil.due() => if let Beat::Lost(seconds) = self.beat(vigil, receiver) {
                    return Err(self.silent(seconds));
                },
            }
        }
    }

    /// Handles an arrived frame, or the end of the stream.
    fn heard(&self, frame: Result<Option<Frame>, ClientError>, vigil: &mut Vigil) -> Result<(), ClientError> {
        let Some(frame) = frame? else { return Err(self.closed()) };
        let silent_s = vigil.silent_s();
        vigil.heard(frame.header.kind);
        self.silent.store(false, Ordering::Relaxed);
        if silent_s >= LINK_SILENCE_S {
            self.tell(News::Back(silent_s));
        }
        if !matches!(frame.header.kind, FrameKind::Ping | FrameKind::Pong) {
            self.tell(News::Frame(frame));
        }
        Ok(())
    }

    fn beat(&self, vigil: &mut Vigil, receiver: &Receiver) -> Beat {
        let (stopped, impatient) = (self.standing_by.load(Ordering::Relaxed), self.impatient.load(Ordering::Relaxed));
        let beat = vigil.beat(receiver, stopped, impatient);
        self.silent.store(vigil.silent_s() >= SILENT_S, Ordering::Relaxed);
        beat
    }

    fn silent(&self, seconds: u64) -> ClientError {
        ClientError::Silent { address: self.entry.gateway.address.clone(), seconds }
    }

    fn about_life(&self, kind: FrameKind) -> FrameHeader {
        let to = Identity { site: self.me.site, slot: Slot::GATEWAY };
        FrameHeader::plain(kind, JobId::default(), self.me, to)
    }

    fn closed(&self) -> ClientError {
        ClientError::Left { address: self.entry.gateway.address.clone() }
    }

    fn tell(&self, news: News) {
        self.report(TaskReport::News(news));
    }

    fn report(&self, report: TaskReport) {
        // The receiver may be gone.
        let _ = self.reports.send((self.number, report));
    }
}
