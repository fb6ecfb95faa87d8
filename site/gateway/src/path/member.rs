//! The connection of a member (rank, agent, launcher) or of a user's command.

use std::cell::{Cell, RefCell};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use client::tls::Session;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;
use types::links::LinkTable;
use types::{Identity, JobId, SiteId, Slot};
use wire::handshake::{Handshake, Welcome};
use wire::{Control, FrameHeader, FrameKind, Passage};

use crate::path::Path;
use crate::path::copies::Item;
use crate::path::limits::PIECE;
use crate::path::neighbour::Neighbour;
use crate::path::outlet::Outlet;
use crate::path::reading::Inflow;

pub(crate) mod task;

/// Parts of a connection: the socket, the TLS session if there is one, and the bytes that were read but not used, first
/// the ciphertext, then the plaintext.
pub(crate) type Parts = (TcpStream, Option<Session>, Vec<u8>, Vec<u8>);

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
    pub waits_for: RefCell<Option<Neighbour>>,
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
    pub(crate) fn new(path: &Path, parts: Parts, address: SocketAddr, client: bool) -> (Rc<Member>, Inflow) {
        let (tcp, session, cipher, plain) = parts;
        let (read, write) = tcp.into_split();
        let member = Member {
            id: path.next_id(),
            address,
            client,
            job: Cell::default(),
            identity: Cell::new(NOBODY),
            outlet: Outlet::new(write, path.counters.clone(), BACKED_UP),
            session: session.map(RefCell::new),
            sealed: path.sealed.clone(),
            pending: RefCell::default(),
            links: Cell::default(),
            heard: Cell::new(path.now()),
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
    pub(crate) fn send_own(&self, path: &Path, header: FrameHeader, payload: &[u8]) {
        match header.with_payload(payload) {
            Ok(bytes) => self.write(path, &[IoSlice::new(&bytes)]),
            Err(error) => tracing::error!(%error, "frame not sent"),
        }
    }

    pub(crate) fn send_control(&self, path: &Path, message: impl Into<Control>) {
        match message.into().encode() {
            Ok(payload) => self.send_own(path, self.header(FrameKind::Control), &payload),
            Err(error) => tracing::error!(%error, "control message not sent"),
        }
    }

    /// Notifies the member of a change in the route to a site.
    pub(crate) fn send_passage(&self, path: &Path, site: SiteId, passage: &Passage) {
        let header = self.header(FrameKind::Passage);
        let header = FrameHeader { from: Identity { site, slot: Slot::GATEWAY }, ..header };
        self.send_own(path, header, &passage.encode());
    }

    /// Sends a rank the table of links between its job's sites.
    pub(crate) fn send_links(&self, path: &Path, table: &LinkTable) {
        self.links.set(table.version());
        for part in wire::links::parts(table) {
            self.send_own(path, self.header(FrameKind::Links), &part);
        }
    }

    fn header(&self, kind: FrameKind) -> FrameHeader {
        let identity = self.identity.get();
        let gateway = Identity { site: identity.site, slot: Slot::GATEWAY };
        FrameHeader::plain(kind, self.job.get(), gateway, identity)
    }

    /// Sends the frames that were gathered from `bytes`.
    pub(crate) fn send_pending(&self, path: &Path, bytes: &[u8]) {
        let mut items = self.pending.borrow_mut();
        path.copies.with(|copies| {
            // A copy has two slices.
            for some in items.chunks(SLICES / 2) {
                let (mut slices, mut count) = ([IoSlice::new(&[]); SLICES], 0);
                for slice in some.iter().flat_map(|item| copies.slices(item, bytes)).filter(|slice| !slice.is_empty()) {
                    slices[count] = IoSlice::new(slice);
                    count += 1;
                }
                self.write(path, &slices[..count]);
            }
        });
        items.clear();
    }

    fn write(&self, path: &Path, slices: &[IoSlice<'_>]) {
        let queued = self.put(slices);
        if queued > 0 {
            path.check_memory();
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
    pub(crate) fn is_quiet(&self, path: &Path) -> bool {
        path.now() - self.heard.get() > ALIVE
    }

    /// Returns true if anything came from the member within this time.
    pub(crate) fn was_heard_within(&self, time: Duration, path: &Path) -> bool {
        path.now().saturating_duration_since(self.heard.get()) <= time
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}
