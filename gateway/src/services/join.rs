//! Sites that join by a ticket: for a site that nobody can dial and whose user cannot come to it from elsewhere.
//!
//! A ticket is made by a user of a site (who has proved the site's key) and carried to the new site by hand. It holds the gateway's
//! address and fingerprint, so the newcomer knows whom it talks to, and a number and a secret, so the gateway knows that this
//! newcomer was invited. The newcomer's own key is shown by TLS. A ticket is good once, and not for long; a gateway that
//! ends forgets its tickets. What the new entry says is for a [`hooks::Doorkeeper`] to judge.

use std::time::Duration;

use client::handshake::{self, Accepting, HandshakeError};
use client::tls::TlsStream;
use hooks::NotTaken;
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use types::JobId;
use types::sites::Fingerprint;
use wire::control::JoiningMessage;
use wire::handshake::{Handshake, Refusal, RefusalCode, Welcome};
use wire::{Control, Secret};

use crate::gateway::Gateway;
use crate::path::forward::MAX_DATA;
use crate::path::member::Member;
use crate::table::error::Violation;

/// Tickets that are open at once, and the longest time one is good.
const MOST: usize = 16;
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The longest entry of a newcomer, in bytes.
const MAX_ENTRY: u32 = 64 << 10;

/// Why nobody joined by a ticket.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum JoinError {
    #[error("this ticket is unknown, used or expired: `landbridge sites invite` makes another")]
    Ticket,
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("a ticket's holder said something else than its entry")]
    NoEntry,
    #[error("site {site} did not join: {why}")]
    NotTaken { site: String, why: NotTaken },
}

/// The tickets that are open.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Vec<Ticket>);

#[derive(Debug)]
struct Ticket {
    number: JobId,
    secret: Secret,
    until: Instant,
}

impl Tickets {
    /// Makes one.
    fn open(&mut self, number: JobId, secret: Secret, until: Instant) {
        self.prune();
        // The oldest makes room.
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(Ticket { number, secret, until });
    }

    fn secret(&mut self, number: JobId) -> Option<Secret> {
        self.prune();
        self.0.iter().find(|ticket| ticket.number == number).map(|ticket| ticket.secret.clone())
    }

    /// It was used.
    fn close(&mut self, number: JobId) {
        self.0.retain(|ticket| ticket.number != number);
    }

    fn prune(&mut self) {
        let now = Instant::now();
        self.0.retain(|ticket| ticket.until > now);
    }
}

impl Gateway {
    /// A message about joining came from a member.
    ///
    /// # Errors
    /// It may not say that: close its connection.
    pub(crate) fn joining_from_member(&self, member: &Member, message: JoiningMessage) -> Result<(), Violation> {
        match message {
            JoiningMessage::Invite { seconds } => {
                let invited = self.invite(seconds).map_err(|error| Violation(format!("no random numbers: {error}")))?;
                member.send_control(self, invited);
                Ok(())
            }
            JoiningMessage::Join { .. } => Err("who joins shows a ticket, on a connection of its own".into()),
            JoiningMessage::Invited { .. } | JoiningMessage::Joined { .. } => {
                Err("a gateway invites and admits, and nobody tells it so".into())
            }
        }
    }

    /// Makes a ticket.
    fn invite(&self, seconds: u32) -> Result<JoiningMessage, getrandom::Error> {
        let (mut number, mut secret) = ([0; 4], [0; 32]);
        for bytes in [&mut number[..], &mut secret[..]] {
            getrandom::fill(bytes)?;
        }
        let (ticket, secret) = (JobId(u32::from_le_bytes(number)), Secret::new(secret));
        let good = Duration::from_secs(seconds.into()).min(LONGEST);
        self.services.tickets.borrow_mut().open(ticket, secret.clone(), Instant::now() + good);
        tracing::info!(seconds = good.as_secs(), "a ticket was made");
        Ok(JoiningMessage::Invited { ticket, secret })
    }
}

/// The accepting side, after the hello. The caller bounds its time.
pub(crate) async fn admit(
    gateway: &Gateway,
    stream: &mut TlsStream,
    mut accepting: Accepting,
    presented: Option<Fingerprint>,
    own: Fingerprint,
) -> Result<(), JoinError> {
    let (number, newcomer) = (accepting.hello.job, accepting.hello.site.clone());
    let secret = gateway.services.tickets.borrow_mut().secret(number);
    let (Some(secret), Some(fingerprint)) = (secret, presented) else {
        refuse(stream, Refusal::new(RefusalCode::Unknown, JoinError::Ticket.to_string())).await;
        return Err(JoinError::Ticket);
    };
    if let Err(error) = accepting.challenge(stream, &secret, "not the ticket's secret", &own.0).await {
        if let Some(refusal) = error.refusal() {
            refuse(stream, refusal).await;
        }
        return Err(error.into());
    }
    let welcome = Handshake::Welcome(Welcome { max_payload: MAX_DATA, window: 0, run: 0 });
    handshake::write(stream, &welcome).await?;
    let said = handshake::read_control(stream, MAX_ENTRY).await?;
    let Control::Joining(JoiningMessage::Join { entry }) = said else {
        return Err(JoinError::NoEntry);
    };
    // No await from here to the end of the ticket: it cannot be used twice at once.
    let taken = match &gateway.services.doorkeeper {
        Some(doorkeeper) => doorkeeper.admit(&newcomer, fingerprint, &entry).and_then(|text| match gateway.reload() {
            Ok(()) => Ok(text),
            Err(problem) => {
                let site = &gateway.site;
                Err(NotTaken(format!("the gateway of site {site} must be restarted: {problem}")))
            }
        }),
        None => Err(NotTaken("this gateway takes nobody into its sites file".to_owned())),
    };
    if taken.is_ok() {
        gateway.services.tickets.borrow_mut().close(number);
    }
    let problem = taken.as_ref().err().cloned();
    let text = problem.as_ref().map_or(String::new(), NotTaken::to_string);
    let answer = JoiningMessage::Joined { sites: taken.ok(), problem: text };
    handshake::write_control(stream, answer).await?;
    let _ = stream.shutdown().await;
    match problem {
        None => {
            tracing::info!(site = newcomer, %fingerprint, "joined by a ticket");
            Ok(())
        }
        Some(why) => Err(JoinError::NotTaken { site: newcomer, why }),
    }
}

async fn refuse(stream: &mut TlsStream, refusal: Refusal) {
    // Best effort: the reason is logged here in any case.
    let _ = handshake::write(stream, &Handshake::Refuse(refusal)).await;
}
