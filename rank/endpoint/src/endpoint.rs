//! The endpoint: the protocol and its links behind one interface.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::Regions;
use rustix::event::{PollFd, PollFlags, Timespec};
use types::id::{SlotKind, plain};
use types::links::LinkTable;
use types::{Address, Identity, Instance, JobId, Roster, SiteId, Slot};
use wire::Secret;

use crate::config::{Config, EndpointLimits};
use crate::gateway_link::GatewayLink;
use crate::handshake::Credentials;
use crate::link::{Link, Outgoing, Sink};
use crate::memory_link::MemoryLink;
use crate::operation::{Completion, NotBegun, PeerId};
use crate::protocol::Protocol;
use crate::site_link::SiteLink;

mod delivery;
mod opening;
mod operations;
mod waiting;

use delivery::Route;
pub use opening::OpenError;
use opening::open_memory;

/// The volume handed to one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Messages, and parts of messages that were sent separately.
    pub items: u64,
    /// Bytes of user data in them.
    pub bytes: u64,
}

/// Traffic that an endpoint has sent, by link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Through memory shared with neighbours.
    pub memory: Carried,
    /// Over the site's own network.
    pub site: Carried,
    /// By way of gateways.
    pub gateway: Carried,
}

/// A rank's endpoint. It must not be shared between threads without a lock; nothing happens outside its methods.
pub struct Endpoint {
    me: Address,
    own_peer: PeerId,
    limits: EndpointLimits,
    /// Site and node, for texts to the user.
    place: String,
    /// The site and node of each rank, if this endpoint is part of a job.
    roster: Option<Roster>,
    protocol: Protocol,
    memory: Option<MemoryLink>,
    /// A note for the user about the way the endpoint was opened.
    note: Option<String>,
    site: SiteLink,
    gateway: Option<GatewayLink>,
    /// By peer.
    routes: Vec<Option<Route>>,
    traffic: Traffic,
    /// Number of calls of `progress`, and the call up to which every call polls sockets.
    turn: u64,
    sockets_until: u64,
    /// Items to ourselves.
    looped: VecDeque<Outgoing>,
    closed: bool,
}

const STANDALONE_CREDIT: u64 = 8 << 20;
const MAX_CREDIT: u64 = 16 << 20;
const MIN_CREDIT: u64 = 64 << 10;
/// With a memory link, a call costs less than one system call. So sockets are polled on every call only while they are
/// active, for `SOCKETS_FOR` calls after they had something. Otherwise they are polled at these intervals of calls: if
/// the call moved nothing through memory, and if it moved something.
const SOCKETS_FOR: u64 = 64;
const SOCKETS_WHEN_FRUITLESS: u64 = 32;
const SOCKETS_ALWAYS: u64 = 64;

impl Endpoint {
    /// Opens endpoint number `instance` of this rank: binds the listener and, in a job of several sites or one that
    /// gateways look after, connects to the site's gateways (waiting at most [`EndpointLimits::connect`] for each).
    ///
    /// # Errors
    /// [`OpenError`], naming the address.
    pub fn open(config: Config, instance: u32, regions: Arc<Regions>) -> Result<Endpoint, OpenError> {
        let at = |source| OpenError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).map_err(at)?;
        Self::open_on(listener, config, instance, regions)
    }

    /// Like [`Endpoint::open`], with a listener that is already bound, to an address that [`Config::listen`] need not
    /// name.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_on(
        listener: TcpListener,
        config: Config,
        instance: u32,
        regions: Arc<Regions>,
    ) -> Result<Endpoint, OpenError> {
        let Config { listen, job, native, limits, ipv6: _ } = config;
        let at = |source| OpenError::Listen { address: listen, source };
        let port = listener.local_addr().map_err(at)?.port();
        let socket = plain(SocketAddr::new(listen.ip(), port));
        let (me, id, secret, credit) = match &job {
            None => (Address::standalone(socket), JobId(0), Secret::NONE, STANDALONE_CREDIT),
            Some(job) => {
                let instance = u8::try_from(instance).map_err(|_| OpenError::TooMany)?;
                let slot = Slot::rank(job.rank, Instance(instance)).ok_or(OpenError::TooMany)?;
                let site = job.roster.place(job.rank).map_or(SiteId(0), |place| place.site);
                let others = u64::from(job.roster.size().max(2) - 1);
                let credit = (limits.unexpected / others).clamp(MIN_CREDIT, MAX_CREDIT);
                let me = Address { socket, job: job.id.tag(), identity: Identity { site, slot } };
                (me, job.id, job.secret.clone(), credit)
            }
        };
        let own = Credentials { job: id, secret, me };
        let gateway = match &job {
            Some(job) if job.watched || job.roster.sites().iter().filter(|site| site.size() > 0).count() > 1 => {
                Some(GatewayLink::open(own.clone(), job, limits.connect)?)
            }
            _ => None,
        };
        let names = |place: types::roster::RankPlace<'_>| format!("site {}: node {}", place.site_name, place.node_name);
        let place = job.as_ref().and_then(|job| job.roster.place(job.rank)).map(names).unwrap_or_default();
        let paths = job.as_ref().map_or(&[][..], |job| &job.memory);
        let (memory, note) =
            open_memory(paths, &own, limits).map_err(|source| OpenError::Memory { place: place.clone(), source })?;
        // The site needs no network link if it has no other ranks, or if all of them are reached through memory.
        let here = job.as_ref().and_then(|job| job.roster.site(me.identity.site));
        let needless = here.is_some_and(|site| {
            let nodes = site.nodes.iter().filter(|node| node.ranks > 0).count();
            site.size() < 2 || (memory.is_some() && nodes < 2)
        });
        let port = match native.filter(|_| !needless) {
            Some(native) => Some(native.open(socket.ip()).map_err(|source| OpenError::Native {
                place: if place.is_empty() { "this node".to_owned() } else { place.clone() },
                provider: native.provider,
                source,
            })?),
            None => None,
        };
        let encrypted = job.as_ref().is_some_and(|job| job.encrypted.is_some());
        let site = SiteLink::new(listener, own, limits.connect, port, encrypted)?;
        let mut protocol = Protocol::new(limits, credit, me.identity.site, regions);
        let own_peer = protocol.intern(me);
        Ok(Endpoint {
            me,
            own_peer,
            limits,
            place,
            roster: job.map(|job| job.roster),
            protocol,
            memory,
            note,
            site,
            gateway,
            routes: Vec::new(),
            traffic: Traffic::default(),
            turn: 0,
            sockets_until: 0,
            looped: VecDeque::new(),
            closed: false,
        })
    }

    /// A note for the user about this endpoint, which works nevertheless.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Its own address.
    pub fn address(&self) -> Address {
        self.me
    }

    /// The peer with this address; cheap if it is already known. Operations to an unreachable peer fail.
    pub fn peer(&mut self, address: Address) -> PeerId {
        self.protocol.intern(address)
    }

    /// A peer's address. The socket address may be unset if the peer is only known from frames it sent.
    pub fn peer_address(&self, peer: PeerId) -> Option<Address> {
        self.protocol.address(peer)
    }

    /// True if a send would be refused for now, because too much is queued.
    pub fn is_full(&self) -> bool {
        self.check_room() == Err(NotBegun::Again)
    }

    /// Moves bytes without blocking. Returns true if any moved.
    pub fn progress(&mut self) -> bool {
        self.turn += 1;
        let mut moved = self.memory.as_mut().is_some_and(|memory| memory.progress(&mut self.protocol));
        let every = if moved { SOCKETS_ALWAYS } else { SOCKETS_WHEN_FRUITLESS };
        if self.memory.is_none() || self.turn <= self.sockets_until || self.turn.is_multiple_of(every) {
            let mut by_socket = self.site.progress(&mut self.protocol);
            if let Some(gateway) = &mut self.gateway {
                by_socket |= gateway.progress(&mut self.protocol);
            }
            if by_socket {
                self.sockets_until = self.turn + SOCKETS_FOR;
                moved = true;
            }
        }
        if !self.protocol.outbox.is_empty() || !self.protocol.sharing.begin.is_empty() {
            self.drain();
            moved = true;
        }
        moved
    }

    /// Sleeps until something arrives or `timeout` has passed, then calls [`Endpoint::progress`].
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let timeout = self.site.longest_sleep().map_or(timeout, |longest| timeout.min(longest));
        if self.memory.as_mut().is_none_or(MemoryLink::fall_asleep) {
            self.sleep(timeout);
        }
        if let Some(memory) = &mut self.memory {
            memory.wake_up();
        }
        self.ask_sockets_soon();
        self.progress()
    }

    /// Makes the next [`Endpoint::progress`] poll all sockets: other processes ran in the meantime.
    pub fn ask_sockets_soon(&mut self) {
        self.site.ask_soon();
        self.sockets_until = self.sockets_until.max(self.turn + 1);
    }

    fn sleep(&self, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = [self.site.poll_fd(); 3].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut count = 0;
        for fd in self.wait_fds() {
            fds[count] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            count += 1;
        }
        // An interrupted or failed wait counts as a short one.
        let _ = rustix::event::poll(&mut fds[..count], Some(&timeout));
    }

    /// A reason for failed operations other than the end of a process: the memory that ranks share is exhausted, or
    /// there is no connection to a peer of this site, or the last gateway fell silent. Reported once, and only in jobs:
    /// a program started in another way expects no output from us.
    pub fn take_trouble(&mut self) -> Option<String> {
        let of_memory = self.memory.as_mut().and_then(MemoryLink::take_trouble).map(|error| error.to_string());
        let trouble = of_memory.or_else(|| {
            let (peer, reason) = self.site.take_trouble()?;
            Some(format!("cannot reach {}: {reason}", self.name(peer)))
        });
        let trouble = trouble.or_else(|| self.gateway.as_mut()?.take_trouble());
        trouble.filter(|_| !self.place.is_empty()).map(|trouble| format!("{}: {trouble}", self.place))
    }

    /// True if the memory that ranks share is exhausted and [`Endpoint::take_trouble`] was not called since. Messages
    /// may then be lost that no operation of ours waits for, such as a message that another rank may send.
    pub fn is_out_of_memory(&self) -> bool {
        self.memory.as_ref().is_some_and(MemoryLink::has_trouble)
    }

    /// A rank's address with its site and node, in readable form.
    fn name(&self, address: Address) -> String {
        let rank = match address.identity.slot.kind() {
            SlotKind::Rank(rank, _) => Some(rank),
            _ => None,
        };
        let place = rank.and_then(|rank| Some((rank, self.roster.as_ref()?.place(rank)?)));
        match place {
            Some((rank, place)) => {
                format!("rank {} at site {}, node {} ({})", rank.0, place.site_name, place.node_name, address.socket)
            }
            None => format!("{address:?}"),
        }
    }

    /// Readable provider and library names of the site's own network, if frames to ranks of this site use one.
    pub fn fabric(&self) -> Option<String> {
        self.site.fabric()
    }

    /// The gateways' figures of the links between the job's sites, numbered as in the roster. They arrive with
    /// [`Endpoint::progress`], at the latest a second after a figure has changed by 15 %. `None`: none have arrived
    /// yet, or the job has one site only.
    pub fn links(&self) -> Option<&LinkTable> {
        self.gateway.as_ref().and_then(GatewayLink::links)
    }

    /// Returns true if this rank needs gateways and is connected to none.
    pub fn is_cut_off(&self) -> bool {
        self.gateway.as_ref().is_some_and(|gateway| !gateway.any_is_open())
    }

    /// The traffic sent so far, by link.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// True if a completion has not been taken yet.
    #[inline]
    pub fn has_completed(&self) -> bool {
        !self.protocol.completions.is_empty()
    }

    /// The oldest completion not yet taken.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.protocol.completions.pop_front()
    }

    /// True if nothing of ours is queued or in flight.
    pub fn is_idle(&self) -> bool {
        self.protocol.is_idle() && self.is_flushed()
    }

    /// True if a thread may block on this endpoint: a receive is posted, or something is in flight. Multi-receive
    /// buffers, which MPI libraries keep posted all the time, do not count.
    pub fn is_awaited(&self) -> bool {
        self.protocol.is_awaited() || !self.is_flushed()
    }

    /// True if everything has been handed to the operating system.
    pub fn is_flushed(&self) -> bool {
        self.site.is_idle()
            && self.memory.as_ref().is_none_or(Link::is_idle)
            && self.gateway.as_ref().is_none_or(Link::is_idle)
            && self.looped.is_empty()
    }

    /// Waits (at most [`EndpointLimits::linger`]) until all queued bytes have been sent, sends goodbyes, and closes.
    /// Later operations are refused.
    pub fn close(&mut self) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        self.progress_until(Endpoint::is_idle);
        if let Some(gateway) = &mut self.gateway {
            gateway.leave(&mut self.protocol);
            // Frames handed to a gateway may be lost with it, and then nobody could retransmit them.
            self.progress_until(|endpoint| endpoint.gateway.as_ref().is_none_or(GatewayLink::is_settled));
        }
        if let Some(memory) = &mut self.memory {
            memory.close();
        }
        self.site.close();
        if let Some(gateway) = &mut self.gateway {
            gateway.close();
        }
    }

    /// Makes progress until `done`, for at most [`EndpointLimits::linger`]. The limit starts anew while gateways still
    /// have patience with a site that is cut off.
    fn progress_until(&mut self, done: impl Fn(&Endpoint) -> bool) {
        let mut deadline = Instant::now() + self.limits.linger;
        while !done(self) && Instant::now() < deadline {
            if !self.progress() {
                self.wait(Duration::from_millis(1));
            }
            if self.gateway.as_ref().is_some_and(GatewayLink::is_cut_off) {
                deadline = Instant::now() + self.limits.linger;
            }
        }
    }

    fn check_open(&self) -> Result<(), NotBegun> {
        if self.closed { Err(NotBegun::Closed) } else { Ok(()) }
    }

    fn check_room(&self) -> Result<(), NotBegun> {
        self.check_open()?;
        let others = [self.memory.as_ref().map(Link::buffered), self.gateway.as_ref().map(Link::buffered)];
        let buffered = self.site.buffered() + others.into_iter().flatten().sum::<u64>();
        if buffered > self.limits.buffered { Err(NotBegun::Again) } else { Ok(()) }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
pub(crate) mod tests;
