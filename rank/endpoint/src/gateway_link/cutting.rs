//! Cutting of items into frames that are kept until they are acknowledged.

use std::collections::VecDeque;
use std::sync::Arc;

use member::{Carrier, PeerQueue, Route};
use wire::{FrameHeader, Message};

use super::connection::GatewayConnection;
use super::notice;
use crate::link::{Bytes, Outgoing, Sent, Sink};
use crate::sharing::SharePieces;

/// A frame, kept until its receiver has it. All receivers of a share's frame use the same body.
#[derive(Clone, Debug)]
pub(super) struct KeptFrame {
    head: Arc<Vec<u8>>,
    body: Option<Arc<Vec<u8>>>,
}

/// Items queued for a peer.
#[derive(Debug, Default)]
pub(super) struct Items(pub(super) VecDeque<Outgoing>);

impl Items {
    /// The longest payload of the next frame: a message with nothing queued behind it is split into more frames.
    fn most(&self, max_payload: u32) -> u32 {
        match self.0.front() {
            Some(item) if self.0.len() == 1 => item.pipelined(max_payload),
            _ => max_payload,
        }
    }
}

impl PeerQueue for Items {
    type Share = SharePieces;

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn left(&self) -> u64 {
        self.0.front().map_or(0, Outgoing::left)
    }

    fn next_len(&self, max_payload: u32) -> u32 {
        self.0.front().map_or(0, |item| item.next_frame_len(self.most(max_payload)))
    }
}

/// Splits items into frames and puts them on connections.
pub(super) struct Cutter<'a> {
    pub(super) connections: &'a mut [GatewayConnection],
    pub(super) sink: &'a mut dyn Sink,
    pub(super) buffered: &'a mut u64,
}

impl Carrier<KeptFrame, Items> for Cutter<'_> {
    fn room(&self, route: Route) -> Option<u32> {
        let connection = &self.connections[usize::from(route.0)];
        connection.has_room().then(|| connection.max_payload())
    }

    fn cut(&mut self, queue: &mut Items, header: FrameHeader, most: u32) -> (KeptFrame, u32) {
        let most = queue.most(most);
        // An empty queue is never cut; if it were, the frame would be empty.
        let nothing = || Outgoing::header(Message::More { id: 0, offset: 0, reply: false });
        if queue.is_empty() {
            queue.0.push_back(nothing());
        }
        let mut bytes = Vec::with_capacity(queue.0[0].next_frame_len(most) as usize);
        let with_length = |length| FrameHeader { length, ..header };
        let done = queue.0[0].cut_frame(most, with_length, self.sink.regions(), &mut bytes);
        if done && let Some(item) = queue.0.pop_front() {
            if item.detach {
                *self.buffered -= item.end;
            }
            item.sent.into_iter().for_each(|sent| self.sink.sent(sent));
        }
        let length = bytes.len() as u32;
        (KeptFrame { head: Arc::new(bytes), body: None }, length)
    }

    fn put(&mut self, route: Route, frame: KeptFrame) {
        let connection = &mut self.connections[usize::from(route.0)];
        connection.push(frame.head);
        frame.body.into_iter().for_each(|body| connection.push(body));
    }

    fn notice(&mut self, route: Route, header: FrameHeader, payload: &[u8]) {
        notice(self.connections, route, header, payload);
    }

    fn cut_share(&mut self, share: &mut SharePieces, most: u32) -> Arc<Vec<u8>> {
        let count = share.next_count(most);
        let header = Message::Share { key: share.key, offset: share.at, total: share.total() }.encode(count);
        let mut bytes = Vec::with_capacity(header.as_slice().len() + count as usize);
        bytes.extend_from_slice(header.as_slice());
        let range = share.at as usize..(share.at + count) as usize;
        share.buffer.slices(range).for_each(|slice| bytes.extend_from_slice(slice));
        (share.at, share.begun) = (share.at + count, true);
        Arc::new(bytes)
    }

    fn framed(&self, header: FrameHeader, payload: &Arc<Vec<u8>>) -> KeptFrame {
        let header = FrameHeader { length: payload.len() as u32, ..header };
        KeptFrame { head: Arc::new(header.encode().to_vec()), body: Some(payload.clone()) }
    }

    fn put_many(&mut self, route: Route, header: FrameHeader, block: &[u8], payload: &Arc<Vec<u8>>) {
        let header = FrameHeader { length: (block.len() + payload.len()) as u32, ..header };
        let connection = &mut self.connections[usize::from(route.0)];
        connection.push(Arc::new([&header.encode()[..], block].concat()));
        connection.push(payload.clone());
    }

    fn alone(&mut self, share: &SharePieces, queue: &mut Items) {
        self.sink.alone(share.number);
        let SharePieces { number, key, ref buffer, at, .. } = *share;
        let bytes = Bytes::Share { key, buffer: buffer.clone() };
        let sent = Some(Sent::Share(number));
        let (id, end) = (0, share.total());
        queue.0.push_back(Outgoing { head: None, id, reply: false, at, end, bytes, detach: false, sent });
    }
}
