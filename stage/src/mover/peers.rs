//! The movers of a job: sends messages between them, and reads from their memory.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use endpoint::operation::{CompleteWhen, Match, OperationKind, ReadOp, RecvOp, SendOp};
use endpoint::{Completion, Config, Endpoint, Failure, PeerId, ShareOp, ShareTree, UserData};
use memory::{Buffer, Pages, RegionError, Regions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use types::roster::FORWARDER;
use types::{Address, Rank, Roster};

use super::error::MoverError;
use super::lent::Lent;
use super::message::{LONGEST, MoverMessage};
use super::pmi::Pmi;

const TAG: u64 = 1;
/// Maximum number of receivers of a share.
const MOST_SHARING: usize = 64;
/// Number of receives posted for messages.
const POSTED: usize = 32;
/// Number of block buffers kept for reuse.
const SPARE: usize = 8;
/// Bit that is set in the tag, or the share key, of every block that is sent.
const BLOCK: u64 = 1 << 63;
/// Without this delay, a mover on a slow network wakes up for each packet, and takes core time from an application.
const GATHERING: Duration = Duration::from_millis(1);
/// Longest sleep: the endpoint checks its connections for silence at this interval.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

pub(super) enum Happened {
    Told(u32, MoverMessage),
    /// Bytes that were read or received for this context.
    Read(usize, Pages),
}

/// A block to send.
#[derive(Clone, Copy)]
pub(super) struct BlockId {
    pub(super) task: u32,
    pub(super) block: u32,
    /// True if all targets at other sites that lack it get it as one share.
    pub(super) shared: bool,
}

impl BlockId {
    /// The block's tag, or the key of its share. Both may be reused once the block has arrived.
    fn key(self) -> u64 {
        BLOCK | u64::from(self.task) << 32 | u64::from(self.block)
    }
}

pub(super) struct Peers {
    endpoint: Endpoint,
    regions: Arc<Regions>,
    peers: Vec<PeerId>,
    waiting: VecDeque<DelayedOperation>,
    /// Block buffers for reuse.
    spare: Vec<Pages>,
    /// Completed shares, for the next step.
    ended: VecDeque<Completion>,
    sleeps_on: Vec<OwnedFd>,
    pmi: Pmi,
    me: u32,
    roster: Roster,
}

/// An operation that could not begin because the queue was full.
enum DelayedOperation {
    Send(SendOp),
    Read(ReadOp),
}

impl Peers {
    /// Joins the job described by the environment, and waits for its other movers.
    pub(super) fn open(lookup: impl Fn(&str) -> Option<String>) -> Result<Peers, MoverError> {
        let config = Config::from_env(&lookup)?;
        let Some((roster, me)) = config.job.as_ref().map(|job| (job.roster.clone(), job.rank.0)) else {
            return Err(MoverError::NoJob);
        };
        let regions = Arc::new(Regions::default());
        let mut endpoint = Endpoint::open(config, 0, regions.clone())?;
        let mut pmi = Pmi::open(lookup)?;
        let hex: String = endpoint.address().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut peers = Vec::new();
        for (rank, text) in pmi.exchange(me, roster.size(), &hex)?.iter().enumerate() {
            let address = address(text).ok_or_else(|| MoverError::Address { rank: rank as u32, text: text.clone() })?;
            peers.push(endpoint.peer(address));
        }
        let sleeps_on = endpoint.wait_fds().map(|fd| fd.try_clone_to_owned()).collect::<Result<_, _>>()?;
        let mut peers = Peers {
            endpoint,
            regions,
            peers,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            ended: VecDeque::new(),
            sleeps_on,
            pmi,
            me,
            roster,
        };
        for _ in 0..POSTED {
            peers.await_message()?;
        }
        Ok(peers)
    }

    pub(super) fn me(&self) -> u32 {
        self.me
    }

    pub(super) fn size(&self) -> u32 {
        self.roster.size()
    }

    /// Name of a rank in messages to the user.
    pub(super) fn shown(&self, rank: u32) -> String {
        match self.roster.place(Rank(rank)) {
            Some(place) if place.node_name == FORWARDER => format!("gateway of {}", place.site_name),
            _ => self.place(rank),
        }
    }

    /// Place of a rank as `SITE/NODE`.
    pub(super) fn place(&self, rank: u32) -> String {
        let place = self.roster.place(Rank(rank));
        place.map_or_else(|| format!("rank {rank}"), |place| format!("{}/{}", place.site_name, place.node_name))
    }

    /// A buffer for a block, reused if possible.
    pub(super) fn room(&mut self) -> Pages {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a block's buffer.
    pub(super) fn recycle(&mut self, pages: Pages) {
        if self.spare.len() < SPARE {
            self.spare.push(pages);
        }
    }

    /// Returns true if two ranks are at one site.
    pub(super) fn are_together(&self, one: u32, other: u32) -> bool {
        let site = |rank| self.roster.place(Rank(rank)).map(|place| place.site);
        site(one) == site(other)
    }

    pub(super) fn lend(&self, bytes: Pages) -> Result<Lent, RegionError> {
        Lent::new(&self.regions, bytes)
    }

    pub(super) fn send(&mut self, to: u32, message: &MoverMessage) -> Result<(), MoverError> {
        let bytes = postcard::to_stdvec(message).map_err(|error| MoverError::Message(error.to_string()))?;
        if bytes.len() > LONGEST {
            return Err(MoverError::Message(format!("it has {} bytes, at most {LONGEST}", bytes.len())));
        }
        let to = self.peer(to)?;
        let user = UserData::default();
        let buffer = Buffer::owned(bytes);
        self.begin(DelayedOperation::Send(SendOp {
            to,
            tag: Some(TAG),
            data: None,
            buffer,
            complete: CompleteWhen::Sent,
            user,
        }))
    }

    /// Reads bytes that a mover has lent. The result carries `context`.
    pub(super) fn read(&mut self, from: u32, key: u64, length: usize, context: usize) -> Result<(), MoverError> {
        let from = self.peer(from)?;
        let user = UserData { context, flags: 0 };
        let mut pages = self.room();
        pages.resize(length);
        self.begin(DelayedOperation::Read(ReadOp { from, key, address: 0, buffer: Buffer::pages(pages), user }))
    }

    /// Receives a block that `from` sends: as a share if it is at another site and the block is `shared`. The result
    /// carries `context`.
    pub(super) fn await_block(
        &mut self,
        from: u32,
        block: BlockId,
        length: usize,
        context: usize,
    ) -> Result<(), MoverError> {
        let peer = self.peer(from)?;
        let mut memory = self.room();
        memory.resize(length);
        let (buffer, user) = (Buffer::pages(memory), UserData { context, flags: 0 });
        let begun = if block.shared && !self.are_together(from, self.me) {
            self.endpoint.receive_share(peer, block.key(), buffer, user)
        } else {
            let matching = Match { from: Some(peer), tagged: true, tag: block.key(), ignore: 0 };
            self.endpoint.receive(RecvOp { matching, buffer, multi: None, user })
        };
        begun.map_err(MoverError::Begin)
    }

    /// Sends a block to these ranks. If it is `shared`, ranks at other sites get it as one share.
    pub(super) fn send_block(&mut self, block: BlockId, bytes: &Arc<Pages>, to: &[u32]) -> Result<(), MoverError> {
        let user = UserData::default();
        let (here, there): (Vec<u32>, Vec<u32>) =
            to.iter().partition(|rank| !block.shared || self.are_together(**rank, self.me));
        for rank in here {
            let (to, buffer) = (self.peer(rank)?, Buffer::shared(bytes.clone()));
            let (tag, data, complete) = (Some(block.key()), None, CompleteWhen::Sent);
            self.begin(DelayedOperation::Send(SendOp { to, tag, data, buffer, complete, user }))?;
        }
        for ranks in there.chunks(MOST_SHARING) {
            let to = ranks.iter().map(|rank| self.peer(*rank)).collect::<Result<_, _>>()?;
            let (key, buffer, trees) = (block.key(), Buffer::shared(bytes.clone()), vec![self.star(ranks)]);
            self.endpoint.share(ShareOp { key, to, buffer, trees, user }).map_err(MoverError::Begin)?;
        }
        Ok(())
    }

    /// The edges from this site to each of these ranks' sites.
    fn star(&self, ranks: &[u32]) -> ShareTree {
        let site = |rank: u32| self.roster.place(Rank(rank)).map(|place| place.site);
        let mut sites: Vec<_> = ranks.iter().filter_map(|rank| site(*rank)).collect();
        sites.sort_unstable();
        sites.dedup();
        let own = site(self.me);
        ShareTree { edges: sites.into_iter().filter_map(|site| Some((own?, site))).collect(), weight: 1.0 }
    }

    fn peer(&self, rank: u32) -> Result<PeerId, MoverError> {
        self.peers.get(rank as usize).copied().ok_or_else(|| MoverError::Message(format!("there is no rank {rank}")))
    }

    fn begin(&mut self, op: DelayedOperation) -> Result<(), MoverError> {
        self.waiting.push_back(op);
        self.begin_waiting()
    }

    fn begin_waiting(&mut self) -> Result<(), MoverError> {
        while !self.waiting.is_empty() && !self.endpoint.is_full() {
            let begun = match self.waiting.pop_front() {
                Some(DelayedOperation::Send(op)) => self.endpoint.send(op),
                Some(DelayedOperation::Read(op)) => self.endpoint.read(op),
                None => Ok(()),
            };
            begun.map_err(MoverError::Begin)?;
        }
        Ok(())
    }

    fn await_message(&mut self) -> Result<(), MoverError> {
        let matching = Match { from: None, tagged: true, tag: TAG, ignore: 0 };
        let buffer = Buffer::owned(vec![0; LONGEST]);
        let op = RecvOp { matching, buffer, multi: None, user: UserData::default() };
        self.endpoint.receive(op).map_err(MoverError::Begin)
    }

    /// Makes progress without blocking. `None`: nothing has happened.
    pub(super) fn step(&mut self) -> Result<Option<Happened>, MoverError> {
        loop {
            self.begin_waiting()?;
            let moved = self.endpoint.progress();
            let Some(completion) = self.endpoint.next_completion().or_else(|| self.next_ended()) else {
                if moved {
                    continue;
                }
                return Ok(None);
            };
            let from = completion.from.and_then(|peer| self.peers.iter().position(|other| *other == peer));
            match completion.result {
                Ok(()) => {}
                Err(Failure::Cancelled) => continue,
                Err(failure) => {
                    let from = from.or_else(|| self.lost(&failure));
                    let place = from.map_or_else(|| "another mover".to_owned(), |rank| self.shown(rank as u32));
                    return Err(match failure {
                        Failure::Refused(_) => MoverError::Ended { place },
                        Failure::PeerLost { reason, .. } => MoverError::Lost { place, reason },
                        failure => MoverError::Lost { place, reason: failure.to_string() },
                    });
                }
            }
            let length = completion.length as usize;
            match (completion.kind, completion.buffer, from) {
                (OperationKind::Read, Some(buffer), _) => {
                    return Ok(Some(Happened::Read(completion.user.context, buffer.into_pages())));
                }
                (OperationKind::Share, Some(buffer), _) => {
                    return Ok(Some(read(completion.user.context, buffer, length)));
                }
                (OperationKind::Recv, Some(buffer), _) if completion.tag != TAG => {
                    return Ok(Some(read(completion.user.context, buffer, length)));
                }
                (OperationKind::Recv, Some(buffer), Some(from)) => {
                    self.await_message()?;
                    let message = postcard::from_bytes(&buffer.to_vec(0..length));
                    let place = |error: postcard::Error| {
                        MoverError::Message(format!("from {}: {error}", self.place(from as u32)))
                    };
                    return Ok(Some(Happened::Told(from as u32, message.map_err(place)?)));
                }
                _ => {}
            }
        }
    }

    fn next_ended(&mut self) -> Option<Completion> {
        self.ended.pop_front().or_else(|| self.endpoint.next_share_completion())
    }

    /// The rank that was lost.
    fn lost(&self, failure: &Failure) -> Option<usize> {
        let Failure::PeerLost { address, .. } = failure else { return None };
        let is_it = |peer: &PeerId| self.endpoint.peer_address(*peer).is_some_and(|known| known == *address);
        self.peers.iter().position(is_it)
    }

    /// Sleeps until an operation can make progress, one of the descriptors is readable, or the time has passed.
    /// `gathers`: then sleeps a little longer, because the rest of a long block is in flight.
    pub(super) fn sleep(
        &mut self,
        limit: Duration,
        also: Option<BorrowedFd<'_>>,
        gathers: bool,
    ) -> Result<(), MoverError> {
        let Some(due) = self.endpoint.arm() else { return Ok(()) };
        // No descriptor signals completed shares.
        self.ended.extend(self.endpoint.next_share_completion());
        if !self.ended.is_empty() {
            return Ok(());
        }
        let due = due.min(limit).min(LONGEST_SLEEP);
        let due = Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() };
        let fds = self.sleeps_on.iter().map(AsFd::as_fd).chain(also);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // An interrupted or failed wait counts as a short one.
        let ready = poll(&mut fds, Some(&due));
        if gathers && ready.is_ok_and(|count| count > 0) {
            std::thread::sleep(GATHERING);
        }
        Ok(())
    }

    /// Waits until all messages are sent, and leaves the job.
    pub(super) fn close(mut self) -> Result<(), MoverError> {
        // Blocks still queued belong to a cancelled transfer.
        let is_block = |op: &SendOp| op.tag.is_some_and(|tag| tag != TAG);
        self.waiting.retain(|op| !matches!(op, DelayedOperation::Send(op) if is_block(op)));
        while !self.waiting.is_empty() {
            self.step()?;
        }
        self.endpoint.close();
        Ok(self.pmi.finish()?)
    }
}

/// The bytes that arrived in a buffer.
fn read(context: usize, buffer: Buffer, length: usize) -> Happened {
    let mut pages = buffer.into_pages();
    pages.resize(length.min(pages.len()));
    Happened::Read(context, pages)
}

fn address(hex: &str) -> Option<Address> {
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|at| hex.get(2 * at..2 * at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
        .collect::<Option<_>>()?;
    Address::from_bytes(&bytes.try_into().ok()?)
}
