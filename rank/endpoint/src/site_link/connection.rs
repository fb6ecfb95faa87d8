//! A connection of the site link: its phase, its queue, and the handling of its frames.

use std::collections::VecDeque;
use std::time::Instant;

use member::handshake::{Acceptor, Initiator};
use wire::frame::FrameKind;
use wire::{FrameHeader, Introduction};

use super::lane::Lane;
use super::life::Life;
use super::native::NOT_INTRODUCED;
use crate::handshake::Credentials;
use crate::link::{Misbehaved, Outgoing, Sink};
use crate::operation::PeerId;
use crate::reader::{FrameReader, Frames};
use crate::stream::Stream;
use crate::writer::Writer;

/// One TCP connection, from its first byte to its last.
pub(super) struct SiteConnection {
    pub stream: Stream,
    pub phase: Phase,
    pub peer: Option<PeerId>,
    pub reader: FrameReader,
    pub writer: Writer,
    pub queue: VecDeque<Outgoing>,
    pub wants_write: bool,
    /// The socket is full: epoll reports when it takes more.
    pub blocked: bool,
    /// The queue is held back only because another item follows at once.
    pub held: bool,
    pub fruitless: u32,
    pub deadline: Instant,
    pub goodbye: bool,
    /// The lane through the site's own network, if the site has one. Frames then go there.
    pub lane: Option<Lane>,
    pub life: Life,
}

/// The phase of a connection.
#[derive(Debug)]
pub(super) enum Phase {
    Connecting(Initiator),
    Initiating(Initiator),
    Accepting(Acceptor),
    Open,
}

impl SiteConnection {
    /// True if the peer has answered our goodbye on the lane, or closed its end.
    pub(super) fn has_answered(&mut self) -> bool {
        if self.reader.fill(&mut self.stream).is_err() {
            return true;
        }
        loop {
            match self.reader.skip_other() {
                Ok(Some(FrameKind::Bye)) | Err(_) => return true,
                Ok(Some(_)) => {}
                Ok(None) => return false,
            }
        }
    }

    /// True if bytes wait for room in the socket.
    pub(super) fn has_to_send(&self) -> bool {
        !self.writer.is_empty() || self.stream.has_unsent()
    }

    /// Removes the first item, which has been sent.
    pub(super) fn finish_front(&mut self, buffered: &mut u64, sink: &mut dyn Sink) {
        if let Some(item) = self.queue.pop_front() {
            if item.detach {
                *buffered -= item.end;
            }
            item.sent.into_iter().for_each(|sent| sink.sent(sent));
        }
    }
}

/// Frames from one peer. Their routing fields are ignored: the connection has only one peer.
pub(super) struct PeerFrames<'a> {
    pub peer: PeerId,
    pub own: &'a Credentials,
    pub goodbye: &'a mut bool,
    /// Target of the peer's messages about its lane; `None`: this site has no network of its own.
    pub said: Option<&'a mut Said>,
}

/// A peer's messages over TCP about the lane through the site's own network.
#[derive(Default)]
pub(super) struct Said {
    pub introduction: Option<Introduction>,
    pub tally: Option<u32>,
}

impl Frames for PeerFrames<'_> {
    fn data(&mut self, header: &FrameHeader, _: &mut dyn Sink) -> Result<PeerId, Misbehaved> {
        if header.job != self.own.job {
            return Err(Misbehaved::Protocol("a frame of another job"));
        }
        if self.said.is_some() {
            return Err(NOT_INTRODUCED);
        }
        Ok(self.peer)
    }

    fn other(&mut self, header: &FrameHeader, payload: &[u8], _: &mut dyn Sink) -> Result<(), Misbehaved> {
        match (header.kind, &mut self.said) {
            (FrameKind::Introduction, Some(said)) => {
                said.introduction = Some(Introduction::decode(payload)?);
                Ok(())
            }
            (FrameKind::Tally, Some(said)) => {
                let count = payload.try_into().map_err(|_| Misbehaved::Protocol("a tally of the wrong length"))?;
                said.tally = Some(u32::from_le_bytes(count));
                Ok(())
            }
            (FrameKind::Introduction | FrameKind::Tally, None) => Err(Misbehaved::Protocol(
                "an introduction, although this rank's site has no fabric: give all its nodes the same sites file",
            )),
            (FrameKind::Bye, _) => {
                *self.goodbye = true;
                Ok(())
            }
            (..) => Err(Misbehaved::Protocol("a frame kind that ranks do not exchange")),
        }
    }
}
