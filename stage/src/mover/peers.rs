//! The movers of a job: messages between them, and reading from their memory.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use endpoint::operation::{CompleteWhen, Kind, Match, ReadOp, RecvOp, SendOp};
use endpoint::{Config, Endpoint, Failure, PeerId, UserData};
use memory::{Buffer, Pages, RegionError, Regions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use types::roster::FORWARDER;
use types::{Address, Rank, Roster};

use super::MoverError;
use super::lent::Lent;
use super::message::{LONGEST, Message};
use super::pmi::Pmi;

const TAG: u64 = 1;
/// Receives posted for messages.
const POSTED: usize = 32;
/// Memory of as many blocks is kept for others.
const SPARE: usize = 8;
/// The longest sleep: the endpoint checks its connections for silence at this interval.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

pub(super) enum Happened {
    Told(u32, Message),
    /// What was read for this context.
    Read(usize, Pages),
}

pub(super) struct Peers {
    endpoint: Endpoint,
    regions: Arc<Regions>,
    peers: Vec<PeerId>,
    waiting: VecDeque<Waiting>,
    /// Memory of blocks that are done with.
    spare: Vec<Pages>,
    sleeps_on: Vec<OwnedFd>,
    pmi: Pmi,
    me: u32,
    roster: Roster,
}

/// Not begun, because too much was queued.
enum Waiting {
    Send(SendOp),
    Read(ReadOp),
}

impl Peers {
    /// Joins the job that the environment names, and waits for its other movers.
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
        let mut peers =
            Peers { endpoint, regions, peers, waiting: VecDeque::new(), spare: Vec::new(), sleeps_on, pmi, me, roster };
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

    /// For the user.
    pub(super) fn shown(&self, rank: u32) -> String {
        match self.roster.place(Rank(rank)) {
            Some(place) if place.node_name == FORWARDER => format!("gateway of {}", place.site_name),
            _ => self.place(rank),
        }
    }

    /// `SITE/NODE`.
    pub(super) fn place(&self, rank: u32) -> String {
        let place = self.roster.place(Rank(rank));
        place.map_or_else(|| format!("rank {rank}"), |place| format!("{}/{}", place.site_name, place.node_name))
    }

    /// Memory for a block: that of an earlier one, if there is some.
    pub(super) fn room(&mut self) -> Pages {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back the memory of a block.
    pub(super) fn recycle(&mut self, pages: Pages) {
        if self.spare.len() < SPARE {
            self.spare.push(pages);
        }
    }

    pub(super) fn lend(&self, bytes: Pages) -> Result<Lent, RegionError> {
        Lent::new(&self.regions, bytes)
    }

    pub(super) fn send(&mut self, to: u32, message: &Message) -> Result<(), MoverError> {
        let bytes = postcard::to_stdvec(message).map_err(|error| MoverError::Message(error.to_string()))?;
        if bytes.len() > LONGEST {
            return Err(MoverError::Message(format!("it has {} bytes, at most {LONGEST}", bytes.len())));
        }
        let to = self.peer(to)?;
        let user = UserData::default();
        let buffer = Buffer::owned(bytes);
        self.begin(Waiting::Send(SendOp { to, tag: Some(TAG), data: None, buffer, complete: CompleteWhen::Sent, user }))
    }

    /// Reads bytes that a mover has lent. `context` comes back with them.
    pub(super) fn read(&mut self, from: u32, key: u64, length: usize, context: usize) -> Result<(), MoverError> {
        let from = self.peer(from)?;
        let user = UserData { context, flags: 0 };
        let mut pages = self.room();
        pages.resize(length);
        self.begin(Waiting::Read(ReadOp { from, key, address: 0, buffer: Buffer::pages(pages), user }))
    }

    fn peer(&self, rank: u32) -> Result<PeerId, MoverError> {
        self.peers.get(rank as usize).copied().ok_or_else(|| MoverError::Message(format!("there is no rank {rank}")))
    }

    fn begin(&mut self, op: Waiting) -> Result<(), MoverError> {
        self.waiting.push_back(op);
        self.begin_waiting()
    }

    fn begin_waiting(&mut self) -> Result<(), MoverError> {
        while !self.waiting.is_empty() && !self.endpoint.is_full() {
            let begun = match self.waiting.pop_front() {
                Some(Waiting::Send(op)) => self.endpoint.send(op),
                Some(Waiting::Read(op)) => self.endpoint.read(op),
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

    /// Moves bytes without blocking. `None`: nothing has happened.
    pub(super) fn step(&mut self) -> Result<Option<Happened>, MoverError> {
        loop {
            self.begin_waiting()?;
            let moved = self.endpoint.progress();
            let Some(completion) = self.endpoint.next_completion() else {
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
                    let place = from.map(|rank| self.shown(rank as u32));
                    return Err(MoverError::Lost { place: place.unwrap_or_else(|| "a mover".to_owned()), failure });
                }
            }
            let length = completion.length as usize;
            match (completion.kind, completion.buffer, from) {
                (Kind::Read, Some(buffer), _) => {
                    return Ok(Some(Happened::Read(completion.user.context, buffer.into_pages())));
                }
                (Kind::Recv, Some(buffer), Some(from)) => {
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

    /// Sleeps until something can be moved, one of these can be read, or this time has passed.
    pub(super) fn sleep(&mut self, limit: Duration, also: Option<BorrowedFd<'_>>) -> Result<(), MoverError> {
        let Some(due) = self.endpoint.arm() else { return Ok(()) };
        let due = due.min(limit).min(LONGEST_SLEEP);
        let due = Timespec { tv_sec: due.as_secs() as i64, tv_nsec: due.subsec_nanos().into() };
        let fds = self.sleeps_on.iter().map(AsFd::as_fd).chain(also);
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        // An interrupted or failed wait counts as a short one.
        let _ = poll(&mut fds, Some(&due));
        Ok(())
    }

    /// Waits until what was sent has left, and leaves the job in order.
    pub(super) fn close(mut self) -> Result<(), MoverError> {
        while !self.waiting.is_empty() {
            self.step()?;
        }
        self.endpoint.close();
        Ok(self.pmi.finish()?)
    }
}

fn address(hex: &str) -> Option<Address> {
    let bytes: Vec<u8> = (0..hex.len() / 2)
        .map(|at| hex.get(2 * at..2 * at + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok()))
        .collect::<Option<_>>()?;
    Address::from_bytes(&bytes.try_into().ok()?)
}
