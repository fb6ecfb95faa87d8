//! The memory link: rings in a file that the ranks of a node (or of a pool's nodes) map; see the crate `pool`.
//!
//! A frame is one record of a ring, without a frame header, because each ring has one writer and one reader. Where the
//! kernel allows it, the payload of a long frame stays in place, and its reader copies it once, from the writer's
//! memory into the user's buffer. Otherwise it goes through the ring in pieces, as it does between the nodes of a pool.
//!
//! New writers are found by regular checks for knocks, as a listener is polled for connections. A sleeping reader is
//! marked in its seat and is woken by a datagram to its doorbell, once per nap. A lost datagram costs the rest of a
//! nap, which is bounded. Anybody may send a datagram, because it does nothing but end a nap.

mod doorbell;
mod neighbour;
mod pace;

use std::os::fd::BorrowedFd;
use std::path::Path;

use memory::Regions;
use pool::{Corrupt, HostId, INSTANCES, PoolError, Region, Seat, SeatState};
use rustc_hash::FxHashMap;
use types::id::{NOWHERE, SlotKind};
use types::{Address, Identity, Instance, Rank, Slot};

use crate::config::EndpointLimits;
use crate::handshake::Credentials;
use crate::link::{Link, Outgoing, Sink};
use crate::operation::PeerId;
use doorbell::{Doorbell, ProcessWatch};
use neighbour::{Neighbour, Trouble, Unwritable};

/// Number of rings read on every call. The others take turns, this many on each call.
const HOT: usize = 8;
/// Maximum number of records taken from one ring before the others have their turn.
const RECORDS: usize = 64;
/// Number of calls between two checks for knocks, and between two checks for ended processes.
const KNOCKS_EVERY: u32 = 64;
const DEATHS_EVERY: u32 = 16_384;

pub(crate) struct MemoryLink {
    region: Region,
    me: Address,
    place: u32,
    limits: EndpointLimits,
    host: HostId,
    doorbell: Doorbell,
    neighbours: Vec<Neighbour>,
    by_place: FxHashMap<u32, usize>,
    by_peer: FxHashMap<PeerId, usize>,
    /// Neighbours that have written to us, the most recent one in front.
    reading: Vec<usize>,
    /// Neighbours with items queued or not yet copied.
    sending: Vec<usize>,
    turn: u32,
    /// Position in the round over the rings that are not hot.
    round: usize,
    nap: u64,
    buffered: u64,
    scratch: Vec<u8>,
    /// An error of the region, such as lack of room for a ring; the neighbour is not at fault.
    trouble: Option<PoolError>,
    /// A word that others read to test whether they can read our memory.
    _probe: Box<u64>,
}

impl MemoryLink {
    /// Joins the job's region; `None`: the region has no seat for this endpoint, because the rank has more endpoints
    /// than regions provide for.
    pub(crate) fn open(
        path: &Path,
        own: &Credentials,
        limits: EndpointLimits,
    ) -> Result<Option<MemoryLink>, PoolError> {
        let system = |what| {
            let path = path.to_owned();
            move |source| PoolError::System { path, what, source }
        };
        let region = Region::open(path, own.job)?;
        let SlotKind::Rank(Rank(rank), instance) = own.me.identity.slot.kind() else { return Ok(None) };
        let instance = u32::from(instance.0);
        let Some(place) = region.place(rank, instance) else {
            if instance >= INSTANCES {
                return Ok(None);
            }
            let problem = format!("has no place for rank {rank}, but for {:?}", region.shape());
            return Err(PoolError::Foreign { path: path.to_owned(), problem });
        };
        let doorbell = Doorbell::bind(own.me.socket.ip()).map_err(system("opening a doorbell"))?;
        let mut value = [0; 8];
        let random = getrandom::fill(&mut value).map_err(|e| std::io::Error::other(e.to_string()));
        random.map_err(system("random numbers"))?;
        let probe = Box::new(u64::from_ne_bytes(value));
        let host = HostId::own();
        pool::allow_reading();
        let probe_at = (std::ptr::from_ref::<u64>(&probe).expose_provenance() as u64, *probe);
        region.join(place, &Seat { pid: std::process::id(), host, doorbell: doorbell.address(), probe: probe_at })?;
        Ok(Some(MemoryLink {
            region,
            me: own.me,
            place,
            limits,
            host,
            doorbell,
            neighbours: Vec::new(),
            by_place: FxHashMap::default(),
            by_peer: FxHashMap::default(),
            reading: Vec::new(),
            sending: Vec::new(),
            turn: 0,
            round: 0,
            nap: 0,
            buffered: 0,
            scratch: Vec::new(),
            trouble: None,
            _probe: probe,
        }))
    }

    /// The place of an endpoint that has joined the region.
    fn place_of(&self, address: Address) -> Option<u32> {
        let SlotKind::Rank(Rank(rank), instance) = address.identity.slot.kind() else { return None };
        let place = self.region.place(rank, instance.0.into())?;
        let ours = address.identity.site == self.me.identity.site && address.job == self.me.job;
        (ours && self.region.seat(place).is_some()).then_some(place)
    }

    /// True if this peer has joined the region. Stays true from then on.
    pub(crate) fn reaches(&self, address: Address) -> bool {
        self.place_of(address).is_some()
    }

    /// Readable when a doorbell rings, or a neighbour's process has ended.
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.poll_fd()
    }

    /// An error of the region itself. Reported once.
    pub(crate) fn take_trouble(&mut self) -> Option<PoolError> {
        self.trouble.take()
    }

    /// True if such an error has not been reported yet.
    pub(crate) fn has_trouble(&self) -> bool {
        self.trouble.is_some()
    }

    /// Call before sleeping. `false`: do not sleep, there is something to do. In both cases call
    /// [`MemoryLink::wake_up`] afterwards.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        self.nap += 1;
        self.region.set_nap(self.place, self.nap);
        let known = |place| self.by_place.get(&place).is_some_and(|at| self.neighbours[*at].is_read());
        let knocks = self.region.knocking(self.place, known).next().is_some();
        !knocks && self.neighbours.iter_mut().all(Neighbour::is_quiet)
    }

    /// Makes the next `progress` check everything: something may have arrived while we slept.
    pub(crate) fn wake_up(&mut self) {
        self.region.set_nap(self.place, 0);
        self.doorbell.silence();
        self.turn = u32::MAX;
    }

    /// The neighbour at a place, created if it is new.
    fn meet(&mut self, place: u32, peer: PeerId) -> Option<usize> {
        if let Some(at) = self.by_place.get(&place) {
            return Some(*at);
        }
        let seat = self.region.seat(place)?;
        let at = self.neighbours.len();
        let shares = seat.host.shares_processes(self.host);
        let mut neighbour = Neighbour::new(peer, place, seat, shares, self.limits.single_copy);
        if shares && seat.pid != std::process::id() {
            neighbour.watched = self.doorbell.watch(seat.pid, at as u64);
        }
        self.neighbours.push(neighbour);
        self.by_place.insert(place, at);
        self.by_peer.insert(peer, at);
        Some(at)
    }

    /// Starts reading from neighbours that have knocked since the last check.
    fn answer_knocks(&mut self, sink: &mut dyn Sink) -> bool {
        let known = |place| self.by_place.get(&place).is_some_and(|at| self.neighbours[*at].is_read());
        let new: Vec<u32> = self.region.knocking(self.place, known).collect();
        for place in &new {
            let (rank, instance) = self.region.owner(*place);
            let Some(slot) = Slot::rank(Rank(rank), Instance(instance as u8)) else { continue };
            let identity = Identity { site: self.me.identity.site, slot };
            let peer = sink.peer(Address { socket: NOWHERE, job: self.me.job, identity });
            let Some(at) = self.meet(*place, peer) else { continue };
            match self.region.consumer(*place, self.place) {
                Ok(consumer) => {
                    self.neighbours[at].read_from(consumer);
                    self.reading.insert(0, at);
                }
                Err(error) => {
                    self.lose(at, Some(error.to_string()), sink);
                    self.trouble.get_or_insert(error);
                }
            }
        }
        !new.is_empty()
    }

    /// Takes the records that a neighbour has written. Returns true if there were any.
    fn read(&mut self, at: usize, sink: &mut dyn Sink) -> bool {
        let neighbour = &mut self.neighbours[at];
        for taken in 0..RECORDS {
            match neighbour.take(sink) {
                Ok(None) => return taken > 0,
                Ok(Some(told)) => {
                    if told {
                        wake(&self.region, &self.doorbell, neighbour);
                    }
                }
                Err(trouble) => {
                    let reason = match trouble {
                        Trouble::Goodbye => None,
                        other => Some(other.to_string()),
                    };
                    self.lose(at, reason, sink);
                    return true;
                }
            }
        }
        true
    }

    /// Reads the hot rings, and some of the others.
    fn read_some(&mut self, sink: &mut dyn Sink) -> bool {
        let mut moved = false;
        let hot = self.reading.len().min(HOT);
        let cold = self.reading.len() - hot;
        for step in 0..hot + cold.min(HOT) {
            let index = if step < hot {
                step
            } else {
                self.round = (self.round + 1) % cold;
                hot + self.round
            };
            let Some(at) = self.reading.get(index).copied() else { break };
            if self.read(at, sink) {
                moved = true;
                // A lost neighbour was removed from the list.
                if index > 0 && self.reading.get(index) == Some(&at) {
                    self.reading[..=index].rotate_right(1);
                }
            }
        }
        moved
    }

    /// Writes as many queued items as a neighbour's ring takes.
    fn flush(&mut self, at: usize, sink: &mut dyn Sink) -> bool {
        let neighbour = &mut self.neighbours[at];
        let result = neighbour.flush(&mut self.buffered, &mut self.scratch, sink);
        self.written(at, result, sink)
    }

    /// Handles the result of writing to a neighbour's ring. Returns true if something was written, or the ring is
    /// broken.
    fn written(&mut self, at: usize, result: Result<bool, Corrupt>, sink: &mut dyn Sink) -> bool {
        let moved = match result {
            Ok(moved) => moved,
            Err(corrupt) => {
                self.lose(at, Some(corrupt.to_string()), sink);
                return true;
            }
        };
        if moved {
            let neighbour = &mut self.neighbours[at];
            if !std::mem::replace(&mut neighbour.knocked, true) {
                self.region.knock(self.place, neighbour.place);
            }
            wake(&self.region, &self.doorbell, neighbour);
        }
        moved
    }

    /// Handles neighbours whose process has ended, and those that left without a goodbye because the ring was full or
    /// never used.
    fn look_for_deaths(&mut self, sink: &mut dyn Sink) -> bool {
        let mut moved = false;
        let ended = self.doorbell.ended();
        for at in 0..self.neighbours.len() {
            let neighbour = &self.neighbours[at];
            let left = self.region.state(neighbour.place) == SeatState::Closed;
            let dead = matches!(neighbour.watched, ProcessWatch::Ended) || ended.contains(&(at as u64));
            if neighbour.is_lost() || !(left || dead) {
                continue;
            }
            moved = true;
            // The records that it had written are still there.
            self.answer_knocks(sink);
            while !self.neighbours[at].is_lost() && self.read(at, sink) {}
            if !self.neighbours[at].is_lost() {
                let pid = self.neighbours[at].seat.pid;
                let reason = format!("its process {pid} has ended without closing its endpoint");
                self.lose(at, (!left).then_some(reason), sink);
            }
        }
        moved
    }

    fn lose(&mut self, at: usize, reason: Option<String>, sink: &mut dyn Sink) {
        self.reading.retain(|reading| *reading != at);
        self.sending.retain(|sending| *sending != at);
        let neighbour = &mut self.neighbours[at];
        let peer = neighbour.peer;
        // Before it ended it may have copied our items. A broken ring cannot show that.
        let _ = neighbour.report_copied(&mut self.buffered, sink);
        let items = neighbour.lose(reason.clone());
        sink.lost(peer, reason);
        for item in items {
            if item.detach {
                self.buffered -= item.end;
            }
            item.sent.into_iter().for_each(|sent| sink.unsent(peer, sent));
        }
    }

    /// Writes a short message to a neighbour that has been written to before, if its ring has room for it.
    pub(crate) fn write_whole(&mut self, to: PeerId, message: &wire::Message, bytes: &[u8]) -> bool {
        let Some(at) = self.by_peer.get(&to) else { return false };
        let neighbour = &mut self.neighbours[*at];
        if !neighbour.knocked || !neighbour.write_whole(message, bytes) {
            return false;
        }
        wake(&self.region, &self.doorbell, neighbour);
        true
    }

    /// True if the ring to this neighbour has no room, or items are queued for it.
    pub(crate) fn is_full(&mut self, to: PeerId) -> bool {
        self.by_peer.get(&to).is_some_and(|at| self.neighbours[*at].is_full())
    }

    fn neighbour_for(&mut self, to: PeerId, sink: &dyn Sink) -> Result<usize, Unwritable> {
        let at = match self.by_peer.get(&to) {
            Some(at) => *at,
            None => {
                let place = sink.address(to).and_then(|address| self.place_of(address));
                place.and_then(|place| self.meet(place, to)).ok_or(Unwritable::Absent)?
            }
        };
        let neighbour = &mut self.neighbours[at];
        neighbour.check()?;
        if !neighbour.is_written() {
            match self.region.producer(self.place, neighbour.place) {
                Ok(ring) => neighbour.write_to(ring),
                Err(error) => {
                    let reason = error.to_string();
                    self.trouble.get_or_insert(error);
                    return Err(Unwritable::NoRing(reason));
                }
            }
        }
        Ok(at)
    }
}

/// Rings a neighbour's doorbell if it sleeps, once per nap.
fn wake(region: &Region, doorbell: &Doorbell, neighbour: &mut Neighbour) {
    let nap = region.nap(neighbour.place);
    if nap != 0 && nap != neighbour.rung {
        neighbour.rung = nap;
        doorbell.ring(neighbour.seat.doorbell);
    }
}

impl Link for MemoryLink {
    fn send(&mut self, to: PeerId, mut item: Outgoing, _more: bool, sink: &mut dyn Sink) {
        let at = match self.neighbour_for(to, sink) {
            Ok(at) => at,
            Err(error) => {
                sink.lost(to, Some(error.to_string()));
                item.sent.into_iter().for_each(|sent| sink.unsent(to, sent));
                return;
            }
        };
        let detach = item.detach;
        if detach {
            self.buffered += item.end;
            // The reader would copy the bytes after this function has returned.
            if self.neighbours[at].may_want_single_copy(item.left()) {
                item.detach_now();
            }
        }
        let neighbour = &mut self.neighbours[at];
        let result = neighbour.send(item, &mut self.buffered, &mut self.scratch, sink);
        self.written(at, result, sink);
        let neighbour = &mut self.neighbours[at];
        if detach {
            neighbour.detach_last();
        }
        if neighbour.has_pending() && !self.sending.contains(&at) {
            self.sending.push(at);
        }
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> bool {
        let mut moved = self.read_some(sink);
        let mut index = 0;
        while let Some(at) = self.sending.get(index).copied() {
            moved |= self.flush(at, sink);
            if !self.neighbours[at].has_pending() {
                self.sending.retain(|sending| *sending != at);
                continue;
            }
            index += 1;
        }
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(KNOCKS_EVERY) {
            moved |= self.answer_knocks(sink);
        }
        if self.turn.is_multiple_of(DEATHS_EVERY) {
            moved |= self.look_for_deaths(sink);
        }
        moved
    }

    fn is_idle(&self) -> bool {
        self.sending.is_empty()
    }

    fn buffered(&self) -> u64 {
        self.buffered
    }

    fn close(&mut self) {
        for neighbour in &mut self.neighbours {
            if neighbour.say_goodbye() {
                if !std::mem::replace(&mut neighbour.knocked, true) {
                    self.region.knock(self.place, neighbour.place);
                }
                wake(&self.region, &self.doorbell, neighbour);
            }
        }
        self.region.leave(self.place);
        self.neighbours.clear();
        self.by_place.clear();
        self.by_peer.clear();
        self.reading.clear();
        self.sending.clear();
    }
}

/// The refusal that replaces the frame of an item whose region has been closed.
fn refusal(item: &Outgoing, status: wire::message::Status) -> wire::message::Encoded {
    wire::Message::Fetched { id: item.id, status }.encode(0)
}

/// Copies an item's bytes out of a region.
fn from_region(
    item: &Outgoing,
    count: u64,
    regions: &Regions,
    scratch: &mut Vec<u8>,
) -> Result<(), wire::message::Status> {
    scratch.clear();
    item.copy_to(count, regions, scratch)
}

#[cfg(test)]
mod tests;
