//! Handling of frames from gateways: frames of peers at other sites, and news about routes.

use member::Route;
use types::Address;
use types::id::NOWHERE;
use wire::frame::FrameKind;
use wire::many::Astray;
use wire::message::MAX_HEADER;
use wire::{FrameHeader, Message, Passage};

use super::links::LinkTables;
use super::{Talk, lose};
use crate::handshake::Credentials;
use crate::link::{Misbehaved, Sink};
use crate::operation::PeerId;
use crate::reader::Frames;

pub(super) struct GatewayFrames<'a> {
    pub own: &'a Credentials,
    pub talk: &'a mut Talk,
    /// Figures of the links between the job's sites.
    pub links: &'a mut LinkTables,
    /// Bytes of our own copies in queues.
    pub buffered: &'a mut u64,
    /// The gateway that sent the frames.
    pub route: Route,
    /// The current time, for conversations.
    pub now_ns: u64,
    pub pongs: Vec<Vec<u8>>,
}

impl GatewayFrames<'_> {
    /// The peer a frame comes from.
    fn peer(&self, header: &FrameHeader, sink: &mut dyn Sink) -> PeerId {
        sink.peer(Address { socket: NOWHERE, job: self.own.me.job, identity: header.from })
    }
}

/// Delivers a frame that is next in order.
fn deliver(from: PeerId, payload: &[u8], relayed: bool, sink: &mut dyn Sink) -> Result<(), Misbehaved> {
    let head = &payload[..MAX_HEADER.min(payload.len())];
    let (message, used) = Message::decode(head, payload.len() as u32)?;
    if relayed && !matches!(message, Message::Share { .. }) {
        return Err(Misbehaved::Protocol("a copy of a frame for several receivers that is no piece of a share"));
    }
    let mut place = sink.begin(from, message, (payload.len() - used) as u32)?;
    sink.put(&mut place, &payload[used..]);
    sink.end(place);
    Ok(())
}

impl Frames for GatewayFrames<'_> {
    fn data(&mut self, _: &FrameHeader, _: &mut dyn Sink) -> Result<PeerId, Misbehaved> {
        Err(Misbehaved::Protocol("a frame in pieces where only whole frames are allowed"))
    }

    fn other(&mut self, header: &FrameHeader, payload: &[u8], sink: &mut dyn Sink) -> Result<(), Misbehaved> {
        let (route, now_ns) = (self.route, self.now_ns);
        let ours = header.job == self.own.job && header.to == self.own.me.identity;
        match header.kind {
            FrameKind::Ping => {
                let (to, from) = (header.from, header.to);
                let pong = FrameHeader { kind: FrameKind::Pong, to, from, ..*header };
                self.pongs.extend(pong.with_payload(payload));
            }
            FrameKind::Bye => return Err(Misbehaved::Said(String::from_utf8_lossy(payload).into_owned())),
            FrameKind::Control | FrameKind::Pong => {}
            FrameKind::Introduction | FrameKind::Tally => {
                return Err(Misbehaved::Protocol("an introduction or a tally, which only ranks of one site exchange"));
            }
            FrameKind::Many => {
                return Err(Misbehaved::Protocol("a frame for several receivers, which is for gateways"));
            }
            FrameKind::Passage => self.talk.passage(route, header.from.site, &Passage::decode(payload)?),
            FrameKind::Links => self.links.take(route, payload)?,
            _ if !ours => return Err(Misbehaved::Protocol("a frame for another member")),
            FrameKind::Data => {
                let peer = self.peer(header, sink);
                self.talk.data(route, peer, header, payload, now_ns, |payload, relayed| {
                    deliver(peer, payload, relayed, sink)
                })?;
            }
            FrameKind::Ack | FrameKind::Ask | FrameKind::Again | FrameKind::Answer => {
                let peer = self.peer(header, sink);
                self.talk.heard(route, peer, header, payload, now_ns)?;
            }
            FrameKind::Undeliverable => {
                let peer = self.peer(header, sink);
                if self.talk.undeliverable(route, peer, now_ns) {
                    let reason = String::from_utf8_lossy(payload).into_owned();
                    lose(self.talk, self.buffered, peer, Some(reason), sink);
                }
            }
            FrameKind::Astray => {
                let peer = self.peer(header, sink);
                self.talk.astray(header.route, peer, Astray::decode(payload)?, now_ns);
            }
            FrameKind::Refused => {
                let peer = self.peer(header, sink);
                self.talk.refused(route, peer, now_ns);
            }
        }
        Ok(())
    }
}
