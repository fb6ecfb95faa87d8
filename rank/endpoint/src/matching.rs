//! Matching of messages and receives: posted receives and unexpected messages.
//!
//! Both queues find an exact match in constant time, regardless of their length. Receives that ignore tag bits are
//! examined in the order they were posted. A short queue is searched linearly, which is faster than any index. The rule
//! is MPI's: a message goes to the oldest receive that matches it, a receive gets the oldest message that matches it.
//! The queues do not interpret the values of their entries.

use slab::Slab;

use crate::lists::Lists;
use crate::operation::{Match, PeerId};

/// The parts of a message that matching examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub from: PeerId,
    pub tagged: bool,
    /// 0 if untagged.
    pub tag: u64,
}

impl Match {
    /// True if a message with this envelope matches.
    pub(crate) fn takes(&self, envelope: &Envelope) -> bool {
        self.tagged == envelope.tagged
            && self.from.is_none_or(|from| from == envelope.from)
            && (!self.tagged || (self.tag ^ envelope.tag) & !self.ignore == 0)
    }

    fn exact_tag(&self) -> Option<u64> {
        match (self.tagged, self.ignore) {
            (false, _) => Some(0),
            (true, 0) => Some(self.tag),
            _ => None,
        }
    }
}

/// A longer queue gets an index, which it keeps until it is much shorter. The limit is small in tests, so that they
/// exercise both kinds.
const FEW: usize = if cfg!(test) { 4 } else { 32 };
const FEW_AGAIN: usize = FEW / 4;

/// Removes a number from a short queue.
fn take_out(few: &mut Vec<u32>, key: usize) {
    if let Some(at) = few.iter().position(|known| *known as usize == key) {
        few.remove(at);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum PostedList {
    Exact(PeerId, bool, u64),
    AnyPeer(bool, u64),
    /// Ignores tag bits; always tagged.
    Wild,
}

impl PostedList {
    fn of(matching: &Match) -> PostedList {
        match (matching.exact_tag(), matching.from) {
            (Some(tag), Some(from)) => PostedList::Exact(from, matching.tagged, tag),
            (Some(tag), None) => PostedList::AnyPeer(matching.tagged, tag),
            (None, _) => PostedList::Wild,
        }
    }
}

struct PostedEntry<T> {
    matching: Match,
    order: u64,
    value: T,
}

/// Receives waiting for a message.
pub(crate) struct Posted<T> {
    entries: Slab<PostedEntry<T>>,
    /// All entries, oldest first, unless they are `indexed`.
    few: Vec<u32>,
    indexed: bool,
    lists: Lists<PostedList>,
    next_order: u64,
}

/// Names a posted receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PostedKey(usize);

impl<T> Posted<T> {
    pub(crate) fn new() -> Posted<T> {
        Posted {
            entries: Slab::new(),
            few: Vec::with_capacity(FEW),
            indexed: false,
            lists: Lists::new(),
            next_order: 0,
        }
    }

    pub(crate) fn push(&mut self, matching: Match, value: T) {
        let order = self.next_order;
        self.next_order += 1;
        let key = self.entries.insert(PostedEntry { matching, order, value });
        if !self.indexed && self.few.len() < FEW {
            self.few.push(key as u32);
            return;
        }
        for old in self.few.drain(..) {
            self.lists.push(PostedList::of(&self.entries[old as usize].matching), old);
        }
        self.indexed = true;
        self.lists.push(PostedList::of(&matching), key as u32);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The oldest receive that takes this message.
    pub(crate) fn find(&self, envelope: &Envelope) -> Option<PostedKey> {
        if !self.indexed {
            let found = self.few.iter().find(|key| self.entries[**key as usize].matching.takes(envelope));
            return found.map(|key| PostedKey(*key as usize));
        }
        let Envelope { from, tagged, tag } = *envelope;
        let exact = self.lists.first(PostedList::Exact(from, tagged, tag));
        let any = self.lists.first(PostedList::AnyPeer(tagged, tag));
        let mut wild = self.lists.iter(PostedList::Wild);
        let wild = if tagged { wild.find(|key| self.entries[*key as usize].matching.takes(envelope)) } else { None };
        let order = |key: &u32| self.entries[*key as usize].order;
        [exact, any, wild].into_iter().flatten().min_by_key(order).map(|key| PostedKey(key as usize))
    }

    pub(crate) fn get_mut(&mut self, key: PostedKey) -> &mut T {
        &mut self.entries[key.0].value
    }

    pub(crate) fn remove(&mut self, key: PostedKey) -> (Match, T) {
        let entry = self.entries.remove(key.0);
        if self.indexed {
            self.lists.remove(PostedList::of(&entry.matching), key.0 as u32);
            if self.entries.len() <= FEW_AGAIN {
                self.indexed = false;
                self.lists.clear();
                self.few.extend(self.entries.iter().map(|(key, _)| key as u32));
                self.few.sort_unstable_by_key(|key| self.entries[*key as usize].order);
            }
        } else {
            take_out(&mut self.few, key.0);
        }
        (entry.matching, entry.value)
    }

    /// The oldest receive for which `wanted` holds.
    pub(crate) fn find_where(&self, wanted: impl Fn(&Match, &T) -> bool) -> Option<PostedKey> {
        let matches = self.entries.iter().filter(|(_, entry)| wanted(&entry.matching, &entry.value));
        matches.min_by_key(|(_, entry)| entry.order).map(|(key, _)| PostedKey(key))
    }
}

struct UnexpectedEntry<T> {
    envelope: Envelope,
    value: T,
}

/// Messages waiting for a receive.
pub(crate) struct Unexpected<T> {
    entries: Slab<UnexpectedEntry<T>>,
    /// The messages that are not hidden, oldest first, unless they are indexed. `indexed` is then their number.
    few: Vec<u32>,
    indexed: usize,
    /// Tagged messages and untagged ones, each in order of arrival.
    all: Lists<bool>,
    by_tag: Lists<(bool, u64)>,
    exact: Lists<(PeerId, bool, u64)>,
}

/// Names an unexpected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UnexpectedKey(usize);

impl<T> Unexpected<T> {
    pub(crate) fn new() -> Unexpected<T> {
        Unexpected {
            entries: Slab::new(),
            few: Vec::with_capacity(FEW),
            indexed: 0,
            all: Lists::new(),
            by_tag: Lists::new(),
            exact: Lists::new(),
        }
    }

    fn index(&mut self, key: u32) {
        let Envelope { from, tagged, tag } = self.entries[key as usize].envelope;
        self.all.push(tagged, key);
        self.by_tag.push((tagged, tag), key);
        self.exact.push((from, tagged, tag), key);
        self.indexed += 1;
    }

    pub(crate) fn push(&mut self, envelope: Envelope, value: T) -> UnexpectedKey {
        let key = self.entries.insert(UnexpectedEntry { envelope, value });
        self.few.push(key as u32);
        if self.indexed > 0 || self.few.len() > FEW {
            for key in std::mem::take(&mut self.few) {
                self.index(key);
            }
        }
        UnexpectedKey(key)
    }

    /// The oldest message that this receive takes.
    pub(crate) fn find(&self, matching: &Match) -> Option<UnexpectedKey> {
        if self.indexed == 0 {
            let found = self.few.iter().find(|key| matching.takes(&self.entries[**key as usize].envelope));
            return found.map(|key| UnexpectedKey(*key as usize));
        }
        let tagged = matching.tagged;
        let key = match (matching.exact_tag(), matching.from) {
            (Some(tag), Some(from)) => self.exact.first((from, tagged, tag)),
            (Some(tag), None) => self.by_tag.first((tagged, tag)),
            (None, _) => self.all.iter(tagged).find(|key| matching.takes(&self.entries[*key as usize].envelope)),
        };
        key.map(|key| UnexpectedKey(key as usize))
    }

    pub(crate) fn envelope(&self, key: UnexpectedKey) -> Envelope {
        self.entries[key.0].envelope
    }

    pub(crate) fn get(&self, key: UnexpectedKey) -> &T {
        &self.entries[key.0].value
    }

    pub(crate) fn get_mut(&mut self, key: UnexpectedKey) -> &mut T {
        &mut self.entries[key.0].value
    }

    /// Hides a message: it is no longer found. [`Unexpected::get`] still works until [`Unexpected::remove`].
    pub(crate) fn hide(&mut self, key: UnexpectedKey) {
        if self.indexed == 0 {
            return take_out(&mut self.few, key.0);
        }
        self.indexed -= 1;
        let Envelope { from, tagged, tag } = self.entries[key.0].envelope;
        self.all.remove(tagged, key.0 as u32);
        self.by_tag.remove((tagged, tag), key.0 as u32);
        self.exact.remove((from, tagged, tag), key.0 as u32);
        if self.indexed <= FEW_AGAIN {
            self.indexed = 0;
            // Tagged and untagged messages never match the same receive, so their relative order does not matter.
            self.few.extend(self.all.iter(true).chain(self.all.iter(false)));
            self.all.clear();
            self.by_tag.clear();
            self.exact.clear();
        }
    }

    /// Removes a hidden message.
    pub(crate) fn remove(&mut self, key: UnexpectedKey) -> (Envelope, T) {
        let entry = self.entries.remove(key.0);
        (entry.envelope, entry.value)
    }
}

#[cfg(test)]
mod tests;
