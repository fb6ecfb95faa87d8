//! One TLS connection of a trunk: encryption, queues, heartbeats.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use channel::Route;
use client::tls::{Session, TlsStream};
use member::pulse::{Beat, LINK_SILENCE_S, LOOK_NS, Nod, Pulse};
use tcp_info::TcpInfo;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{Notify, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep, timeout};
use types::sites::Fingerprint;
use types::{Identity, JobId};
use wire::{FrameHeader, FrameKind};

use crate::gateway::Gateway;
use crate::log::{log, shorten};
use crate::path::PIECE;
use crate::path::copies::{Item, Noted};
use crate::path::decipher::Decipher;
use crate::path::forward::{GATEWAY, Share, Stop, Target};
use crate::path::outlet::Outlet;
use crate::path::shares::{Piece, Shares};
use crate::table::TrunkId;
use crate::trunks::survey::Look;
use crate::trunks::trunk::Trunk;

/// Members of a job pause while at least this many of its bytes are queued for a link.
const BACKED_UP: usize = 1 << 20;
/// Most bytes of replies (to pings, and acknowledgements of control messages) queued for a link. A peer for which more
/// are queued sends requests and does not read.
const ANSWERS: usize = 512 << 10;
/// While at least this many bytes of a job are queued for a link, only one notice per pair of members is kept.
const NOTICES: usize = 256 << 10;
/// Most pairs for which notices are kept, per link.
const PAIRS: usize = 4096;
/// Records are encrypted ahead until this many bytes wait for the socket. The other frames wait unencrypted, in one
/// queue per job.
const AHEAD: usize = 64 << 10;

/// For each kind of notice and each pair of members, the notice that frames from the second to the first were
/// undeliverable: the route that it names, and its payload.
type Notices = HashMap<(FrameKind, Identity, Identity), (u16, Vec<u8>)>;

/// One TLS connection of a trunk.
#[derive(Debug)]
pub(crate) struct Link {
    pub trunk: TrunkId,
    pub index: usize,
    pub address: SocketAddr,
    /// The key that the other end presented.
    pub key: Option<Fingerprint>,
    session: RefCell<Session>,
    outlet: Outlet,
    /// Frames that did not go straight to the socket.
    waiting: RefCell<Shares>,
    /// Notified when the queue of a job has shrunk far enough for its members to continue.
    drained: Notify,
    pub pending: RefCell<Vec<Item>>,
    /// Bytes of frames.
    pub sent: Cell<u64>,
    pub received: Cell<u64>,
    pub since: Instant,
    heard: Cell<Instant>,
    cut: Notify,
    cut_reason: RefCell<String>,
    pub pings: RefCell<HashMap<u64, (Instant, oneshot::Sender<Duration>)>>,
    /// The shortest round trip of pings, for links whose path the kernel cannot see.
    pub measured: Cell<Option<Duration>>,
    /// Notices kept back while the job's queue is long.
    notices: RefCell<HashMap<JobId, Notices>>,
}

impl Link {
    /// Its route number in channels over this trunk.
    pub(crate) fn route(&self) -> Route {
        Route(self.index as u8)
    }

    /// Sends a frame that this gateway made.
    pub(crate) fn send_own(&self, gateway: &Gateway, header: FrameHeader, payload: &[u8]) {
        match header.with_payload(payload) {
            Ok(bytes) => self.send(gateway, header.job, &bytes),
            Err(error) => tracing::error!(%error, "frame not sent"),
        }
    }

    /// Sends a reply ahead of all jobs' frames, so that a peer that reads gets it soon.
    pub(crate) fn answer(&self, gateway: &Gateway, header: FrameHeader, payload: &[u8]) {
        match header.with_payload(payload) {
            Ok(bytes) => self.send(gateway, JobId::default(), &bytes),
            Err(error) => tracing::error!(%error, "frame not sent"),
        }
    }

    /// Sends a notice that a frame was undeliverable. While much of the job is queued, only the latest notice of each
    /// kind is kept for each pair of members: it replaces the earlier ones.
    pub(crate) fn notice(&self, gateway: &Gateway, header: FrameHeader, reason: &[u8]) {
        if self.queued_of(header.job) < NOTICES {
            return self.send_own(gateway, header, reason);
        }
        let mut notices = self.notices.borrow_mut();
        let pairs: usize = notices.values().map(HashMap::len).sum();
        let of_job = notices.entry(header.job).or_default();
        let key = (header.kind, header.from, header.to);
        if pairs < PAIRS || of_job.contains_key(&key) {
            of_job.insert(key, (header.route, reason.to_vec()));
        }
    }

    /// Returns an error if more replies are queued than a peer that reads would leave.
    fn is_not_read(&self) -> Option<String> {
        let waiting = self.queued_of(JobId::default());
        (waiting > ANSWERS).then(|| format!("{waiting} bytes of replies are queued for it: it does not read them"))
    }

    /// Sends the pending frames out of `bytes`. All except copies are of one job, because a member sends only frames of
    /// its job.
    pub(crate) fn send_pending(&self, gateway: &Gateway, bytes: &[u8], job: JobId) {
        let mut items = self.pending.borrow_mut();
        if let [Item::Frames(range)] = items.as_slice() {
            self.send(gateway, job, &bytes[range.clone()]);
        } else if self.is_clear() || items.iter().all(|item| matches!(item, Item::Frames(_))) {
            // A TLS record for each would cost more than the copy.
            let mut stage = gateway.path.stage.take();
            gateway.path.copies.with(|copies| {
                let slices = items.iter().flat_map(|item| copies.slices(item, bytes));
                slices.for_each(|slice| stage.extend_from_slice(slice));
            });
            self.send(gateway, job, &stage);
            stage.clear();
            gateway.path.stage.replace(stage);
        } else {
            gateway.path.copies.with_mut(|copies| self.queue(gateway, job, &items, bytes, copies));
        }
        items.clear();
    }

    /// Queues items behind the waiting frames. Bytes that other links queue too are held once.
    fn queue(&self, gateway: &Gateway, job: JobId, items: &[Item], bytes: &[u8], copies: &mut Noted) {
        if self.outlet.is_closed() {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        for item in items {
            let kept = match item {
                Item::Copy { job, body, .. } => Some((*job, copies.kept(*body, bytes, &gateway.counters))),
                Item::Frames(_) => None,
            };
            let [head, rest] = copies.slices(item, bytes);
            self.sent.set(self.sent.get() + (head.len() + rest.len()) as u64);
            match kept {
                Some((job, body)) => waiting.push_copy(job, head, body),
                None => waiting.push(job, head),
            }
        }
        self.outlet.wake();
    }

    /// Returns true if nothing waits here.
    fn is_clear(&self) -> bool {
        self.waiting.borrow().is_empty() && self.outlet.queued() == 0
    }

    /// Sends whole frames of a job: at once if nothing is queued, else in the job's turn.
    pub(crate) fn send(&self, gateway: &Gateway, job: JobId, frames: &[u8]) {
        if self.outlet.is_closed() {
            return;
        }
        self.sent.set(self.sent.get() + frames.len() as u64);
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() && self.outlet.queued() == 0 {
            self.seal(gateway, frames, |record| {
                self.outlet.send(&[IoSlice::new(record)]);
            });
        } else {
            waiting.push(job, frames);
            self.outlet.wake();
        }
    }

    /// Encrypts queued frames, job by job, until enough bytes wait for the socket.
    fn refill(&self, gateway: &Gateway) {
        let mut waiting = self.waiting.borrow_mut();
        while self.outlet.queued() < AHEAD
            && let Some((job, frames)) = waiting.pop()
        {
            match &frames {
                Piece::Frames(frames) => self.seal(gateway, frames, |record| self.outlet.append(record)),
                Piece::Copy(head, body) => {
                    let mut stage = gateway.path.stage.take();
                    stage.extend_from_slice(head);
                    stage.extend_from_slice(body.bytes());
                    self.seal(gateway, &stage, |record| self.outlet.append(record));
                    stage.clear();
                    gateway.path.stage.replace(stage);
                }
            }
            let left = waiting.of(job);
            if left < NOTICES / 2
                && let Some(notices) = self.notices.borrow_mut().remove(&job)
            {
                for ((kind, from, to), (route, reason)) in notices {
                    let header = FrameHeader { route, ..FrameHeader::plain(kind, job, from, to) };
                    let frame = header.with_payload(&reason).unwrap_or_default();
                    self.sent.set(self.sent.get() + frame.len() as u64);
                    waiting.push(job, &frame);
                }
            }
            if left < BACKED_UP / 2 && left + frames.len() >= BACKED_UP / 2 {
                self.drained.notify_waiters();
            }
        }
    }

    fn seal(&self, gateway: &Gateway, bytes: &[u8], mut put: impl FnMut(&[u8])) {
        let mut session = self.session.borrow_mut();
        let mut sealed = gateway.path.sealed.borrow_mut();
        for piece in bytes.chunks(PIECE) {
            match session.seal(piece, &mut sealed) {
                Ok(length) => put(&sealed[..length]),
                Err(error) => {
                    self.cut(format!("TLS: {error}"));
                    return;
                }
            }
        }
    }

    /// The kernel's figures about the connection.
    pub(crate) fn kernel(&self) -> std::io::Result<TcpInfo> {
        TcpInfo::of(self.outlet.socket())
    }

    /// Looks at the bytes that the link has carried until now. `blind`: the kernel does not see the path.
    pub(crate) fn look(&self, blind: bool) -> Look {
        let kernel = if blind { None } else { self.kernel().ok() };
        Look {
            kernel: kernel.and_then(|kernel| Some((kernel.acknowledged?, kernel.delivery))),
            sent: self.sent.get(),
            shortest: kernel.and_then(|kernel| kernel.shortest),
            queued: self.queued() as u64,
        }
    }

    /// Bytes queued, encrypted or not.
    pub(crate) fn queued(&self) -> usize {
        self.waiting.borrow().len() + self.outlet.queued()
    }

    /// Bytes of a job that wait for its turn.
    pub(crate) fn queued_of(&self, job: JobId) -> usize {
        self.waiting.borrow().of(job)
    }

    /// Returns true if members of a job should pause.
    pub(crate) fn is_backed_up(&self, job: JobId) -> bool {
        self.queued_of(job) >= BACKED_UP && !self.outlet.is_closed()
    }

    /// Waits until members of a job may continue.
    pub(crate) async fn drained(&self, job: JobId) {
        loop {
            let drained = self.drained.notified();
            if !self.is_backed_up(job) {
                return;
            }
            drained.await;
        }
    }

    /// Returns true if the link is closing.
    pub(crate) fn is_cut(&self) -> bool {
        self.outlet.is_closed()
    }

    /// Closes the link and drops the frames queued for it.
    pub(crate) fn cut(&self, reason: String) {
        self.cut_reason.replace(reason);
        self.outlet.seal();
        // The queue is borrowed if encrypting its frames has failed; it is then cleared when the link has closed.
        if let Ok(mut waiting) = self.waiting.try_borrow_mut() {
            waiting.clear();
        }
        self.drained.notify_waiters();
        self.cut.notify_one();
    }

    /// Sends a ping and waits for the reply; `None` if the link broke.
    ///
    /// # Errors
    /// No reply within `limit`.
    pub(crate) async fn ping(&self, gateway: &Gateway, limit: Duration) -> Result<Option<Duration>, Elapsed> {
        let (sender, receiver) = oneshot::channel();
        let id = gateway.path.next_id();
        self.pings.borrow_mut().insert(id, (Instant::now(), sender));
        let header = FrameHeader::plain(FrameKind::Ping, JobId::default(), GATEWAY, GATEWAY);
        self.send_own(gateway, header, &id.to_le_bytes());
        let answer = timeout(limit, receiver).await;
        self.pings.borrow_mut().remove(&id);
        Ok(answer?.ok())
    }

    /// Handles the reply to a ping.
    pub(crate) fn pong(&self, payload: &[u8]) {
        let Ok(id) = payload.try_into().map(u64::from_le_bytes) else { return };
        if let Some((sent, answer)) = self.pings.borrow_mut().remove(&id) {
            // The receiver is gone if the caller has stopped waiting.
            let _ = answer.send(sent.elapsed());
        }
    }

    /// Pings a silent peer and returns when it has been silent for too long. A peer that sends gets a sign of life from
    /// this gateway once per second.
    async fn heartbeat(&self, gateway: &Gateway) -> String {
        let since = |at: Instant| (at - self.since).as_nanos() as u64;
        let (mut pulse, mut nod) = (Pulse::new(LINK_SILENCE_S, 0), Nod::new(0));
        let signal = |kind| self.send_own(gateway, FrameHeader::plain(kind, JobId::default(), GATEWAY, GATEWAY), &[]);
        loop {
            sleep(Duration::from_nanos(LOOK_NS)).await;
            let (now_ns, heard_ns) = (since(gateway.path.tick()), since(self.heard.get()));
            if nod.is_due(heard_ns, now_ns) && self.queued() == 0 {
                signal(FrameKind::Pong);
            }
            pulse.heard(heard_ns);
            match pulse.look(now_ns) {
                Beat::Quiet => {}
                Beat::Ping => signal(FrameKind::Ping),
                Beat::Lost(seconds) => return format!("no sign of life for {seconds} s"),
            }
        }
    }
}

/// Serves an established link until it closes. `run`: the run number of the other gateway's process.
pub(crate) async fn serve(
    gateway: &Rc<Gateway>,
    trunk: &Rc<Trunk>,
    index: usize,
    (stream, run): (TlsStream, u32),
    address: SocketAddr,
) {
    let key = stream.session().peer();
    // The sites file may have changed during the handshake.
    if let Err(error) = trunk.check(key) {
        let reason = error.to_string();
        log!(warn, &trunk.site, site = trunk.site, gateway = trunk.gateway, %address, reason, "link refused");
        return;
    }
    let (tcp, session, cipher, plain) = stream.into_parts();
    let (mut read, write) = tcp.into_split();
    let now = Instant::now();
    let link = Rc::new(Link {
        trunk: trunk.id,
        index,
        address,
        key,
        session: RefCell::new(session),
        // No sender waits for the outlet: members wait for their job's turn.
        outlet: Outlet::new(write, gateway.counters.clone(), usize::MAX),
        waiting: RefCell::new(Shares::new(gateway.counters.clone())),
        drained: Notify::new(),
        pending: RefCell::default(),
        sent: Cell::default(),
        received: Cell::default(),
        since: now,
        heard: Cell::new(now),
        cut: Notify::new(),
        cut_reason: RefCell::default(),
        pings: RefCell::default(),
        measured: Cell::default(),
        notices: RefCell::default(),
    });
    gateway.link_up(trunk, &link, run);
    let stop = tokio::select! {
        biased;
        stop = read_loop(gateway, &link, &mut read, cipher, plain) => stop,
        error = link.outlet.run(|| link.refill(gateway)) => Stop::Lost(error.to_string()),
        reason = link.heartbeat(gateway) => Stop::Lost(reason),
        () = link.cut.notified() => Stop::Lost(link.cut_reason.take()),
    };
    let final_words = matches!(stop, Stop::Goodbye(_));
    let reason = match stop {
        Stop::Goodbye(reason) => shorten(reason),
        Stop::Lost(reason) => reason,
        Stop::Violation(reason) => {
            gateway.counters.violation();
            let header = FrameHeader::plain(FrameKind::Bye, JobId::default(), GATEWAY, GATEWAY);
            link.send_own(gateway, header, reason.as_bytes());
            format!("rules broken: {reason}")
        }
    };
    gateway.link_down(trunk, &link, &reason, final_words);
    link.pings.borrow_mut().clear();
    link.outlet.finish(|| link.refill(gateway)).await;
    link.outlet.seal();
    link.waiting.borrow_mut().clear();
    link.notices.borrow_mut().clear();
    link.drained.notify_waiters();
}

async fn read_loop(
    gateway: &Rc<Gateway>,
    link: &Rc<Link>,
    read: &mut OwnedReadHalf,
    cipher_left: Vec<u8>,
    plain_left: Vec<u8>,
) -> Stop {
    let (mut partial, mut decipher) = (gateway.path.partial(), Decipher::new(&gateway.path, &cipher_left));
    partial.save(&plain_left);
    let source = Target::Link(link.clone());
    let mut share = Share::default();
    loop {
        let turn = poll_fn(|cx| {
            let mut plain = gateway.path.plain.borrow_mut();
            let start = partial.len();
            let come = decipher.read(cx, read, &gateway.path, &link.session, &link.outlet, &mut plain[start..]);
            let (count, closed) = ready!(share.of(come))?;
            if link.outlet.is_closed() {
                // The link has been replaced or its site removed: bytes that still arrive are outdated.
                return Poll::Ready(Err(Stop::Lost(link.cut_reason.borrow().clone())));
            }
            link.heard.set(gateway.path.tick());
            partial.restore(&mut plain);
            let bytes = &plain[..start + count];
            let result = gateway.forward(&source, bytes);
            let result = result.and_then(|used| link.is_not_read().map_or(Ok(used), |why| Err(Stop::Violation(why))));
            if let Ok(used) = result {
                link.received.set(link.received.get() + used as u64);
                partial.save(&bytes[used..]);
            }
            Poll::Ready(result.and_then(|_| if closed { Err(Stop::closed()) } else { Ok(()) }))
        });
        if let Err(stop) = turn.await {
            return stop;
        }
        gateway.after_turn();
        share.taken(gateway.path.now()).await;
    }
}
