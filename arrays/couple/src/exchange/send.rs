//! The send side: versions held for the other side, its wishes (layouts and mappings of its fetches), and its requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use plan::redistribution::{Description, Layout, Mapping, Transfer};

use super::pace::Given;
use super::{Exchange, ExchangeAction, ExchangeError, MOST, Misuse, Party, Variable, informed};
use crate::message::{Described, ExchangeMessage};
use crate::pack::Packing;
use crate::sealed;

/// The elements of a version that a process holds.
#[derive(Debug)]
pub(crate) enum Content {
    /// Its part, contiguous in the order of the layout.
    Part(Vec<u8>),
    /// Its messages by receiver, packed for a wish of the other side; their checksums are not filled in.
    Messages { wish: u32, messages: HashMap<u32, Vec<u8>> },
}

impl Content {
    fn bytes(&self) -> usize {
        match self {
            Content::Part(part) => part.len(),
            Content::Messages { messages, .. } => messages.values().map(Vec::len).sum(),
        }
    }
}

/// A variable of this side.
#[derive(Debug)]
pub(super) struct Exported {
    pub(super) described: Described,
    pub(super) layout: Layout,
    pub(super) versions: BTreeMap<u64, Version>,
    pub(super) newest: u64,
    /// Wishes of the other side, by number.
    pub(super) wishes: HashMap<u32, Wished>,
    /// The newest version that the other side has begun to fetch, and the wish of that fetch.
    pub(super) begun: Option<(u64, u32)>,
    /// Requests for versions not exported yet, or with wishes not known yet.
    pub(super) waiting: Vec<FetchRequest>,
}

#[derive(Debug)]
pub(super) struct Version {
    pub(super) content: Content,
    /// Processes that have its elements, or may read them.
    pub(super) served: BTreeSet<u32>,
}

#[derive(Debug)]
pub(super) struct Wished {
    pub(super) transfer: Transfer,
    /// Packings by receiver, from a contiguous part.
    pub(super) messages: HashMap<u32, Packing>,
    /// Packings from the array exported last, and its strides.
    pub(super) strided: Option<(Vec<i64>, Packings)>,
}

/// Packings of messages, by receiver.
pub(crate) type Packings = Arc<Vec<(u32, Packing)>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FetchRequest {
    pub(super) from: u32,
    pub(super) wish: u32,
    pub(super) version: u64,
    pub(super) ticket: u32,
    pub(super) host: u64,
    pub(super) pieces: u32,
}

impl Exchange {
    /// Bytes held for the other side.
    pub(crate) fn held(&self) -> usize {
        self.held + self.lent.values().map(|given| given.bytes.len()).sum::<usize>()
    }

    /// A buffer with room for this many bytes, with arbitrary contents.
    pub(crate) fn buffer(&mut self, bytes: usize) -> Vec<u8> {
        let fits = |spare: &Vec<u8>| (bytes..=2 * bytes).contains(&spare.capacity());
        match self.spare.iter().position(fits) {
            Some(at) => self.spare.swap_remove(at),
            None => fresh(bytes),
        }
    }

    /// Keeps a buffer for reuse, if it fits within `spare_most` bytes.
    pub(super) fn keep(&mut self, buffer: Vec<u8>) {
        let kept: usize = self.spare.iter().map(Vec::capacity).sum();
        if kept + buffer.capacity() <= self.spare_most {
            self.spare.push(buffer);
        }
    }

    /// Returns true while processes may still read requested elements, or request more pieces of a message.
    pub(crate) fn lends(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Names and versions that the other side has not fetched, including those exported too late.
    pub(crate) fn unfetched(&self) -> Vec<(String, u64)> {
        let versions = |(name, exported): (&String, &Exported)| {
            exported.versions.keys().map(|version| (name.clone(), *version)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.exported.iter().flat_map(versions).chain(self.too_late.clone()).collect();
        all.sort();
        all
    }

    /// The packings from an array of these strides for the current wish of the other side, and that wish's number.
    /// `None`: the other side has announced no wish, or it fetches only some elements and may fetch others of the next
    /// version.
    pub(crate) fn packings(&mut self, name: &str, strides: &[i64]) -> Option<(u32, Packings)> {
        let own = self.own;
        let exported = self.exported.get(name)?;
        let wish = exported.begun.map(|(_, wish)| wish).or_else(|| exported.wishes.keys().max().copied())?;
        let (element, processes) = (exported.described.element as usize, exported.layout.processes());
        let wished = exported.wishes.get(&wish).filter(|wished| wished.transfer.takes_all())?;
        if let Some((known, packings)) = &wished.strided
            && known == strides
        {
            return Some((wish, packings.clone()));
        }
        let mut messages = if own < processes { wished.transfer.sends(own) } else { Vec::new() };
        messages.retain(|message| self.asks(&wished.transfer, message.peer));
        let packed = |message: &plan::redistribution::TransferMessage| {
            Some((message.peer, Packing::new(message, strides, element)?))
        };
        let packings: Packings = Arc::new(messages.iter().map(packed).collect::<Option<Vec<_>>>()?);
        self.exported.get_mut(name)?.wishes.get_mut(&wish)?.strided = Some((strides.to_vec(), packings.clone()));
        Some((wish, packings))
    }

    /// Returns true if the exchange has ended, so this version cannot be exported. The next call returns the error:
    /// processes of this side may learn of the end at different times, and all of them must go on alike.
    pub(crate) fn is_too_late(&mut self, name: &str, version: u64) -> bool {
        if self.failed.is_some() {
            self.too_late.get_or_insert((name.to_owned(), version));
        }
        self.failed.is_some()
    }

    /// Exports a version, unless [`Exchange::is_too_late`].
    pub(crate) fn export(
        &mut self,
        name: &str,
        version: u64,
        Variable { dtype, element, layout }: Variable,
        content: Content,
    ) -> Result<(), ExchangeError> {
        if self.is_too_late(name, version) {
            return Ok(());
        }
        let (processes, size) = (layout.processes(), self.sizes.0);
        if processes > size {
            return Err(ExchangeError::TooMany { name: name.to_owned(), processes, size });
        }
        let described = Described { dtype, element: element as u64, layout: Description::of(&layout) };
        let elements = if self.own < processes { layout.local_shape(self.own).iter().product() } else { 0u64 };
        if let Content::Part(part) = &content
            && elements.checked_mul(element as u64) != Some(part.len() as u64)
        {
            let expected = elements.saturating_mul(element as u64);
            return Err(ExchangeError::Part { name: name.to_owned(), given: part.len(), expected });
        }
        match self.exported.get(name) {
            Some(before) if before.described != described => {
                let (before, now) = (before.described.summary(), described.summary());
                return Err(ExchangeError::Changed { name: name.to_owned(), before, now });
            }
            Some(before) if version <= before.newest => {
                return Err(ExchangeError::Old { name: name.to_owned(), version });
            }
            Some(_) => {}
            None => {
                let tell = |process| {
                    let message = ExchangeMessage::Variable { name: name.to_owned(), variable: described.clone() };
                    ExchangeAction::Tell(Party::other(process), Box::new(message))
                };
                self.actions.extend(informed(self.own, self.sizes).map(tell));
                let (versions, wishes, waiting) = (BTreeMap::new(), HashMap::new(), Vec::new());
                let exported = Exported { described, layout, versions, newest: version, wishes, begun: None, waiting };
                self.exported.insert(name.to_owned(), exported);
            }
        }
        let Some(exported) = self.exported.get_mut(name) else { return Ok(()) };
        exported.newest = version;
        self.held += content.bytes();
        self.spare_most = self.spare_most.max(self.held);
        exported.versions.insert(version, Version { content, served: BTreeSet::new() });
        self.serve_waiting(name);
        self.drop_versions(name);
        for (from, message) in self.early.remove(name).unwrap_or_default() {
            self.early_count -= 1;
            self.handle_message(Party::other(from), message);
        }
        Ok(())
    }

    /// Handles [`ExchangeMessage::Wish`]: records a wish of the other side.
    pub(super) fn wished(
        &mut self,
        name: &str,
        wish: u32,
        layout: Description,
        mapping: &Mapping,
    ) -> Result<(), Misuse> {
        let layout = self.layout_of_other(name, layout)?;
        let own = self.own;
        let Some(exported) = self.exported.get(name) else { return Ok(()) };
        if exported.wishes.len() >= MOST {
            return Err(Misuse::TooMuch);
        }
        let transfer = Transfer::new(exported.layout.clone(), layout, mapping);
        // A wish may precede the variable and not fit it; the other side detects that too, when it learns of the
        // variable.
        let Ok(transfer) = transfer else { return Ok(()) };
        let mut messages = HashMap::new();
        if own < exported.layout.processes() {
            let strides = exported.layout.strides(own, exported.described.element as usize);
            for message in transfer.sends(own).into_iter().filter(|message| self.asks(&transfer, message.peer)) {
                let packing = Packing::new(&message, &strides, exported.described.element as usize);
                messages.insert(message.peer, packing.ok_or(Misuse::TooMuch)?);
            }
        }
        if let Some(exported) = self.exported.get_mut(name) {
            exported.wishes.insert(wish, Wished { transfer, messages, strided: None });
        }
        self.serve_waiting(name);
        Ok(())
    }

    /// Handles [`ExchangeMessage::Begin`]: the other side begins to fetch a version.
    pub(super) fn begun(&mut self, name: &str, wish: u32, version: u64) {
        if let Some(exported) = self.exported.get_mut(name) {
            exported.begun = exported.begun.max(Some((version, wish)));
        }
        self.drop_versions(name);
    }

    /// Handles [`ExchangeMessage::Request`]: a process requests its part.
    pub(super) fn asked(&mut self, name: &str, asked: FetchRequest) -> Result<(), Misuse> {
        if self.exported.get(name).is_none_or(|exported| exported.waiting.len() >= MOST) {
            return Err(Misuse::TooMuch);
        }
        self.serve(name, asked);
        Ok(())
    }

    /// Handles [`ExchangeMessage::Taken`]: a process has read the elements in our memory, or wants them sent.
    pub(super) fn given_back(&mut self, from: u32, ticket: u32, sent: bool) -> Result<(), Misuse> {
        let given = self.lent.remove(&(from, ticket)).filter(|given| given.sent.is_none());
        let mut bytes = given.ok_or(Misuse::Unasked { process: from, length: 0 })?.bytes;
        if sent {
            sealed::seal(&mut bytes);
            self.actions.push_back(ExchangeAction::Send { to: Party::other(from), ticket, bytes });
        } else {
            self.keep(bytes);
        }
        Ok(())
    }

    /// Drops versions that the other side no longer needs.
    fn drop_versions(&mut self, name: &str) {
        let Some(exported) = self.exported.get_mut(name) else { return };
        let Some((version, wish)) = exported.begun else { return };
        let served = exported.versions.get(&version).map(|version| version.served.len());
        let needed = exported.wishes.get(&wish).map(|wished| wished.messages.len());
        let first_kept = if served.is_some() && served == needed { version.saturating_add(1) } else { version };
        let kept = exported.versions.split_off(&first_kept);
        let dropped = std::mem::replace(&mut exported.versions, kept);
        self.held -= dropped.values().map(|version| version.content.bytes()).sum::<usize>();
    }

    fn serve_waiting(&mut self, name: &str) {
        let Some(exported) = self.exported.get_mut(name) else { return };
        for asked in std::mem::take(&mut exported.waiting) {
            self.serve(name, asked);
        }
    }

    /// Answers a request, or keeps it until it can be answered.
    fn serve(&mut self, name: &str, asked: FetchRequest) {
        let Some(exported) = self.exported.get_mut(name) else { return };
        let FetchRequest { from, wish, version, ticket, host, pieces } = asked;
        let element = exported.described.element as usize;
        if !exported.wishes.contains_key(&wish) || version > exported.newest {
            exported.waiting.push(asked);
            return;
        }
        let before = exported.versions.get(&version).map_or(0, |held| held.content.bytes());
        let bytes = exported.message(self.own, asked);
        let after = exported.versions.get(&version).map_or(0, |held| held.content.bytes());
        self.held = self.held + after - before;
        match bytes {
            Err(Unserved::Refused(reason)) => {
                let refused = ExchangeMessage::Refused { ticket, reason };
                self.actions.push_back(ExchangeAction::Tell(Party::other(from), Box::new(refused)));
            }
            Err(Unserved::Stranger) => {
                let misuse = Misuse::Stranger { name: name.to_owned(), process: from };
                self.fail(format!("the other side: {misuse}"), None);
            }
            Ok(bytes) if pieces > 0 => {
                self.await_passed(name, version, wish, from);
                self.lent.insert((from, ticket), Given { bytes, sent: Some((element, 0)) });
                if !self.send_more(from, ticket, pieces) {
                    let misuse = Misuse::Greedy { process: from };
                    self.fail(format!("the other side: {misuse}"), None);
                }
            }
            Ok(mut bytes) if host != 0 && host == self.memory.host => {
                let mark = self.mark;
                self.mark = self.mark.wrapping_add(1);
                sealed::mark(&mut bytes, mark);
                let (pid, address, length) = (self.memory.pid, bytes.as_ptr() as u64, bytes.len() as u64);
                let here = ExchangeMessage::Here { ticket, pid, address, length, mark };
                self.actions.push_back(ExchangeAction::Tell(Party::other(from), Box::new(here)));
                self.lent.insert((from, ticket), Given { bytes, sent: None });
            }
            Ok(mut bytes) => {
                sealed::seal(&mut bytes);
                self.actions.push_back(ExchangeAction::Send { to: Party::other(from), ticket, bytes });
            }
        }
        self.drop_versions(name);
    }
}

/// Reasons why a request has no message.
pub(super) enum Unserved {
    Refused(String),
    Stranger,
}

impl Exported {
    /// Returns the message for a request with a known wish, and records that the requesting process has it.
    fn message(
        &mut self,
        own: u32,
        FetchRequest { from, wish, version, .. }: FetchRequest,
    ) -> Result<Vec<u8>, Unserved> {
        let gone = || Unserved::Refused(format!("it is not there: the newest is {}", self.newest));
        let Some(held) = self.versions.get_mut(&version) else { return Err(gone()) };
        let Some(packing) = self.wishes.get(&wish).and_then(|wished| wished.messages.get(&from)) else {
            return Err(Unserved::Stranger);
        };
        if let Content::Messages { wish: packed, messages } = &mut held.content
            && *packed == wish
        {
            let message = messages.remove(&from).ok_or(Unserved::Stranger)?;
            held.served.insert(from);
            return Ok(message);
        }
        if let Content::Messages { wish: packed, messages } = &held.content {
            // The messages were packed for another wish than the requested one.
            let strides = self.layout.strides(own, self.described.element as usize);
            let part = self.wishes.get(packed).and_then(|before| {
                rebuilt(own, messages, before, self.wishes.get(&wish)?, (&strides, self.described.element as usize))
            });
            let Some(part) = part else {
                let text = "it was packed for what was fetched before, and has not all that is fetched now";
                return Err(Unserved::Refused(text.to_owned()));
            };
            held.content = Content::Part(part);
        }
        let Content::Part(part) = &held.content else { return Err(Unserved::Stranger) };
        held.served.insert(from);
        let mut message = fresh(packing.bytes() + sealed::SEAL);
        // SAFETY: the part is contiguous and has as many bytes as its layout requires (`Exchange::export`), and the
        // message was made for that layout and these strides (`Exchange::hear`).
        unsafe { sealed::pack([(packing, &mut message)].into_iter(), part.as_ptr()) };
        Ok(message)
    }
}

/// Rebuilds a process's part from the messages packed for wish `before`. `None`: they lack elements of wish `now`.
fn rebuilt(
    own: u32,
    messages: &HashMap<u32, Vec<u8>>,
    before: &Wished,
    now: &Wished,
    (strides, element): (&[i64], usize),
) -> Option<Vec<u8>> {
    let elements: u64 = before.transfer.source().local_shape(own).iter().product();
    let mut part = vec![0; usize::try_from(elements).ok()?.checked_mul(element)?];
    // One byte per element: 1 if a message contains it.
    let mut there = vec![0u8; elements as usize];
    let bytewise: Vec<i64> = strides.iter().map(|stride| stride / element as i64).collect();
    for message in before.transfer.sends(own) {
        let Some(bytes) = messages.get(&message.peer) else { continue };
        let packing = before.messages.get(&message.peer)?;
        let marks = Packing::new(&message, &bytewise, 1)?;
        let ones = vec![1u8; marks.bytes()];
        // SAFETY: both are contiguous parts of the layout that the messages belong to.
        unsafe {
            packing.unpack(sealed::elements(bytes).as_ptr(), part.as_mut_ptr());
            marks.unpack(ones.as_ptr(), there.as_mut_ptr());
        }
    }
    for message in now.transfer.sends(own) {
        let marks = Packing::new(&message, &bytewise, 1)?;
        let mut found = vec![0u8; marks.bytes()];
        // SAFETY: as above.
        unsafe { marks.pack(there.as_ptr(), found.as_mut_ptr()) };
        if found.contains(&0) {
            return None;
        }
    }
    Some(part)
}

/// New memory, which the system provides on the first write.
pub(crate) fn fresh(bytes: usize) -> Vec<u8> {
    let buffer = vec![0u8; bytes];
    if bytes >= LONG {
        let (page, start) = (4096, buffer.as_ptr() as usize);
        let inside = start.next_multiple_of(page)..(start + bytes) / page * page;
        // SAFETY: the range is whole pages of the buffer, and the advice affects only the page size. On failure,
        // nothing changes.
        let _ = unsafe { rustix::mm::madvise(inside.start as *mut _, inside.len(), rustix::mm::Advice::LinuxHugepage) };
    }
    buffer
}

/// From this many bytes, a buffer requests huge pages, as in NumPy.
const LONG: usize = 4 << 20;

impl Described {
    fn summary(&self) -> String {
        let processes = self.layout.processes().unwrap_or(0);
        format!("{:?} of {} over {processes} processes", self.layout.shape(), self.dtype)
    }
}
