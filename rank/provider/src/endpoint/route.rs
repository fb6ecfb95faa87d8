//! Converts an endpoint's completions to the entries and counts that its user sees.

use std::time::{Duration, Instant};

use endpoint::operation::{Completion, OperationKind};
use endpoint::{Failure, UserData};

use super::{EndpointState, Stage};
use crate::abi::constants::{
    FI_ADDR_NOTAVAIL, FI_ATOMIC, FI_MSG, FI_MULTI_RECV, FI_READ, FI_RECV, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA,
    FI_SEND, FI_SOURCE, FI_TAGGED, FI_WRITE,
};
use crate::cq::{CompletionEntry, Detail};
use crate::errno;
use crate::log;

/// Time limit for an operation to fail after memory was exhausted.
const STANDS_STILL: Duration = Duration::from_secs(1);

/// Contents of an operation's completion report; carried in [`UserData::flags`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// If true, success also gets an entry in the completion queue.
    pub entry: bool,
    /// True for a peek, which no counter counts.
    pub peek: bool,
    /// True for a fetching atomic.
    pub fetch: bool,
    /// A multi-receive's buffer, as an index into [`MultiBuffers`].
    pub multi: Option<u32>,
}

const ENTRY: u64 = 1;
const PEEK: u64 = 2;
const FETCH: u64 = 4;
const MULTI: u64 = 8;

impl Wanted {
    /// Packs this and the operation's context.
    pub(crate) fn with(self, context: usize) -> UserData {
        let bit = |set: bool, bit| if set { bit } else { 0 };
        let multi = self.multi.map_or(0, |index| MULTI | u64::from(index) << 32);
        let flags = bit(self.entry, ENTRY) | bit(self.peek, PEEK) | bit(self.fetch, FETCH) | multi;
        UserData { context, flags }
    }

    fn of(user: UserData) -> Wanted {
        let has = |bit| user.flags & bit != 0;
        let multi = has(MULTI).then_some((user.flags >> 32) as u32);
        Wanted { entry: has(ENTRY), peek: has(PEEK), fetch: has(FETCH), multi }
    }
}

/// Start addresses of multi-receives' buffers: completions hold an offset into the buffer, users get an address.
#[derive(Default)]
pub(crate) struct MultiBuffers {
    starts: Vec<usize>,
    free: Vec<u32>,
}

impl MultiBuffers {
    /// Adds a buffer; returns its index.
    pub(crate) fn add(&mut self, start: usize) -> u32 {
        if let Some(index) = self.free.pop() {
            self.starts[index as usize] = start;
            return index;
        }
        self.starts.push(start);
        (self.starts.len() - 1) as u32
    }

    /// Frees an index.
    pub(crate) fn remove(&mut self, index: u32) {
        self.free.push(index);
    }

    fn start(&self, index: u32) -> usize {
        self.starts.get(index as usize).copied().unwrap_or(0)
    }
}

impl EndpointState {
    /// Delivers all completions to their queues and counters. Returns true if there were any.
    pub(super) fn pass_on(&mut self, caps: u64) -> bool {
        let mut any = false;
        loop {
            let Stage::Open(transport) = &mut self.stage else { return any };
            let Some(completion) = transport.next_completion() else {
                if transport.is_out_of_memory() {
                    self.stands_still();
                }
                return any;
            };
            any = true;
            // MPI libraries print only an error number.
            if matches!(completion.result, Err(Failure::PeerLost { .. }))
                && let Some(trouble) = transport.take_trouble()
            {
                log::fatal(format_args!("{trouble}"));
            }
            let source = match completion.from {
                Some(peer) if caps & FI_SOURCE != 0 => {
                    EndpointState::number(&mut self.known, self.av.as_deref(), transport, peer)
                }
                _ => FI_ADDR_NOTAVAIL,
            };
            self.deliver(&completion, source);
        }
    }

    /// Memory is exhausted, and data is lost that no operation here waits for, only operations of other ranks. A failed
    /// operation would make the MPI library end the process. If none fails within [`STANDS_STILL`], this ends the
    /// process.
    #[cold]
    fn stands_still(&mut self) {
        let since = *self.exhausted.get_or_insert_with(Instant::now);
        let Stage::Open(transport) = &mut self.stage else { return };
        if since.elapsed() < STANDS_STILL {
            return;
        }
        if let Some(trouble) = transport.take_trouble() {
            log::fatal(format_args!("{trouble}"));
            // SAFETY: ends the process without running exit handlers, because the program is in the middle of a call.
            unsafe { libc::_exit(1) };
        }
    }

    fn deliver(&mut self, completion: &Completion, source: u64) {
        let wanted = Wanted::of(completion.user);
        self.missed |= wanted.peek && completion.result == Err(Failure::NoMessage);
        let message = if completion.tagged { FI_TAGGED } else { FI_MSG };
        let (side, counter, flags) = match completion.kind {
            // Shares have a queue of their own, which the collectives layer reads.
            OperationKind::Share => return,
            OperationKind::Send => (&self.tx, &self.counters.send, FI_SEND | message),
            OperationKind::Recv => (&self.rx, &self.counters.recv, FI_RECV | message),
            OperationKind::Read => (&self.tx, &self.counters.read, FI_RMA | FI_READ),
            OperationKind::Write => (&self.tx, &self.counters.write, FI_RMA | FI_WRITE),
            OperationKind::Atomic if wanted.fetch => (&self.tx, &self.counters.read, FI_ATOMIC | FI_READ),
            OperationKind::Atomic => (&self.tx, &self.counters.write, FI_ATOMIC | FI_WRITE),
            OperationKind::RemoteWrite => (&self.rx, &None, FI_RMA | FI_REMOTE_WRITE),
        };
        if let Some(counter) = counter.as_ref().filter(|_| !wanted.peek) {
            match completion.result {
                Ok(()) => counter.completed(completion.length),
                Err(_) => counter.failed(),
            }
        }
        let mut entry = CompletionEntry {
            context: completion.user.context,
            flags,
            len: completion.length as usize,
            buf: 0,
            data: completion.data.unwrap_or(0),
            tag: completion.tag,
            source,
            error: completion.result.as_ref().err().map(detail),
        };
        if completion.data.is_some() {
            entry.flags |= FI_REMOTE_CQ_DATA;
        }
        if let Err(Failure::Truncated { kept, .. }) = completion.result {
            entry.len = kept as usize;
        }
        if let Some(index) = wanted.multi {
            entry.buf = self.multi.start(index) + completion.offset as usize;
            if completion.released || completion.result == Err(Failure::Cancelled) {
                entry.flags |= FI_MULTI_RECV;
                self.multi.remove(index);
            }
        }
        // fi_msg(3): the release of a multi-receive's buffer is always reported, as are errors.
        let remote = completion.kind == OperationKind::RemoteWrite;
        if let Some(cq) = &side.cq
            && (wanted.entry || remote || entry.error.is_some() || entry.flags & FI_MULTI_RECV != 0)
        {
            cq.push(entry);
        }
    }
}

fn detail(failure: &Failure) -> Box<Detail> {
    let overflow = match failure {
        Failure::Truncated { total, kept } => total.saturating_sub(*kept) as usize,
        _ => 0,
    };
    // Only errors that an error number cannot express get a text: programs read everyday errors (a peek that misses, a
    // cancel, a truncation) with an error entry whose text buffer they never set.
    let text = match failure {
        Failure::Truncated { .. } | Failure::Cancelled | Failure::NoMessage => String::new(),
        _ => failure.to_string(),
    };
    Box::new(Detail { errno: errno::of_failure(failure), overflow, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_survive_the_journey() {
        for wanted in [
            Wanted::default(),
            Wanted { entry: true, ..Wanted::default() },
            Wanted { peek: true, fetch: true, ..Wanted::default() },
            Wanted { entry: true, multi: Some(u32::MAX), ..Wanted::default() },
            Wanted { multi: Some(0), ..Wanted::default() },
        ] {
            assert_eq!(Wanted::of(wanted.with(77)), wanted);
            assert_eq!(wanted.with(77).context, 77);
        }
    }

    #[test]
    fn places_of_multi_receives_are_reused() {
        let mut buffers = MultiBuffers::default();
        let (a, b) = (buffers.add(1000), buffers.add(2000));
        assert_eq!((buffers.start(a), buffers.start(b)), (1000, 2000));
        buffers.remove(a);
        assert_eq!(buffers.add(3000), a);
        assert_eq!(buffers.start(a), 3000);
    }
}
