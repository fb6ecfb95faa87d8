//! Sites that join by a ticket: for a site that nobody can dial and whose user cannot come to it from elsewhere.
//!
//! A ticket is made by a user of a site (who has proved the site's key) and carried to the new site by hand. It holds the gateway's
//! address and fingerprint, so the newcomer knows whom it talks to, and a number and a secret, so the gateway knows that this
//! newcomer was invited. The newcomer's own key is shown by TLS. A ticket is good once, and not for long; a gateway that
//! ends forgets its tickets. What the new entry says is for a [`Doorkeeper`] to judge.

use std::time::Duration;

use client::handshake::{self, Accepting};
use client::tls::TlsStream;
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;
use types::JobId;
use types::sites::Fingerprint;
use wire::control::JoiningMessage;
use wire::handshake::{Handshake, Refusal, RefusalCode, Welcome};
use wire::{Control, Secret};

use crate::path::forward::MAX_DATA;
use crate::path::member::Member;
use crate::server::Gateway;

/// Tickets that are open at once, and the longest time one is good.
const MOST: usize = 16;
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The longest entry of a newcomer, in bytes.
const MAX_ENTRY: u32 = 64 << 10;

/// Takes a site that joins into the sites file.
pub trait Doorkeeper: Send + Sync + std::fmt::Debug {
    /// Judges the entry of a site that has proved a ticket and holds the key of this fingerprint, and writes it down; gives the
    /// sites file as it is then.
    ///
    /// # Errors
    /// Why not, for the newcomer's user.
    fn admit(&self, site: &str, fingerprint: Fingerprint, entry: &str) -> Result<String, String>;
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
    pub(crate) fn joining_from_member(&self, member: &Member, message: JoiningMessage) -> Result<(), String> {
        match message {
            JoiningMessage::Invite { seconds } => {
                member.send_control(self, self.invite(seconds)?);
                Ok(())
            }
            JoiningMessage::Join { .. } => Err("who joins shows a ticket, on a connection of its own".into()),
            JoiningMessage::Invited { .. } | JoiningMessage::Joined { .. } => {
                Err("a gateway invites and admits, and nobody tells it so".into())
            }
        }
    }

    /// Makes a ticket.
    fn invite(&self, seconds: u32) -> Result<JoiningMessage, String> {
        let (mut number, mut secret) = ([0; 4], [0; 32]);
        for bytes in [&mut number[..], &mut secret[..]] {
            getrandom::fill(bytes).map_err(|e| format!("no random numbers: {e}"))?;
        }
        let (ticket, secret) = (JobId(u32::from_le_bytes(number)), Secret::new(secret));
        let good = Duration::from_secs(seconds.into()).min(LONGEST);
        self.tickets.borrow_mut().open(ticket, secret.clone(), Instant::now() + good);
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
) -> Result<(), String> {
    let (number, newcomer) = (accepting.hello.job, accepting.hello.site.clone());
    let secret = gateway.tickets.borrow_mut().secret(number);
    let (Some(secret), Some(fingerprint)) = (secret, presented) else {
        let text = "this ticket is unknown, used or expired: `landbridge sites invite` makes another";
        return refuse(stream, Refusal::new(RefusalCode::Unknown, text)).await;
    };
    if let Err(error) = accepting.challenge(stream, &secret, "not the ticket's secret", &own.0).await {
        return match error.refusal() {
            Some(refusal) => refuse(stream, refusal).await,
            None => Err(error.to_string()),
        };
    }
    let welcome = Handshake::Welcome(Welcome { max_payload: MAX_DATA, window: 0, run: 0 });
    handshake::write(stream, &welcome).await.map_err(|e| e.to_string())?;
    let said = handshake::read_control(stream, MAX_ENTRY).await.map_err(|e| e.to_string())?;
    let Control::Joining(JoiningMessage::Join { entry }) = said else {
        return Err("a ticket's holder said something else than its entry".to_owned());
    };
    // No await from here to the end of the ticket: it cannot be used twice at once.
    let taken = match &gateway.doorkeeper {
        Some(doorkeeper) => doorkeeper.admit(&newcomer, fingerprint, &entry).and_then(|text| {
            gateway
                .reload()
                .map_err(|problem| format!("the gateway of site {} must be restarted: {problem}", gateway.site))?;
            Ok(text)
        }),
        None => Err("this gateway takes nobody into its sites file".to_owned()),
    };
    if taken.is_ok() {
        gateway.tickets.borrow_mut().close(number);
    }
    let problem = taken.as_ref().err().cloned();
    let answer = JoiningMessage::Joined { sites: taken.ok(), problem: problem.clone().unwrap_or_default() };
    handshake::write_control(stream, answer).await.map_err(|e| e.to_string())?;
    let _ = stream.shutdown().await;
    match problem {
        None => {
            tracing::info!(site = newcomer, %fingerprint, "joined by a ticket");
            Ok(())
        }
        Some(problem) => Err(format!("site {newcomer} did not join: {problem}")),
    }
}

async fn refuse(stream: &mut TlsStream, refusal: Refusal) -> Result<(), String> {
    // Best effort: the reason is logged here in any case.
    let _ = handshake::write(stream, &Handshake::Refuse(refusal.clone())).await;
    Err(refusal.text)
}
