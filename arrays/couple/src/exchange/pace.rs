//! How much a process asks for at once from another site.
//!
//! Its messages from there come in pieces, message after message in the order of the redistribution's steps: so two
//! processes that fetch rarely wait for the same one that sends. All that fetch at a site share what the path to it
//! carries in a round trip (`share`), and each has as many pieces in flight as its part of that takes, at least two.
//! So the path is full, and what waits in front of it, or in memory, does not grow with messages. With as many messages
//! in flight as a path between clusters can carry: K-preemptive bipartite scheduling, of Cohen, Jeannot, Padoy and
//! Wagner, "Messages Scheduling for Parallel Data Redistribution between Clusters", 2006. Theirs has a barrier after
//! each step; here a process goes on when a piece has arrived.

use std::collections::VecDeque;

use types::SiteId;
use types::links::LinkFigures;

use super::receive::FetchId;
use super::{Action, Exchange, Party};
use crate::message::Message;
use crate::pieces::{BUDGET, of_elements};
use crate::sealed;

/// What processes and gateways may take to pass on a piece and to ask for the next one, in seconds, besides the path's
/// own time: they share cores with the program.
const SLACK: f64 = 0.02;
/// Bytes that one process may have in flight over a path that has not been measured.
const UNMEASURED: usize = BUDGET / 2;
/// Bytes of elements that may have arrived for a caller who waits, but unpacks them more slowly than they come.
const UNTAKEN: usize = BUDGET / 4;

/// The path from another site.
#[derive(Debug)]
pub(super) struct Path {
    figures: LinkFigures,
    /// Bytes that may have been asked for and not have arrived; a piece may always.
    share: usize,
    asked: usize,
    /// Messages of which not all pieces have been asked for.
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
    /// Bytes of the elements that have not been asked for, and of all.
    pub(super) left: usize,
    pub(super) length: usize,
}

/// The bytes that one of `among` processes may have in flight over a path with these figures, in pieces of `piece`.
fn share(figures: LinkFigures, among: usize, piece: usize) -> usize {
    let (Some(rate), Some(round_trip)) = (figures.rate, figures.round_trip) else { return UNMEASURED };
    // One round trip is what fills the path; another one so that asking for more is in time.
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
    /// What is known of the way from another site to this process's.
    pub(crate) fn measured(&mut self, from: SiteId, figures: LinkFigures) {
        self.paths.entry(from).or_default().figures = figures;
    }

    /// A fetch begins in which each message is for this many processes of this site, of which one asks for it.
    pub(super) fn share_paths(&mut self, copies: usize) {
        let own = self.sites[0].get(self.own as usize).copied();
        let here = self.sites[0].iter().filter(|site| Some(**site) == own).count();
        let (among, piece) = (here.div_ceil(copies.max(1)), self.piece);
        for path in self.paths.values_mut() {
            path.share = share(path.figures, among, piece);
        }
    }

    /// The other sites that elements may come from, and this process's own.
    pub(crate) fn ways(&self) -> (Vec<SiteId>, Option<SiteId>) {
        let own = self.sites[0].get(self.own as usize).copied();
        let mut all: Vec<SiteId> = self.sites[1].iter().copied().filter(|site| Some(*site) != own).collect();
        all.sort_unstable();
        all.dedup();
        (all, own)
    }

    /// Asks for a message when its turn comes.
    pub(super) fn ask_in_turn(&mut self, message: Paced) {
        let Some(site) = self.site_of(message.from) else { return };
        self.paths.entry(site).or_default().messages.push_back(message);
        self.ask_on(site);
    }

    /// This many bytes of elements that a process of another site was asked for have arrived, or never will.
    pub(super) fn no_longer_asked(&mut self, from: u32, bytes: usize) {
        let Some(site) = self.site_of(from) else { return };
        if let Some(path) = self.paths.get_mut(&site) {
            path.asked = path.asked.saturating_sub(bytes);
        }
        self.ask_on(site);
    }

    /// A message will not come.
    pub(super) fn never_comes(&mut self, from: u32, first: u32, length: usize) {
        let Some(site) = self.site_of(from) else { return };
        let Some(path) = self.paths.get_mut(&site) else { return };
        let is_it = |message: &Paced| (message.from, message.first) == (from, first);
        let left = path.messages.iter().find(|message| is_it(message)).map_or(0, |message| message.left);
        path.messages.retain(|message| !is_it(message));
        self.no_longer_asked(from, length.saturating_sub(left));
    }

    /// The caller takes what has arrived.
    pub(super) fn ask_on_all(&mut self) {
        let sites: Vec<SiteId> = self.paths.keys().copied().collect();
        sites.into_iter().for_each(|site| self.ask_on(site));
    }

    /// Asks for as many pieces as the path has room for.
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
            // A few at a time: asking is work as well.
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
                    Message::Request { name, wish, version, ticket: first, host: 0, pieces: count }
                }
                false => Message::More { ticket: first, pieces: count },
            };
            let number = ((message.length - message.left) / piece) as u32;
            message.left -= now;
            path.asked += now;
            if message.left == 0 {
                path.messages.pop_front();
            }
            (number..number + count).for_each(|number| self.await_piece(first.wrapping_add(number)));
            self.actions.push_back(Action::Tell(Party::other(from), Box::new(asks)));
        }
    }

    /// Bytes of the elements in a piece, for elements of this many bytes.
    pub(super) fn piece(&self, element: usize) -> usize {
        of_elements(self.piece, element)
    }

    /// The site of a process of the other side, if it is not this process's own.
    pub(super) fn site_of(&self, process: u32) -> Option<SiteId> {
        let site = self.sites[1].get(process as usize).copied()?;
        (self.sites[0].get(self.own as usize) != Some(&site)).then_some(site)
    }
}

/// A message that goes to another process in pieces, as it asks for them.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) bytes: Vec<u8>,
    /// Bytes of an element, and of the elements that have been sent; `None`: the message is read here, whole.
    pub(super) sent: Option<(usize, usize)>,
}

impl Exchange {
    /// A process asks for further pieces. Returns false if there are no more.
    pub(super) fn asked_more(&mut self, from: u32, first: u32, pieces: u32) -> bool {
        if self.send_more(from, first, pieces) {
            return true;
        }
        // The version may not have been exported yet.
        let waiting = self.exported.values_mut().flat_map(|exported| &mut exported.waiting);
        let waiting =
            waiting.filter(|asked| (asked.from, asked.ticket) == (from, first)).map(|asked| &mut asked.pieces);
        let early = self.early.values_mut().flatten().filter_map(|(sender, message)| match message {
            Message::Request { ticket, pieces, .. } if (*sender, *ticket) == (from, first) => Some(pieces),
            _ => None,
        });
        let found = waiting.chain(early).next();
        found.map(|before| *before = before.saturating_add(pieces)).is_some()
    }

    /// Sends the next pieces of a message. Returns false if there are not as many.
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
            self.actions.push_back(Action::Send { to: Party::other(to), ticket, bytes });
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
