//! Relays: several processes of a site need the same elements from a sender at another site. One process of the site
//! requests them, and each process passes them on to the next, piece by piece. So the elements cross the path between
//! the sites once, and reach all processes almost at the same time, because all of them send at once.

use plan::redistribution::Transfer;

use super::receive::FetchId;
use super::{Exchange, ExchangeAction, MOST, Misuse, Party};
use crate::message::ExchangeMessage;

/// A message that a process passes on.
#[derive(Debug)]
pub(super) struct Relay {
    /// The next process of this side.
    pub(super) to: u32,
    /// The first of its tickets, once it has requested the message.
    pub(super) ticket: Option<u32>,
    /// Pieces that arrived before its request, with their numbers.
    pub(super) kept: Vec<(u32, Vec<u8>)>,
    /// Number of pieces that it still lacks.
    pub(super) left: u32,
    /// The reason why no pieces will come.
    pub(super) refused: Option<String>,
}

impl Exchange {
    /// The processes that pass on the message between two processes, in order; the first one requests it from the
    /// sender. Fewer than two: no relay. `sends`: this side sends the message.
    pub(super) fn chain(&self, transfer: &Transfer, sends: bool, from: u32, to: u32) -> Vec<u32> {
        let (senders, receivers) = (&self.sites[usize::from(!sends)], &self.sites[usize::from(sends)]);
        let site = receivers.get(to as usize);
        if senders.get(from as usize) == site {
            return Vec::new();
        }
        let sharers = transfer.sharers(from, to).into_iter();
        sharers.filter(|process| receivers.get(*process as usize) == site).collect()
    }

    /// Returns true if process `to` of the other side requests its message from this process, and false if another
    /// process of its own side passes the message on.
    pub(super) fn asks(&self, transfer: &Transfer, to: u32) -> bool {
        let chain = self.chain(transfer, true, self.own, to);
        chain.len() < 2 || chain[0] == to
    }

    /// Records the processes of the other side that will receive this version from `to`.
    pub(super) fn await_passed(&mut self, name: &str, version: u64, wish: u32, to: u32) {
        let exported = self.exported.get(name);
        let Some(wished) = exported.and_then(|exported| exported.wishes.get(&wish)) else { return };
        let chain = self.chain(&wished.transfer, true, self.own, to);
        let others = chain.into_iter().filter(|process| *process != to);
        self.passing.extend(others.map(|process| (name.to_owned(), version, process)));
    }

    /// Counts a piece that another process of this side has passed on. After the last piece, notifies the sender.
    pub(super) fn count_passed(&mut self, of: (FetchId, u32)) {
        let Some(left) = self.passed.get_mut(&of) else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        self.passed.remove(&of);
        if let Some(fetch) = self.fetches.get(&of.0) {
            let passed = ExchangeMessage::Passed { name: fetch.name.clone(), version: fetch.version };
            self.actions.push_back(ExchangeAction::Tell(Party::other(of.1), Box::new(passed)));
        }
    }

    /// Returns true while processes of the other side still await elements that others there pass on.
    pub(crate) fn is_passing(&self) -> bool {
        !self.passing.is_empty()
    }

    /// Handles a request of another process of this side for the elements that arrive here from process `source` in
    /// this fetch.
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

    /// Passes a piece on with its checksum, or keeps it until the next process requests it.
    pub(super) fn pass_on(&mut self, of: (FetchId, u32), number: u32, bytes: Vec<u8>) {
        let Some(relay) = self.relays.get_mut(&of) else { return };
        let Some(ticket) = relay.ticket else { return relay.kept.push((number, bytes)) };
        let to = Party { own: true, process: relay.to };
        self.actions.push_back(ExchangeAction::Send { to, ticket: ticket.wrapping_add(number), bytes });
        relay.left -= 1;
        if relay.left == 0 {
            self.relays.remove(&of);
        }
    }

    /// Passes a refusal on, or keeps it until the next process requests the message.
    pub(super) fn refuse_on(&mut self, of: (FetchId, u32), reason: String) {
        let Some(relay) = self.relays.get_mut(&of) else { return };
        let Some(ticket) = relay.ticket else { return relay.refused = Some(reason) };
        let to = Party { own: true, process: relay.to };
        self.actions.push_back(ExchangeAction::Tell(to, Box::new(ExchangeMessage::Refused { ticket, reason })));
        self.relays.remove(&of);
    }
}
