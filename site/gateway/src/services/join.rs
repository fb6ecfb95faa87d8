//! Sites that join by a ticket: for a site that cannot be dialled and whose user cannot reach it from elsewhere.
//!
//! A user of a site (who has proved the site's key) makes a ticket and carries it to the new site by hand. The
//! gateway's address and fingerprint in it let the newcomer verify the gateway. The number and the secret in it let the
//! gateway verify that the newcomer was invited. The newcomer presents its own key by TLS. A ticket is valid once and
//! for a limited time; a gateway forgets its tickets when it ends. A [`gateway_tasks::Doorkeeper`] checks the new
//! entry.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use client::handshake::{self, HandshakeError};
use client::tls::TlsStream;
use gateway_tasks::{Doorkeeper, NotTaken};
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use types::JobId;
use wire::control::JoiningMessage;
use wire::handshake::{Handshake, Refusal, RefusalCode, Welcome};
use wire::{Control, Secret};

use crate::path::limits::MAX_DATA;
use crate::path::member::Member;
use crate::services::standing;
use crate::table::error::Violation;
use crate::trunks::Trunks;
use crate::trunks::handshake::Newcomer;

/// Most tickets open at once; [`LONGEST`] is the longest validity of one.
const MOST: usize = 16;
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The longest entry of a newcomer, in bytes.
const MAX_ENTRY: u32 = 64 << 10;

/// Reasons why a site did not join by a ticket.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum JoinError {
    #[error("this ticket is unknown, used or expired: `landbridge sites invite` makes another")]
    Ticket,
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("the ticket's holder sent something other than its entry")]
    NoEntry,
    #[error("site {site} did not join: {why}")]
    NotTaken { site: String, why: NotTaken },
}

/// The open tickets.
#[derive(Debug, Default)]
struct Tickets(Vec<Ticket>);

#[derive(Debug)]
struct Ticket {
    number: JobId,
    secret: Secret,
    until: Instant,
}

impl Tickets {
    /// Opens a ticket.
    fn open(&mut self, number: JobId, secret: Secret, until: Instant) {
        self.prune();
        // Drop the oldest to make room.
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(Ticket { number, secret, until });
    }

    fn secret(&mut self, number: JobId) -> Option<Secret> {
        self.prune();
        self.0.iter().find(|ticket| ticket.number == number).map(|ticket| ticket.secret.clone())
    }

    /// Closes a ticket that was used.
    fn close(&mut self, number: JobId) {
        self.0.retain(|ticket| ticket.number != number);
    }

    fn prune(&mut self) {
        let now = Instant::now();
        self.0.retain(|ticket| ticket.until > now);
    }
}

/// Invites sites and admits them.
pub(crate) struct Joining {
    trunks: Rc<Trunks>,
    doorkeeper: Option<Arc<dyn Doorkeeper>>,
    tickets: RefCell<Tickets>,
}

impl Joining {
    /// `doorkeeper` checks the entries of new sites; without one, no site can join.
    pub(crate) fn new(doorkeeper: Option<Arc<dyn Doorkeeper>>, trunks: Rc<Trunks>) -> Joining {
        Joining { trunks, doorkeeper, tickets: RefCell::default() }
    }

    /// Handles a message about joining from a member.
    ///
    /// # Errors
    /// The member may not send it: close its connection.
    pub(crate) fn handle_member_message(&self, member: &Member, message: JoiningMessage) -> Result<(), Violation> {
        match message {
            JoiningMessage::Invite { seconds } => {
                let invited = self.invite(seconds).map_err(|error| Violation(format!("no random numbers: {error}")))?;
                member.send_control(&self.trunks.path, invited);
                Ok(())
            }
            JoiningMessage::Join { .. } => Err("a site joins with a ticket, on a connection of its own".into()),
            JoiningMessage::Invited { .. } | JoiningMessage::Joined { .. } => {
                Err("only gateways send invitations and admissions".into())
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
        self.tickets.borrow_mut().open(ticket, secret.clone(), Instant::now() + good);
        tracing::info!(seconds = good.as_secs(), "ticket made");
        Ok(JoiningMessage::Invited { ticket, secret })
    }

    /// Admits a site after its hello. The caller sets the time limit.
    pub(crate) async fn admit(&self, newcomer: Newcomer) -> Result<(), JoinError> {
        let Newcomer { mut stream, mut accepting, presented, own } = newcomer;
        let stream = &mut stream;
        let (number, newcomer) = (accepting.hello.job, accepting.hello.site.clone());
        let secret = self.tickets.borrow_mut().secret(number);
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
        // No await between here and closing the ticket, so it cannot be used twice at once.
        let taken = match &self.doorkeeper {
            Some(doorkeeper) => {
                doorkeeper.admit(&newcomer, fingerprint, &entry).and_then(|text| match standing::reload(&self.trunks) {
                    Ok(()) => Ok(text),
                    Err(problem) => {
                        let site = &self.trunks.sites.site;
                        Err(NotTaken(format!("the gateway of site {site} must be restarted: {problem}")))
                    }
                })
            }
            None => Err(NotTaken("this gateway does not add sites to its sites file".to_owned())),
        };
        if taken.is_ok() {
            self.tickets.borrow_mut().close(number);
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
}

async fn refuse(stream: &mut TlsStream, refusal: Refusal) {
    // Best effort: the reason is logged here in any case.
    let _ = handshake::write(stream, &Handshake::Refuse(refusal)).await;
}
