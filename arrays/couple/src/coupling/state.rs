//! The exchange of a coupling over its endpoint: what moves bytes.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use endpoint::operation::{CompleteWhen, Match, OperationKind, RecvOp, SendOp};
use endpoint::{Completion, Endpoint, Failure, PeerId, UserData};
use memory::Buffer;
use types::{Identity, SiteId};

use crate::exchange::{Exchange, ExchangeAction, Party};
use crate::message::{PART, PartialMessage};

/// Tag of messages. The tag of elements is their ticket with the bit [`ELEMENTS`].
const MESSAGES: u64 = 1;
const ELEMENTS: u64 = 1 << 63;
/// Number of receives posted for messages.
pub(super) const POSTED: usize = 16;
/// Time limit for the helper to tell why a connection is lost, on a busy machine. It knows which gateway ended.
const CAUSE: Duration = Duration::from_secs(3);

/// Flags of an operation, which its completion returns.
const OF_MESSAGE: u64 = 0;
const OF_ELEMENTS: u64 = 1;
const SENT: u64 = 2;

pub(super) struct CouplingState {
    pub(super) exchange: Exchange,
    pub(super) endpoint: Endpoint,
    pub(super) peers: HashMap<Party, PeerId>,
    pub(super) parties: HashMap<PeerId, Party>,
    /// Names of the other processes, for messages about lost connections.
    pub(super) names: HashMap<Identity, String>,
    /// Sends that have not begun, because the endpoint is full.
    pub(super) waiting: VecDeque<SendOp>,
    pub(super) arriving: HashMap<Party, PartialMessage>,
    /// Number of sends of elements that have not been delivered.
    pub(super) in_flight: usize,
    /// Time and description of the first lost connection.
    pub(super) lost: Option<(Instant, String)>,
}

impl CouplingState {
    /// Moves bytes without blocking. Returns true if anything moved.
    pub(super) fn step(&mut self) -> bool {
        let mut moved = false;
        if self.lost.as_ref().is_some_and(|(since, _)| since.elapsed() > CAUSE)
            && let Some((_, reason)) = self.lost.take()
        {
            self.exchange.fail(reason, None);
            moved = true;
        }
        loop {
            let mut again = self.endpoint.progress();
            while let Some(completion) = self.endpoint.next_completion() {
                self.completed(completion);
                again = true;
            }
            again |= self.act();
            if !again {
                return moved;
            }
            moved = true;
        }
    }

    /// Carries out the exchange's actions and begins waiting sends. Returns true if there were any.
    fn act(&mut self) -> bool {
        let mut any = false;
        while let Some(action) = self.exchange.actions.pop_front() {
            any = true;
            match action {
                ExchangeAction::Tell(party, message) => {
                    let Some(to) = self.peers.get(&party).copied() else { continue };
                    match message.parts() {
                        Ok(parts) => self.waiting.extend(parts.into_iter().map(|part| SendOp {
                            to,
                            tag: Some(MESSAGES),
                            data: None,
                            buffer: Buffer::owned(part),
                            complete: CompleteWhen::Sent,
                            user: UserData { context: 0, flags: SENT },
                        })),
                        Err(error) => self.exchange.fail(error.to_string(), None),
                    }
                }
                ExchangeAction::Send { to, ticket, bytes } => {
                    let Some(to) = self.peers.get(&to).copied() else { continue };
                    self.in_flight += 1;
                    self.waiting.push_back(SendOp {
                        to,
                        tag: Some(ELEMENTS | u64::from(ticket)),
                        data: None,
                        buffer: Buffer::owned(bytes),
                        complete: CompleteWhen::Delivered,
                        user: UserData { context: 0, flags: OF_ELEMENTS | SENT },
                    });
                }
                ExchangeAction::Await { from, ticket, length } => {
                    let from = self.peers.get(&from).copied();
                    let matching = Match { from, tagged: true, tag: ELEMENTS | u64::from(ticket), ignore: 0 };
                    let user = UserData { context: context(ticket), flags: OF_ELEMENTS };
                    self.receive(RecvOp { matching, buffer: Buffer::owned(vec![0; length]), multi: None, user });
                }
                ExchangeAction::Forget { ticket } => drop(self.endpoint.cancel(context(ticket))),
            }
        }
        while !self.waiting.is_empty() && !self.endpoint.is_full() {
            let Some(op) = self.waiting.pop_front() else { break };
            any = true;
            let party = self.parties.get(&op.to).copied();
            if let Err(error) = self.endpoint.send(op) {
                self.exchange.fail(format!("{}: {error}", named(party)), None);
            }
        }
        any
    }

    /// Passes the gateways' figures of the paths from other sites to the exchange.
    pub(super) fn measure(&mut self) {
        let (others, Some(own)) = self.exchange.ways() else { return };
        let links = self.endpoint.links();
        let figures = |site: &SiteId| (*site, links.map(|links| links.get(*site, own)).unwrap_or_default());
        let known: Vec<_> = others.iter().map(figures).collect();
        for (site, figures) in known {
            self.exchange.measured(site, figures);
        }
    }

    fn loses(&mut self, failure: &Failure) {
        let what = match failure {
            // The process at the other end is not to blame.
            Failure::PeerLost { reason, .. } if self.endpoint.is_cut_off() => reason.clone(),
            Failure::PeerLost { address, reason } => match self.names.get(&address.identity) {
                Some(name) => format!("{name}: {reason}"),
                None => failure.to_string(),
            },
            _ => failure.to_string(),
        };
        self.lost.get_or_insert((Instant::now(), what));
    }

    pub(super) fn await_message(&mut self) {
        let matching = Match { from: None, tagged: true, tag: MESSAGES, ignore: 0 };
        let user = UserData { context: 0, flags: OF_MESSAGE };
        self.receive(RecvOp { matching, buffer: Buffer::owned(vec![0; PART]), multi: None, user });
    }

    fn receive(&mut self, op: RecvOp) {
        if let Err(error) = self.endpoint.receive(op) {
            self.exchange.fail(format!("cannot receive: {error}"), None);
        }
    }

    fn completed(&mut self, completion: Completion) {
        let Completion { kind, user, length, from, buffer, result, .. } = completion;
        let party = from.and_then(|peer| self.parties.get(&peer).copied());
        if kind == OperationKind::Send {
            match result {
                Ok(()) => self.in_flight -= usize::from(user.flags == OF_ELEMENTS | SENT),
                // A failed send stays in flight, so nothing finishes before the reason is known.
                Err(failure) => self.loses(&failure),
            }
            return;
        }
        let bytes = buffer.map(|buffer| buffer.to_vec(0..length as usize));
        match (user.flags, result, bytes) {
            (_, Err(Failure::Cancelled), _) => {}
            (_, Err(failure), _) => self.loses(&failure),
            (OF_MESSAGE, Ok(()), Some(bytes)) => {
                self.await_message();
                let Some(party) = party else { return };
                match self.arriving.entry(party).or_default().part(&bytes) {
                    Ok(Some(message)) => self.exchange.handle_message(party, message),
                    Ok(None) => {}
                    Err(error) => self.exchange.fail(format!("{}: {error}", named(Some(party))), None),
                }
            }
            (_, Ok(()), Some(bytes)) => {
                let Some(party) = party else { return };
                self.exchange.arrived(party, (user.context - 1) as u32, bytes);
            }
            (_, Ok(()), None) => {}
        }
    }
}

/// The context of the receive of a ticket's elements; receives of messages have 0.
fn context(ticket: u32) -> usize {
    ticket as usize + 1
}

pub(super) fn named(party: Option<Party>) -> String {
    match party {
        Some(Party { own: true, process }) => format!("process {process} of this side"),
        Some(Party { own: false, process }) => format!("process {process} of the other side"),
        None => "a process".to_owned(),
    }
}
