//! The gateway link: one connection to each gateway of the site, shared by all peers of other sites.
//!
//! Each peer has a channel (sequence, window, acknowledgement) and a queue; queues take turns frame by frame, so a long
//! message to one peer does not hold up the others. A peer is pinned to one of the gateways.

use std::collections::VecDeque;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use channel::{Inbound, Outbound};
use rustc_hash::FxHashMap;
use rustix::event::epoll::{self, EventData, EventFlags};
use types::{Address, Identity};
use wire::FrameHeader;
use wire::frame::{FrameKind, HEADER_LEN};
use wire::handshake::{Purpose, Welcome};

use crate::endpoint::OpenError;
use crate::handshake::{Credentials, Initiator, Step};
use crate::link::{Link, Misbehaved, Outgoing, Sink};
use crate::operation::PeerId;
use crate::reader::{Broken, Frames, Reader};
use crate::writer::Writer;

pub(crate) struct GatewayLink {
    own: Credentials,
    window: u32,
    epoll: OwnedFd,
    gateways: Vec<Gateway>,
    peers: FxHashMap<PeerId, Remote>,
    /// Bytes of our own copies in queues.
    buffered: u64,
}

/// A connection to a gateway.
struct Gateway {
    address: SocketAddrV4,
    socket: OwnedFd,
    reader: Reader,
    writer: Writer,
    /// Peers with something to send and the window to send it.
    ready: VecDeque<PeerId>,
    /// Peers to be acknowledged with a frame of their own.
    acks: Vec<PeerId>,
    wants_write: bool,
    lost: Option<String>,
}

/// A peer behind gateways.
struct Remote {
    identity: Identity,
    gateway: usize,
    outbound: Outbound,
    inbound: Inbound,
    queue: VecDeque<Outgoing>,
    is_ready: bool,
    is_acked: bool,
}

impl GatewayLink {
    /// Connects to all gateways of the site; waits at most `timeout` for each.
    pub fn open(
        own: Credentials,
        addresses: &[SocketAddrV4],
        window: u32,
        timeout: Duration,
    ) -> Result<GatewayLink, OpenError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(OpenError::io)?;
        let mut link =
            GatewayLink { own, window, epoll, gateways: Vec::new(), peers: FxHashMap::default(), buffered: 0 };
        for address in addresses {
            let gateway = Gateway::dial(*address, &link.own, timeout)
                .map_err(|broken| OpenError::Gateway { address: *address, reason: broken.to_string() })?;
            link.window = link.window.min(gateway.1.window);
            let data = EventData::new_u64(link.gateways.len() as u64);
            epoll::add(&link.epoll, &gateway.0.socket, data, EventFlags::IN).map_err(OpenError::io)?;
            link.gateways.push(gateway.0);
        }
        Ok(link)
    }

    /// Readable when `progress` has something to do.
    pub fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn turn(&mut self, at: usize, sink: &mut dyn Sink) -> bool {
        if self.gateways[at].lost.is_some() {
            return false;
        }
        match self.try_turn(at, sink) {
            Ok(moved) => moved,
            Err(broken) => {
                self.lose_gateway(at, &broken, sink);
                true
            }
        }
    }

    /// A gateway's connection is broken, and with it the way to all peers that it served.
    fn lose_gateway(&mut self, at: usize, broken: &Broken, sink: &mut dyn Sink) {
        let gateway = &mut self.gateways[at];
        let reason = format!("gateway {}: {broken}", gateway.address);
        gateway.lost = Some(reason.clone());
        // A descriptor that epoll no longer watches cannot be removed twice; nothing else can go wrong here.
        let _ = epoll::delete(&self.epoll, &gateway.socket);
        let served = self.peers.iter().filter(|(_, remote)| remote.gateway == at);
        let peers: Vec<PeerId> = served.map(|(peer, _)| *peer).collect();
        for peer in peers {
            self.lose(peer, Some(reason.clone()), sink);
        }
    }

    fn lose(&mut self, peer: PeerId, reason: Option<String>, sink: &mut dyn Sink) {
        sink.lost(peer, reason);
        if let Some(remote) = self.peers.get_mut(&peer) {
            for item in std::mem::take(&mut remote.queue) {
                if item.detach {
                    self.buffered -= item.end;
                }
                item.sent.into_iter().for_each(|sent| sink.unsent(peer, sent));
            }
        }
    }

    fn try_turn(&mut self, at: usize, sink: &mut dyn Sink) -> Result<bool, Broken> {
        let gateway = &mut self.gateways[at];
        let mut frames = GatewayFrames {
            own: &self.own,
            window: self.window,
            peers: &mut self.peers,
            pongs: &mut gateway.writer,
            ready: &mut gateway.ready,
            acks: &mut gateway.acks,
            undeliverable: Vec::new(),
            gateway: at,
        };
        let moved = gateway.reader.pump(gateway.socket.as_fd(), &mut frames, sink)?;
        let undeliverable = std::mem::take(&mut frames.undeliverable);
        for (peer, reason) in undeliverable {
            self.lose(peer, Some(reason), sink);
        }
        Ok(self.flush(at, sink)? || moved)
    }

    /// Sends frames as far as windows and the socket allow.
    fn flush(&mut self, at: usize, sink: &mut dyn Sink) -> Result<bool, Broken> {
        let gateway = &mut self.gateways[at];
        let own = &self.own;
        let header = |kind, length, to, sequence, ack| FrameHeader {
            length,
            kind,
            route: at as u16,
            job: own.job,
            to,
            from: own.me.identity,
            sequence,
            ack,
        };
        let mut moved = false;
        loop {
            while gateway.writer.has_room() {
                let Some(peer) = gateway.ready.pop_front() else { break };
                let Some(remote) = self.peers.get_mut(&peer) else { continue };
                remote.is_ready = false;
                let Some(item) = remote.queue.front_mut() else { continue };
                let bytes = item.next_frame_len(gateway.writer.max_payload);
                if !remote.outbound.may_send(bytes) {
                    continue;
                }
                let (sequence, ack) = (remote.outbound.sent(bytes), remote.inbound.acknowledge());
                let to = remote.identity;
                let frame = |length| header(FrameKind::Data, length, to, sequence, ack);
                if gateway.writer.stage_frame(item, frame, false, sink)
                    && let Some(item) = remote.queue.pop_front()
                {
                    if item.detach {
                        self.buffered -= item.end;
                    }
                    item.sent.into_iter().for_each(|sent| sink.sent(sent));
                }
                moved = true;
                if !remote.queue.is_empty() {
                    remote.is_ready = true;
                    gateway.ready.push_back(peer);
                }
            }
            for peer in gateway.acks.drain(..) {
                let Some(remote) = self.peers.get_mut(&peer) else { continue };
                remote.is_acked = false;
                if remote.inbound.ack_is_due() {
                    let ack = remote.inbound.acknowledge();
                    gateway.writer.stage(&header(FrameKind::Ack, 0, remote.identity, 0, ack).encode());
                }
            }
            if gateway.writer.is_empty() || gateway.writer.send(gateway.socket.as_fd(), None)?.is_none() {
                break;
            }
            moved = true;
        }
        let wants = !gateway.writer.is_empty();
        if wants != gateway.wants_write {
            gateway.wants_write = wants;
            let flags = if wants { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            let data = EventData::new_u64(at as u64);
            epoll::modify(&self.epoll, &gateway.socket, data, flags).map_err(std::io::Error::from)?;
        }
        Ok(moved)
    }
}

impl Remote {
    fn new(identity: Identity, gateway: usize, window: u32) -> Remote {
        Remote {
            identity,
            gateway,
            outbound: Outbound::new(window),
            inbound: Inbound::new(window),
            queue: VecDeque::new(),
            is_ready: false,
            is_acked: false,
        }
    }
}

impl Gateway {
    fn dial(address: SocketAddrV4, own: &Credentials, timeout: Duration) -> Result<(Gateway, Welcome), Broken> {
        let deadline = Instant::now() + timeout;
        let stream = TcpStream::connect_timeout(&address.into(), timeout)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let socket = OwnedFd::from(stream);
        let mut reader = Reader::new(wire::frame::MAX_PAYLOAD);
        let mut writer = Writer::new(wire::frame::MAX_PAYLOAD);
        let (mut initiator, hello) = Initiator::new(own.hello(Purpose::Member, own.me));
        writer.stage(&hello.encode());
        let welcome = loop {
            writer.send(socket.as_fd(), None)?;
            match reader.handshake(false)? {
                None => wait_readable(&socket, deadline)?,
                Some(message) => match initiator.step(message, &own.secret)? {
                    Step::Reply(reply) => writer.stage(&reply.encode()),
                    Step::Open { welcome, .. } => break welcome,
                    Step::Refused { reason, .. } => return Err(Broken::Refused(reason)),
                },
            }
            reader.fill(socket.as_fd())?;
        };
        reader.max_payload = welcome.max_payload;
        writer.max_payload = welcome.max_payload;
        let (ready, acks) = (VecDeque::new(), Vec::new());
        Ok((Gateway { address, socket, reader, writer, ready, acks, wants_write: false, lost: None }, welcome))
    }
}

fn wait_readable(socket: &OwnedFd, deadline: Instant) -> Result<(), Broken> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Broken::Refused("no answer to our hello: is this port a Landbridge gateway?".into()));
    }
    let mut fds = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(std::io::Error::from(e).into()),
    }
}

impl Link for GatewayLink {
    fn send(&mut self, to: PeerId, mut item: Outgoing, _more: bool, sink: &mut dyn Sink) {
        let Some(address) = sink.address(to) else { return };
        let lost = match self.gateways.is_empty() {
            true => Some("this rank has no gateway (LANDBRIDGE_GATEWAYS is empty)".to_owned()),
            false => {
                let (count, window) = (self.gateways.len(), self.window);
                let gateway = address.identity.slot.0 as usize % count;
                let new = || Remote::new(address.identity, gateway, window);
                let remote = self.peers.entry(to).or_insert_with(new);
                self.gateways[remote.gateway].lost.clone()
            }
        };
        if lost.is_some() {
            sink.lost(to, lost);
            item.sent.into_iter().for_each(|sent| sink.unsent(to, sent));
            return;
        }
        let Some(remote) = self.peers.get_mut(&to) else { return };
        let at = remote.gateway;
        let detach = item.detach;
        let waits = !remote.queue.is_empty() || !self.gateways[at].writer.is_empty();
        if detach {
            self.buffered += item.end;
            if waits {
                item.detach_now();
            }
        }
        remote.queue.push_back(item);
        if !remote.is_ready {
            remote.is_ready = true;
            self.gateways[at].ready.push_back(to);
        }
        if waits {
            return;
        }
        if let Err(broken) = self.flush(at, sink) {
            self.lose_gateway(at, &broken, sink);
            return;
        }
        if detach && let Some(item) = self.peers.get_mut(&to).and_then(|remote| remote.queue.back_mut()) {
            item.detach_now();
        }
    }

    fn progress(&mut self, sink: &mut dyn Sink) -> bool {
        let mut moved = false;
        for at in 0..self.gateways.len() {
            moved |= self.turn(at, sink);
        }
        moved
    }

    fn is_idle(&self) -> bool {
        self.gateways.iter().all(|gateway| gateway.lost.is_some() || gateway.writer.is_empty())
            && self.peers.values().all(|remote| remote.queue.is_empty())
    }

    fn buffered(&self) -> u64 {
        self.buffered
    }

    fn close(&mut self) {
        for gateway in &mut self.gateways {
            if gateway.lost.is_some() {
                continue;
            }
            let me = self.own.me.identity;
            let to = Identity { slot: types::Slot::GATEWAY, ..me };
            let header = FrameHeader::plain(FrameKind::Bye, self.own.job, me, to);
            gateway.writer.stage(&header.encode());
            // A gateway that does not take our goodbye sees the connection close instead.
            let _ = gateway.writer.send(gateway.socket.as_fd(), None);
            let _ = rustix::net::shutdown(&gateway.socket, rustix::net::Shutdown::Write);
        }
        self.gateways.clear();
    }
}

/// Frames from a gateway: for us, from any peer of another site.
struct GatewayFrames<'a> {
    own: &'a Credentials,
    window: u32,
    peers: &'a mut FxHashMap<PeerId, Remote>,
    pongs: &'a mut Writer,
    ready: &'a mut VecDeque<PeerId>,
    acks: &'a mut Vec<PeerId>,
    undeliverable: Vec<(PeerId, String)>,
    gateway: usize,
}

impl GatewayFrames<'_> {
    /// The peer a frame comes from.
    fn peer(&mut self, header: &FrameHeader, sink: &mut dyn Sink) -> Result<PeerId, Misbehaved> {
        if header.job != self.own.job || header.to != self.own.me.identity {
            return Err(Misbehaved::Protocol("a frame for somebody else"));
        }
        let unknown = SocketAddrV4::new([0, 0, 0, 0].into(), 0);
        let peer = sink.peer(Address { socket: unknown, job: self.own.me.job, identity: header.from });
        let (gateway, window) = (self.gateway, self.window);
        let remote = self.peers.entry(peer).or_insert_with(|| Remote::new(header.from, gateway, window));
        if matches!(header.kind, FrameKind::Data | FrameKind::Ack) {
            remote.outbound.acknowledged(header.ack)?;
            if !remote.queue.is_empty() && !remote.is_ready {
                remote.is_ready = true;
                self.ready.push_back(peer);
            }
        }
        Ok(peer)
    }
}

impl Frames for GatewayFrames<'_> {
    fn data(&mut self, header: &FrameHeader, sink: &mut dyn Sink) -> Result<PeerId, Misbehaved> {
        let peer = self.peer(header, sink)?;
        if let Some(remote) = self.peers.get_mut(&peer) {
            remote.inbound.received(header.sequence, HEADER_LEN as u32 + header.length)?;
            if remote.inbound.ack_is_due() && !remote.is_acked {
                remote.is_acked = true;
                self.acks.push(peer);
            }
        }
        Ok(peer)
    }

    fn other(&mut self, header: &FrameHeader, payload: &[u8], sink: &mut dyn Sink) -> Result<(), Misbehaved> {
        match header.kind {
            FrameKind::Ack => self.peer(header, sink).map(drop),
            FrameKind::Undeliverable => {
                let peer = self.peer(header, sink)?;
                self.undeliverable.push((peer, String::from_utf8_lossy(payload).into_owned()));
                Ok(())
            }
            FrameKind::Ping => {
                let (to, from) = (header.from, header.to);
                let pong = FrameHeader { kind: FrameKind::Pong, to, from, ..*header };
                self.pongs.stage(&pong.encode());
                self.pongs.stage(payload);
                Ok(())
            }
            FrameKind::Bye => Err(Misbehaved::Said(String::from_utf8_lossy(payload).into_owned())),
            FrameKind::Introduction | FrameKind::Tally => {
                Err(Misbehaved::Protocol("an introduction or a tally, which ranks of one site exchange"))
            }
            FrameKind::Control | FrameKind::Pong | FrameKind::Data => Ok(()),
        }
    }
}
