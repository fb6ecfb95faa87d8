//! Pacing: the bytes that a process requests at once from another site.
//!
//! Messages from another site come in pieces, message after message in the order of the redistribution's steps, so two
//! fetching processes rarely wait for the same sender. All fetching processes of a site share the bytes that the path
//! to it carries in two round trips and some slack (`share`). Each process keeps its share in flight, at least two
//! pieces. So the path stays full, and neither the queue in front of it nor memory use grows with messages. Limiting
//! the messages in flight to the capacity of a path between clusters is K-preemptive bipartite scheduling, of Cohen,
//! Jeannot, Padoy and Wagner, "Messages Scheduling for Parallel Data Redistribution between Clusters", 2006. Their
//! algorithm has a barrier after each step; here a process goes on as soon as a piece has arrived.

use std::collections::VecDeque;

use types::SiteId;
use types::links::LinkFigures;

use super::receive::FetchId;
use super::{Exchange, ExchangeAction, Party};
use crate::message::ExchangeMessage;
use crate::pieces::{BUDGET, of_elements};
use crate::sealed;

/// Time in seconds that processes and gateways may take to pass on a piece and to request the next one, besides the
/// path's own time: they share cores with the program.
const SLACK: f64 = 0.02;
/// Bytes that one process may have in flight over a path that has not been measured.
const UNMEASURED: usize = BUDGET / 2;
/// Bytes of elements that may have arrived for a waiting caller that unpacks them more slowly than they arrive.
const UNTAKEN: usize = BUDGET / 4;

/// The path from another site.
#[derive(Debug)]
pub(super) struct Path {
    figures: LinkFigures,
    /// Bytes that may be requested and not have arrived; one piece always may.
    share: usize,
    asked: usize,
    /// Messages with pieces that have not been requested.
    messages: VecDeque<Paced>,
}

/// A message that comes in pieces.
#[derive(Debug)]
pub(super) struct Paced {
    pub(super) fetch: FetchId,
    pub(super) from: u32,
    /// The ticket of its first piece.
    pub(super) first: u32,
    pub(super) name: String,
    pub(super) wish: u32,
    pub(super) version: u64,
    /// Bytes of an element.
    pub(super) element: usize,
    /// Bytes of the elements that have not been requested, and of all elements.
    pub(super) left: usize,
    pub(super) length: usize,
}

/// The bytes that each of `among` processes may have in flight over a path with these figures, in pieces of `piece`
/// bytes.
fn share(figures: LinkFigures, among: usize, piece: usize) -> usize {
    let (Some(rate), Some(round_trip)) = (figures.rate, figures.round_trip) else { return UNMEASURED };
    // One round trip fills the path; a second one lets the next request arrive in time.
    let bytes = rate * (2.0 * round_trip + SLACK) / among.max(1) as f64;
    (bytes as usize).max(2 * piece)
}

impl Path {
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.asked == 0 && self.messages.is_empty()
    }
}

impl Default for Path {
    fn default() -> Path {
        Path { figures: LinkFigures::default(), share: UNMEASURED, asked: 0, messages: VecDeque::new() }
    }
}

impl Exchange {
    /// Records the figures of the path from another site to this process's site.
    pub(crate) fn measured(&mut self, from: SiteId, figures: LinkFigures) {
        self.paths.entry(from).or_default().figures = figures;
    }

    /// Computes the shares for a new fetch. `copies`: the number of processes of this site that need each message; one
    /// of them requests it.
    pub(super) fn share_paths(&mut self, copies: usize) {
        let own = self.sites[0].get(self.own as usize).copied();
        let here = self.sites[0].iter().filter(|site| Some(**site) == own).count();
        let (among, piece) = (here.div_ceil(copies.max(1)), self.piece);
        for path in self.paths.values_mut() {
            path.share = share(path.figures, among, piece);
        }
    }

    /// The other sites that elements may come from, and this process's own site.
    pub(crate) fn ways(&self) -> (Vec<SiteId>, Option<SiteId>) {
        let own = self.sites[0].get(self.own as usize).copied();
        let mut all: Vec<SiteId> = self.sites[1].iter().copied().filter(|site| Some(*site) != own).collect();
        all.sort_unstable();
        all.dedup();
        (all, own)
    }

    /// Queues a message, to be requested in its turn.
    pub(super) fn ask_in_turn(&mut self, message: Paced) {
        let Some(site) = self.site_of(message.from) else { return };
        self.paths.entry(site).or_default().messages.push_back(message);
        self.ask_on(site);
    }

    /// Records that this many requested bytes of elements from another site have arrived, or never will.
    pub(super) fn no_longer_asked(&mut self, from: u32, bytes: usize) {
        let Some(site) = self.site_of(from) else { return };
        if let Some(path) = self.paths.get_mut(&site) {
            path.asked = path.asked.saturating_sub(bytes);
        }
        self.ask_on(site);
    }

    /// Removes a message that will not come.
    pub(super) fn never_comes(&mut self, from: u32, first: u32, length: usize) {
        let Some(site) = self.site_of(from) else { return };
        let Some(path) = self.paths.get_mut(&site) else { return };
        let is_it = |message: &Paced| (message.from, message.first) == (from, first);
        let left = path.messages.iter().find(|message| is_it(message)).map_or(0, |message| message.left);
        path.messages.retain(|message| !is_it(message));
        self.no_longer_asked(from, length.saturating_sub(left));
    }

    /// Requests pieces on every path that has room.
    pub(super) fn ask_on_all(&mut self) {
        let sites: Vec<SiteId> = self.paths.keys().copied().collect();
        sites.into_iter().for_each(|site| self.ask_on(site));
    }

    /// Requests as many pieces as the path has room for.
    fn ask_on(&mut self, site: SiteId) {
        while let Some(path) = self.paths.get_mut(&site)
            && let Some(message) = path.messages.front_mut()
        {
            let fetch = self.fetches.get(&message.fetch);
            let behind = fetch.is_some_and(|fetch| fetch.waits && path.asked + fetch.untaken >= path.share + UNTAKEN);
            if behind {
                return;
            }
            let piece = of_elements(self.piece, message.element);
            // Several pieces per request: each request costs time.
            let least = message.left.min(piece.max(path.share / 4));
            if path.asked > 0 && path.asked.saturating_add(least) > path.share {
                return;
            }
            let room = path.share.saturating_sub(path.asked).max(piece);
            let now = message.left.min(room / piece * piece);
            let (from, first, count) = (message.from, message.first, now.div_ceil(piece) as u32);
            let asks = match message.left == message.length {
                true => {
                    let (name, wish, version) = (message.name.clone(), message.wish, message.version);
                    ExchangeMessage::Request { name, wish, version, ticket: first, host: 0, pieces: count }
                }
                false => ExchangeMessage::More { ticket: first, pieces: count },
            };
            let number = ((message.length - message.left) / piece) as u32;
            message.left -= now;
            path.asked += now;
            if message.left == 0 {
                path.messages.pop_front();
            }
            (number..number + count).for_each(|number| self.await_piece(first.wrapping_add(number)));
            self.actions.push_back(ExchangeAction::Tell(Party::other(from), Box::new(asks)));
        }
    }

    /// Bytes of a piece of whole elements of this size.
    pub(super) fn piece(&self, element: usize) -> usize {
        of_elements(self.piece, element)
    }

    /// The site of a process of the other side, if it is not this process's own.
    pub(super) fn site_of(&self, process: u32) -> Option<SiteId> {
        let site = self.sites[1].get(process as usize).copied()?;
        (self.sites[0].get(self.own as usize) != Some(&site)).then_some(site)
    }
}

/// A message that another process requests in pieces, or reads in this process's memory.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) bytes: Vec<u8>,
    /// Bytes of an element, and of the elements sent so far; `None`: the receiver reads the whole message in this
    /// process's memory.
    pub(super) sent: Option<(usize, usize)>,
}

impl Exchange {
    /// Handles [`ExchangeMessage::More`]: a process requests further pieces. Returns false if there are none.
    pub(super) fn asked_more(&mut self, from: u32, first: u32, pieces: u32) -> bool {
        if self.send_more(from, first, pieces) {
            return true;
        }
        // The version may not have been exported yet.
        let waiting = self.exported.values_mut().flat_map(|exported| &mut exported.waiting);
        let waiting =
            waiting.filter(|asked| (asked.from, asked.ticket) == (from, first)).map(|asked| &mut asked.pieces);
        let early = self.early.values_mut().flatten().filter_map(|(sender, message)| match message {
            ExchangeMessage::Request { ticket, pieces, .. } if (*sender, *ticket) == (from, first) => Some(pieces),
            _ => None,
        });
        let found = waiting.chain(early).next();
        found.map(|before| *before = before.saturating_add(pieces)).is_some()
    }

    /// Sends the next pieces of a message. Returns false if it has fewer.
    pub(super) fn send_more(&mut self, to: u32, first: u32, pieces: u32) -> bool {
        let Some(Given { bytes, sent: Some((element, sent)) }) = self.lent.get_mut(&(to, first)) else { return false };
        let (piece, elements) = (of_elements(self.piece, *element), sealed::elements(bytes));
        for _ in 0..pieces {
            if *sent >= elements.len() {
                return false;
            }
            let until = elements.len().min(*sent + piece);
            let ticket = first.wrapping_add((*sent / piece) as u32);
            let bytes = sealed::piece(&elements[*sent..until]);
            *sent = until;
            self.actions.push_back(ExchangeAction::Send { to: Party::other(to), ticket, bytes });
        }
        if *sent == elements.len()
            && let Some(given) = self.lent.remove(&(to, first))
        {
            self.keep(given.bytes);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::PIECE;

    #[test]
    fn a_path_is_shared_by_those_at_its_end() {
        let known = LinkFigures { round_trip: Some(0.01), rate: Some(125e6) };
        assert_eq!(share(known, 1, PIECE), 5_000_000);
        assert_eq!(share(known, 4, PIECE), 1_250_000);
        assert_eq!(share(known, 1000, PIECE), 2 * PIECE);
        assert_eq!(share(LinkFigures { rate: None, ..known }, 4, PIECE), UNMEASURED);
    }
}
