//! The exchange of variables between two programs, as one process sees it: the versions it holds for the other side,
//! and the elements it awaits from there. No I/O, no clock: its output is a queue of [`ExchangeAction`]s.
//!
//! The *send side* keeps each exported version until every process of the other side that needs a part of it has that
//! part, or until the other side begins to fetch a later version. The *receive side* requests its parts, one request
//! per message, so elements arrive only where memory is ready for them. If several processes of another site need
//! copies of the same elements, one of them requests the elements and passes them on (`relay`). The sides send each
//! other their layouts once; from both layouts, each process computes its messages alone.
//!
//! A side's processes fetch the same versions in the same order. The caller ensures that no process begins a fetch
//! before all processes have finished the previous one.

mod pace;
mod receive;
mod relay;
mod send;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use plan::redistribution::{Description, Layout, LayoutError, Mapping, MappingError};
use thiserror::Error;
use types::SiteId;

use self::pace::{Given, Path};
pub(crate) use self::receive::ElementSource;
pub use self::receive::{Arrived, FetchId};
use self::receive::{Fetch, Ticket};
use self::relay::Relay;
pub(crate) use self::send::Content;
pub(crate) use self::send::fresh;
use self::send::{Exported, FetchRequest};
use crate::message::ExchangeMessage;
use crate::pieces::PIECE;

/// Maximum number of variables, of wishes and of waiting requests that this side keeps for the other one.
const MOST: usize = 1 << 16;

/// A process of one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Party {
    /// True for a process of this side, false for one of the other side.
    pub own: bool,
    /// Its number among the processes of its side.
    pub process: u32,
}

impl Party {
    fn other(process: u32) -> Party {
        Party { own: false, process }
    }
}

/// An operation for the caller to carry out.
#[derive(Debug, PartialEq)]
pub(crate) enum ExchangeAction {
    Tell(Party, Box<ExchangeMessage>),
    /// Send elements to a process.
    Send {
        to: Party,
        ticket: u32,
        bytes: Vec<u8>,
    },
    /// Post a receive for elements of this many bytes from a process.
    Await {
        from: Party,
        ticket: u32,
        length: usize,
    },
    /// Cancel the receive of this ticket.
    Forget {
        ticket: u32,
    },
}

/// This process's memory, which processes on the same host may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// A number shared only by the processes that may read this memory; 0: no process may.
    pub host: u64,
    pub pid: u32,
    /// The first mark, a random number.
    pub first_mark: u64,
}

/// A variable of the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The type of an element, in the notation that programs share.
    pub dtype: String,
    /// Bytes of an element.
    pub element: usize,
    pub layout: Layout,
}

/// Reasons why a variable cannot be exported or fetched.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExchangeError {
    #[error("{name}: exported before as {before}, now as {now}")]
    Changed { name: String, before: String, now: String },
    #[error("{name}: version {version} is not above the last exported version: versions must increase")]
    Old { name: String, version: u64 },
    #[error("{name}: a layout for {processes} processes, but this side has {size}")]
    TooMany { name: String, processes: u32, size: u32 },
    #[error("{name}: {given} bytes are given, but this process's part has {expected}")]
    Part { name: String, given: usize, expected: u64 },
    #[error("{name}: {source}")]
    Mapping { name: String, source: MappingError },
    #[error("{name}: a message has more bytes than memory can have")]
    Memory { name: String },
    /// The other process cannot provide the requested elements.
    #[error("{name}, version {version}: {reason}")]
    Refused { name: String, version: u64, reason: String },
    /// The coupling has ended.
    #[error("{0}")]
    Over(String),
}

/// Protocol errors of a peer; each one ends the coupling.
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
    /// Number of processes of this side, and of the other.
    sizes: (u32, u32),
    /// Sites of the processes of this side, and of the other.
    sites: [Vec<SiteId>; 2],
    exported: HashMap<String, Exported>,
    /// Messages about variables that this process has not exported yet: other processes of its side may be ahead.
    early: HashMap<String, Vec<(u32, ExchangeMessage)>>,
    early_count: usize,
    /// Bytes of all versions held.
    held: usize,
    memory: Memory,
    /// Messages that processes on this host may be reading, and messages that others request in pieces; by receiver and
    /// ticket.
    lent: HashMap<(u32, u32), Given>,
    /// The mark of the next message that a process on this host reads.
    mark: u64,
    /// Buffers for reuse: the system takes as long to provide memory as this process takes to fill it.
    spare: Vec<Vec<u8>>,
    /// Maximum bytes in spare buffers: the most that this process ever held for the other side.
    spare_most: usize,
    known: HashMap<String, Variable>,
    /// Layouts and mappings of this side's fetches. Their indices are the same in all processes.
    wishes: Vec<(String, Description, Mapping)>,
    fetches: BTreeMap<FetchId, Fetch>,
    /// Bytes of a piece of a message, the same in all processes of both sides.
    piece: usize,
    /// Paths from other sites.
    paths: HashMap<SiteId, Path>,
    /// The expected piece of each ticket.
    tickets: HashMap<u32, Ticket>,
    next_ticket: u32,
    next_fetch: u64,
    /// Messages that this process passes on, by fetch and sender.
    relays: HashMap<(FetchId, u32), Relay>,
    /// Requests to pass a message on that came before the fetch had begun here: the requesting process and its first
    /// ticket.
    forwards: HashMap<(FetchId, u32), (u32, u32)>,
    /// Number of pieces still missing of each message that another process passes on to this one, by fetch and sender.
    passed: HashMap<(FetchId, u32), u32>,
    /// Versions that processes of the other side have not received yet from the processes there that pass them on.
    passing: HashSet<(String, u64, u32)>,
    failed: Option<String>,
    /// The first version exported after the failure.
    too_late: Option<(String, u64)>,
    /// The reason, once a process of this side has left alone.
    left: Option<String>,
    pub actions: VecDeque<ExchangeAction>,
}

impl Exchange {
    /// `sites`: the sites of the processes of this side, and of the other.
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

    /// Ends the exchange for this reason, unless it has ended, and notifies the processes concerned. `from`: the
    /// process that notified this one, if any.
    pub(crate) fn fail(&mut self, reason: String, from: Option<Party>) {
        self.end(reason, from, false);
    }

    /// As [`Exchange::fail`], for a reason that the other side does not know: it gets this text.
    pub(crate) fn fail_alone(&mut self, reason: String, other: String) {
        let again = self.failed.is_some();
        let first = Party { own: false, process: 0 };
        self.end(reason, Some(first), false);
        if !again {
            self.actions.push_back(ExchangeAction::Tell(first, Box::new(ExchangeMessage::Over { reason: other })));
        }
    }

    /// As [`Exchange::fail`], because this process leaves alone, or another one of its side (`from`): operations that
    /// need all of the side's processes can never complete.
    pub(crate) fn leave(&mut self, reason: String, from: Option<Party>) {
        if self.left.is_none() {
            self.left = Some(reason.clone());
            self.end(reason, from, true);
        }
    }

    /// The reason, if a process of this side has left alone.
    pub(crate) fn left(&self) -> Option<&str> {
        self.left.as_deref()
    }

    fn end(&mut self, reason: String, from: Option<Party>, left: bool) {
        // A leave is reported even if the end was reported before.
        let again = self.failed.is_some();
        if again && !left {
            return;
        }
        self.failed.get_or_insert(reason.clone());
        let over = |party: Party| match left && party.own {
            true => ExchangeMessage::Left { reason: reason.clone() },
            false => ExchangeMessage::Over { reason: reason.clone() },
        };
        // Each side's first process notifies its own side, so the number of messages does not grow with pairs of
        // processes.
        let first = |own| Party { own, process: 0 };
        let told = |party: Party| from == Some(party);
        if self.own == 0 {
            let others = (1..self.sizes.0).map(|process| Party { own: true, process });
            self.actions.extend(
                others.filter(|party| !told(*party)).map(|party| ExchangeAction::Tell(party, Box::new(over(party)))),
            );
        } else if !told(first(true)) {
            self.actions.push_back(ExchangeAction::Tell(first(true), Box::new(over(first(true)))));
        }
        if from.is_none() && !again {
            self.actions.push_back(ExchangeAction::Tell(first(false), Box::new(over(first(false)))));
        }
    }

    /// Handles a message from another process.
    pub(crate) fn handle_message(&mut self, from: Party, message: ExchangeMessage) {
        match message {
            ExchangeMessage::Over { reason } => return self.fail(reason, Some(from)),
            ExchangeMessage::Left { reason } if from.own => return self.leave(reason, Some(from)),
            _ => {}
        }
        // The end may overtake an earlier message: memory that another process has returned stays returned.
        let returns = matches!(message, ExchangeMessage::Taken { sent: false, .. });
        if self.failed.is_some() && !returns {
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

    /// Handles a message from a process of this side: these are only about relayed elements, or the end.
    fn hear_own(&mut self, from: u32, message: ExchangeMessage) -> Result<(), Misuse> {
        match message {
            ExchangeMessage::Forward { fetch, source, ticket } => self.forward(from, FetchId(fetch), source, ticket),
            ExchangeMessage::Refused { ticket, reason } => {
                self.refused(Party { own: true, process: from }, ticket, reason)
            }
            _ => Ok(()),
        }
    }

    fn hear(&mut self, from: u32, message: ExchangeMessage) -> Result<(), Misuse> {
        if let ExchangeMessage::Wish { name, .. }
        | ExchangeMessage::Begin { name, .. }
        | ExchangeMessage::Request { name, .. } = &message
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
            ExchangeMessage::Variable { name, variable } => self.learns(name, variable),
            ExchangeMessage::Wish { name, wish, layout, mapping } => self.wished(&name, wish, layout, &mapping),
            ExchangeMessage::Begin { name, wish, version } => {
                self.begun(&name, wish, version);
                Ok(())
            }
            ExchangeMessage::Request { name, wish, version, ticket, host, pieces } => {
                self.asked(&name, FetchRequest { from, wish, version, ticket, host, pieces })
            }
            ExchangeMessage::More { ticket, pieces } => match self.asked_more(from, ticket, pieces) {
                true => Ok(()),
                false => Err(Misuse::Greedy { process: from }),
            },
            ExchangeMessage::Here { ticket, pid, address, length, mark } => {
                self.beside(from, ticket, length, ElementSource::Beside { pid, address, mark })
            }
            ExchangeMessage::Taken { ticket, sent } => self.given_back(from, ticket, sent),
            ExchangeMessage::Refused { ticket, reason } => self.refused(Party::other(from), ticket, reason),
            ExchangeMessage::Passed { name, version } => {
                self.passing.remove(&(name, version, from));
                Ok(())
            }
            ExchangeMessage::Forward { .. } | ExchangeMessage::Over { .. } | ExchangeMessage::Left { .. } => Ok(()),
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

/// The processes of the other side that this one informs, so that each receives everything once.
fn informed(own: u32, (size, others): (u32, u32)) -> impl Iterator<Item = u32> {
    (own..others).step_by(size.max(1) as usize)
}

impl Variable {
    /// Description for error messages.
    pub fn summary(&self) -> String {
        format!("{:?} of {} over {} processes", self.layout.shape(), self.dtype, self.layout.processes())
    }
}

#[cfg(test)]
mod tests;
