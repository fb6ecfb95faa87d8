//! Questions that a user's command asks a gateway.

use std::time::Duration;

use tokio::time::timeout;
use types::{Identity, JobId, SiteId, Slot};
use wire::control::{JoiningMessage, LinksMessage, Measurement, MeasurementMessage, ObservationMessage, TrunkStanding};
use wire::{Control, FrameKind, Secret, View};

use crate::{Client, ClientError};

/// A gateway's standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Number of jobs that are open there.
    pub jobs: u32,
    /// Its trunks, in the order of the sites file.
    pub trunks: Vec<TrunkStanding>,
    /// The reason why its state does not match its sites file, if so. After a reload, only a restart helps; otherwise
    /// the file was edited and not loaded.
    pub stale: Option<String>,
}

impl Client {
    /// Asks the gateway to probe its trunk to a site; returns the round-trip time. For
    /// [`Role::Client`](crate::Role::Client).
    ///
    /// # Errors
    /// [`ClientError::Probe`] with the gateway's reason when the trunk does not work.
    pub async fn probe(&mut self, site: &str) -> Result<Duration, ClientError> {
        let answered = |message| match message {
            Control::Measurement(MeasurementMessage::Probed { site: probed, problem: None, rtt_ns })
                if probed == site =>
            {
                Some(Ok(Duration::from_nanos(rtt_ns)))
            }
            Control::Measurement(MeasurementMessage::Probed { site: probed, problem: Some(problem), .. })
                if probed == site =>
            {
                Some(Err(ClientError::Probe(problem)))
            }
            _ => None,
        };
        self.ask(MeasurementMessage::Probe { site: site.to_owned() }, "probing", answered).await?
    }

    /// Asks the gateway for its view of the sites. For [`Role::Client`](crate::Role::Client).
    ///
    /// # Errors
    /// It is gone, or does not answer.
    pub async fn observe(&mut self) -> Result<View, ClientError> {
        let answered = |message| match message {
            Control::Observation(ObservationMessage::Observed { view }) => Some(*view),
            _ => None,
        };
        self.ask(ObservationMessage::Observe, "observing", answered).await
    }

    /// Asks the gateway to measure the network from one site to another, or to have another gateway measure it.
    /// `transfer`: measure the rate too. Takes a few seconds at most. For [`Role::Client`](crate::Role::Client).
    ///
    /// # Errors
    /// It is gone, or does not answer.
    pub async fn measure(&mut self, from: &str, to: &str, transfer: bool) -> Result<Measurement, ClientError> {
        let answered = |message| match message {
            Control::Measurement(MeasurementMessage::Measured { from: sender, to: receiver, found })
                if sender == from && receiver == to =>
            {
                Some(found)
            }
            _ => None,
        };
        let question = MeasurementMessage::Measure { from: from.to_owned(), to: to.to_owned(), transfer };
        self.ask(question, "measuring", answered).await
    }

    /// Asks the gateway to measure the unknown or stale rates between sites, and to have other gateways measure theirs,
    /// for at most `longest`. Returns the time until each pair has had its turn. For
    /// [`Role::Client`](crate::Role::Client).
    ///
    /// # Errors
    /// It is gone, or does not answer.
    pub async fn measure_links(&mut self, longest: Duration) -> Result<Duration, ClientError> {
        let answered = |message| match message {
            Control::Links(LinksMessage::Measuring { seconds }) => Some(Duration::from_secs(seconds.into())),
            _ => None,
        };
        let seconds = u32::try_from(longest.as_secs()).unwrap_or(u32::MAX);
        self.ask(LinksMessage::Measure { seconds }, "asking for measurements", answered).await
    }

    /// Asks the gateway for its standing. `reload`: reload the sites file first. For
    /// [`Role::Client`](crate::Role::Client).
    ///
    /// # Errors
    /// It is gone, or does not answer.
    pub async fn standing(&mut self, reload: bool) -> Result<Standing, ClientError> {
        let answered = |message| match message {
            Control::Observation(ObservationMessage::Standing { jobs, trunks, stale }) => {
                Some(Standing { jobs, trunks, stale })
            }
            _ => None,
        };
        self.ask(ObservationMessage::Status { reload }, "asking for its status", answered).await
    }

    /// Asks the gateway for a ticket that is valid for `seconds`; returns its number and secret. For
    /// [`Role::Client`](crate::Role::Client).
    ///
    /// # Errors
    /// It is gone, or does not answer.
    pub async fn invite(&mut self, seconds: u32) -> Result<(JobId, Secret), ClientError> {
        let answered = |message| match message {
            Control::Joining(JoiningMessage::Invited { ticket, secret }) => Some((ticket, secret)),
            _ => None,
        };
        self.ask(JoiningMessage::Invite { seconds }, "asking for a ticket", answered).await
    }

    /// Sends a question and waits for a message that `answered` accepts as the answer.
    async fn ask<T>(
        &mut self,
        question: impl Into<Control>,
        what: &'static str,
        answered: impl Fn(Control) -> Option<T>,
    ) -> Result<T, ClientError> {
        const LIMIT: Duration = Duration::from_secs(8);
        let nobody = Identity { site: SiteId(0), slot: Slot::LAUNCHER };
        self.send_control(nobody, question).await?;
        let answer = async {
            loop {
                let Some(frame) = self.receive().await? else {
                    let reason = format!("no answer ({what})");
                    return Err(ClientError::Closed { address: self.address().to_owned(), reason });
                };
                if frame.header.kind != FrameKind::Control {
                    continue;
                }
                if let Some(answer) = answered(self.control(&frame)?) {
                    return Ok(answer);
                }
            }
        };
        match timeout(LIMIT, answer).await {
            Ok(result) => result,
            Err(_) => {
                let address = self.address().to_owned();
                Err(ClientError::Timeout { address, what, seconds: LIMIT.as_secs() })
            }
        }
    }
}
