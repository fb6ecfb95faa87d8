//! Variables that two programs exchange, as one process of one of them knows them: what it holds ready for the other
//! side, and what it awaits from there. No I/O, no clock: what is to be sent is queued as [`Action`]s.
//!
//! The *send side* keeps each exported version until every process of the other side that needs a part of it has it, or
//! the other side has begun to fetch a later one. The *receive side* asks for its parts, one request for each message;
//! so nothing arrives that no memory is ready for. Copies for several processes of another site are asked for by one of
//! them, which passes them on (`relay`). Each process finds the messages from both layouts alone, which the sides tell
//! each other once.
//!
//! A side's processes fetch the same versions in the same order, and none of them begins a fetch before all have
//! finished the one before; the caller sees to that.

mod pace;
mod receive;
mod relay;
mod send;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use plan::redistribution::{Description, Layout, LayoutError, Mapping, MappingError};
use thiserror::Error;
use types::SiteId;

use self::pace::{Given, Path};
pub(crate) use self::receive::Source;
pub use self::receive::{Arrived, FetchId};
use self::receive::{Fetch, Ticket};
use self::relay::Relay;
pub(crate) use self::send::Content;
pub(crate) use self::send::fresh;
use self::send::{Asked, Exported};
use crate::message::Message;
use crate::pieces::PIECE;

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
    /// Send elements to a process.
    Send {
        to: Party,
        ticket: u32,
        bytes: Vec<u8>,
    },
    /// Elements of this many bytes may come from a process.
    Await {
        from: Party,
        ticket: u32,
        length: usize,
    },
    /// They will not come that way.
    Forget {
        ticket: u32,
    },
}

/// This process's memory, for processes beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// A number that only processes have that may read it; 0: none may.
    pub host: u64,
    pub pid: u32,
    /// A random number.
    pub first_mark: u64,
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
    #[error("{name}: process {process} asks for a part that it does not need")]
    Stranger { name: String, process: u32 },
    #[error("it keeps more than {MOST} things waiting here")]
    TooMuch,
    #[error("process {process} asks for more pieces than its message has")]
    Greedy { process: u32 },
    #[error("process {process} sent {length} bytes that nobody awaits")]
    Unasked { process: u32, length: usize },
    #[error(
        "{name}, version {version}: the bytes from process {process} were changed on the way: their checksum differs"
    )]
    Changeling { name: String, version: u64, process: u32 },
}

/// See the module docs.
#[derive(Debug)]
pub(crate) struct Exchange {
    /// This process's number.
    own: u32,
    /// Processes of this side, of the other.
    sizes: (u32, u32),
    /// The sites that they are at.
    sites: [Vec<SiteId>; 2],
    exported: HashMap<String, Exported>,
    /// What was heard about variables that this process has not exported yet: others of its side may be ahead.
    early: HashMap<String, Vec<(u32, Message)>>,
    early_count: usize,
    /// Bytes of all versions held.
    held: usize,
    memory: Memory,
    /// What processes beside this one may be reading, and what others ask for in pieces; by receiver and ticket.
    lent: HashMap<(u32, u32), Given>,
    /// The number behind the next of these.
    mark: u64,
    /// Buffers to be used again: the system takes as long to give memory as we to fill it.
    spare: Vec<Vec<u8>>,
    /// Most bytes in them: as many as were ever held.
    spare_most: usize,
    known: HashMap<String, Variable>,
    /// What this side fetches has numbers, the same in all processes.
    wishes: Vec<(String, Description, Mapping)>,
    fetches: BTreeMap<FetchId, Fetch>,
    /// Bytes of a piece of a message, the same in all processes of both sides.
    piece: usize,
    /// From other sites.
    paths: HashMap<SiteId, Path>,
    /// What each ticket is for.
    tickets: HashMap<u32, Ticket>,
    next_ticket: u32,
    next_fetch: u64,
    /// What is passed on, by fetch and sender.
    relays: HashMap<(FetchId, u32), Relay>,
    /// Who asked for what is passed on before the fetch had begun here, and under which ticket.
    forwards: HashMap<(FetchId, u32), (u32, u32)>,
    /// How many pieces of what others pass on have not arrived, by fetch and sender.
    passed: HashMap<(FetchId, u32), u32>,
    /// Versions and processes of the other side that others there pass them on to, and that have not got them yet.
    passing: HashSet<(String, u64, u32)>,
    failed: Option<String>,
    /// What was exported after that.
    too_late: Option<(String, u64)>,
    /// Why a process of this side has left alone.
    left: Option<String>,
    pub actions: VecDeque<Action>,
}

impl Exchange {
    /// `sites`: those of the processes of this side, and of the other.
    pub(crate) fn new(own: u32, sites: [Vec<SiteId>; 2], memory: Memory) -> Exchange {
        Exchange {
            own,
            sizes: (sites[0].len() as u32, sites[1].len() as u32),
            sites,
            exported: HashMap::new(),
            early: HashMap::new(),
            early_count: 0,
            held: 0,
            memory,
            lent: HashMap::new(),
            mark: memory.first_mark,
            spare: Vec::new(),
            spare_most: 0,
            known: HashMap::new(),
            wishes: Vec::new(),
            fetches: BTreeMap::new(),
            piece: PIECE,
            paths: HashMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
            next_fetch: 0,
            relays: HashMap::new(),
            forwards: HashMap::new(),
            passed: HashMap::new(),
            passing: HashSet::new(),
            failed: None,
            too_late: None,
            left: None,
            actions: VecDeque::new(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ExchangeError> {
        self.failed.clone().map_or(Ok(()), |reason| Err(ExchangeError::Over(reason)))
    }

    /// Ends the exchange for this reason, unless it has ended; tells those who have to know. `from`: who told this
    /// process, if it was another one.
    pub(crate) fn fail(&mut self, reason: String, from: Option<Party>) {
        self.end(reason, from, false);
    }

    /// The same, because this process leaves alone, or (`from`) another one of its side: what the side's processes do
    /// together never will be done.
    pub(crate) fn leave(&mut self, reason: String, from: Option<Party>) {
        if self.left.is_none() {
            self.left = Some(reason.clone());
            self.end(reason, from, true);
        }
    }

    /// Why a process of this side has left alone, if any has.
    pub(crate) fn left(&self) -> Option<&str> {
        self.left.as_deref()
    }

    fn end(&mut self, reason: String, from: Option<Party>, left: bool) {
        // That a process has left is told even if the end was told before.
        let again = self.failed.is_some();
        if again && !left {
            return;
        }
        self.failed.get_or_insert(reason.clone());
        let over = |party: Party| match left && party.own {
            true => Message::Left { reason: reason.clone() },
            false => Message::Over { reason: reason.clone() },
        };
        // Each side's first process tells its own; so no number grows with pairs.
        let first = |own| Party { own, process: 0 };
        let told = |party: Party| from == Some(party);
        if self.own == 0 {
            let others = (1..self.sizes.0).map(|process| Party { own: true, process });
            self.actions
                .extend(others.filter(|party| !told(*party)).map(|party| Action::Tell(party, Box::new(over(party)))));
        } else if !told(first(true)) {
            self.actions.push_back(Action::Tell(first(true), Box::new(over(first(true)))));
        }
        if from.is_none() && !again {
            self.actions.push_back(Action::Tell(first(false), Box::new(over(first(false)))));
        }
    }

    /// Another process has sent a message.
    pub(crate) fn told(&mut self, from: Party, message: Message) {
        match message {
            Message::Over { reason } => return self.fail(reason, Some(from)),
            Message::Left { reason } if from.own => return self.leave(reason, Some(from)),
            _ => {}
        }
        if self.failed.is_some() {
            // The end may overtake what was said before it: what another process has taken, it has.
            match message {
                Message::Taken { ticket, sent: false } if !from.own => _ = self.given_back(from.process, ticket, false),
                Message::Passed { name, version } if !from.own => {
                    _ = self.passing.remove(&(name, version, from.process))
                }
                _ => {}
            }
            return;
        }
        let (heard, whose) = match from.own {
            true => (self.hear_own(from.process, message), "this side"),
            false => (self.hear(from.process, message), "the other side"),
        };
        if let Err(misuse) = heard {
            self.fail(format!("{whose}: {misuse}"), None);
        }
    }

    /// Inside a side only the end is told, and what is passed on.
    fn hear_own(&mut self, from: u32, message: Message) -> Result<(), Misuse> {
        match message {
            Message::Forward { fetch, source, ticket } => self.forward(from, FetchId(fetch), source, ticket),
            Message::Refused { ticket, reason } => self.refused(Party { own: true, process: from }, ticket, reason),
            _ => Ok(()),
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
            Message::Variable { name, variable } => self.learns(name, variable),
            Message::Wish { name, wish, layout, mapping } => self.wished(&name, wish, layout, &mapping),
            Message::Begin { name, wish, version } => {
                self.begun(&name, wish, version);
                Ok(())
            }
            Message::Request { name, wish, version, ticket, host, pieces } => {
                self.asked(&name, Asked { from, wish, version, ticket, host, pieces })
            }
            Message::More { ticket, pieces } => match self.asked_more(from, ticket, pieces) {
                true => Ok(()),
                false => Err(Misuse::Greedy { process: from }),
            },
            Message::Here { ticket, pid, address, length, mark } => {
                self.beside(from, ticket, length, Source::Beside { pid, address, mark })
            }
            Message::Taken { ticket, sent } => self.given_back(from, ticket, sent),
            Message::Refused { ticket, reason } => self.refused(Party::other(from), ticket, reason),
            Message::Passed { name, version } => {
                self.passing.remove(&(name, version, from));
                Ok(())
            }
            Message::Forward { .. } | Message::Over { .. } | Message::Left { .. } => Ok(()),
        }
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

/// The processes of the other side that this one informs, so that each hears everything once.
fn informed(own: u32, (size, others): (u32, u32)) -> impl Iterator<Item = u32> {
    (own..others).step_by(size.max(1) as usize)
}

impl Variable {
    /// For messages.
    pub fn summary(&self) -> String {
        format!("{:?} of {} over {} processes", self.layout.shape(), self.dtype, self.layout.processes())
    }
}

#[cfg(test)]
mod tests;
