//! The connection of a member (rank, agent, launcher) or of a user's command.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use ::member::pulse::{AGENT_SILENCE_S, LOOK_NS, Nod};
use ::member::{Beat, Pulse};
use client::tls::Session;
use tcp_info::{Machine, TcpInfo};
use tokio::io::AsyncReadExt;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use types::links::LinkTable;
use types::{Identity, JobId, SiteId, Slot};
use wire::handshake::{Handshake, Welcome};
use wire::{Control, FrameHeader, FrameKind, Passage};

use crate::door::stream::Parts;
use crate::gateway::Gateway;
use crate::log::{MEMBERS, log, short};
use crate::path::PIECE;
use crate::path::copies::Item;
use crate::path::decipher::{Decipher, read_some};
use crate::path::forward::{READ, Share, Stop, Target};
use crate::path::outlet::{LINGER, Outlet};
use crate::table::Leave;

/// Number of bytes queued for a member from which on other members of its site pause. Frames from trunks never wait;
/// they are refused when memory is short.
const BACKED_UP: usize = 1 << 20;
const SLICES: usize = 32;
/// Interval at which a member that is deliberately not read counts as heard.
const ALIVE: Duration = Duration::from_secs(1);

/// An admitted connection that is not a trunk link.
#[derive(Debug)]
pub(crate) struct Member {
    id: u64,
    pub address: SocketAddr,
    /// True for a user's command, which has proved the site's key and may open a job.
    pub client: bool,
    pub job: Cell<JobId>,
    pub identity: Cell<Identity>,
    pub outlet: Outlet,
    /// TLS session of a user, of an agent, or of a rank at a site that is encrypted inside.
    session: Option<RefCell<Session>>,
    /// Scratch space for ciphertext, shared by all connections.
    sealed: Rc<RefCell<Vec<u8>>>,
    pub pending: RefCell<Vec<Item>>,
    /// Version of the link table that was last sent to the member; 0: none.
    pub links: Cell<u32>,
    /// Time of the last receipt.
    heard: Cell<Instant>,
    /// True for a stopped launcher (Ctrl-Z), which is silent. The kernels notice if its machine is gone.
    stopped: Cell<bool>,
    dismissed: Notify,
    /// A link or member that this member's frames have to wait for.
    pub waits_for: RefCell<Option<Target>>,
}

impl PartialEq for Member {
    fn eq(&self, other: &Member) -> bool {
        self.id == other.id
    }
}

/// Identity of a connection that has no other yet: the launcher of no job.
pub(crate) const NOBODY: Identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };

impl Member {
    /// Takes over a connection, which belongs to no job yet. `client`: it is a user's command.
    pub(crate) fn new(gateway: &Gateway, parts: Parts, address: SocketAddr, client: bool) -> (Rc<Member>, Inflow) {
        let (tcp, session, cipher, plain) = parts;
        let (read, write) = tcp.into_split();
        let member = Member {
            id: gateway.path.next_id(),
            address,
            client,
            job: Cell::default(),
            identity: Cell::new(NOBODY),
            outlet: Outlet::new(write, gateway.counters.clone(), BACKED_UP),
            session: session.map(RefCell::new),
            sealed: gateway.path.sealed.clone(),
            pending: RefCell::default(),
            links: Cell::default(),
            heard: Cell::new(gateway.path.now()),
            stopped: Cell::default(),
            dismissed: Notify::new(),
            waits_for: RefCell::default(),
        };
        (Rc::new(member), Inflow { read, cipher, plain })
    }

    /// Sends bytes, through TLS if the connection has a session. Returns the number of bytes queued now.
    fn put(&self, slices: &[IoSlice<'_>]) -> usize {
        let Some(session) = &self.session else { return self.outlet.send(slices) };
        let (mut session, mut sealed) = (session.borrow_mut(), self.sealed.borrow_mut());
        for piece in slices.iter().flat_map(|slice| slice.chunks(PIECE)) {
            match session.seal(piece, &mut sealed) {
                Ok(length) => self.outlet.send(&[IoSlice::new(&sealed[..length])]),
                Err(error) => {
                    tracing::warn!(peer = %self.address, %error, "TLS");
                    self.abandon();
                    return 0;
                }
            };
        }
        self.outlet.queued()
    }

    /// Makes the connection this member of this job.
    pub(crate) fn becomes(&self, job: JobId, identity: Identity) {
        self.job.set(job);
        self.identity.set(identity);
    }

    pub(crate) fn welcome(&self, welcome: Welcome) {
        self.put(&[IoSlice::new(&Handshake::Welcome(welcome).encode())]);
    }

    /// Sends a frame that this gateway made.
    pub(crate) fn send_own(&self, gateway: &Gateway, header: FrameHeader, payload: &[u8]) {
        match header.with_payload(payload) {
            Ok(bytes) => self.write(gateway, &[IoSlice::new(&bytes)]),
            Err(error) => tracing::error!(%error, "frame not sent"),
        }
    }

    pub(crate) fn send_control(&self, gateway: &Gateway, message: impl Into<Control>) {
        match message.into().encode() {
            Ok(payload) => self.send_own(gateway, self.header(FrameKind::Control), &payload),
            Err(error) => tracing::error!(%error, "control message not sent"),
        }
    }

    /// Notifies the member of a change in the route to a site.
    pub(crate) fn send_passage(&self, gateway: &Gateway, site: SiteId, passage: &Passage) {
        let header = self.header(FrameKind::Passage);
        let header = FrameHeader { from: Identity { site, slot: Slot::GATEWAY }, ..header };
        self.send_own(gateway, header, &passage.encode());
    }

    /// Sends a rank the table of links between its job's sites.
    pub(crate) fn send_links(&self, gateway: &Gateway, table: &LinkTable) {
        self.links.set(table.version());
        for part in wire::links::parts(table) {
            self.send_own(gateway, self.header(FrameKind::Links), &part);
        }
    }

    fn header(&self, kind: FrameKind) -> FrameHeader {
        let identity = self.identity.get();
        let gateway = Identity { site: identity.site, slot: Slot::GATEWAY };
        FrameHeader::plain(kind, self.job.get(), gateway, identity)
    }

    /// Sends the frames that were gathered from `bytes`.
    pub(crate) fn send_pending(&self, gateway: &Gateway, bytes: &[u8]) {
        let mut items = self.pending.borrow_mut();
        gateway.path.copies.with(|copies| {
            // A copy has two slices.
            for some in items.chunks(SLICES / 2) {
                let (mut slices, mut count) = ([IoSlice::new(&[]); SLICES], 0);
                for slice in some.iter().flat_map(|item| copies.slices(item, bytes)).filter(|slice| !slice.is_empty()) {
                    slices[count] = IoSlice::new(slice);
                    count += 1;
                }
                self.write(gateway, &slices[..count]);
            }
        });
        items.clear();
    }

    fn write(&self, gateway: &Gateway, slices: &[IoSlice<'_>]) {
        let queued = self.put(slices);
        if queued > 0 {
            gateway.check_memory();
        }
    }

    /// Waits for `until` without reading from the member. The pause is not the member's fault, so the member counts as
    /// heard.
    async fn paused(&self, gateway: &Gateway, until: impl Future<Output = ()>) {
        tokio::pin!(until);
        while timeout(ALIVE, &mut until).await.is_err() {
            self.heard.set(gateway.path.now());
        }
    }

    /// Pings a silent agent or launcher, and a silent rank of a job without agents. Returns when the member has been
    /// silent for too long. The limit is longer if the member's machine answers and this one is busy: 64 ranks on two
    /// cores once kept a launcher from running for many seconds. A rank of a job with agents is heard only while its
    /// program calls MPI, so its agent vouches for it. A member that is sending, or that is not being read, gets a sign
    /// of life from this gateway each second.
    async fn heartbeat(&self, gateway: &Gateway) -> String {
        let start = gateway.path.tick();
        let since = |at: Instant| (at - start).as_nanos() as u64;
        let (mut pulse, mut nod) = (Pulse::new(AGENT_SILENCE_S, 0), Nod::new(0));
        let mut machine = Machine::default();
        loop {
            sleep(Duration::from_nanos(LOOK_NS)).await;
            let now = gateway.path.tick();
            if self.job.get() == JobId::default() {
                pulse.heard(since(now));
                continue;
            }
            let heard = since(self.heard.get().max(start));
            // A member for which bytes are queued sees a sign of life anyway.
            if nod.is_due(heard, since(now)) && self.outlet.queued() == 0 {
                self.send_own(gateway, self.header(FrameKind::Pong), &[]);
            }
            let (job, slot) = (self.job.get(), self.identity.get().slot);
            if self.stopped.get() || gateway.table().jobs.get(&job).is_none_or(|job| !job.watches(slot)) {
                pulse.heard(since(now));
                continue;
            }
            pulse.heard(heard);
            let arrived = TcpInfo::of(self.outlet.socket()).ok().and_then(|info| info.arrived);
            let answers = machine.answers(arrived, since(now));
            let load = &gateway.services.load;
            let stretch = |limit, silent| if answers { load.silence(limit, silent) } else { limit };
            match pulse.look_patiently(since(now), stretch) {
                Beat::Quiet => {}
                Beat::Ping => self.send_own(gateway, self.header(FrameKind::Ping), &[]),
                Beat::Lost(seconds) => return format!("no sign of life for {seconds} s"),
            }
        }
    }

    /// Sends a goodbye with a reason and ends the connection. The table has already removed the member.
    pub(crate) fn dismiss(&self, reason: &str) {
        if let Ok(bytes) = self.header(FrameKind::Bye).with_payload(reason.as_bytes()) {
            self.put(&[IoSlice::new(&bytes)]);
        }
        self.outlet.seal();
        self.dismissed.notify_one();
    }

    /// Ends the connection at once and drops the queued bytes. The caller updates the table.
    pub(crate) fn abandon(&self) {
        self.outlet.abandon();
        self.dismissed.notify_one();
    }

    /// Notes that a launcher is about to stop, or runs again.
    pub(crate) fn stops(&self, stopped: bool) {
        self.stopped.set(stopped);
    }

    /// Returns true if the member has been silent for so long that it may have opened another connection.
    pub(crate) fn is_quiet(&self, gateway: &Gateway) -> bool {
        gateway.path.now() - self.heard.get() > ALIVE
    }

    /// Returns true if anything came from the member within this time.
    pub(crate) fn was_heard_within(&self, time: Duration, gateway: &Gateway) -> bool {
        gateway.path.now().saturating_duration_since(self.heard.get()) <= time
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

enum End {
    Dismissed,
    Silent(String),
    Stop(Stop),
}

/// Serves an admitted connection until it ends.
pub(crate) async fn serve(gateway: &Rc<Gateway>, member: Rc<Member>, mut inflow: Inflow) {
    gateway.path.connections.borrow_mut().insert(member.id, member.clone());
    let end = tokio::select! {
        biased;
        stop = read_loop(gateway, &member, &mut inflow) => End::Stop(stop),
        error = member.outlet.run(|| {}) => End::Stop(Stop::Lost(error.to_string())),
        () = member.dismissed.notified() => End::Dismissed,
        reason = member.heartbeat(gateway) => End::Silent(reason),
    };
    gateway.path.connections.borrow_mut().remove(&member.id);
    let (job, identity) = (member.job.get(), member.identity.get());
    let leave = match end {
        End::Dismissed => None,
        End::Silent(reason) => Some(Leave::Silent(reason)),
        End::Stop(Stop::Goodbye(_)) => Some(Leave::Goodbye),
        End::Stop(Stop::Lost(reason)) => Some(Leave::Lost(reason)),
        End::Stop(Stop::Violation(reason)) => {
            gateway.counters.violation();
            let (peer, who) = (member.address, identity.slot);
            log!(warn, MEMBERS, %peer, %job, member = %who, reason = short(&reason), "connection closed: protocol \
                violation");
            member.dismiss(&reason);
            Some(Leave::Lost(format!("the gateway closed its connection: {reason}")))
        }
    };
    if let Some(how) = leave {
        gateway.change(|table| table.leave(job, identity.slot, &member, how));
    }
    if member.client {
        gateway.change(|table| table.launcher_gone(&member));
        gateway.couplings_without(&member);
    }
    member.outlet.finish(|| {}).await;
    // Closing with unread input would reset the connection, and the other end might lose the goodbye.
    let mut sink = [0; 4096];
    let _ = timeout(LINGER, async { while matches!(inflow.read.read(&mut sink).await, Ok(1..)) {} }).await;
}

/// The reading side of a connection, and the bytes that were read with the end of its handshake.
#[derive(Debug)]
pub(crate) struct Inflow {
    read: OwnedReadHalf,
    cipher: Vec<u8>,
    plain: Vec<u8>,
}

/// Reads and forwards until the connection ends.
async fn read_loop(gateway: &Rc<Gateway>, member: &Rc<Member>, inflow: &mut Inflow) -> Stop {
    let Inflow { read, cipher, plain } = inflow;
    let (mut partial, mut decipher) = (gateway.path.partial(), Decipher::new(&gateway.path, cipher));
    partial.save(plain);
    let mut share = Share::default();
    loop {
        let turn = poll_fn(|cx| {
            let mut scratch = gateway.path.plain.borrow_mut();
            let start = partial.len();
            let come = match &member.session {
                None => read_some(read, cx, &mut scratch[start..start + READ]).map_ok(|count| (count, false)),
                Some(session) => decipher.read(cx, read, &gateway.path, session, &member.outlet, &mut scratch[start..]),
            };
            let (count, closed) = ready!(share.of(come))?;
            member.heard.set(gateway.path.tick());
            partial.restore(&mut scratch);
            let bytes = &scratch[..start + count];
            let result = gateway.forward(&Target::Member(member.clone()), bytes);
            if let Ok(used) = result {
                partial.save(&bytes[used..]);
            }
            Poll::Ready(result.and_then(|used| if closed { Err(Stop::closed()) } else { Ok(used) }))
        });
        if let Err(stop) = turn.await {
            return stop;
        }
        gateway.after_turn();
        share.taken(gateway.path.tick()).await;
        let waits_for = member.waits_for.take();
        if let Some(target) = waits_for {
            member.paused(gateway, target.drained(member.job.get())).await;
        }
        if gateway.is_memory_short() {
            member.paused(gateway, gateway.memory_eased()).await;
        }
    }
}
