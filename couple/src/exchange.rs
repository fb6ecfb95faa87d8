//! Variables that two programs exchange, as one process of one of them knows them: what it holds ready for the other
//! side, and what it awaits from there. No I/O, no clock: what is to be sent is queued as [`Action`]s.
//!
//! The *send side* keeps each exported version until every process of the other side that needs a part of it has it, or
//! the other side has begun to fetch a later one. The *receive side* asks for its parts, one request for each message;
//! so nothing arrives that no memory is ready for. Each process finds the messages from both layouts alone, which the
//! sides tell each other once.
//!
//! A side's processes fetch the same versions in the same order, and none of them begins a fetch before all have
//! finished the one before; the caller sees to that.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use plan::redistribution::{Description, Layout, LayoutError, Mapping, MappingError, Transfer};
use thiserror::Error;

use crate::Packing;
use crate::message::{Described, Message};
use crate::sealed;

/// Most variables, wishes and waiting requests that the other side may make this one keep.
const MOST: usize = 1 << 16;

/// A process of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Party {
    /// Of this side, rather than the other.
    pub own: bool,
    /// Its number among the processes of its side.
    pub process: u32,
}

impl Party {
    fn other(process: u32) -> Party {
        Party { own: false, process }
    }
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    Tell(Party, Box<Message>),
    /// Send elements to a process of the other side.
    Send {
        to: u32,
        ticket: u32,
        bytes: Vec<u8>,
    },
    /// Elements of this many bytes may come from a process of the other side.
    Await { from: u32, ticket: u32, length: usize },
    /// They will not come that way.
    Forget { ticket: u32 },
}

/// What a process holds of a version.
#[derive(Debug)]
pub(crate) enum Content {
    /// Its part, contiguous in the order of the layout.
    Part(Vec<u8>),
    /// Its messages, by receiver, for what the other side fetches under a number.
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

/// This process's memory, for processes beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// A number that only processes have that may read it; 0: none may.
    pub host: u64,
    pub pid: u32,
}

/// A variable of the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The type of an element, as programs understand it.
    pub dtype: String,
    /// Bytes of an element.
    pub element: usize,
    pub layout: Layout,
}

/// Why a variable cannot be exported or fetched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExchangeError {
    #[error("{name}: exported before as {before}, now as {now}")]
    Changed { name: String, before: String, now: String },
    #[error("{name}: version {version} was exported before, or a later one: versions must increase")]
    Old { name: String, version: u64 },
    #[error("{name}: a layout for {processes} processes, but this side has {size}")]
    TooMany { name: String, processes: u32, size: u32 },
    #[error("{name}: {given} bytes are given, but this process's part has {expected}")]
    Part { name: String, given: usize, expected: u64 },
    #[error("{name}: {source}")]
    Mapping { name: String, source: MappingError },
    #[error("{name}: a message has more bytes than memory can have")]
    Memory { name: String },
    /// The other process cannot give what was asked for.
    #[error("{name}, version {version}: {reason}")]
    Refused { name: String, version: u64, reason: String },
    /// The coupling has ended.
    #[error("{0}")]
    Over(String),
}

/// What the other side does wrong: the coupling ends.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum Misuse {
    #[error("{name}: its layout is for {processes} processes, but it has {size}")]
    Processes { name: String, processes: String, size: u32 },
    #[error("{name}: its layout: {source}")]
    Layout { name: String, source: LayoutError },
    #[error("{name}: elements of {0} bytes", element)]
    Element { name: String, element: u64 },
    #[error("{name}: it exports {now}, and exported {before} before")]
    Changed { name: String, before: String, now: String },
    #[error("{name}: what it fetches does not fit what is exported: {source}")]
    Mapping { name: String, source: MappingError },
    #[error("{name}: process {process} asks for a part that it does not need")]
    Stranger { name: String, process: u32 },
    #[error("it keeps more than {MOST} things waiting here")]
    TooMuch,
    #[error("process {process} sent {length} bytes that nobody awaits")]
    Unasked { process: u32, length: usize },
    #[error(
        "{name}, version {version}: the bytes from process {process} were changed on the way: their checksum differs"
    )]
    Changeling { name: String, version: u64, process: u32 },
}

/// Elements for a fetch.
#[derive(Debug)]
pub struct Arrived {
    pub(crate) source: Source,
    pub(crate) packing: Packing,
    /// Bytes, without the checksum.
    pub(crate) length: usize,
    fetch: FetchId,
    from: u32,
    ticket: u32,
}

/// Where elements are, and behind them their checksum.
#[derive(Debug)]
pub(crate) enum Source {
    Here(Vec<u8>),
    /// In the memory of a process beside this one.
    Beside { pid: u32, address: u64 },
}

impl Arrived {
    /// Bytes of the elements, as they were exported.
    pub fn bytes(&self) -> usize {
        self.length
    }

    /// Copies elements of the local array's type from a buffer to where they belong in the array.
    ///
    /// # Safety
    /// As [`Packing::unpack`].
    pub unsafe fn unpack(&self, buffer: *const u8, array: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { self.packing.unpack(buffer, array) };
    }
}

/// A fetch in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(u64);

/// See the module docs.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// This process's number.
    own: u32,
    /// Processes of this side, of the other.
    sizes: (u32, u32),
    exported: HashMap<String, Exported>,
    /// What was heard about variables that this process has not exported yet: others of its side may be ahead.
    early: HashMap<String, Vec<(u32, Message)>>,
    early_count: usize,
    /// Bytes of all versions held.
    held: usize,
    memory: Memory,
    /// What processes beside this one may be reading, by receiver and ticket.
    lent: HashMap<(u32, u32), Vec<u8>>,
    known: HashMap<String, Variable>,
    /// What this side fetches has numbers, the same in all processes.
    wishes: Vec<(String, Description, Mapping)>,
    fetches: BTreeMap<FetchId, Fetch>,
    /// What each ticket is for.
    tickets: HashMap<u32, Ticket>,
    next_ticket: u32,
    next_fetch: u64,
    failed: Option<String>,
    pub actions: VecDeque<Action>,
}

/// A variable of this side.
#[derive(Debug)]
struct Exported {
    described: Described,
    layout: Layout,
    versions: BTreeMap<u64, Version>,
    newest: u64,
    /// What the other side fetches, by number.
    wishes: HashMap<u32, Wished>,
    /// The newest version that it has begun to fetch, and by which wish.
    begun: Option<(u64, u32)>,
    /// Requests for versions that are not exported yet, or by wishes that are not known yet.
    waiting: Vec<Asked>,
}

#[derive(Debug)]
struct Version {
    content: Content,
    /// Who has its elements, or may read them.
    served: BTreeSet<u32>,
}

#[derive(Debug)]
struct Wished {
    transfer: Transfer,
    /// By receiver, out of a contiguous part.
    messages: HashMap<u32, Packing>,
    /// Out of the array that was exported last, and its strides.
    strided: Option<(Vec<i64>, Packings)>,
}

/// Messages by receiver.
pub(crate) type Packings = Arc<Vec<(u32, Packing)>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    from: u32,
    wish: u32,
    version: u64,
    ticket: u32,
    host: u64,
}

#[derive(Debug)]
struct Ticket {
    fetch: FetchId,
    from: u32,
    /// Bytes that are awaited, their checksum included.
    length: usize,
    packing: Packing,
}

#[derive(Debug)]
struct Fetch {
    name: String,
    version: u64,
    missing: usize,
    arrived: Vec<Arrived>,
    refused: Option<String>,
}

impl Exchange {
    pub(crate) fn new(own: u32, sizes: (u32, u32), memory: Memory) -> Exchange {
        Exchange {
            own,
            sizes,
            exported: HashMap::new(),
            early: HashMap::new(),
            early_count: 0,
            held: 0,
            memory,
            lent: HashMap::new(),
            known: HashMap::new(),
            wishes: Vec::new(),
            fetches: BTreeMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
            next_fetch: 0,
            failed: None,
            actions: VecDeque::new(),
        }
    }

    /// Bytes that are held for the other side.
    pub(crate) fn held(&self) -> usize {
        self.held + self.lent.values().map(Vec::len).sum::<usize>()
    }

    /// Whether processes beside this one may still read from it.
    pub(crate) fn lends(&self) -> bool {
        !self.lent.is_empty()
    }

    /// Names and versions that the other side has not fetched.
    pub(crate) fn unfetched(&self) -> Vec<(String, u64)> {
        let versions = |(name, exported): (&String, &Exported)| {
            exported.versions.keys().map(|version| (name.clone(), *version)).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.exported.iter().flat_map(versions).collect();
        all.sort();
        all
    }

    pub(crate) fn check(&self) -> Result<(), ExchangeError> {
        self.failed.clone().map_or(Ok(()), |reason| Err(ExchangeError::Over(reason)))
    }

    /// Ends the exchange for this reason, unless it has ended; tells those who have to know. `from`: who told this
    /// process, if it was another one.
    pub(crate) fn fail(&mut self, reason: String, from: Option<Party>) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(reason.clone());
        let over = || Message::Over { reason: reason.clone() };
        // Each side's first process tells its own; so no number grows with pairs.
        let first = |own| Party { own, process: 0 };
        let told = |party: Party| from == Some(party);
        if self.own == 0 {
            let others = (1..self.sizes.0).map(|process| Party { own: true, process });
            self.actions
                .extend(others.filter(|party| !told(*party)).map(|party| Action::Tell(party, Box::new(over()))));
        } else if !told(first(true)) {
            self.actions.push_back(Action::Tell(first(true), Box::new(over())));
        }
        if from.is_none() {
            self.actions.push_back(Action::Tell(first(false), Box::new(over())));
        }
    }

    // The send side.

    /// How to pack an array of these strides for what the other side fetches, and the number of that; `None`: it has
    /// not said.
    pub(crate) fn packings(&mut self, name: &str, strides: &[i64]) -> Option<(u32, Packings)> {
        let own = self.own;
        let exported = self.exported.get_mut(name)?;
        let wish = exported.begun.map(|(_, wish)| wish).or_else(|| exported.wishes.keys().max().copied())?;
        let (element, processes) = (exported.described.element as usize, exported.layout.processes());
        let wished = exported.wishes.get_mut(&wish)?;
        if let Some((known, packings)) = &wished.strided
            && known == strides
        {
            return Some((wish, packings.clone()));
        }
        let messages = if own < processes { wished.transfer.sends(own) } else { Vec::new() };
        let packed = |message: &plan::redistribution::Message| {
            Some((message.peer, Packing::new(message, strides, element)?))
        };
        let packings: Packings = Arc::new(messages.iter().map(packed).collect::<Option<Vec<_>>>()?);
        wished.strided = Some((strides.to_vec(), packings.clone()));
        Some((wish, packings))
    }

    /// Exports a version.
    pub(crate) fn export(
        &mut self,
        name: &str,
        version: u64,
        Variable { dtype, element, layout }: Variable,
        content: Content,
    ) -> Result<(), ExchangeError> {
        self.check()?;
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
                    let message = Message::Variable { name: name.to_owned(), variable: described.clone() };
                    Action::Tell(Party::other(process), Box::new(message))
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
        exported.versions.insert(version, Version { content, served: BTreeSet::new() });
        self.serve_waiting(name);
        self.drop_versions(name);
        for (from, message) in self.early.remove(name).unwrap_or_default() {
            self.early_count -= 1;
            self.told(Party::other(from), message);
        }
        Ok(())
    }

    /// Lets go of versions that the other side does not need any more.
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
    fn serve(&mut self, name: &str, asked: Asked) {
        let Some(exported) = self.exported.get_mut(name) else { return };
        let Asked { from, wish, version, ticket, host } = asked;
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
                let refused = Message::Refused { ticket, reason };
                self.actions.push_back(Action::Tell(Party::other(from), Box::new(refused)));
            }
            Err(Unserved::Stranger) => {
                let misuse = Misuse::Stranger { name: name.to_owned(), process: from };
                self.fail(format!("the other side: {misuse}"), None);
            }
            Ok(bytes) if host != 0 && host == self.memory.host => {
                let (pid, address, length) = (self.memory.pid, bytes.as_ptr() as u64, bytes.len() as u64);
                let here = Message::Here { ticket, pid, address, length };
                self.actions.push_back(Action::Tell(Party::other(from), Box::new(here)));
                self.lent.insert((from, ticket), bytes);
            }
            Ok(bytes) => self.actions.push_back(Action::Send { to: from, ticket, bytes }),
        }
        self.drop_versions(name);
    }

    // The receive side.

    /// A variable that the other side exports, once it is known.
    pub(crate) fn variable(&self, name: &str) -> Option<&Variable> {
        self.known.get(name)
    }

    /// Begins to fetch a version of a known variable into a local array of these strides and elements (in bytes).
    pub(crate) fn fetch(
        &mut self,
        name: &str,
        version: u64,
        layout: &Layout,
        mapping: &Mapping,
        (strides, element): (&[i64], usize),
    ) -> Result<FetchId, ExchangeError> {
        self.check()?;
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
        let messages = if self.own < processes { transfer.receives(self.own) } else { Vec::new() };
        let packed = |message: &plan::redistribution::Message| {
            let packing = Packing::new(message, strides, element)?;
            let length = (packing.bytes() / element.max(1)).checked_mul(sent)?.checked_add(sealed::SEAL)?;
            Some((message.peer, packing, length))
        };
        let packings: Option<Vec<(u32, Packing, usize)>> = messages.iter().map(packed).collect();
        let packings = packings.ok_or_else(|| ExchangeError::Memory { name: name.to_owned() })?;
        let wish = self.wish(name, layout, mapping);
        let begin = |process| {
            Action::Tell(Party::other(process), Box::new(Message::Begin { name: name.to_owned(), wish, version }))
        };
        self.actions.extend(informed(self.own, self.sizes).map(begin));
        let id = FetchId(self.next_fetch);
        self.next_fetch += 1;
        let missing = packings.len();
        let fetch = Fetch { name: name.to_owned(), version, missing, arrived: Vec::new(), refused: None };
        self.fetches.insert(id, fetch);
        for (from, packing, length) in packings {
            let ticket = self.next_ticket;
            self.next_ticket = self.next_ticket.wrapping_add(1);
            self.tickets.insert(ticket, Ticket { fetch: id, from, length, packing });
            self.actions.push_back(Action::Await { from, ticket, length });
            let host = self.memory.host;
            let request = Message::Request { name: name.to_owned(), wish, version, ticket, host };
            self.actions.push_back(Action::Tell(Party::other(from), Box::new(request)));
        }
        Ok(id)
    }

    /// The number of what is fetched; the other side is told if it is new.
    fn wish(&mut self, name: &str, layout: &Layout, mapping: &Mapping) -> u32 {
        let wanted = (name.to_owned(), Description::of(layout), mapping.clone());
        if let Some(at) = self.wishes.iter().position(|known| *known == wanted) {
            return at as u32;
        }
        let wish = self.wishes.len() as u32;
        let (name, layout, mapping) = wanted.clone();
        self.wishes.push(wanted);
        let tell = |process| {
            let (name, layout, mapping) = (name.clone(), layout.clone(), mapping.clone());
            Action::Tell(Party::other(process), Box::new(Message::Wish { name, wish, layout, mapping }))
        };
        self.actions.extend(informed(self.own, self.sizes).map(tell));
        wish
    }

    /// What has arrived for a fetch since the last call, and whether that was all.
    pub(crate) fn take(&mut self, id: FetchId) -> Result<(Vec<Arrived>, bool), ExchangeError> {
        let Some(fetch) = self.fetches.get_mut(&id) else { return Ok((Vec::new(), true)) };
        let arrived = std::mem::take(&mut fetch.arrived);
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
        Ok((arrived, done))
    }

    /// Elements have arrived from a process of the other side.
    pub(crate) fn arrived(&mut self, from: u32, ticket: u32, bytes: Vec<u8>) {
        let Some(Ticket { fetch: id, length, packing, .. }) =
            self.tickets.remove(&ticket).filter(|ticket| ticket.from == from)
        else {
            let misuse = Misuse::Unasked { process: from, length: bytes.len() };
            return self.fail(format!("the other side: {misuse}"), None);
        };
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        if length != bytes.len() || !sealed::is_intact(&bytes) {
            let (name, version) = (fetch.name.clone(), fetch.version);
            let misuse = Misuse::Changeling { name, version, process: from };
            return self.fail(misuse.to_string(), None);
        }
        fetch.missing -= 1;
        let arrived = Arrived { source: Source::Here(bytes), packing, length: length - sealed::SEAL, fetch: id, from, ticket };
        fetch.arrived.push(arrived);
    }

    /// The caller has the elements that were beside this process.
    pub(crate) fn taken(&mut self, arrived: &Arrived) {
        if matches!(arrived.source, Source::Here(_)) {
            return;
        }
        if let Some(fetch) = self.fetches.get_mut(&arrived.fetch) {
            fetch.missing -= 1;
        }
        let taken = Message::Taken { ticket: arrived.ticket, sent: false };
        self.actions.push_back(Action::Tell(Party::other(arrived.from), Box::new(taken)));
    }

    /// The caller cannot read the elements that are beside this process: they are to be sent, and will arrive again.
    pub(crate) fn unreadable(&mut self, arrived: &Arrived) {
        let Arrived { packing, length, fetch, from, ticket, .. } = arrived;
        let (from, ticket, length) = (*from, *ticket, length + sealed::SEAL);
        self.tickets.insert(ticket, Ticket { fetch: *fetch, from, length, packing: packing.clone() });
        self.actions.push_back(Action::Await { from, ticket, length });
        let taken = Message::Taken { ticket, sent: true };
        self.actions.push_back(Action::Tell(Party::other(from), Box::new(taken)));
    }

    /// Elements that were beside this process are not those that were exported.
    pub(crate) fn changed(&mut self, arrived: &Arrived) {
        let Some(fetch) = self.fetches.get(&arrived.fetch) else { return };
        let misuse = Misuse::Changeling { name: fetch.name.clone(), version: fetch.version, process: arrived.from };
        self.fail(misuse.to_string(), None);
    }

    // Both.

    /// Another process has sent a message.
    pub(crate) fn told(&mut self, from: Party, message: Message) {
        if let Message::Over { reason } = message {
            return self.fail(reason, Some(from));
        }
        // Only the end is told inside a side.
        if from.own || self.failed.is_some() {
            return;
        }
        if let Err(misuse) = self.hear(from.process, message) {
            self.fail(format!("the other side: {misuse}"), None);
        }
    }

    fn hear(&mut self, from: u32, message: Message) -> Result<(), Misuse> {
        if let Message::Wish { name, .. } | Message::Begin { name, .. } | Message::Request { name, .. } = &message
            && !self.exported.contains_key(name)
        {
            if self.early_count >= MOST {
                return Err(Misuse::TooMuch);
            }
            self.early_count += 1;
            self.early.entry(name.clone()).or_default().push((from, message));
            return Ok(());
        }
        match message {
            Message::Variable { name, variable } => {
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
            }
            Message::Wish { name, wish, layout, mapping } => {
                let layout = self.layout_of_other(&name, layout)?;
                let own = self.own;
                let Some(exported) = self.exported.get_mut(&name) else { return Ok(()) };
                if exported.wishes.len() >= MOST {
                    return Err(Misuse::TooMuch);
                }
                let transfer = Transfer::new(exported.layout.clone(), layout, &mapping);
                let transfer = transfer.map_err(|source| Misuse::Mapping { name: name.clone(), source })?;
                let mut messages = HashMap::new();
                if own < exported.layout.processes() {
                    let strides = contiguous(&exported.layout, own, exported.described.element as i64);
                    for message in transfer.sends(own) {
                        let packing = Packing::new(&message, &strides, exported.described.element as usize);
                        messages.insert(message.peer, packing.ok_or(Misuse::TooMuch)?);
                    }
                }
                exported.wishes.insert(wish, Wished { transfer, messages, strided: None });
                self.serve_waiting(&name);
            }
            Message::Begin { name, wish, version } => {
                if let Some(exported) = self.exported.get_mut(&name) {
                    exported.begun = exported.begun.max(Some((version, wish)));
                }
                self.drop_versions(&name);
            }
            Message::Request { name, wish, version, ticket, host } => {
                let asked = Asked { from, wish, version, ticket, host };
                match self.exported.get(&name) {
                    Some(exported) if exported.waiting.len() < MOST => self.serve(&name, asked),
                    _ => return Err(Misuse::TooMuch),
                }
            }
            Message::Here { ticket, pid, address, length } => {
                let ours = |known: &Ticket| known.from == from && known.length as u64 == length;
                let unasked = Misuse::Unasked { process: from, length: length as usize };
                if !self.tickets.get(&ticket).is_some_and(ours) {
                    return Err(unasked);
                }
                let Some(Ticket { fetch: id, length, packing, .. }) = self.tickets.remove(&ticket) else {
                    return Err(unasked);
                };
                self.actions.push_back(Action::Forget { ticket });
                let (source, length) = (Source::Beside { pid, address }, length - sealed::SEAL);
                let arrived = Arrived { source, packing, length, fetch: id, from, ticket };
                match self.fetches.get_mut(&id) {
                    Some(fetch) => fetch.arrived.push(arrived),
                    None => self.taken(&arrived),
                }
            }
            Message::Taken { ticket, sent } => {
                let bytes = self.lent.remove(&(from, ticket));
                let bytes = bytes.ok_or(Misuse::Unasked { process: from, length: 0 })?;
                if sent {
                    self.actions.push_back(Action::Send { to: from, ticket, bytes });
                }
            }
            Message::Refused { ticket, reason } => {
                let Some(ticket) = self.tickets.get(&ticket).filter(|ticket| ticket.from == from) else {
                    return Err(Misuse::Unasked { process: from, length: 0 });
                };
                if let Some(fetch) = self.fetches.get_mut(&ticket.fetch) {
                    fetch.refused.get_or_insert(reason);
                }
            }
            Message::Over { .. } => {}
        }
        Ok(())
    }

    fn layout_of_other(&self, name: &str, layout: Description) -> Result<Layout, Misuse> {
        let size = self.sizes.1;
        if layout.processes().is_none_or(|processes| processes > size) {
            let processes = layout.processes().map_or("more than 2^32".to_owned(), |processes| processes.to_string());
            return Err(Misuse::Processes { name: name.to_owned(), processes, size });
        }
        layout.layout().map_err(|source| Misuse::Layout { name: name.to_owned(), source })
    }
}

/// Why there is no message for a request.
enum Unserved {
    Refused(String),
    Stranger,
}

impl Exported {
    /// The message for a request by a wish that is known, and that it has been handed out.
    fn message(&mut self, own: u32, Asked { from, wish, version, .. }: Asked) -> Result<Vec<u8>, Unserved> {
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
            // The other side fetches it in another way than it did when this was packed.
            let strides = contiguous(&self.layout, own, self.described.element as i64);
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
        // SAFETY: the part is contiguous and has as many bytes as its layout says (`Exchange::export`), and the message
        // was made for that layout and these strides (`Exchange::hear`).
        Ok(unsafe { sealed::pack(packing, part.as_ptr()) })
    }
}

/// A process's part, out of the messages that were packed for one wish, with all elements of another one; `None`: they
/// do not have them.
fn rebuilt(
    own: u32,
    messages: &HashMap<u32, Vec<u8>>,
    before: &Wished,
    now: &Wished,
    (strides, element): (&[i64], usize),
) -> Option<Vec<u8>> {
    let elements: u64 = before.transfer.source().local_shape(own).iter().product();
    let mut part = vec![0; usize::try_from(elements).ok()?.checked_mul(element)?];
    // A byte for each element that is there.
    let mut there = vec![0u8; elements as usize];
    let bytewise: Vec<i64> = strides.iter().map(|stride| stride / element as i64).collect();
    for message in before.transfer.sends(own) {
        let Some(bytes) = messages.get(&message.peer) else { continue };
        let packing = before.messages.get(&message.peer)?;
        let marks = Packing::new(&message, &bytewise, 1)?;
        let ones = vec![1u8; marks.bytes()];
        // SAFETY: both are contiguous parts of the layout that the messages are of.
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

/// The processes of the other side that this one informs, so that each hears everything once.
fn informed(own: u32, (size, others): (u32, u32)) -> impl Iterator<Item = u32> {
    (own..others).step_by(size.max(1) as usize)
}

/// Distances between neighbouring elements of a process's part, in bytes, if there is nothing between them.
pub(crate) fn contiguous(layout: &Layout, process: u32, element: i64) -> Vec<i64> {
    let shape = layout.local_shape(process);
    let mut strides = vec![0; shape.len()];
    let mut next = element;
    let mut axis = |axis: usize| {
        strides[axis] = next;
        next *= (shape[axis] as i64).max(1);
    };
    match layout.order() {
        plan::redistribution::Order::C => (0..shape.len()).rev().for_each(&mut axis),
        plan::redistribution::Order::Fortran => (0..shape.len()).for_each(&mut axis),
    }
    strides
}

impl Variable {
    /// For messages.
    pub fn summary(&self) -> String {
        format!("{:?} of {} over {} processes", self.layout.shape(), self.dtype, self.layout.processes())
    }
}

impl Described {
    fn summary(&self) -> String {
        let processes = self.layout.processes().unwrap_or(0);
        format!("{:?} of {} over {processes} processes", self.layout.shape(), self.dtype)
    }
}

#[cfg(test)]
mod tests;
