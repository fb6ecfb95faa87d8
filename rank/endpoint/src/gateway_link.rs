//! The gateway link: one connection to each gateway of the site, shared by all peers of other sites.
//!
//! [`member::Conversations`] tracks frames in flight with each peer and handles losses. This link has the sockets
//! (`gateway_link/connection.rs`), the handling of frames from gateways (`gateway_link/arrival.rs`), and the splitting
//! of items into frames. Peers take turns frame by frame, so a long message to one does not delay the others.

mod arrival;
mod connection;
mod cutting;
mod links;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use member::last_route::{LastRoute, Limit};
use member::pulse::LOOK_NS;
use member::{
    ATTEMPTS, ATTEMPTS_AT_A_LATE_PEER, Beat, Budget, Conversations, MAX_GATEWAYS, RANK_WINDOW, Route, Settings,
    Striping, Window,
};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use types::Identity;
use types::id::SlotKind;
use types::links::LinkTable;
use wire::FrameHeader;
use wire::frame::FrameKind;

use self::arrival::GatewayFrames;
use self::connection::GatewayConnection;
use self::links::LinkTables;
use crate::config::JobConfig;
use crate::endpoint::OpenError;
use crate::handshake::Credentials;
use crate::link::{Link, Outgoing, Sent, Sink};
use crate::operation::{PeerId, ShareOp};
use crate::reader::Broken;
use crate::sharing::SharePieces;
use cutting::{Cutter, Items, KeptFrame};

/// Time limit for the other gateways once one is connected.
const MOMENT: Duration = Duration::from_secs(1);
/// Time limit for a gateway that is dialled again.
const REDIAL: Duration = Duration::from_secs(5);
/// Limit for dialling the last gateway again after its connection broke.
const RETURN: Limit = Limit::Attempts(4);
type Talk = Conversations<PeerId, KeptFrame, Items>;

pub(crate) struct GatewayLink {
    own: Credentials,
    epoll: OwnedFd,
    connections: Vec<GatewayConnection>,
    talk: Talk,
    links: LinkTables,
    leaving: bool,
    opened: Instant,
    looked_ns: u64,
    /// Bytes of our own copies in queues.
    buffered: u64,
    /// The reason for the loss of the last gateway, if it fell silent.
    trouble: Option<String>,
    /// The last connection that was open, with the reason for its loss if it broke.
    last: LastRoute<String>,
}

impl GatewayLink {
    /// Connects to the site's gateways. Waits at most `timeout` for the first, then a moment for the others, which are
    /// retried later.
    pub(crate) fn open(own: Credentials, job: &JobConfig, timeout: Duration) -> Result<GatewayLink, OpenError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(OpenError::io)?;
        let gateways = job.gateways.iter().take(MAX_GATEWAYS);
        let mut connections: Vec<GatewayConnection> =
            gateways.map(|gateway| GatewayConnection::new(gateway.clone(), job.encrypted)).collect();
        for (at, connection) in connections.iter_mut().enumerate() {
            if let Err(broken) = connection.dial(&own, &epoll, at, timeout) {
                connection.lose(broken.to_string());
            }
        }
        let mut moment = None;
        loop {
            for (at, connection) in connections.iter_mut().enumerate() {
                if connection.is_dialling()
                    && let Err(broken) = connection.shake_hands(&epoll, at)
                {
                    connection.lose(broken.to_string());
                }
            }
            if connections.iter().any(GatewayConnection::is_open) {
                moment.get_or_insert_with(|| Instant::now() + MOMENT);
            }
            let late = moment.is_some_and(|moment| moment <= Instant::now());
            if late || !connections.iter().any(GatewayConnection::is_dialling) {
                break;
            }
            let nap = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            let mut fds = [PollFd::new(&epoll, PollFlags::IN)];
            // An interrupted or failed wait counts as a short one.
            let _ = poll(&mut fds, Some(&nap));
        }
        let open = connections.iter().any(GatewayConnection::is_open);
        if let Some(first) = connections.first().filter(|_| !open) {
            let reason = first.lost().unwrap_or("no answer").to_owned();
            return Err(OpenError::Gateway { address: first.gateway.address, reason });
        }
        let mut talk =
            Talk::new(settings(&own, connections.len(), job.watched), Budget::starting_with(job.window.into()));
        for (at, _) in connections.iter().enumerate().filter(|(_, connection)| connection.is_open()) {
            talk.route_open(Route(at as u8));
        }
        Ok(GatewayLink {
            own,
            epoll,
            links: LinkTables::new(job.roster.sites().len(), connections.len()),
            connections,
            talk,
            leaving: false,
            opened: Instant::now(),
            looked_ns: 0,
            buffered: 0,
            trouble: None,
            last: LastRoute::new(RETURN),
        })
    }

    /// Readable when `progress` has something to do.
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Asks all peers to acknowledge everything in flight: nothing more will be sent. The request is repeated until
    /// everything is acknowledged. A request that arrives while a peer closes is lost, and the next one shows that the
    /// peer is gone.
    pub(crate) fn leave(&mut self, sink: &mut dyn Sink) {
        self.leaving = true;
        self.talk.leave(self.now_ns());
        self.flush(sink);
    }

    /// True if every peer that still exists has received everything sent to it.
    pub(crate) fn is_settled(&self) -> bool {
        self.talk.is_settled()
    }

    /// True if a peer's site cannot be reached at the moment. That state ends when its gateway loses patience.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.talk.is_cut_off()
    }

    /// Figures of the links between the job's sites, from the first connected gateway that has sent them.
    pub(crate) fn links(&self) -> Option<&LinkTable> {
        // A closed link has no connections.
        self.links.first(|route| self.connections.get(usize::from(route.0)).is_some_and(GatewayConnection::is_open))
    }

    /// Sends a share whose receivers are all ready or have room for it.
    pub(crate) fn share(&mut self, number: usize, op: ShareOp, sink: &mut dyn Sink) {
        let to: Vec<_> = op.to.iter().filter_map(|peer| Some((*peer, sink.address(*peer)?.identity))).collect();
        let pieces = SharePieces { number, key: op.key, buffer: Arc::new(op.buffer), at: 0, begun: false };
        self.talk.share(pieces, &to, op.trees);
        self.flush(sink);
    }

    /// Prepares for a share from a peer.
    pub(crate) fn expect_share(&mut self, from: PeerId, sink: &dyn Sink) {
        if let Some(address) = sink.address(from).filter(|address| address.identity.site != self.own.me.identity.site) {
            self.talk.expect_shares(from, address.identity);
        }
    }

    /// Nanoseconds since the link was opened.
    fn now_ns(&self) -> u64 {
        self.opened.elapsed().as_nanos() as u64
    }

    pub(crate) fn any_is_open(&self) -> bool {
        self.connections.iter().any(GatewayConnection::is_open)
    }

    fn receive(&mut self, at: usize, now_ns: u64, sink: &mut dyn Sink) -> bool {
        if !self.connections[at].is_open() {
            return self.revive(at, now_ns, sink);
        }
        let mut frames = GatewayFrames {
            own: &self.own,
            talk: &mut self.talk,
            links: &mut self.links,
            buffered: &mut self.buffered,
            route: Route(at as u8),
            now_ns,
            pongs: Vec::new(),
        };
        let connection = &mut self.connections[at];
        let moved = connection.receive(&mut frames, sink);
        frames.pongs.into_iter().for_each(|pong| connection.push(Arc::new(pong)));
        match moved {
            Ok(moved) => {
                if moved {
                    connection.pulse.heard(now_ns);
                }
                moved
            }
            Err(broken) => {
                self.lose_connection(at, &broken, sink);
                true
            }
        }
    }

    /// Dials a lost gateway again if another one is connected, or if the last connection has just broken: otherwise all
    /// peers are lost already. Returns true if the lost gateway is connected now.
    fn revive(&mut self, at: usize, now_ns: u64, sink: &mut dyn Sink) -> bool {
        let may_dial = self.last.is_broken() || (self.any_is_open() && !self.leaving);
        let connection = &mut self.connections[at];
        let result = if connection.is_dialling() {
            connection.shake_hands(&self.epoll, at)
        } else if !may_dial || !connection.is_due(Instant::now()) {
            return false;
        } else {
            connection.dial(&self.own, &self.epoll, at, REDIAL).map(|()| false)
        };
        match result {
            Ok(true) => {
                connection.begin(now_ns);
                // Peers go by this route, whichever broke.
                self.last.opened(Route(at as u8));
                self.talk.route_open(Route(at as u8));
                true
            }
            Ok(false) => false,
            Err(broken) => {
                connection.lose(broken.to_string());
                let is_down = matches!(&broken, Broken::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused);
                if let Some(reason) = self.last.failed(Route(at as u8), is_down) {
                    self.lose_all(&reason, sink);
                }
                false
            }
        }
    }

    /// Handles a broken connection to a gateway. Other gateways take over its frames. Without any, the gateway is
    /// dialled again if a reset may have broken the connection; otherwise all peers are lost.
    fn lose_connection(&mut self, at: usize, broken: &Broken, sink: &mut dyn Sink) {
        let connection = &mut self.connections[at];
        let reason = format!("gateway {}: {broken}", connection.gateway.address);
        connection.lose(reason.clone());
        self.talk.route_lost(Route(at as u8));
        if self.any_is_open() {
            return;
        }
        // A gateway that closes the connection may do so on request, or the agent reports its end.
        if let Broken::Silent(_) = broken {
            self.trouble.get_or_insert_with(|| reason.clone());
        }
        // The peers are not to blame, nor is a gateway that gives a reason.
        let reason = match broken {
            Broken::Refused(_) => reason,
            _ => format!("this process has lost its last gateway: {reason}"),
        };
        if broken.is_break() {
            self.connections[at].dial_soon();
            self.last.broke(Route(at as u8), reason, self.now_ns());
        } else {
            self.lose_all(&reason, sink);
        }
    }

    fn lose_all(&mut self, reason: &str, sink: &mut dyn Sink) {
        let peers: Vec<PeerId> = self.talk.iter().map(|(peer, _)| peer).collect();
        for peer in peers {
            lose(&mut self.talk, &mut self.buffered, peer, Some(reason.to_owned()), sink);
        }
    }

    /// The reason for the loss of this rank's last gateway, if that fell silent. Reported once.
    pub(crate) fn take_trouble(&mut self) -> Option<String> {
        self.trouble.take()
    }

    /// Sends pings to quiet gateways and gives up silent ones, if it is time to look.
    fn listen_for_silence(&mut self, now_ns: u64, sink: &mut dyn Sink) {
        if now_ns - self.looked_ns < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        for at in 0..self.connections.len() {
            let connection = &mut self.connections[at];
            if !connection.is_open() {
                continue;
            }
            match connection.pulse.look(now_ns) {
                Beat::Quiet => {}
                Beat::Lost(seconds) => self.lose_connection(at, &Broken::Silent(seconds), sink),
                Beat::Ping => {
                    let me = self.own.me.identity;
                    let to = Identity { slot: types::Slot::GATEWAY, ..me };
                    let ping = FrameHeader::plain(FrameKind::Ping, self.own.job, me, to);
                    connection.push(Arc::new(ping.encode().to_vec()));
                }
            }
        }
    }

    /// Sends frames as far as windows and sockets allow.
    fn flush(&mut self, sink: &mut dyn Sink) -> bool {
        let mut moved = false;
        loop {
            if self.talk.has_work() {
                let now_ns = self.now_ns();
                let mut cutter =
                    Cutter { connections: &mut self.connections, sink: &mut *sink, buffered: &mut self.buffered };
                self.talk.send(&mut cutter, now_ns);
                while let Some((_, share)) = self.talk.shared() {
                    sink.sent(Sent::Share(share.number));
                }
            }
            let mut sent = false;
            for at in 0..self.connections.len() {
                let result = self.connections[at].send(&self.epoll, at);
                match result {
                    Ok(some) => sent |= some,
                    Err(broken) => self.lose_connection(at, &broken, sink),
                }
            }
            if !sent {
                return moved;
            }
            moved = true;
        }
    }
}

/// Settings for a rank's conversations. Ranks start with different gateways, so that the short messages of all ranks do
/// not load the same one.
fn settings(own: &Credentials, gateways: usize, watched: bool) -> Settings {
    let first = match own.me.identity.slot.kind() {
        SlotKind::Rank(rank, _) => rank.0 as usize % gateways.max(1),
        _ => 0,
    };
    let (striping, window) = (Striping::Adaptive { first }, Window::Adapting(RANK_WINDOW));
    // Gateways and the launcher report a process of a coupling that does not connect in time.
    let attempts = if watched { ATTEMPTS_AT_A_LATE_PEER } else { ATTEMPTS };
    Settings { job: own.job, me: own.me.identity, striping, window, attempts }
}

/// Puts a frame that is not kept on a connection. Its payload is a receipt, shorter than the limit for any frame.
fn notice(connections: &mut [GatewayConnection], route: Route, header: FrameHeader, receipt: &[u8]) {
    if let Ok(bytes) = header.with_payload(receipt) {
        connections[usize::from(route.0)].push(Arc::new(bytes));
    }
}

/// Handles the loss of a peer. Items queued for it are never sent.
fn lose(talk: &mut Talk, buffered: &mut u64, peer: PeerId, reason: Option<String>, sink: &mut dyn Sink) {
    sink.lost(peer, reason);
    for item in talk.lose(peer).into_iter().flat_map(|items| items.0) {
        if item.detach {
            *buffered -= item.end;
        }
        item.sent.into_iter().for_each(|sent| sink.unsent(peer, sent));
    }
}

impl Link for GatewayLink {
    fn send(&mut self, to: PeerId, mut item: Outgoing, _more: bool, sink: &mut dyn Sink) {
        let Some(address) = sink.address(to) else { return };
        let lost = match self.connections.last() {
            None => Some("this rank has no gateway (LANDBRIDGE_GATEWAYS is empty)".to_owned()),
            Some(last) if !self.any_is_open() && !self.last.is_broken() => {
                Some(last.lost().unwrap_or("no gateway is left").to_owned())
            }
            Some(_) => None,
        };
        if lost.is_some() {
            sink.lost(to, lost);
            item.sent.into_iter().for_each(|sent| sink.unsent(to, sent));
            return;
        }
        let was_empty = !self.talk.peer(to, address.identity).has_something();
        let idle = |route: Route| self.connections[usize::from(route.0)].is_empty();
        let waits = !was_empty || !self.talk.route(to).is_some_and(idle);
        let detach = item.detach;
        if detach {
            self.buffered += item.end;
            if waits {
                item.detach_now();
            }
        }
        self.talk.peer(to, address.identity).queue.0.push_back(item);
        self.talk.queued(to, was_empty);
        if waits {
            return;
        }
        self.flush(sink);
        if detach && let Some(item) = self.talk.peer(to, address.identity).queue.0.back_mut() {
            item.detach_now();
        }
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> bool {
        let now_ns = self.now_ns();
        let mut moved = false;
        for at in 0..self.connections.len() {
            moved |= self.receive(at, now_ns, sink);
        }
        self.listen_for_silence(now_ns, sink);
        self.talk.tick(now_ns);
        self.flush(sink) || moved
    }

    fn is_idle(&self) -> bool {
        let sent = |connection: &GatewayConnection| !connection.is_open() || connection.is_empty();
        self.connections.iter().all(sent) && self.talk.is_idle()
    }

    fn buffered(&self) -> u64 {
        self.buffered
    }

    fn close(&mut self) {
        // Final acknowledgements, for peers that ask when this rank is gone. They are sent with the goodbye.
        let connections = &mut self.connections;
        self.talk.farewell(&mut |route, header, receipt| notice(connections, route, header, receipt));
        let me = self.own.me.identity;
        let to = Identity { slot: types::Slot::GATEWAY, ..me };
        let goodbye = Arc::new(FrameHeader::plain(FrameKind::Bye, self.own.job, me, to).encode().to_vec());
        self.connections.iter_mut().filter(|c| c.is_open()).for_each(|connection| connection.close(goodbye.clone()));
        self.connections.clear();
    }
}
