//! The other gateways of the user's own site: each is asked to let a job's frames pass too, again and again as long as the job runs,
//! so that one that returns is used again. None of them is needed.

use std::time::Duration;

use gateway::client::{Client, ClientError, Role};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use types::Identity;
use wire::control::Traffic;
use wire::{Control, FrameKind};

const AGAIN: Duration = Duration::from_secs(1);

/// What comes of them.
#[derive(Debug)]
pub(crate) enum RelayNews {
    /// It is not used, for this reason.
    Unused(String),
    /// What a gateway of a site counted.
    Counted(String, Traffic),
    /// It has nothing of the job any more.
    Done,
}

/// Connections to them, each with a task of its own; dropped, they end.
pub(crate) struct Relays {
    news: mpsc::UnboundedReceiver<RelayNews>,
    closing: watch::Sender<bool>,
}

/// A gateway to be used.
pub(crate) struct Entry {
    /// Such as `site lyon: gateway gw2`.
    pub place: String,
    /// `host:port`.
    pub address: String,
}

impl Relays {
    /// Has these gateways open a job; `open` is the message that says so.
    pub fn open(entries: Vec<Entry>, role: &Role, me: Identity, open: &Control) -> Relays {
        let (sender, news) = mpsc::unbounded_channel();
        let (closing, closed) = watch::channel(false);
        for entry in entries {
            let relay = Relay { entry, role: role.clone(), me, open: open.clone(), news: sender.clone(), told: false };
            tokio::spawn(relay.run(closed.clone()));
        }
        Relays { news, closing }
    }

    /// What came next; never, when there is nothing to come.
    pub async fn next(&mut self) -> RelayNews {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }

    /// The job is over.
    pub fn close(&self) {
        self.closing.send_replace(true);
    }
}

/// Waits until the job is over, or whoever could say so is gone.
async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await.map(drop);
}

struct Relay {
    entry: Entry,
    role: Role,
    me: Identity,
    open: Control,
    news: mpsc::UnboundedSender<RelayNews>,
    told: bool,
}

impl Relay {
    async fn run(mut self, mut closing: watch::Receiver<bool>) {
        loop {
            match self.serve(&mut closing).await {
                Ok(()) => {}
                Err(error) => self.unused(&error.to_string()),
            }
            let waited = tokio::select! {
                () = sleep(AGAIN) => true,
                () = closed(&mut closing) => false,
            };
            if !waited {
                self.tell(RelayNews::Done);
                return;
            }
        }
    }

    /// Opens the job there and listens until the connection ends.
    async fn serve(&mut self, closing: &mut watch::Receiver<bool>) -> Result<(), ClientError> {
        let (mut receiver, mut sender) = Client::connect(&self.entry.address, &self.role).await?.split();
        sender.send_control(self.me, &self.open).await?;
        let mut asked_to_close = false;
        loop {
            let frame = tokio::select! {
                frame = receiver.receive() => frame,
                () = closed(closing), if !asked_to_close => {
                    asked_to_close = true;
                    let job = self.open.job().unwrap_or_default();
                    sender.send_control(self.me, &Control::JobClose { job }).await?;
                    continue;
                }
            };
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(()),
                // It says goodbye when it has closed the job.
                Err(ClientError::Closed { .. }) if asked_to_close => return Ok(()),
                Err(error) => return Err(error),
            };
            if frame.header.kind == FrameKind::Control {
                match receiver.control(&frame)? {
                    Control::JobClosed { site, traffic, .. } => self.tell(RelayNews::Counted(site, traffic)),
                    Control::JobRefused { site, reason, .. } => self.unused(&format!("site {site}: {reason}")),
                    _ => {}
                }
            }
        }
    }

    /// Says once why it is not used.
    fn unused(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.told, true) {
            self.tell(RelayNews::Unused(format!("{} is not used: {reason}", self.entry.place)));
        }
    }

    fn tell(&self, news: RelayNews) {
        // The launcher may have ended.
        let _ = self.news.send(news);
    }
}
