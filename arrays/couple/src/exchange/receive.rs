//! The receive side: variables of the other side, and fetches of their elements.

use std::sync::Arc;

use plan::redistribution::{Description, Layout, Mapping, Steps, Transfer};

use super::pace::Paced;
use super::relay::Relay;
use super::{Exchange, ExchangeAction, ExchangeError, MOST, Misuse, Party, Variable, informed};
use crate::message::{Described, ExchangeMessage};
use crate::pack::Cursor;
use crate::pack::Packing;
use crate::sealed;

/// Elements that have arrived for a fetch: a message or a piece of it.
#[derive(Debug)]
pub struct Arrived {
    pub(crate) source: ElementSource,
    place: PackedRange,
    /// Bytes, without the checksum.
    pub(crate) length: usize,
    pub(super) fetch: FetchId,
    pub(super) from: u32,
    pub(super) ticket: u32,
}

/// The place of elements in the local array: all of a message, or a piece of it.
#[derive(Clone, Debug)]
struct PackedRange {
    packing: Arc<Packing>,
    begin: Cursor,
    /// Bytes of the elements there.
    bytes: usize,
}

/// The memory that holds the elements, followed by their checksum or mark.
#[derive(Debug)]
pub(crate) enum ElementSource {
    Here(Vec<u8>),
    /// In the memory of a process on this host, valid as long as this mark follows them.
    Beside {
        pid: u32,
        address: u64,
        mark: u64,
    },
}

impl Arrived {
    /// Bytes of the elements, in the exported type.
    pub fn bytes(&self) -> usize {
        self.length
    }

    /// Copies elements of the local array's type from a buffer to their places in the array.
    ///
    /// # Safety
    /// As [`Packing::unpack`].
    pub unsafe fn unpack(&self, buffer: *const u8, array: *mut u8) {
        let PackedRange { packing, begin, bytes } = &self.place;
        // SAFETY: the caller's promise.
        unsafe { packing.unpack_next(&mut begin.clone(), buffer, array, *bytes) };
    }

    /// The packing of the whole message.
    pub(crate) fn packing(&self) -> &Packing {
        &self.place.packing
    }
}

/// A fetch in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(pub(super) u64);

#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) fetch: FetchId,
    pub(super) from: Party,
    /// The process of the other side that sent the elements first, and the number of the piece.
    of: (u32, u32),
    /// Expected bytes, including the checksum.
    pub(super) length: usize,
    place: PackedRange,
}

#[derive(Debug, Default)]
pub(super) struct Fetch {
    pub(super) name: String,
    pub(super) version: u64,
    pub(super) missing: usize,
    pub(super) arrived: Vec<Arrived>,
    /// Bytes of the elements in `arrived`, except those that are read from another process's memory.
    pub(super) untaken: usize,
    /// True if the caller takes elements as soon as they arrive.
    pub(super) waits: bool,
    pub(super) refused: Option<String>,
}

impl Exchange {
    /// A variable of the other side, once it is known.
    pub(crate) fn variable(&self, name: &str) -> Option<&Variable> {
        self.known.get(name)
    }

    /// Begins to fetch a version of a known variable into a local array of these strides and this element size (in
    /// bytes).
    pub(crate) fn fetch(
        &mut self,
        name: &str,
        version: u64,
        layout: &Layout,
        mapping: &Mapping,
        (strides, element): (&[i64], usize),
    ) -> Result<FetchId, ExchangeError> {
        self.check()?;
        // The id is the same in all processes of this side, even if the fetch fails.
        let id = FetchId(self.next_fetch);
        self.next_fetch += 1;
        let (processes, size) = (layout.processes(), self.sizes.0);
        if processes > size {
            return Err(ExchangeError::TooMany { name: name.to_owned(), processes, size });
        }
        let Some(variable) = self.known.get(name) else {
            return Err(ExchangeError::Over(format!("{name}: not known yet")));
        };
        let sent = variable.element;
        let transfer = Transfer::new(variable.layout.clone(), layout.clone(), mapping);
        let transfer = transfer.map_err(|source| ExchangeError::Mapping { name: name.to_owned(), source })?;
        let mut messages = if self.own < processes { transfer.receives(self.own) } else { Vec::new() };
        if messages.iter().any(|message| self.site_of(message.peer).is_some()) {
            let steps = Steps::new(&transfer);
            messages.sort_by_cached_key(|message| steps.of(self.own, message));
        }
        let packed = |message: &plan::redistribution::TransferMessage| {
            let packing = Packing::new(message, strides, element)?;
            let length = (packing.bytes() / element.max(1)).checked_mul(sent)?;
            length.checked_add(sealed::SEAL)?;
            Some((message.peer, Arc::new(packing), length, self.chain(&transfer, false, message.peer, self.own)))
        };
        let packings: Option<Vec<_>> = messages.iter().map(packed).collect();
        let packings = packings.ok_or_else(|| ExchangeError::Memory { name: name.to_owned() })?;
        let wish = self.wish(name, layout, mapping);
        let begin = |process| {
            ExchangeAction::Tell(
                Party::other(process),
                Box::new(ExchangeMessage::Begin { name: name.to_owned(), wish, version }),
            )
        };
        self.actions.extend(informed(self.own, self.sizes).map(begin));
        let fetch = Fetch { name: name.to_owned(), version, ..Fetch::default() };
        self.fetches.insert(id, fetch);
        self.share_paths(packings.iter().map(|(.., chain)| chain.len()).max().unwrap_or(1));
        for (from, packing, length, chain) in packings {
            let at = chain.iter().position(|process| *process == self.own).filter(|_| chain.len() > 1);
            let asked = match at {
                Some(at @ 1..) => Party { own: true, process: chain[at - 1] },
                _ => Party::other(from),
            };
            let comes_far = !asked.own && self.site_of(from).is_some();
            let cut = if comes_far || at.is_some() { self.piece(sent) } else { length.max(1) };
            let first = self.expect_pieces(id, (from, asked), packing, (length, cut), (sent, element));
            let left = length.div_ceil(cut) as u32;
            if comes_far {
                let (name, left, element) = (name.to_owned(), length, sent);
                self.ask_in_turn(Paced { fetch: id, from, first, name, wish, version, element, left, length });
            } else {
                (0..left).for_each(|number| self.await_piece(first.wrapping_add(number)));
                let message = match asked.own {
                    true => ExchangeMessage::Forward { fetch: id.0, source: from, ticket: first },
                    false => {
                        let (name, host) = (name.to_owned(), self.memory.host);
                        ExchangeMessage::Request { name, wish, version, ticket: first, host, pieces: 0 }
                    }
                };
                self.actions.push_back(ExchangeAction::Tell(asked, Box::new(message)));
            }
            if asked.own {
                self.passed.insert((id, from), left);
            }
            if let Some(next) = at.and_then(|at| chain.get(at + 1)) {
                let relay = Relay { to: *next, ticket: None, kept: Vec::new(), left, refused: None };
                self.relays.insert((id, from), relay);
                if let Some((asker, ticket)) = self.forwards.remove(&(id, from))
                    && let Err(misuse) = self.forward(asker, id, from, ticket)
                {
                    self.fail(format!("this side: {misuse}"), None);
                }
            }
        }
        Ok(id)
    }

    /// Registers the pieces of a message, of `cut` bytes each, under new tickets. Returns the first ticket.
    fn expect_pieces(
        &mut self,
        id: FetchId,
        (source, from): (u32, Party),
        packing: Arc<Packing>,
        (length, cut): (usize, usize),
        (sent, element): (usize, usize),
    ) -> u32 {
        let (first, mut begin) = (self.next_ticket, packing.begin());
        for (number, at) in (0..).zip((0..length).step_by(cut)) {
            let (ticket, length) = (self.next_ticket, cut.min(length - at));
            self.next_ticket = ticket.wrapping_add(1);
            let bytes = length / sent.max(1) * element;
            let place = PackedRange { packing: packing.clone(), begin: begin.clone(), bytes };
            packing.skip(&mut begin, bytes);
            let length = length + sealed::SEAL;
            self.tickets.insert(ticket, Ticket { fetch: id, from, of: (source, number), length, place });
            if let Some(fetch) = self.fetches.get_mut(&id) {
                fetch.missing += 1;
            }
        }
        first
    }

    /// Queues the receive of a ticket's piece.
    pub(super) fn await_piece(&mut self, ticket: u32) {
        if let Some(Ticket { from, length, .. }) = self.tickets.get(&ticket) {
            self.actions.push_back(ExchangeAction::Await { from: *from, ticket, length: *length });
        }
    }

    /// Announces a fetch to the other side, so that it can pack exported versions for it. The variable need not be
    /// known; [`Exchange::fetch`] refuses a layout or mapping that does not fit it.
    pub(crate) fn wish(&mut self, name: &str, layout: &Layout, mapping: &Mapping) -> u32 {
        let wanted = (name.to_owned(), Description::of(layout), mapping.clone());
        if let Some(at) = self.wishes.iter().position(|known| *known == wanted) {
            return at as u32;
        }
        let wish = self.wishes.len() as u32;
        let (name, layout, mapping) = wanted.clone();
        self.wishes.push(wanted);
        let tell = |process| {
            let (name, layout, mapping) = (name.clone(), layout.clone(), mapping.clone());
            ExchangeAction::Tell(Party::other(process), Box::new(ExchangeMessage::Wish { name, wish, layout, mapping }))
        };
        self.actions.extend(informed(self.own, self.sizes).map(tell));
        wish
    }

    /// Returns the elements that have arrived for a fetch since the last call, and true if the fetch is complete.
    pub(crate) fn take(&mut self, id: FetchId) -> Result<(Vec<Arrived>, bool), ExchangeError> {
        let Some(fetch) = self.fetches.get_mut(&id) else { return Ok((Vec::new(), true)) };
        let arrived = std::mem::take(&mut fetch.arrived);
        fetch.untaken = 0;
        let done = fetch.missing == 0;
        if let Some(reason) = fetch.refused.clone() {
            let (name, version) = (fetch.name.clone(), fetch.version);
            self.fetches.remove(&id);
            return Err(ExchangeError::Refused { name, version, reason });
        }
        if done {
            self.fetches.remove(&id);
        } else if let Some(reason) = &self.failed {
            let (name, version) = (fetch.name.clone(), fetch.version);
            return Err(ExchangeError::Refused { name, version, reason: reason.clone() });
        }
        self.ask_on_all();
        Ok((arrived, done))
    }

    /// Records whether the caller waits for the fetch (`true`) or does something else.
    pub(crate) fn waits(&mut self, id: FetchId, waits: bool) {
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.waits = waits;
        }
        self.ask_on_all();
    }

    /// Handles [`ExchangeMessage::Variable`]: the other side exports a variable.
    pub(super) fn learns(&mut self, name: String, variable: Described) -> Result<(), Misuse> {
        let Described { dtype, element, layout } = variable;
        let layout = self.layout_of_other(&name, layout)?;
        let size = usize::try_from(element).ok().filter(|size| (1..=1 << 20).contains(size));
        let size = size.ok_or(Misuse::Element { name: name.clone(), element })?;
        if self.known.len() >= MOST {
            return Err(Misuse::TooMuch);
        }
        let variable = Variable { dtype, element: size, layout };
        if let Some(before) = self.known.get(&name).filter(|before| **before != variable) {
            let (before, now) = (before.summary(), variable.summary());
            return Err(Misuse::Changed { name, before, now });
        }
        self.known.insert(name, variable);
        Ok(())
    }

    /// Handles [`ExchangeMessage::Here`]: the elements of a ticket are in the memory of a process on this host.
    pub(super) fn beside(&mut self, from: u32, ticket: u32, length: u64, source: ElementSource) -> Result<(), Misuse> {
        let unasked = Misuse::Unasked { process: from, length: length as usize };
        let ours = |known: &Ticket| known.from == Party::other(from) && known.length as u64 == length;
        if !self.tickets.get(&ticket).is_some_and(ours) {
            return Err(unasked);
        }
        let Some(Ticket { fetch: id, length, place, .. }) = self.tickets.remove(&ticket) else {
            return Err(unasked);
        };
        self.actions.push_back(ExchangeAction::Forget { ticket });
        let arrived = Arrived { source, place, length: length - sealed::SEAL, fetch: id, from, ticket };
        match self.fetches.get_mut(&id) {
            Some(fetch) => fetch.arrived.push(arrived),
            None => self.taken(&arrived),
        }
        Ok(())
    }

    /// Handles [`ExchangeMessage::Refused`]: no elements will come for a request.
    pub(super) fn refused(&mut self, from: Party, ticket: u32, reason: String) -> Result<(), Misuse> {
        let Some(ticket) = self.tickets.get(&ticket).filter(|ticket| ticket.from == from) else {
            return Err(Misuse::Unasked { process: from.process, length: 0 });
        };
        let of = (ticket.fetch, ticket.of.0);
        self.forget(of, from);
        if let Some(fetch) = self.fetches.get_mut(&of.0) {
            fetch.refused.get_or_insert(reason.clone());
        }
        self.passed.remove(&of);
        self.refuse_on(of, reason);
        Ok(())
    }

    /// Drops the tickets of a message that will not come.
    fn forget(&mut self, (id, source): (FetchId, u32), from: Party) {
        let is_of = |ticket: &Ticket| (ticket.fetch, ticket.of.0, ticket.from) == (id, source, from);
        let mut gone: Vec<(u32, u32, usize)> = Vec::new();
        self.tickets.retain(|number, ticket| {
            let keeps = !is_of(ticket);
            if !keeps {
                gone.push((ticket.of.1, *number, ticket.length - sealed::SEAL));
            }
            keeps
        });
        self.actions.extend(gone.iter().map(|(_, ticket, _)| ExchangeAction::Forget { ticket: *ticket }));
        if let Some((_, first, _)) = gone.iter().min().filter(|_| !from.own) {
            self.never_comes(from.process, *first, gone.iter().map(|(.., length)| length).sum());
        }
    }

    /// Handles elements that have arrived from a process.
    pub(crate) fn arrived(&mut self, from: Party, ticket: u32, bytes: Vec<u8>) {
        let Some(Ticket { fetch: id, of: (source, number), length, place, .. }) =
            self.tickets.remove(&ticket).filter(|ticket| ticket.from == from)
        else {
            let misuse = Misuse::Unasked { process: from.process, length: bytes.len() };
            let whose = if from.own { "this side" } else { "the other side" };
            return self.fail(format!("{whose}: {misuse}"), None);
        };
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.untaken += length - sealed::SEAL;
        }
        if !from.own {
            self.no_longer_asked(from.process, length - sealed::SEAL);
        }
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        if length != bytes.len() || !sealed::is_intact(&bytes) {
            let (name, version) = (fetch.name.clone(), fetch.version);
            let misuse = Misuse::Changeling { name, version, process: source };
            return self.fail(misuse.to_string(), None);
        }
        fetch.missing -= 1;
        self.count_passed((id, source));
        if self.relays.contains_key(&(id, source)) {
            self.pass_on((id, source), number, bytes.clone());
        }
        let (source, length) = (ElementSource::Here(bytes), length - sealed::SEAL);
        if let Some(fetch) = self.fetches.get_mut(&id) {
            fetch.arrived.push(Arrived { source, place, length, fetch: id, from: from.process, ticket });
        }
    }

    /// Notifies the other process that the caller has read the elements from its memory.
    pub(crate) fn taken(&mut self, arrived: &Arrived) {
        if matches!(arrived.source, ElementSource::Here(_)) {
            return;
        }
        if let Some(fetch) = self.fetches.get_mut(&arrived.fetch) {
            fetch.missing -= 1;
        }
        let taken = ExchangeMessage::Taken { ticket: arrived.ticket, sent: false };
        self.actions.push_back(ExchangeAction::Tell(Party::other(arrived.from), Box::new(taken)));
    }

    /// The caller cannot read the elements in the other process's memory: requests them by message, so they arrive
    /// again.
    pub(crate) fn unreadable(&mut self, arrived: &Arrived) {
        let Arrived { place, length, fetch, from, ticket, .. } = arrived;
        let (of, from, ticket, length) = ((*from, 0), Party::other(*from), *ticket, length + sealed::SEAL);
        self.tickets.insert(ticket, Ticket { fetch: *fetch, from, of, length, place: place.clone() });
        self.actions.push_back(ExchangeAction::Await { from, ticket, length });
        let taken = ExchangeMessage::Taken { ticket, sent: true };
        self.actions.push_back(ExchangeAction::Tell(from, Box::new(taken)));
    }
}
