use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memory::Buffer;
use pool::{HostId, RecordKind, Region, Seat, SeatState};
use proptest::prelude::*;

use crate::config::EndpointLimits;
use crate::endpoint::tests::{EndpointPair, neighbours, pattern, rank_config, recv_op, region, region_path, send_op};
use crate::operation::{CompleteWhen, Completion, Failure, Match, NotBegun, RecvOp, SendOp};
use crate::{Endpoint, PeerId};

/// Frames of at least this length go by single copy in these tests, whose messages are short.
const SINGLE_COPY: u64 = 3000;

fn pair(limits: EndpointLimits) -> EndpointPair {
    neighbours(Arc::default(), Arc::default(), limits)
}

/// A message is not copied only to wait for a full ring: its sender tries again.
fn send_when_there_is_room(pair: &mut EndpointPair, op: impl Fn() -> SendOp) {
    while let Err(refused) = pair.a.send(op()) {
        assert_eq!(refused, NotBegun::Again);
        pair.a.progress();
        pair.b.progress();
    }
}

#[derive(Clone, Debug)]
enum RingAction {
    Send { tag: u64, length: usize, complete: CompleteWhen },
    Receive { tag: u64, any: bool, length: usize },
    Turn(u8, bool),
}

fn action() -> impl Strategy<Value = RingAction> {
    let complete = prop::sample::select(vec![CompleteWhen::Buffered, CompleteWhen::Sent, CompleteWhen::Delivered]);
    let length = prop_oneof![Just(0usize), 1usize..300, 1000usize..200_000];
    prop_oneof![
        3 => (0u64..3, length.clone(), complete)
            .prop_map(|(tag, length, complete)| RingAction::Send { tag, length, complete }),
        3 => (0u64..3, any::<bool>(), length).prop_map(|(tag, any, length)| RingAction::Receive { tag, any, length }),
        4 => (1u8..20, any::<bool>()).prop_map(|(count, of_a)| RingAction::Turn(count, of_a)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    /// The promise of `protocol` between two protocols also holds with the rings between them: each receive gets the
    /// message that MPI specifies, whole or truncated, through records, pieces or single copies.
    #[test]
    fn every_message_reaches_the_receive_that_mpi_names(
        eager in 0u64..80_000, single_copy in prop::sample::select(vec![SINGLE_COPY, u64::MAX]),
        actions in prop::collection::vec(action(), 1..80),
    ) {
        let default = EndpointLimits::default();
        let mut pair = pair(EndpointLimits { eager_memory: eager, single_copy: Some(single_copy), ..default });
        let to = pair.a.peer(pair.b.address());
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for action in actions {
            match action {
                RingAction::Send { tag, length, complete } => {
                    let number = sends.len();
                    let op = || SendOp { complete, ..send_op(to, tag, &pattern(length, number), number) };
                    send_when_there_is_room(&mut pair, op);
                    sends.push((tag, length));
                }
                RingAction::Receive { tag, any, length } => {
                    let matching = Match { from: None, tagged: true, tag, ignore: if any { u64::MAX } else { 0 } };
                    pair.b.receive(RecvOp { matching, ..recv_op(tag, length, receives.len()) }).unwrap();
                    receives.push(length);
                }
                RingAction::Turn(count, of_a) => {
                    let end = if of_a { &mut pair.a } else { &mut pair.b };
                    (0..count).for_each(|_| _ = end.progress());
                }
            }
        }
        // A receive for any message collects those that are left unmatched.
        let matching = Match { from: None, tagged: true, tag: 0, ignore: u64::MAX };
        for _ in 0..sends.len() {
            pair.b.receive(RecvOp { matching, ..recv_op(0, 200_000, receives.len()) }).unwrap();
            receives.push(200_000);
        }
        let mut got: Vec<Option<(u64, usize, Vec<u8>)>> = vec![None; receives.len()];
        for _ in 0..sends.len() {
            let done = pair.next(false);
            let room = receives[done.user.context] as u64;
            let truncated = Failure::Truncated { total: done.length, kept: room };
            let expected = if done.length > room { Err(truncated) } else { Ok(()) };
            prop_assert_eq!(&done.result, &expected);
            let bytes = done.buffer.unwrap().to_vec(0..done.length.min(room) as usize);
            got[done.user.context] = Some((done.tag, done.length as usize, bytes));
        }
        for _ in 0..sends.len() {
            prop_assert_eq!(pair.next(true).result, Ok(()));
        }
        for tag in 0..3 {
            let sent = sends.iter().enumerate().filter(|(_, send)| send.0 == tag);
            let received: Vec<_> = got.iter().flatten().filter(|received| received.0 == tag).collect();
            prop_assert_eq!(received.len(), sent.clone().count());
            for ((number, send), (_, length, bytes)) in sent.zip(received) {
                prop_assert_eq!(send.1, *length);
                prop_assert!(pattern(*length, number)[..bytes.len()] == bytes[..], "message {number}");
            }
        }
        pair.quiet();
        prop_assert!(pair.a.is_idle() && pair.b.is_idle());
        prop_assert_eq!(pair.a.traffic().site.items + pair.b.traffic().site.items, 0, "nothing went by socket");
    }

    /// A neighbour that writes arbitrary bytes into its ring is dropped, and harms nobody.
    #[test]
    fn any_record_is_taken_or_refused(
        records in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), any::<bool>(), 0u8..12, any::<bool>()),
            1..30,
        ),
    ) {
        let (region, mut a, stranger) = with_stranger();
        a.receive(recv_op(0, 10, 1)).unwrap();
        let mut ring = region.producer(stranger, region.place(0, 0).unwrap()).unwrap();
        for (mut bytes, copy, code, small) in records {
            if small {
                // Small numbers are more likely to name an existing transfer.
                bytes.iter_mut().for_each(|byte| *byte &= 3);
            }
            if let Some(first) = bytes.first_mut() {
                *first = code;
            }
            let Some(mut space) = ring.reserve(bytes.len() as u32).unwrap() else { break };
            space.write(0, &bytes);
            space.publish(if copy { RecordKind::Copy } else { RecordKind::Frame });
            region.knock(stranger, region.place(0, 0).unwrap());
            (0..130).for_each(|_| _ = a.progress());
        }
    }
}

/// Rank 0, and in rank 1's place a peer that violates the protocol.
fn with_stranger() -> (Region, Endpoint, u32) {
    let region = region();
    let place = region.place(1, 0).unwrap();
    let doorbell = "127.0.0.1:9".parse().unwrap();
    region.join(place, &Seat { pid: std::process::id(), host: HostId::own(), doorbell, probe: (8, 8) }).unwrap();
    let a =
        Endpoint::open(rank_config(&region_path(&region), 0, EndpointLimits::default()), 0, Arc::default()).unwrap();
    (region, a, place)
}

/// Rank 1's peer number at rank 0: known only by its identity.
fn rank_1(a: &mut Endpoint) -> PeerId {
    let me = a.address();
    let slot = types::Slot::rank(types::Rank(1), types::Instance(0)).unwrap();
    a.peer(types::Address { identity: types::Identity { slot, ..me.identity }, ..me })
}

fn completion(endpoint: &mut Endpoint) -> Completion {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(done) = endpoint.next_completion() {
            return done;
        }
        assert!(Instant::now() < deadline, "no completion");
        if !endpoint.progress() {
            endpoint.wait(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_damaged_ring_loses_its_peer_with_a_reason() {
    let (region, mut a, stranger) = with_stranger();
    let from = rank_1(&mut a);
    let matching = Match { from: Some(from), tagged: true, tag: 1, ignore: 0 };
    a.receive(RecvOp { matching, ..recv_op(1, 8, 5) }).unwrap();
    let mut ring = region.producer(stranger, 0).unwrap();
    let mut space = ring.reserve(100).unwrap().unwrap();
    space.write(0, &[0xFF; 100]);
    space.publish(RecordKind::Frame);
    region.knock(stranger, 0);
    let done = completion(&mut a);
    assert!(
        matches!(&done.result, Err(Failure::PeerLost { reason, .. }) if reason.contains("protocol error")),
        "{done:?}"
    );
}

#[test]
fn a_single_copy_from_memory_that_cannot_be_read_loses_its_peer() {
    let (region, mut a, stranger) = with_stranger();
    let from = rank_1(&mut a);
    a.receive(RecvOp { matching: Match { from: Some(from), tagged: true, tag: 0, ignore: 0 }, ..recv_op(0, 64, 5) })
        .unwrap();
    let mut ring = region.producer(stranger, 0).unwrap();
    let start =
        wire::Message::Start { id: 1, tagged: true, tag: 0, total: 64, promised: 64, data: None, wants_done: false };
    let mut bytes: Vec<u8> = [64u64, 1, 8, 64].iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend_from_slice(start.encode(64).as_slice());
    let mut space = ring.reserve(bytes.len() as u32).unwrap().unwrap();
    space.write(0, &bytes);
    space.publish(RecordKind::Copy);
    region.knock(stranger, 0);
    let done = completion(&mut a);
    assert!(
        matches!(&done.result, Err(Failure::PeerLost { reason, .. }) if reason.contains("cannot be read")),
        "{done:?}"
    );
}

#[test]
fn a_sleeper_is_woken_by_what_arrives_and_by_room() {
    let mut pair = pair(EndpointLimits { single_copy: Some(u64::MAX), ..EndpointLimits::default() });
    let to = pair.a.peer(pair.b.address());
    let EndpointPair { mut a, mut b } = pair;
    const COUNT: usize = 200;
    let receiver = std::thread::spawn(move || {
        for n in 0..COUNT {
            b.receive(recv_op(1, 300_000, n)).unwrap();
            while b.next_completion().is_none() {
                // If the doorbell did not wake us, this test would take an hour.
                b.wait(Duration::from_secs(30));
            }
        }
        b
    });
    for n in 0..COUNT {
        a.send(send_op(to, 1, &pattern(if n % 10 == 0 { 300_000 } else { 10 }, n), n)).unwrap();
        while a.next_completion().is_none() {
            a.wait(Duration::from_secs(30));
        }
        if n % 20 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(receiver.join().unwrap());
}

#[test]
fn a_closed_endpoint_is_a_goodbye_even_to_who_never_heard_from_it() {
    let mut pair = pair(EndpointLimits::default());
    let to = pair.a.peer(pair.b.address());
    pair.a.send(SendOp { complete: CompleteWhen::Delivered, ..send_op(to, 1, b"x", 3) }).unwrap();
    pair.b.close();
    let done = completion(&mut pair.a);
    assert_eq!(done.user.context, 3);
    assert!(
        matches!(&done.result, Err(Failure::PeerLost { reason, .. }) if reason.contains("closed its endpoint")),
        "{done:?}"
    );
    pair.a.send(send_op(to, 1, b"x", 4)).unwrap();
    assert!(matches!(completion(&mut pair.a).result, Err(Failure::PeerLost { .. })));
}

/// The neighbour's last act was to copy our message, and we notice the copy and its end at once.
#[test]
fn a_message_that_a_neighbour_copied_before_it_closed_has_been_sent() {
    let mut pair =
        pair(EndpointLimits { single_copy: Some(SINGLE_COPY), eager_memory: 1 << 20, ..EndpointLimits::default() });
    let (a, b) = (pair.b.peer(pair.a.address()), pair.a.peer(pair.b.address()));
    // The first messages test that memory can be read, and open the ring for the goodbye.
    pair.b.send(send_op(a, 1, b"x", 5)).unwrap();
    pair.a.receive(recv_op(1, 1, 5)).unwrap();
    assert_eq!(completion(&mut pair.a).result, Ok(()));
    for (context, length) in [(6, 1), (7, 100_000)] {
        pair.a.send(send_op(b, 1, &pattern(length, context), context)).unwrap();
        pair.b.receive(recv_op(1, length, context)).unwrap();
        while completion(&mut pair.b).user.context != context {}
    }
    assert_eq!(pair.a.next_completion().map(|done| done.user.context), Some(6));
    pair.b.close();
    let done = completion(&mut pair.a);
    assert_eq!((done.user.context, done.result), (7, Ok(())));
}

#[test]
fn what_was_sent_before_closing_arrives() {
    let mut pair = pair(EndpointLimits::default());
    let to = pair.a.peer(pair.b.address());
    for n in 0..100 {
        let op = || SendOp { complete: CompleteWhen::Buffered, ..send_op(to, 1, &pattern(500, n), 0) };
        send_when_there_is_room(&mut pair, op);
    }
    pair.a.close();
    for n in 0..100 {
        pair.b.receive(recv_op(1, 500, n)).unwrap();
        let done = completion(&mut pair.b);
        assert_eq!((done.user.context, done.result), (n, Ok(())));
        assert!(done.buffer.unwrap().to_vec(0..500) == pattern(500, n));
    }
}

/// The other half of the tests below: rank 1, which sends a hello and then works until it is killed.
#[test]
#[ignore = "started by other tests"]
fn other_process() {
    let config = rank_config(&std::env::var("MEMORY_TEST_REGION").unwrap(), 1, EndpointLimits::default());
    let mut b = Endpoint::open(config, 0, Arc::default()).unwrap();
    let slot = types::Slot::rank(types::Rank(0), types::Instance(0)).unwrap();
    let me = b.address();
    let to = b.peer(types::Address { identity: types::Identity { slot, ..me.identity }, ..me });
    b.send(send_op(to, 1, b"hello", 1)).unwrap();
    writeln!(std::io::stderr(), "working").unwrap();
    loop {
        b.receive(RecvOp { buffer: Buffer::owned(vec![0; 1 << 20]), ..recv_op(2, 0, 9) }).unwrap();
        loop {
            match b.next_completion() {
                Some(done) if done.user.context == 9 => {
                    let bytes = done.buffer.unwrap().to_vec(0..done.length as usize);
                    b.send(send_op(to, 3, &bytes, 2)).unwrap();
                    break;
                }
                Some(_) => {}
                None => _ = b.wait(Duration::from_millis(5)),
            }
        }
    }
}

/// Rank 0 here and rank 1 in a process of its own.
fn with_other_process() -> (Region, Endpoint, Child) {
    let region = region();
    let a =
        Endpoint::open(rank_config(&region_path(&region), 0, EndpointLimits::default()), 0, Arc::default()).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "memory_link::tests::other_process", "--nocapture"]);
    command.env("MEMORY_TEST_REGION", region_path(&region)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "working"));
    (region, a, child)
}

#[test]
fn two_processes_and_then_a_killed_one() {
    let (_region, mut a, mut child) = with_other_process();
    let b = rank_1(&mut a);
    a.receive(recv_op(1, 5, 1)).unwrap();
    assert_eq!(completion(&mut a).buffer.unwrap().to_vec(0..5), b"hello");
    for length in [1, 2000, 50_000, 300_000, 1 << 20] {
        a.receive(recv_op(3, length, 7)).unwrap();
        a.send(send_op(b, 2, &pattern(length, 1), 6)).unwrap();
        let (one, two) = (completion(&mut a), completion(&mut a));
        let back = if one.user.context == 7 { one } else { two };
        assert!(back.buffer.unwrap().to_vec(0..length) == pattern(length, 1), "{length} bytes there and back");
    }
    let receive = |a: &mut Endpoint, context| {
        let matching = Match { from: Some(b), tagged: true, tag: 99, ignore: 0 };
        a.receive(RecvOp { matching, ..recv_op(99, 8, context) }).unwrap();
    };
    receive(&mut a, 1);
    a.send(SendOp { complete: CompleteWhen::Delivered, ..send_op(b, 77, b"never received", 2) }).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    for _ in 0..2 {
        let done = completion(&mut a);
        let named = format!("process {} has ended", child.id());
        assert!(matches!(&done.result, Err(Failure::PeerLost { reason, .. }) if reason.contains(&named)), "{done:?}");
    }
    receive(&mut a, 3);
    assert!(matches!(completion(&mut a).result, Err(Failure::PeerLost { .. })), "later receives fail at once");
}

#[test]
fn a_region_that_cannot_be_joined_is_an_error_that_names_site_node_and_path() {
    let region = region();
    let path = region_path(&region);
    let open = |path: &str, rank| Endpoint::open(rank_config(path, rank, EndpointLimits::default()), 0, Arc::default());
    let gone = open("/dev/shm/no-such-region", 0).err().unwrap().to_string();
    assert!(gone.starts_with("site here: node n1: memory /dev/shm/no-such-region: is not there"), "{gone}");
    let first = open(&path, 0).unwrap();
    let again = open(&path, 0).err().unwrap().to_string();
    assert!(
        again.contains(&format!("endpoint 0 of rank 0 is already open in process {}", std::process::id())),
        "{again}"
    );
    drop(first);
    assert_eq!(region.state(0), SeatState::Closed);
}
