//! The site's own network under the site link: one port of this rank, and a lane to each peer.
//!
//! A TCP connection opens as usual and proves the job's secret. Then both ends introduce their ports to each other, and
//! all other frames go through the lane. TCP stays open: it shows that a lane has lost frames (`tally`), and when it
//! closes, the peer is gone. The peer's last frames may then still be in flight on the other network, so a lane whose
//! TCP connection has closed is given a moment for the goodbye. A rank that closes waits a moment until its goodbyes
//! are answered over TCP: frames that were sent may need their port until they are received (libfabric's shm 1.17
//! crashes the receiver otherwise).

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use libfabric::{Fault, Port, PortEvent, Posted};
use rustc_hash::FxHashMap;
use slab::Slab;
use wire::Introduction;

use super::connection::SiteConnection;
use super::lane::{Lane, is_goodbye, token_of};
use super::tally::LOOK;
use crate::link::{Misbehaved, Sink};
use crate::reader::Broken;

/// Maximum number of a lane's frames that the provider holds.
const LANE_FRAMES: usize = 16;
/// Maximum number of frames that it holds in total.
const ALL_FRAMES: usize = 256;
/// Time limit for the goodbye of a peer whose TCP connection has closed.
const GRACE: Duration = Duration::from_millis(500);
/// Maximum sleep if the provider has no descriptor that would wake the rank.
const LONGEST_NAP: Duration = Duration::from_micros(100);

/// The result of checking a connection's tally.
pub(super) enum Finding {
    /// The peer does not know that this many frames have been put on its lane.
    Tell(u32),
    /// The lane has to end.
    Broken(Broken),
}

pub(super) struct Native {
    port: Port,
    /// The provider's full name.
    provider: String,
    /// Our tokens, each with the connection of the peer that has it.
    tokens: FxHashMap<u64, usize>,
    /// Connections whose lane could not take all their frames.
    waiting: Vec<usize>,
    /// Connections whose lane is ending.
    pub ending: Vec<usize>,
    under_way: usize,
    /// Time of the last check of the tallies.
    looked: Instant,
    /// True if there may be a lane whose ends do not both know all counts.
    unsettled: bool,
}

impl Native {
    pub(super) fn new(port: Port) -> Native {
        let provider = port.provider();
        Native {
            port,
            provider,
            tokens: FxHashMap::default(),
            waiting: Vec::new(),
            ending: Vec::new(),
            under_way: 0,
            looked: Instant::now(),
            unsettled: false,
        }
    }

    /// Provider and library, in readable form.
    pub(super) fn describe(&self) -> String {
        self.port.describe()
    }

    pub(super) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.port.wait_fd()
    }

    /// Maximum time that a waiting thread may sleep now; `None`: unlimited, the port's descriptor wakes it.
    pub(super) fn longest_sleep(&self) -> Option<Duration> {
        match self.port.wait_fd() {
            None => Some(LONGEST_NAP),
            Some(_) if !self.port.may_sleep() => Some(Duration::ZERO),
            Some(_) => (self.unsettled || !self.ending.is_empty()).then_some(LOOK),
        }
    }

    /// Records the number of frames that the peer has put on its lane, as the peer reports it.
    pub(super) fn hear(&mut self, lane: &mut Lane, sent: u32) {
        lane.tally.hear(sent);
        self.unsettled = true;
    }

    /// Checks the tallies of all connections, if a check is due.
    pub(super) fn look(&mut self, connections: &mut Slab<SiteConnection>) -> Vec<(usize, Finding)> {
        let mut found = Vec::new();
        // The clock is read only while there may be something to find.
        let elapsed = if self.unsettled { self.looked.elapsed() } else { Duration::ZERO };
        if elapsed < LOOK {
            return found;
        }
        self.looked = Instant::now();
        self.unsettled = false;
        for (key, connection) in connections {
            let Some(lane) = connection.lane.as_mut().filter(|lane| lane.ending.is_none()) else { continue };
            let (made, arrived) = lane.counts();
            found.extend(lane.tally.tell(made).map(|made| (key, Finding::Tell(made))));
            // Limited: a rank that computes for an hour between two calls has not looked for frames for an hour.
            if let Err(missing) = lane.tally.look(arrived, elapsed.min(2 * LOOK)) {
                let reason = format!(
                    "fabric {}: it has stopped delivering: {missing} frames were sent, according to TCP, and have \
                     not arrived",
                    self.provider
                );
                found.push((key, Finding::Broken(Broken::Lane(reason))));
            }
            self.unsettled |= !lane.tally.is_settled(made);
        }
        found
    }

    /// Creates a lane for the connection `key`, and its introduction to the peer.
    pub(super) fn lane(&mut self, key: usize) -> Result<(Lane, Introduction), Broken> {
        let mut token = [0; 8];
        getrandom::fill(&mut token).map_err(|e| std::io::Error::other(e.to_string()))?;
        let token = u64::from_le_bytes(token);
        self.tokens.insert(token, key);
        let introduction = Introduction { token, provider: self.provider.clone(), name: self.port.name().to_vec() };
        Ok((Lane::new(token), introduction))
    }

    /// Takes the peer's introduction.
    pub(super) fn introduced(&mut self, lane: &mut Lane, introduction: &Introduction) -> Result<(), Broken> {
        let own = &self.provider;
        if introduction.provider != *own {
            let theirs = &introduction.provider;
            return Err(Broken::Refused(format!(
                "its node uses provider `{theirs}` for the site's fabric, this one uses `{own}`"
            )));
        }
        let peer = self.port.insert(&introduction.name).map_err(|fault| self.broken(&fault))?;
        lane.peer = Some((peer, introduction.token));
        Ok(())
    }

    /// Removes a lane. Frames that its peer still sends are dropped.
    pub(super) fn forget(&mut self, key: usize, mut lane: Lane) {
        self.tokens.remove(&lane.token);
        self.waiting.retain(|waiting| *waiting != key);
        self.ending.retain(|ending| *ending != key);
        self.under_way -= lane.under_way;
        if let Some((staged, _)) = lane.pending.take() {
            self.port.unstage(staged);
        }
    }

    /// Ends a lane. Its goodbye may still arrive.
    pub(super) fn end(&mut self, key: usize, lane: &mut Lane, reason: String) {
        if lane.ending.is_none() {
            lane.ending = Some((Instant::now() + GRACE, reason));
            self.ending.push(key);
        }
    }

    /// Gives the provider the queued frames of a connection. Returns true if anything was sent.
    pub(super) fn flush(
        &mut self,
        key: usize,
        connection: &mut SiteConnection,
        buffered: &mut u64,
        sink: &mut dyn Sink,
    ) -> Result<bool, Broken> {
        let Some(lane) = &mut connection.lane else { return Ok(false) };
        let (Some((to, theirs)), None) = (lane.peer, &lane.ending) else { return Ok(false) };
        let (token, mut moved) = (lane.token, false);
        self.unsettled = true;
        while let Some(lane) = &mut connection.lane {
            let (staged, length, finished) = match lane.pending.take() {
                Some((staged, length)) => (staged, length, false),
                None => {
                    let Some(item) = connection.queue.front_mut() else { break };
                    if lane.under_way >= LANE_FRAMES || self.under_way >= ALL_FRAMES {
                        self.wait(key);
                        break;
                    }
                    let staged = self.port.stage().map_err(|fault| self.broken(&fault))?;
                    let (length, finished) = lane.write_frame(theirs, item, sink.regions(), self.port.bytes(&staged));
                    (staged, length, finished)
                }
            };
            let posted = self.port.post(staged, length, to, token);
            let again = matches!(posted, Ok(Posted::Again(_)));
            match posted.map_err(|fault| self.broken(&fault))? {
                Posted::Left => {}
                Posted::UnderWay => {
                    lane.under_way += 1;
                    self.under_way += 1;
                }
                Posted::Again(staged) => lane.pending = Some((staged, length)),
            }
            if finished {
                connection.finish_front(buffered, sink);
            }
            if again {
                self.wait(key);
                break;
            }
            moved = true;
        }
        Ok(moved)
    }

    fn wait(&mut self, key: usize) {
        if !self.waiting.contains(&key) {
            self.waiting.push(key);
        }
    }

    /// Takes the connections whose lane may take more now.
    pub(super) fn take_waiting(&mut self) -> Vec<usize> {
        if self.under_way >= ALL_FRAMES { Vec::new() } else { std::mem::take(&mut self.waiting) }
    }

    /// Passes received frames to `sink`, or without one discards all but goodbyes. Returns true if any frame was
    /// received. `broken`: connections that have to end. `farewells`: connections whose peer has just sent its goodbye.
    pub(super) fn poll(
        &mut self,
        connections: &mut Slab<SiteConnection>,
        mut sink: Option<&mut dyn Sink>,
        broken: &mut Vec<(usize, Broken)>,
        farewells: &mut Vec<usize>,
    ) -> Result<bool, Broken> {
        let Native { port, provider, tokens, under_way, .. } = self;
        let result = port.poll(&mut |event| match event {
            PortEvent::Received(frame) => {
                let key = token_of(frame).and_then(|token| tokens.get(&token).copied());
                let Some((key, connection)) = key.and_then(|key| Some((key, connections.get_mut(key)?))) else {
                    return;
                };
                let (Some(lane), Some(peer)) = (&mut connection.lane, connection.peer) else { return };
                let taken = match sink.as_deref_mut() {
                    Some(sink) => lane.take(frame, peer, sink),
                    None => Ok(is_goodbye(frame)),
                };
                match taken {
                    Ok(false) => {}
                    Ok(true) => {
                        connection.goodbye = true;
                        farewells.push(key);
                    }
                    Err(misbehaved) => broken.push((key, misbehaved.into())),
                }
            }
            PortEvent::Sent(ticket) | PortEvent::Failed(ticket, _) => {
                // The connection may already be gone.
                let Some(key) = tokens.get(&ticket).copied() else { return };
                let Some(lane) = connections.get_mut(key).and_then(|connection| connection.lane.as_mut()) else {
                    return;
                };
                lane.under_way -= 1;
                *under_way -= 1;
                if let PortEvent::Failed(_, fault) = event {
                    broken.push((key, lost(provider, &fault)));
                }
            }
        });
        result.map_err(|fault| lost(provider, &fault))
    }

    /// Sends a goodbye on a lane, if the provider has room for it now. Nothing is sent on the lane afterwards.
    pub(super) fn say_goodbye(&mut self, lane: &mut Lane) {
        let Some((to, theirs)) = lane.peer else { return };
        loop {
            let (staged, length) = match lane.pending.take() {
                Some(pending) => pending,
                None if lane.said_goodbye => return,
                None => {
                    let Ok(staged) = self.port.stage() else { return };
                    let length = lane.write_goodbye(theirs, self.port.bytes(&staged));
                    (staged, length)
                }
            };
            match self.port.post(staged, length, to, lane.token) {
                Ok(Posted::Again(staged)) => {
                    lane.pending = Some((staged, length));
                    return;
                }
                Ok(Posted::UnderWay) => {
                    lane.under_way += 1;
                    self.under_way += 1;
                }
                Ok(Posted::Left) => {}
                // A peer that the goodbye does not reach sees TCP close.
                Err(_) => return,
            }
        }
    }

    fn broken(&self, fault: &Fault) -> Broken {
        lost(&self.provider, fault)
    }
}

fn lost(provider: &str, fault: &Fault) -> Broken {
    Broken::Lane(format!("fabric {provider}: {fault}"))
}

/// The fault of a peer that sends data over TCP.
pub(super) const NOT_INTRODUCED: Misbehaved =
    Misbehaved::Protocol("data over TCP, although this site has a fabric: give all its nodes the same sites file");
