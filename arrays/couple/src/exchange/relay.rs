//! Copies of the same elements at one site that is not their sender's. One process there asks for them, and each passes
//! them on to the next, piece by piece: so they cross the way between the sites once, and arrive everywhere almost at
//! the same time, because all send at once.

use plan::redistribution::Transfer;

use super::receive::FetchId;
use super::{Action, Exchange, MOST, Misuse, Party};
use crate::message::Message;

/// What a process passes on of a message.
#[derive(Debug)]
pub(super) struct Relay {
    /// The next process of this side.
    pub(super) to: u32,
    /// The first of its tickets, once it has asked.
    pub(super) ticket: Option<u32>,
    /// Pieces that it has not asked for yet, with their numbers.
    pub(super) kept: Vec<(u32, Vec<u8>)>,
    /// How many it lacks.
    pub(super) left: u32,
    /// Why none will come.
    pub(super) refused: Option<String>,
}

impl Exchange {
    /// The processes that pass on what goes from one process to another, in order; the first one asks the sender. Fewer
    /// than two: nobody does. `sends`: this side sends it.
    pub(super) fn chain(&self, transfer: &Transfer, sends: bool, from: u32, to: u32) -> Vec<u32> {
        let (senders, receivers) = (&self.sites[usize::from(!sends)], &self.sites[usize::from(sends)]);
        let site = receivers.get(to as usize);
        if senders.get(from as usize) == site {
            return Vec::new();
        }
        let sharers = transfer.sharers(from, to).into_iter();
        sharers.filter(|process| receivers.get(*process as usize) == site).collect()
    }

    /// Whether a process of the other side asks this one for its message, rather than another of its own side.
    pub(super) fn asks(&self, transfer: &Transfer, to: u32) -> bool {
        let chain = self.chain(transfer, true, self.own, to);
        chain.len() < 2 || chain[0] == to
    }

    /// What is sent in pieces to `to` goes on from there to these.
    pub(super) fn await_passed(&mut self, name: &str, version: u64, wish: u32, to: u32) {
        let exported = self.exported.get(name);
        let Some(wished) = exported.and_then(|exported| exported.wishes.get(&wish)) else { return };
        let chain = self.chain(&wished.transfer, true, self.own, to);
        let others = chain.into_iter().filter(|process| *process != to);
        self.passing.extend(others.map(|process| (name.to_owned(), version, process)));
    }

    /// A piece has arrived that another process of this side has passed on.
    pub(super) fn count_passed(&mut self, of: (FetchId, u32)) {
        let Some(left) = self.passed.get_mut(&of) else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        self.passed.remove(&of);
        if let Some(fetch) = self.fetches.get(&of.0) {
            let passed = Message::Passed { name: fetch.name.clone(), version: fetch.version };
            self.actions.push_back(Action::Tell(Party::other(of.1), Box::new(passed)));
        }
    }

    /// Whether processes of the other side still await what this one has sent to another of them.
    pub(crate) fn is_passing(&self) -> bool {
        !self.passing.is_empty()
    }

    /// Another process of this side asks for what arrives here from a process of the other side in this fetch.
    pub(super) fn forward(&mut self, from: u32, fetch: FetchId, source: u32, ticket: u32) -> Result<(), Misuse> {
        let Some(relay) = self.relays.get_mut(&(fetch, source)) else {
            // This process has not begun the fetch.
            if fetch < FetchId(self.next_fetch) || self.forwards.len() >= MOST {
                return Err(Misuse::Unasked { process: from, length: 0 });
            }
            self.forwards.insert((fetch, source), (from, ticket));
            return Ok(());
        };
        if relay.to != from {
            return Err(Misuse::Unasked { process: from, length: 0 });
        }
        relay.ticket = Some(ticket);
        for (number, bytes) in std::mem::take(&mut relay.kept) {
            self.pass_on((fetch, source), number, bytes);
        }
        if let Some(reason) = self.relays.get(&(fetch, source)).and_then(|relay| relay.refused.clone()) {
            self.refuse_on((fetch, source), reason);
        }
        Ok(())
    }

    /// A piece has arrived, with its checksum.
    pub(super) fn pass_on(&mut self, of: (FetchId, u32), number: u32, bytes: Vec<u8>) {
        let Some(relay) = self.relays.get_mut(&of) else { return };
        let Some(ticket) = relay.ticket else { return relay.kept.push((number, bytes)) };
        let to = Party { own: true, process: relay.to };
        self.actions.push_back(Action::Send { to, ticket: ticket.wrapping_add(number), bytes });
        relay.left -= 1;
        if relay.left == 0 {
            self.relays.remove(&of);
        }
    }

    /// Nothing will come.
    pub(super) fn refuse_on(&mut self, of: (FetchId, u32), reason: String) {
        let Some(relay) = self.relays.get_mut(&of) else { return };
        let Some(ticket) = relay.ticket else { return relay.refused = Some(reason) };
        let to = Party { own: true, process: relay.to };
        self.actions.push_back(Action::Tell(to, Box::new(Message::Refused { ticket, reason })));
        self.relays.remove(&of);
    }
}
