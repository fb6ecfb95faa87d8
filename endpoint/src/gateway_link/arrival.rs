//! What gateways send: frames of any peer of another site, and news of the ways there.

use std::collections::VecDeque;
use std::net::SocketAddrV4;

use channel::Arrival;
use rustc_hash::FxHashMap;
use types::{Address, SiteId};
use wire::frame::{FrameKind, HEADER_LEN};
use wire::message::MAX_HEADER;
use wire::{FrameHeader, Message, Passage};

use super::remote::Remote;
use crate::handshake::Credentials;
use crate::link::{Misbehaved, Sink};
use crate::operation::PeerId;
use crate::reader::Frames;

/// What changes more than one peer's channel.
pub(super) enum News {
    Undeliverable(PeerId, String),
    Away(SiteId, String),
    Broken(SiteId),
    Open(SiteId),
}

pub(super) struct GatewayFrames<'a> {
    pub own: &'a Credentials,
    pub window: u32,
    /// The gateway that frames take first.
    pub first: usize,
    /// The time, for channels.
    pub now_ns: u64,
    pub peers: &'a mut FxHashMap<PeerId, Remote>,
    pub ready: &'a mut VecDeque<PeerId>,
    pub told: &'a mut Vec<PeerId>,
    /// Nothing more will be sent; what was is to be acknowledged.
    pub leaving: bool,
    /// The gateway they come from.
    pub gateway: usize,
    pub news: Vec<News>,
    pub pongs: Vec<Vec<u8>>,
}

impl GatewayFrames<'_> {
    /// The peer a frame comes from; its acknowledgement is taken.
    fn peer(&mut self, header: &FrameHeader, sink: &mut dyn Sink) -> Result<PeerId, Misbehaved> {
        let unknown = SocketAddrV4::new([0, 0, 0, 0].into(), 0);
        let peer = sink.peer(Address { socket: unknown, job: self.own.me.job, identity: header.from });
        let remote = self.peers.entry(peer).or_insert_with(|| Remote::new(header.from, self.window, self.first));
        if header.kind.acknowledges() {
            // There is a way, since there is one back.
            remote.barred &= !(1 << self.gateway);
            remote.outbound.at(self.now_ns).acknowledged(header.ack)?;
            match header.kind {
                FrameKind::Ask => remote.inbound.ack_now(),
                FrameKind::Again => {
                    remote.outbound.lost_all();
                }
                _ => {}
            }
            // What was asked may have overtaken what it was about.
            remote.asks |= self.leaving && !remote.is_settled();
            remote.wake(peer, self.ready, self.told);
        }
        Ok(peer)
    }

    fn take_data(&mut self, header: &FrameHeader, payload: &[u8], sink: &mut dyn Sink) -> Result<(), Misbehaved> {
        let peer = self.peer(header, sink)?;
        let Some(remote) = self.peers.get_mut(&peer) else { return Ok(()) };
        let bytes = HEADER_LEN as u32 + header.length;
        remote.flows.came(header.route as u8, bytes);
        match remote.inbound.received(header.sequence, bytes)? {
            Arrival::Next => {
                deliver(peer, payload, sink)?;
                while let Some(early) = remote.inbound.next_early() {
                    deliver(peer, &early, sink)?;
                }
            }
            Arrival::Early => remote.inbound.keep(header.sequence, bytes, payload.to_vec()),
            // It would not have come again had the sender heard from us.
            Arrival::Again => remote.inbound.ack_now(),
        }
        remote.wake(peer, self.ready, self.told);
        Ok(())
    }
}

/// A frame whose turn it is.
fn deliver(from: PeerId, payload: &[u8], sink: &mut dyn Sink) -> Result<(), Misbehaved> {
    let head = &payload[..MAX_HEADER.min(payload.len())];
    let (message, used) = Message::decode(head, payload.len() as u32)?;
    let mut place = sink.begin(from, message, (payload.len() - used) as u32)?;
    sink.put(&mut place, &payload[used..]);
    sink.end(place);
    Ok(())
}

impl Frames for GatewayFrames<'_> {
    fn data(&mut self, _: &FrameHeader, _: &mut dyn Sink) -> Result<PeerId, Misbehaved> {
        Err(Misbehaved::Protocol("a frame in pieces, where whole ones are taken"))
    }

    fn other(&mut self, header: &FrameHeader, payload: &[u8], sink: &mut dyn Sink) -> Result<(), Misbehaved> {
        let ours = header.job == self.own.job && header.to == self.own.me.identity;
        match header.kind {
            FrameKind::Ping => {
                let (to, from) = (header.from, header.to);
                let pong = FrameHeader { kind: FrameKind::Pong, to, from, ..*header };
                self.pongs.extend(pong.with_payload(payload));
                Ok(())
            }
            FrameKind::Bye => Err(Misbehaved::Said(String::from_utf8_lossy(payload).into_owned())),
            FrameKind::Control | FrameKind::Pong => Ok(()),
            FrameKind::Introduction | FrameKind::Tally => {
                Err(Misbehaved::Protocol("an introduction or a tally, which ranks of one site exchange"))
            }
            _ if !ours => Err(Misbehaved::Protocol("a frame for somebody else")),
            FrameKind::Data => self.take_data(header, payload, sink),
            FrameKind::Ack | FrameKind::Ask | FrameKind::Again => {
                let receipt = wire::receipt::decode(payload)?;
                let peer = self.peer(header, sink)?;
                if let Some(remote) = self.peers.get_mut(&peer) {
                    remote.flows.arrived(&receipt);
                }
                Ok(())
            }
            FrameKind::Undeliverable => {
                let peer = self.peer(header, sink)?;
                self.news.push(News::Undeliverable(peer, String::from_utf8_lossy(payload).into_owned()));
                Ok(())
            }
            FrameKind::Passage => {
                let site = header.from.site;
                self.news.push(match Passage::decode(payload)? {
                    Passage::Away(reason) => News::Away(site, reason),
                    Passage::Broken => News::Broken(site),
                    Passage::Open => News::Open(site),
                });
                Ok(())
            }
        }
    }
}
