//! Whole messages between the launcher and agents, split into frames: [`Conversations`] whose frames are pieces of
//! messages.
//!
//! A receiver may *hold* acknowledgements back while it cannot process its messages; the sender's window then fills up,
//! and the sender stops producing.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use channel::{ChannelError, Route};
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use types::{Identity, JobId};
use wire::frame::HEADER_LEN;
use wire::{FrameHeader, FrameKind, Passage, WireError};

use crate::budget::Budget;
use crate::conversation::PeerQueue;
use crate::conversations::{ATTEMPTS, Carrier, Conversations, Settings, Striping, Window};
use crate::{Misbehaved, Routes};

/// Bytes (headers and payloads) in flight between two correspondents. Both ends use this constant.
pub(crate) const WINDOW: u32 = 256 << 10;

/// The longest message in bytes.
pub(crate) const MAX_MESSAGE: usize = 32 << 20;

/// A correspondent violated the rules.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// The rules of the channel.
    #[error("{from}: {source}")]
    Channel {
        /// The correspondent.
        from: Identity,
        /// The violation.
        source: ChannelError,
    },
    /// The rules of frames.
    #[error("{from}: {source}")]
    Wire {
        /// The correspondent.
        from: Identity,
        /// The decoder's error.
        source: WireError,
    },
    /// A message longer than allowed.
    #[error("{from}: a message of {length} bytes; at most {MAX_MESSAGE} are allowed")]
    TooLong {
        /// The correspondent.
        from: Identity,
        /// Bytes of the message.
        length: usize,
    },
    /// A message that cannot be decoded.
    #[error("{from}: unreadable message: {problem}")]
    Unreadable {
        /// The correspondent.
        from: Identity,
        /// The decoder's error.
        problem: String,
    },
}

/// A frame and its route.
pub(crate) type Mail = (Route, FrameHeader, Vec<u8>);

/// A member's traffic with all its correspondents. Times are in nanoseconds of any one clock.
#[derive(Debug)]
pub struct Post {
    conversations: Conversations<Identity, (FrameHeader, Vec<u8>), Chunks>,
    /// The unfinished message from each correspondent.
    partial: FxHashMap<Identity, Vec<u8>>,
    outbox: Outbox,
}

/// Messages split into payloads.
#[derive(Debug, Default)]
struct Chunks {
    chunks: VecDeque<Vec<u8>>,
    bytes: u64,
}

impl PeerQueue for Chunks {
    type Share = Infallible;

    fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    fn left(&self) -> u64 {
        self.bytes
    }

    fn next_len(&self, _: u32) -> u32 {
        (HEADER_LEN + self.chunks.front().map_or(0, Vec::len)) as u32
    }
}

/// Frames ready to be sent. Windows bound their number.
#[derive(Debug)]
struct Outbox {
    max_payload: usize,
    mail: VecDeque<Mail>,
}

impl Carrier<(FrameHeader, Vec<u8>), Chunks> for Outbox {
    fn room(&self, _: Route) -> Option<u32> {
        Some(self.max_payload as u32)
    }

    fn cut(&mut self, queue: &mut Chunks, header: FrameHeader, _: u32) -> ((FrameHeader, Vec<u8>), u32) {
        let bytes = queue.next_len(0);
        let chunk = queue.chunks.pop_front().unwrap_or_default();
        queue.bytes -= chunk.len() as u64;
        ((FrameHeader { length: chunk.len() as u32, ..header }, chunk), bytes)
    }

    fn put(&mut self, route: Route, (header, payload): (FrameHeader, Vec<u8>)) {
        self.mail.push_back((route, header, payload));
    }

    fn notice(&mut self, route: Route, header: FrameHeader, payload: &[u8]) {
        self.mail.push_back((route, header, payload.to_vec()));
    }

    fn cut_share(&mut self, share: &mut Infallible, _: u32) -> Arc<Vec<u8>> {
        match *share {}
    }

    fn framed(&self, header: FrameHeader, payload: &Arc<Vec<u8>>) -> (FrameHeader, Vec<u8>) {
        (FrameHeader { length: payload.len() as u32, ..header }, payload.to_vec())
    }

    fn put_many(&mut self, route: Route, header: FrameHeader, block: &[u8], payload: &Arc<Vec<u8>>) {
        let whole = [block, payload].concat();
        self.mail.push_back((route, FrameHeader { length: whole.len() as u32, ..header }, whole));
    }

    fn alone(&mut self, share: &Infallible, _: &mut Chunks) {
        match *share {}
    }
}

impl Post {
    /// The post of `me`, on connections with payloads of at most `max_payload` bytes.
    pub fn new(job: JobId, me: Identity, max_payload: u32) -> Post {
        let max_payload = (max_payload as usize).clamp(64, (WINDOW / 8) as usize);
        let settings =
            Settings { job, me, striping: Striping::First, window: Window::Fixed(WINDOW), attempts: ATTEMPTS };
        Post {
            conversations: Conversations::new(settings, Budget::unlimited()),
            partial: FxHashMap::default(),
            outbox: Outbox { max_payload, mail: VecDeque::new() },
        }
    }

    /// Queues a message.
    ///
    /// # Errors
    /// It is longer than 32 MiB.
    pub fn send<M: Serialize>(&mut self, to: Identity, message: &M) -> Result<(), PostError> {
        let body =
            postcard::to_stdvec(message).map_err(|e| PostError::Unreadable { from: to, problem: e.to_string() })?;
        if body.len() > MAX_MESSAGE {
            return Err(PostError::TooLong { from: to, length: body.len() });
        }
        let mut bytes = Vec::with_capacity(body.len() + 4);
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        let peer = self.conversations.peer(to, to);
        let was_empty = !peer.has_something();
        for chunk in bytes.chunks(self.outbox.max_payload) {
            peer.queue.bytes += chunk.len() as u64;
            peer.queue.chunks.push_back(chunk.to_vec());
        }
        self.conversations.queued(to, was_empty);
        Ok(())
    }

    /// Bytes for `to` that are queued here or in flight.
    pub fn backlog(&self, to: Identity) -> u64 {
        self.conversations.get(to).map_or(0, |peer| peer.queue.bytes + peer.in_flight())
    }

    /// Returns true if output for `to` may be produced: less than half of the window is in use. The rest is for
    /// messages that must not wait.
    pub fn has_room(&self, to: Identity) -> bool {
        self.backlog(to) < u64::from(WINDOW / 2)
    }

    /// Returns true if any message was sent to a correspondent, or any frame has arrived from it.
    pub fn knows(&self, other: Identity) -> bool {
        self.conversations.get(other).is_some()
    }

    /// Sends an acknowledgement request through every gateway that reaches the correspondent's site. Ranks answer, too.
    pub fn ask(&mut self, other: Identity) {
        self.conversations.peer(other, other);
        self.conversations.ask(other);
    }

    /// The gateways and the sites they reach.
    pub fn routes(&self) -> &Routes {
        self.conversations.routes()
    }

    /// Notes that a gateway is connected.
    pub fn route_open(&mut self, route: Route) {
        self.conversations.route_open(route);
    }

    /// Notes that a gateway is no longer connected: all frames in flight through it are lost, in both directions.
    pub fn route_lost(&mut self, route: Route) {
        self.conversations.route_lost(route);
    }

    /// The next frame to write and its gateway, if a frame may be sent now. Correspondents take turns.
    pub fn next_frame(&mut self, now_ns: u64) -> Option<Mail> {
        if self.outbox.mail.is_empty() {
            self.conversations.tick(now_ns);
            self.conversations.send(&mut self.outbox, now_ns);
        }
        self.outbox.mail.pop_front()
    }

    /// The time at which [`Post::next_frame`] must be called next even if nothing happens.
    pub fn next_tick_ns(&self) -> Option<u64> {
        self.conversations.next_tick_ns()
    }

    /// Processes a frame that came through this gateway, from a correspondent or about one, and returns the messages
    /// that it completes. Control frames are ignored.
    ///
    /// # Errors
    /// The correspondent violated the rules of the channel, or sent bytes that are not a message.
    pub fn take<M: DeserializeOwned>(
        &mut self,
        route: Route,
        header: &FrameHeader,
        payload: &[u8],
        now_ns: u64,
    ) -> Result<Vec<M>, PostError> {
        let from = header.from;
        match header.kind {
            FrameKind::Passage => {
                let passage = Passage::decode(payload).map_err(|source| PostError::Wire { from, source })?;
                self.conversations.passage(route, from.site, &passage);
            }
            FrameKind::Undeliverable => {
                // If no gateway reaches a correspondent, its own gateway reports that, with the reason.
                self.conversations.undeliverable(route, from, now_ns);
            }
            FrameKind::Refused => self.conversations.refused(route, from, now_ns),
            kind if kind.acknowledges() => return self.receive(route, header, payload, now_ns),
            _ => {}
        }
        Ok(Vec::new())
    }

    /// Processes an acknowledging frame from a correspondent.
    fn receive<M: DeserializeOwned>(
        &mut self,
        route: Route,
        header: &FrameHeader,
        payload: &[u8],
        now_ns: u64,
    ) -> Result<Vec<M>, PostError> {
        let from = header.from;
        if header.kind != FrameKind::Data {
            let heard = self.conversations.heard(route, from, header, payload, now_ns);
            heard.map_err(|problem| blame(from, problem))?;
            return Ok(Vec::new());
        }
        if header.relayed {
            return Err(blame(from, Misbehaved::Copy));
        }
        let mut messages = Vec::new();
        let partial = self.partial.entry(from).or_default();
        let deliver = |payload: &[u8], _| complete(partial, from, payload, &mut messages).map_err(Refused::Post);
        match self.conversations.data(route, from, header, payload, now_ns, deliver) {
            Ok(()) => Ok(messages),
            Err(Refused::Post(error)) => Err(error),
            Err(Refused::Misbehaved(problem)) => Err(blame(from, problem)),
        }
    }

    /// Notes that `bytes` from a correspondent are kept here; beyond a quarter of the window, no frame is acknowledged.
    pub fn hold(&mut self, from: Identity, bytes: u64) {
        self.conversations.hold(from, bytes);
    }

    /// Notes that kept `bytes` are released.
    pub fn release(&mut self, from: Identity, bytes: u64) {
        self.conversations.release(from, bytes);
    }
}

/// Reasons for refusing a data frame.
enum Refused {
    Misbehaved(Misbehaved),
    Post(PostError),
}

impl From<Misbehaved> for Refused {
    fn from(problem: Misbehaved) -> Refused {
        Refused::Misbehaved(problem)
    }
}

fn blame(from: Identity, problem: Misbehaved) -> PostError {
    match problem {
        Misbehaved::Channel(source) => PostError::Channel { from, source },
        Misbehaved::Wire(source) => PostError::Wire { from, source },
        Misbehaved::Copy => PostError::Unreadable { from, problem: Misbehaved::Copy.to_string() },
    }
}

/// Takes the next bytes, and appends the messages that they complete to `messages`.
fn complete<M: DeserializeOwned>(
    partial: &mut Vec<u8>,
    from: Identity,
    payload: &[u8],
    messages: &mut Vec<M>,
) -> Result<(), PostError> {
    partial.extend_from_slice(payload);
    let mut at = 0;
    while let Some(head) = partial.get(at..at + 4) {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if length > MAX_MESSAGE {
            return Err(PostError::TooLong { from, length });
        }
        let Some(body) = partial.get(at + 4..at + 4 + length) else { break };
        let message = postcard::from_bytes(body).map_err(|e| PostError::Unreadable { from, problem: e.to_string() })?;
        messages.push(message);
        at += 4 + length;
    }
    partial.drain(..at);
    Ok(())
}

#[cfg(test)]
mod tests;
