//! One TLS connection of a trunk: encryption, queues, heartbeats.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use channel::Route;
use client::tls::{Session, TlsStream};
use tcp_info::TcpInfo;
use tokio::sync::{Notify, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};
use types::sites::Fingerprint;
use types::{Identity, JobId};
use wire::{FrameHeader, FrameKind};

use crate::path::Path;
use crate::path::copies::{Item, Noted};
use crate::path::limits::{GATEWAY, PIECE};
use crate::path::outlet::Outlet;
use crate::path::reading::Inflow;
use crate::path::shares::{QueuedPiece, Shares};
use crate::table::TrunkId;

pub(crate) mod task;

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
    /// Takes over a connection whose handshake is done.
    pub(crate) fn new(
        path: &Path,
        trunk: TrunkId,
        index: usize,
        stream: TlsStream,
        address: SocketAddr,
    ) -> (Rc<Link>, Inflow) {
        let key = stream.session().peer();
        let (tcp, session, cipher, plain) = stream.into_parts();
        let (read, write) = tcp.into_split();
        let now = Instant::now();
        let link = Link {
            trunk,
            index,
            address,
            key,
            session: RefCell::new(session),
            // No sender waits for the outlet: members wait for their job's turn.
            outlet: Outlet::new(write, path.counters.clone(), usize::MAX),
            waiting: RefCell::new(Shares::new(path.counters.clone())),
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
        };
        (Rc::new(link), Inflow { read, cipher, plain })
    }

    /// Its route number in channels over this trunk.
    pub(crate) fn route(&self) -> Route {
        Route(self.index as u8)
    }

    /// Sends a frame that this gateway made.
    pub(crate) fn send_own(&self, path: &Path, header: FrameHeader, payload: &[u8]) {
        match header.with_payload(payload) {
            Ok(bytes) => self.send(path, header.job, &bytes),
            Err(error) => tracing::error!(%error, "frame not sent"),
        }
    }

    /// Sends a reply ahead of all jobs' frames, so that a peer that reads gets it soon.
    pub(crate) fn answer(&self, path: &Path, header: FrameHeader, payload: &[u8]) {
        match header.with_payload(payload) {
            Ok(bytes) => self.send(path, JobId::default(), &bytes),
            Err(error) => tracing::error!(%error, "frame not sent"),
        }
    }

    /// Sends a notice that a frame was undeliverable. While much of the job is queued, only the latest notice of each
    /// kind is kept for each pair of members: it replaces the earlier ones.
    pub(crate) fn notice(&self, path: &Path, header: FrameHeader, reason: &[u8]) {
        if self.queued_of(header.job) < NOTICES {
            return self.send_own(path, header, reason);
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
    pub(crate) fn send_pending(&self, path: &Path, bytes: &[u8], job: JobId) {
        let mut items = self.pending.borrow_mut();
        if let [Item::Frames(range)] = items.as_slice() {
            self.send(path, job, &bytes[range.clone()]);
        } else if self.is_clear() || items.iter().all(|item| matches!(item, Item::Frames(_))) {
            // A TLS record for each would cost more than the copy.
            let mut stage = path.stage.take();
            path.copies.with(|copies| {
                let slices = items.iter().flat_map(|item| copies.slices(item, bytes));
                slices.for_each(|slice| stage.extend_from_slice(slice));
            });
            self.send(path, job, &stage);
            stage.clear();
            path.stage.replace(stage);
        } else {
            path.copies.with_mut(|copies| self.queue(path, job, &items, bytes, copies));
        }
        items.clear();
    }

    /// Queues items behind the waiting frames. Bytes that other links queue too are held once.
    fn queue(&self, path: &Path, job: JobId, items: &[Item], bytes: &[u8], copies: &mut Noted) {
        if self.outlet.is_closed() {
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        for item in items {
            let kept = match item {
                Item::Copy { job, body, .. } => Some((*job, copies.kept(*body, bytes, &path.counters))),
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
    pub(crate) fn send(&self, path: &Path, job: JobId, frames: &[u8]) {
        if self.outlet.is_closed() {
            return;
        }
        self.sent.set(self.sent.get() + frames.len() as u64);
        let mut waiting = self.waiting.borrow_mut();
        if waiting.is_empty() && self.outlet.queued() == 0 {
            self.seal(path, frames, |record| {
                self.outlet.send(&[IoSlice::new(record)]);
            });
        } else {
            waiting.push(job, frames);
            self.outlet.wake();
        }
    }

    /// Encrypts queued frames, job by job, until enough bytes wait for the socket.
    fn refill(&self, path: &Path) {
        let mut waiting = self.waiting.borrow_mut();
        while self.outlet.queued() < AHEAD
            && let Some((job, frames)) = waiting.pop()
        {
            match &frames {
                QueuedPiece::Frames(frames) => self.seal(path, frames, |record| self.outlet.append(record)),
                QueuedPiece::Copy(head, body) => {
                    let mut stage = path.stage.take();
                    stage.extend_from_slice(head);
                    stage.extend_from_slice(body.bytes());
                    self.seal(path, &stage, |record| self.outlet.append(record));
                    stage.clear();
                    path.stage.replace(stage);
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

    fn seal(&self, path: &Path, bytes: &[u8], mut put: impl FnMut(&[u8])) {
        let mut session = self.session.borrow_mut();
        let mut sealed = path.sealed.borrow_mut();
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
    pub(crate) async fn ping(&self, path: &Path, limit: Duration) -> Result<Option<Duration>, Elapsed> {
        let (sender, receiver) = oneshot::channel();
        let id = path.next_id();
        self.pings.borrow_mut().insert(id, (Instant::now(), sender));
        let header = FrameHeader::plain(FrameKind::Ping, JobId::default(), GATEWAY, GATEWAY);
        self.send_own(path, header, &id.to_le_bytes());
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
}
