//! Two protocol ends without sockets. Frames of a seeded size cross with a seeded delay, and the outcome is compared
//! with MPI's matching rules.

use proptest::prelude::*;

use super::*;
use crate::link::Bytes;
use crate::link::Sink;
use crate::operation::{Match, RecvOp};

const MAX_PAYLOADS: [u32; 4] = [64, 200, 4096, 1 << 20];

struct ProtocolEnd {
    protocol: Protocol,
    peer: PeerId,
    /// Items in flight to the other side, and frames made from them.
    items: VecDeque<Outgoing>,
    /// Items that have arrived completely without our notice: a neighbour copies from our memory.
    left: Vec<Outgoing>,
}

struct ProtocolPair {
    ends: [ProtocolEnd; 2],
    seed: u64,
}

fn address(port: u16) -> Address {
    Address::standalone(std::net::SocketAddr::from(([10, 0, 0, 1], port)))
}

impl ProtocolPair {
    fn new(seed: u64, eager: u64, credit: u64) -> ProtocolPair {
        let end = |own: u16, other: u16| {
            let limits = EndpointLimits { eager, ..EndpointLimits::default() };
            let mut protocol = Protocol::new(limits, credit, SiteId(0), Arc::new(Regions::default()));
            protocol.intern(address(own));
            let peer = protocol.intern(address(other));
            ProtocolEnd { protocol, peer, items: VecDeque::new(), left: Vec::new() }
        };
        ProtocolPair { ends: [end(1, 2), end(2, 1)], seed: seed | 1 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below
    }

    /// Moves one frame from one side to the other, in pieces. Returns whether there was one.
    fn step(&mut self, from: usize) -> bool {
        let max_payload = MAX_PAYLOADS[self.random(4) as usize];
        let piece = 1 + self.random(5000) as usize;
        let notices = self.random(3) == 0;
        let [a, b] = &mut self.ends;
        let (sender, receiver) = if from == 0 { (a, b) } else { (b, a) };
        sender.items.extend(sender.protocol.outbox.drain(..).map(|(_, item)| item));
        if notices || sender.items.is_empty() {
            let left = sender.left.drain(..).filter_map(|item| item.sent);
            left.for_each(|sent| sender.protocol.sent(sent));
        }
        let Some(item) = sender.items.front_mut() else { return false };
        let (header, count) = item.next_frame(max_payload);
        let mut payload = Vec::new();
        item.copy_to(count, sender.protocol.regions(), &mut payload).unwrap();
        let length = header.as_slice().len() as u32 + count as u32;
        let (message, _) = Message::decode(header.as_slice(), length).unwrap();
        if item.advance(count) {
            sender.left.extend(sender.items.pop_front());
        }
        let mut place = receiver.protocol.begin(receiver.peer, message, count as u32).unwrap();
        payload.chunks(piece).for_each(|chunk| receiver.protocol.put(&mut place, chunk));
        receiver.protocol.end(place);
        true
    }

    /// True if every item that borrows a send's memory still has its transfer: the user may reuse the memory only after
    /// the transfer has ended.
    fn lends_only_what_is_not_complete(&self) -> bool {
        let [end, _] = &self.ends;
        let items = end.items.iter().chain(&end.left).chain(end.protocol.outbox.iter().map(|(_, item)| item));
        let mut lent = items.filter(|item| matches!(item.bytes, Bytes::Shared(_)));
        lent.all(|item| matches!(end.protocol.transfers.get(item.id as usize), Some(OwnTransfer::Send { .. })))
    }

    fn settle(&mut self) {
        while self.step(0) | self.step(1) {}
    }
}

fn content(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + number) as u8).collect()
}

#[derive(Clone, Debug)]
enum ProtocolAction {
    Send { tag: u64, length: usize, complete: CompleteWhen },
    Receive { tag: u64, any: bool, length: usize },
    Move(u8),
}

fn action() -> impl Strategy<Value = ProtocolAction> {
    let complete = prop::sample::select(vec![CompleteWhen::Buffered, CompleteWhen::Sent, CompleteWhen::Delivered]);
    let length = prop_oneof![Just(0usize), 1usize..300, 1000usize..20_000];
    prop_oneof![
        3 => (0u64..3, length.clone(), complete)
            .prop_map(|(tag, length, complete)| ProtocolAction::Send { tag, length, complete }),
        3 => (0u64..3, any::<bool>(), length)
            .prop_map(|(tag, any, length)| ProtocolAction::Receive { tag, any, length }),
        4 => (1u8..20).prop_map(ProtocolAction::Move),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    /// For all sizes, frames and orders of events: each receive gets the message that MPI specifies, whole or
    /// truncated.
    #[test]
    fn every_message_reaches_the_receive_that_mpi_names(
        seed: u64, eager in 0u64..8000, credit in 1000u64..40_000, actions in prop::collection::vec(action(), 1..120),
    ) {
        let mut world = ProtocolPair::new(seed, eager, credit);
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                ProtocolAction::Send { tag, length, complete } => {
                    let (to, number) = (world.ends[0].peer, sends.len());
                    let buffer = Buffer::owned(content(number, length));
                    let user = UserData { context: number + 1, flags: 0 };
                    let op = SendOp { to, tag: Some(tag), data: None, buffer, complete, user };
                    world.ends[0].protocol.send(op).unwrap();
                    sends.push((tag, length));
                }
                ProtocolAction::Receive { tag, any, length } => {
                    let user = UserData { context: receives.len(), flags: 0 };
                    let matching = Match { from: None, tagged: true, tag, ignore: if any { u64::MAX } else { 0 } };
                    let buffer = Buffer::owned(vec![0xEE; length]);
                    world.ends[1].protocol.receive(RecvOp { matching, buffer, multi: None, user }).unwrap();
                    receives.push((matching, length));
                }
                ProtocolAction::Move(count) => for _ in 0..count {
                    let from = world.random(2) as usize;
                    world.step(from);
                    prop_assert!(world.lends_only_what_is_not_complete());
                },
            }
        }
        // A receive for any message collects those that are left unmatched.
        for _ in 0..sends.len() {
            let user = UserData { context: receives.len(), flags: 0 };
            let matching = Match { from: None, tagged: true, tag: 0, ignore: u64::MAX };
            let buffer = Buffer::owned(vec![0xEE; 20_000]);
            world.ends[1].protocol.receive(RecvOp { matching, buffer, multi: None, user }).unwrap();
            receives.push((matching, 20_000));
            world.settle();
        }
        let mut got: Vec<Option<(u64, usize, Vec<u8>)>> = vec![None; receives.len()];
        for done in std::mem::take(&mut world.ends[1].protocol.completions) {
            let room = receives[done.user.context].1 as u64;
            let truncated = Failure::Truncated { total: done.length, kept: room };
            let expected = if done.length > room { Err(truncated) } else { Ok(()) };
            prop_assert_eq!(&done.result, &expected);
            let bytes = done.buffer.unwrap().to_vec(0..done.length.min(room) as usize);
            got[done.user.context] = Some((done.tag, done.length as usize, bytes));
        }
        // Each tag's messages must be received in the order they were sent (MPI's non-overtaking rule).
        for tag in 0..3 {
            let sent = sends.iter().enumerate().filter(|(_, send)| send.0 == tag).map(|(number, _)| number);
            let received = got.iter().flatten().filter(|received| received.0 == tag);
            let mut pairs = sent.zip(received).peekable();
            prop_assert!(pairs.peek().is_some() || !sends.iter().any(|send| send.0 == tag));
            for (number, (_, length, bytes)) in pairs {
                prop_assert_eq!(sends[number].1, *length);
                prop_assert!(content(number, *length)[..bytes.len()] == bytes[..]);
            }
        }
        prop_assert_eq!(got.iter().flatten().count(), sends.len());
        let completed = world.ends[0].protocol.completions.iter().filter(|done| done.result.is_ok()).count();
        prop_assert_eq!(completed, sends.len());
        prop_assert!(world.ends[0].protocol.is_idle() && world.ends[1].protocol.is_idle());
        prop_assert_eq!(world.ends[1].protocol.stored(), 0);
        prop_assert!(world.ends[1].protocol.incoming.is_empty() && world.ends[1].protocol.active.is_empty());
    }

    /// A peer that sends arbitrary messages can make us refuse it, but not panic.
    #[test]
    fn any_message_is_taken_or_refused(
        frames in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..60), 0u8..12), 1..60),
    ) {
        let mut world = ProtocolPair::new(1, 1000, 20_000);
        let end = &mut world.ends[0];
        let matching = Match { from: None, tagged: true, tag: 0, ignore: u64::MAX };
        for (mut bytes, code) in frames {
            let buffer = Buffer::owned(vec![0; 10]);
            end.protocol.receive(RecvOp { matching, buffer, multi: None, user: UserData::default() }).unwrap();
            // Small numbers are more likely to name an existing transfer.
            bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = if at == 0 { code } else { *byte & 3 });
            let Ok((message, used)) = Message::decode(&bytes, bytes.len() as u32) else { continue };
            let following = &bytes[used..];
            let Ok(mut place) = end.protocol.begin(end.peer, message, following.len() as u32) else { continue };
            end.protocol.put(&mut place, following);
            end.protocol.end(place);
        }
    }
}

/// Receivers confirm the bytes that they have. A confirmation with an error does not count as delivery.
#[test]
fn a_delivery_that_is_refused_is_not_complete() {
    let mut world = ProtocolPair::new(1, 1000, 20_000);
    let end = &mut world.ends[0];
    let (buffer, user) = (Buffer::owned(content(1, 10)), UserData::default());
    let op = SendOp { to: end.peer, tag: Some(1), data: None, buffer, complete: CompleteWhen::Delivered, user };
    end.protocol.send(op).unwrap();
    let (_, item) = end.protocol.outbox.pop_front().unwrap();
    end.protocol.sent(item.sent.unwrap());
    let done = |status| Message::Done { id: item.id, status };
    end.protocol.begin(end.peer, done(Status::UnknownKey), 0).unwrap_err();
    assert!(end.protocol.completions.is_empty());
    end.protocol.begin(end.peer, done(Status::Ok), 0).unwrap();
    assert_eq!(end.protocol.completions.pop_front().unwrap().result, Ok(()));
}

/// Every frame of a message longer than 4 GiB. Only the last bytes are examined: the earlier memory is never touched.
#[test]
fn a_message_over_four_gibibytes_arrives_at_its_offsets() {
    const TOTAL: usize = (4 << 30) + 1000;
    const TAIL: u64 = 300;
    let mut world = ProtocolPair::new(1, 1000, 20_000);
    let mut source = vec![0u8; TOTAL];
    source[TOTAL - TAIL as usize..].copy_from_slice(&content(7, TAIL as usize));
    let user = UserData::default();
    let (to, buffer) = (world.ends[0].peer, Buffer::owned(source));
    let op = SendOp { to, tag: Some(1), data: None, buffer, complete: CompleteWhen::Sent, user };
    world.ends[0].protocol.send(op).unwrap();
    let matching = Match { from: None, tagged: true, tag: 1, ignore: 0 };
    let buffer = Buffer::owned(vec![0; TOTAL]);
    world.ends[1].protocol.receive(RecvOp { matching, buffer, multi: None, user }).unwrap();
    while world.ends[0].items.front().is_none_or(|item| item.end < TOTAL as u64) {
        assert!(world.step(0) | world.step(1), "no Go for the rest");
        let [a, _] = &mut world.ends;
        a.items.extend(a.protocol.outbox.drain(..).map(|(_, item)| item));
    }
    let [a, b] = &mut world.ends;
    let mut item = a.items.pop_front().unwrap();
    while item.left() > TAIL {
        let count = (item.left() - TAIL).min(1 << 20);
        let more = Message::More { id: item.id, offset: item.at, reply: false };
        let mut place = b.protocol.begin(b.peer, more, count as u32).unwrap();
        let mut left = count as usize;
        while left > 0 {
            left -= b.protocol.fill(&mut place, left, &mut |slice| Ok(slice.len())).unwrap();
        }
        b.protocol.end(place);
        item.advance(count);
    }
    a.items.push_front(item);
    world.settle();
    let done = world.ends[1].protocol.completions.pop_front().unwrap();
    assert_eq!((done.result, done.length), (Ok(()), TOTAL as u64));
    assert_eq!(done.buffer.unwrap().to_vec(TOTAL - TAIL as usize..TOTAL), content(7, TAIL as usize));
}

/// Receives of one message and transfers in flight count as awaited; buffers that are always posted do not.
#[test]
fn standing_buffers_are_not_awaited() {
    let mut world = ProtocolPair::new(1, 1000, 20_000);
    let any = |tagged| Match { from: None, tagged, tag: 0, ignore: u64::MAX };
    let [sender, receiver] = &mut world.ends;
    let user = |context| UserData { context, ..UserData::default() };
    let buffer = || Buffer::owned(vec![0; 100]);
    for context in [1, 2] {
        let op = RecvOp { matching: any(false), buffer: buffer(), multi: Some(50), user: user(context) };
        receiver.protocol.receive(op).unwrap();
    }
    assert!(!receiver.protocol.is_awaited());
    receiver.protocol.receive(RecvOp { matching: any(true), buffer: buffer(), multi: None, user: user(3) }).unwrap();
    assert!(receiver.protocol.is_awaited());
    assert!(receiver.protocol.cancel(1), "one buffer fewer");
    assert!(receiver.protocol.is_awaited());
    let send = |tag, length| {
        let buffer = Buffer::owned(content(1, length));
        SendOp { to: sender.peer, tag, data: None, buffer, complete: CompleteWhen::Sent, user: user(4) }
    };
    let sends = [send(None, 60), send(Some(1), 10)];
    for op in sends {
        world.ends[0].protocol.send(op).unwrap();
        assert!(world.ends[0].protocol.is_awaited());
    }
    world.settle();
    let [sender, receiver] = &world.ends;
    assert!(!sender.protocol.is_awaited() && !receiver.protocol.is_awaited());
}
