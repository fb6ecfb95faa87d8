use super::*;
use crate::config::{JobConfig, NativeConfig};
use crate::operation::{CompleteWhen, Failure, OperationKind};
use crate::operation::{Match, PeekThen, ReadOp, RecvOp, SendOp, UserData, WriteOp};
use memory::Access;
use memory::Buffer;

mod encrypted;

/// Two endpoints outside any job, over real sockets.
pub(crate) struct EndpointPair {
    pub a: Endpoint,
    pub b: Endpoint,
}

thread_local! {
    /// True if this test's pair consists of two ranks that share memory.
    static NEIGHBOURS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

thread_local! {
    /// True if this test's pair consists of two ranks of a site that is encrypted inside.
    static ENCRYPTED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

thread_local! {
    /// The site's own network, in tests that `through` runs again.
    static NATIVE: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

fn config() -> Config {
    let native = NATIVE.get().map(|provider| NativeConfig { provider: provider.into(), library: None });
    Config { native, ..Config::standalone("127.0.0.1:0".parse().unwrap()) }
}

fn endpoint() -> Endpoint {
    Endpoint::open(config(), 0, Arc::new(Regions::default())).unwrap()
}

fn pair() -> EndpointPair {
    pair_with([Arc::default(), Arc::default()])
}

fn pair_with(regions: [Arc<Regions>; 2]) -> EndpointPair {
    let [a, b] = regions;
    if NEIGHBOURS.get() {
        return neighbours(a, b, EndpointLimits::default());
    }
    if ENCRYPTED.get() {
        return encrypted::ranks(a, b);
    }
    let open = |regions| Endpoint::open(config(), 0, regions).unwrap();
    EndpointPair { a: open(a), b: open(b) }
}

/// Two ranks of a job on one node, with a region of their own.
pub(crate) fn neighbours(a: Arc<Regions>, b: Arc<Regions>, limits: EndpointLimits) -> EndpointPair {
    let region = region();
    let open = |rank, regions| Endpoint::open(rank_config(&region_path(&region), rank, limits), 0, regions).unwrap();
    EndpointPair { a: open(0, a), b: open(1, b) }
}

/// A region for the two ranks of [`rank_config`].
pub(crate) fn region() -> pool::Region {
    let shape = pool::Shape { job: JobId(77), first: 0, ranks: 2 };
    pool::Region::unnamed(std::path::Path::new("/dev/shm"), shape).unwrap()
}

/// The path by which processes of this test open the region.
pub(crate) fn region_path(region: &pool::Region) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(region.file()))
}

/// A rank of a job of two on one node.
pub(crate) fn rank_config(memory: &str, rank: u32, limits: EndpointLimits) -> Config {
    let job = JobConfig {
        id: JobId(77),
        secret: Secret::new([1; 32]),
        roster: "here:n1*2".parse().unwrap(),
        rank: types::Rank(rank),
        gateways: Vec::new(),
        watched: false,
        window: 1 << 20,
        encrypted: None,
        memory: vec![memory.into()],
    };
    Config { job: Some(job), limits, ..Config::standalone("127.0.0.1:0".parse().unwrap()) }
}

/// The tests below that any link must pass, for ranks that share memory.
macro_rules! for_neighbours_too {
    ($($name:ident),*) => {
        mod in_shared_memory {
            $(#[test]
            fn $name() {
                super::NEIGHBOURS.set(true);
                super::$name();
            })*
        }
    };
}

for_neighbours_too!(
    messages_of_all_lengths_arrive_whole_and_in_order,
    untagged_data_and_source_are_reported,
    delivery_means_in_the_receivers_buffer,
    long_messages_are_truncated_and_say_so,
    peek_claim_discard_and_cancel,
    a_multi_receive_takes_messages_until_it_is_full,
    regions_are_written_read_and_updated,
    a_flood_is_bounded_and_nothing_is_lost,
    to_itself
);

pub(crate) fn user(context: usize) -> UserData {
    UserData { context, flags: 0 }
}

pub(crate) fn send_op(to: PeerId, tag: u64, bytes: &[u8], context: usize) -> SendOp {
    let buffer = Buffer::owned(bytes.to_vec());
    SendOp { to, tag: Some(tag), data: None, buffer, complete: CompleteWhen::Sent, user: user(context) }
}

pub(crate) fn recv_op(tag: u64, length: usize, context: usize) -> RecvOp {
    let matching = Match { from: None, tagged: true, tag, ignore: 0 };
    RecvOp { matching, buffer: Buffer::owned(vec![0; length]), multi: None, user: user(context) }
}

pub(crate) fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ seed ^ (at >> 8)) as u8).collect()
}

impl EndpointPair {
    pub(crate) fn turn(&mut self) {
        self.a.progress();
        self.b.progress();
    }

    /// The next completion of one side.
    pub(crate) fn next(&mut self, of_a: bool) -> Completion {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let side = if of_a { &mut self.a } else { &mut self.b };
            if let Some(completion) = side.next_completion() {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion");
            self.turn();
        }
    }

    pub(crate) fn quiet(&mut self) {
        // Libfabric's own connections take longer than ours.
        let least = Duration::from_millis(if NATIVE.get().is_some() { 200 } else { 0 });
        let begin = Instant::now();
        for turn in 0.. {
            if turn >= 300 && begin.elapsed() >= least {
                return;
            }
            self.turn();
        }
    }
}

#[test]
fn messages_of_all_lengths_arrive_whole_and_in_order() {
    let mut pair = pair();
    let b = pair.a.peer(pair.b.address());
    let lengths = [0, 1, 100, 4095, 4096, 4097, 65_536, 262_144, 262_145, 1 << 20, (5 << 20) + 3];
    for posted_first in [true, false] {
        for (n, length) in lengths.into_iter().enumerate() {
            if posted_first {
                pair.b.receive(recv_op(7, length, n)).unwrap();
            }
            pair.a.send(send_op(b, 7, &pattern(length, n), n)).unwrap();
        }
        if !posted_first {
            pair.quiet();
            lengths.into_iter().enumerate().for_each(|(n, length)| pair.b.receive(recv_op(7, length, n)).unwrap());
        }
        for (n, length) in lengths.into_iter().enumerate() {
            let mut done = pair.next(false);
            // Completions may overtake each other where a long message is still arriving. Matching must keep the order.
            while done.user.context != n {
                pair.b.protocol.completions.push_back(done);
                pair.turn();
                done = pair.next(false);
            }
            assert_eq!((done.result, done.length as usize, done.tag), (Ok(()), length, 7));
            assert!(done.buffer.unwrap().to_vec(0..length) == pattern(length, n), "message {n} of {length} bytes");
        }
        let mut sent: Vec<usize> = lengths.iter().map(|_| pair.next(true).user.context).collect();
        sent.sort_unstable();
        assert_eq!(sent, (0..lengths.len()).collect::<Vec<_>>());
    }
    pair.quiet();
    assert!(pair.a.is_idle());
}

/// Two endpoints that give up an unreachable peer after 50 ms.
fn impatient() -> EndpointPair {
    let limits = EndpointLimits { connect: Duration::from_millis(50), ..EndpointLimits::default() };
    let open = || Endpoint::open(Config { limits, ..config() }, 0, Arc::default()).unwrap();
    EndpointPair { a: open(), b: open() }
}

#[test]
fn a_peer_that_computes_for_long_is_not_lost() {
    // The dialled rank is computing.
    let mut pair = impatient();
    let to_b = pair.a.peer(pair.b.address());
    pair.a.send(send_op(to_b, 5, b"early", 1)).unwrap();
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until {
        pair.a.progress();
    }
    pair.b.receive(recv_op(5, 100, 2)).unwrap();
    assert!([true, false].into_iter().all(|of_a| pair.next(of_a).result.is_ok()));

    // The dialling rank is computing, before it has sent anything.
    let mut pair = impatient();
    let to_b = pair.a.peer(pair.b.address());
    pair.a.send(send_op(to_b, 5, b"early", 1)).unwrap();
    pair.b.receive(recv_op(5, 100, 2)).unwrap();
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until {
        pair.b.progress();
    }
    assert!([true, false].into_iter().all(|of_a| pair.next(of_a).result.is_ok()));

    // Both dial, and the rank whose connection is to stay is computing.
    let mut pair = impatient();
    if pair.a.address().key() > pair.b.address().key() {
        std::mem::swap(&mut pair.a, &mut pair.b);
    }
    let (to_b, to_a) = (pair.a.peer(pair.b.address()), pair.b.peer(pair.a.address()));
    pair.a.send(send_op(to_b, 5, b"there", 1)).unwrap();
    pair.b.send(send_op(to_a, 6, b"and back", 2)).unwrap();
    pair.a.progress();
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until {
        pair.b.progress();
    }
    pair.b.receive(recv_op(5, 100, 3)).unwrap();
    pair.a.receive(recv_op(6, 100, 4)).unwrap();
    assert!([true, false, true, false].into_iter().all(|of_a| pair.next(of_a).result.is_ok()));
}

#[test]
fn both_dialling_at_once_leaves_one_connection() {
    for _ in 0..20 {
        let mut pair = pair();
        let b = pair.a.peer(pair.b.address());
        let a = pair.b.peer(pair.a.address());
        pair.a.receive(recv_op(1, 3, 1)).unwrap();
        pair.b.receive(recv_op(1, 3, 1)).unwrap();
        pair.a.send(SendOp { complete: CompleteWhen::Buffered, ..send_op(b, 1, b"a b", 0) }).unwrap();
        pair.b.send(SendOp { complete: CompleteWhen::Buffered, ..send_op(a, 1, b"b a", 0) }).unwrap();
        for of_a in [true, false] {
            let done =
                std::iter::from_fn(|| Some(pair.next(of_a))).find(|done| done.kind == OperationKind::Recv).unwrap();
            assert_eq!(done.buffer.unwrap().to_vec(0..3), if of_a { b"b a" } else { b"a b" });
        }
        pair.quiet();
        assert_eq!((pair.a.site.connection_count(), pair.b.site.connection_count()), (1, 1));
    }
}

/// All schedules of two endpoints: true if A dials first; number of calls before the other one dials; true if the other
/// one has waited so long that its connections are no longer hot; then the number of consecutive calls of each.
fn schedules() -> impl Iterator<Item = (bool, usize, bool, [usize; 2])> {
    let paces = [[1, 1], [1, 4], [4, 1], [0, 1], [1, 0]];
    let starts = [true, false].into_iter().flat_map(|first| (0..8).map(move |start| (first, start)));
    let waits = starts.flat_map(|(first, start)| [false, true].into_iter().map(move |waits| (first, start, waits)));
    waits.flat_map(move |(first, start, waits)| paces.into_iter().map(move |pace| (first, start, waits, pace)))
}

/// One connection remains, whichever endpoint dials first, and however late or slow the other one is.
#[test]
fn dialling_each_other_at_any_moment_leaves_one_connection() {
    for (a_first, head_start, waits, pace) in schedules() {
        let mut pair = pair();
        let b = pair.a.peer(pair.b.address());
        let a = pair.b.peer(pair.a.address());
        pair.a.receive(recv_op(1, 3, 1)).unwrap();
        pair.b.receive(recv_op(1, 3, 1)).unwrap();
        let send = |pair: &mut EndpointPair, of_a: bool| match of_a {
            true => pair.a.send(send_op(b, 1, b"a b", 2)).unwrap(),
            false => pair.b.send(send_op(a, 1, b"b a", 2)).unwrap(),
        };
        let turns = |endpoint: &mut Endpoint, count: usize| (0..count).for_each(|_| _ = endpoint.progress());
        send(&mut pair, a_first);
        for turn in 0..head_start {
            turns(if (turn % 2 == 0) == a_first { &mut pair.b } else { &mut pair.a }, 1);
        }
        if waits {
            turns(if a_first { &mut pair.b } else { &mut pair.a }, 500);
        }
        send(&mut pair, !a_first);
        if waits {
            turns(if a_first { &mut pair.b } else { &mut pair.a }, 3);
        }
        for _ in 0..10 {
            turns(&mut pair.a, pace[0]);
            turns(&mut pair.b, pace[1]);
        }
        for of_a in [true, false] {
            for _ in 0..2 {
                let done = pair.next(of_a);
                assert_eq!(done.result, Ok(()), "{:?}", (a_first, head_start, waits, pace));
                if done.kind == OperationKind::Recv {
                    assert_eq!(done.buffer.unwrap().to_vec(0..3), if of_a { b"b a" } else { b"a b" });
                }
            }
        }
        pair.quiet();
        for of_a in [true, false] {
            send(&mut pair, of_a);
            assert_eq!(pair.next(of_a).result, Ok(()), "{:?}", (a_first, head_start, waits, pace));
        }
        assert_eq!((pair.a.site.connection_count(), pair.b.site.connection_count()), (1, 1));
    }
}

#[test]
fn untagged_data_and_source_are_reported() {
    let mut pair = pair();
    let b = pair.a.peer(pair.b.address());
    let a = pair.b.peer(pair.a.address());
    let matching = Match { from: Some(a), tagged: false, tag: 0, ignore: 0 };
    let buffer = Buffer::owned(vec![0; 4]);
    pair.b.receive(RecvOp { matching, buffer, multi: None, user: user(1) }).unwrap();
    pair.a.send(SendOp { tag: None, data: Some(99), ..send_op(b, 0, b"abcd", 2) }).unwrap();
    let done = pair.next(false);
    assert_eq!((done.data, done.from, done.tagged, done.length), (Some(99), Some(a), false, 4));
}

#[test]
fn delivery_means_in_the_receivers_buffer() {
    let mut pair = pair();
    let b = pair.a.peer(pair.b.address());
    for length in [8, 1 << 20] {
        let op = SendOp { complete: CompleteWhen::Delivered, ..send_op(b, 1, &pattern(length, 0), 5) };
        pair.a.send(op).unwrap();
        pair.quiet();
        assert!(pair.a.next_completion().is_none(), "not received yet");
        pair.b.receive(recv_op(1, length, 6)).unwrap();
        assert_eq!(pair.next(false).user.context, 6);
        assert_eq!(pair.next(true).user.context, 5);
    }
}

#[test]
fn long_messages_are_truncated_and_say_so() {
    let mut pair = pair();
    let b = pair.a.peer(pair.b.address());
    for length in [100, 70_000, 3 << 20] {
        for posted_first in [true, false] {
            if posted_first {
                pair.b.receive(recv_op(1, 64, 6)).unwrap();
            }
            pair.a.send(send_op(b, 1, &pattern(length, 3), 5)).unwrap();
            if !posted_first {
                pair.quiet();
                pair.b.receive(recv_op(1, 64, 6)).unwrap();
            }
            let done = pair.next(false);
            assert_eq!(done.result, Err(Failure::Truncated { total: length as u64, kept: 64 }));
            assert_eq!(done.buffer.unwrap().to_vec(0..64), pattern(length, 3)[..64]);
            assert_eq!(pair.next(true).result, Ok(()));
        }
    }
}

#[test]
fn peek_claim_discard_and_cancel() {
    let mut pair = pair();
    let b = pair.a.peer(pair.b.address());
    let any = Match { from: None, tagged: true, tag: 0, ignore: u64::MAX };
    pair.b.peek(any, PeekThen::Leave, user(1));
    assert_eq!(pair.next(false).result, Err(Failure::NoMessage));
    for tag in 0..3 {
        pair.a.send(send_op(b, tag, &pattern(300_000, tag as usize), 0)).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while NATIVE.get().is_some() && pair.b.protocol.stored() < 900_000 {
        assert!(Instant::now() < deadline, "the messages have not arrived");
        pair.turn();
    }
    pair.quiet();
    pair.b.peek(any, PeekThen::Leave, user(1));
    assert_eq!(pair.next(false).length, 300_000);
    pair.b.peek(Match { tag: 1, ignore: 0, ..any }, PeekThen::Claim, user(2));
    assert_eq!(pair.next(false).tag, 1);
    pair.b.peek(Match { tag: 1, ignore: 0, ..any }, PeekThen::Leave, user(1));
    assert_eq!(pair.next(false).result, Err(Failure::NoMessage), "claimed messages are not found");
    pair.b.peek(Match { tag: 0, ignore: 0, ..any }, PeekThen::Discard, user(3));
    assert_eq!(pair.next(false).user, user(3));
    assert_eq!(pair.b.receive_claimed(Buffer::empty(), user(9)), Err(NotBegun::NotClaimed));
    pair.b.receive_claimed(Buffer::owned(vec![0; 300_000]), user(2)).unwrap();
    assert!(pair.next(false).buffer.unwrap().to_vec(0..300_000) == pattern(300_000, 1));
    pair.b.receive(recv_op(55, 8, 77)).unwrap();
    assert!(pair.b.cancel(77));
    assert!(!pair.b.cancel(77));
    let done = pair.next(false);
    assert_eq!((done.result, done.user.context), (Err(Failure::Cancelled), 77));
}

#[test]
fn a_multi_receive_takes_messages_until_it_is_full() {
    let mut pair = pair();
    let b = pair.a.peer(pair.b.address());
    let matching = Match { from: None, tagged: false, tag: 0, ignore: 0 };
    for round in 0..2 {
        let buffer = Buffer::owned(vec![0; 1000]);
        if round == 0 {
            pair.b.receive(RecvOp { matching, buffer, multi: Some(300), user: user(1) }).unwrap();
        }
        for _ in 0..3 {
            pair.a.send(SendOp { tag: None, ..send_op(b, 0, &[7; 250], 2) }).unwrap();
        }
        if round == 1 {
            pair.quiet();
            let buffer = Buffer::owned(vec![0; 1000]);
            pair.b.receive(RecvOp { matching, buffer, multi: Some(300), user: user(1) }).unwrap();
        }
        for n in 0..3 {
            let done = pair.next(false);
            assert_eq!((done.offset, done.released), (n * 250, n == 2));
        }
    }
}

#[test]
fn regions_are_written_read_and_updated() {
    let regions = Arc::new(Regions::default());
    let mut pair = pair_with([Arc::default(), regions.clone()]);
    let all = Access { remote_read: true, remote_write: true };
    let key = memory::region::testing::register(&regions, 3 << 20, all);
    let b = pair.a.peer(pair.b.address());
    for length in [0, 8, 100_000, 2 << 20] {
        let buffer = Buffer::owned(pattern(length, 1));
        let op = WriteOp {
            to: b,
            key,
            address: 16,
            buffer,
            data: Some(4),
            complete: CompleteWhen::Delivered,
            user: user(1),
        };
        pair.a.write(op).unwrap();
        assert_eq!(pair.next(true).kind, OperationKind::Write);
        let event = pair.next(false);
        assert_eq!((event.kind, event.data, event.length), (OperationKind::RemoteWrite, Some(4), length as u64));
        let buffer = Buffer::owned(vec![0; length]);
        pair.a.read(ReadOp { from: b, key, address: 16, buffer, user: user(2) }).unwrap();
        let done = pair.next(true);
        assert_eq!((done.kind, done.result), (OperationKind::Read, Ok(())));
        assert!(done.buffer.unwrap().to_vec(0..length) == pattern(length, 1));
    }
    let buffer = Buffer::owned(vec![0; 64]);
    pair.a.read(ReadOp { from: b, key: key + 1, address: 0, buffer, user: user(2) }).unwrap();
    assert_eq!(pair.next(true).result, Err(Failure::Refused(wire::message::Status::UnknownKey)));
    let buffer = Buffer::owned(vec![0; 64]);
    let op =
        WriteOp { to: b, key, address: 3 << 20, buffer, data: None, complete: CompleteWhen::Delivered, user: user(1) };
    pair.a.write(op).unwrap();
    assert_eq!(pair.next(true).result, Err(Failure::Refused(wire::message::Status::OutOfBounds)));
    regions.remove(key);
}

#[test]
fn a_flood_is_bounded_and_nothing_is_lost() {
    let mut pair = pair();
    let b = pair.a.peer(pair.b.address());
    let mut accepted = 0;
    loop {
        let op = SendOp { complete: CompleteWhen::Buffered, ..send_op(b, 1, &[accepted as u8; 2000], 1) };
        match pair.a.send(op) {
            Ok(()) => accepted += 1,
            Err(error) => {
                assert_eq!(error, NotBegun::Again);
                break;
            }
        }
        pair.turn();
        assert!(accepted < 1_000_000, "never refused");
    }
    let held: u64 = pair.b.protocol.stored();
    assert!(held <= MAX_CREDIT, "{held} bytes stored for unexpected messages");
    for n in 0..accepted {
        pair.b.receive(recv_op(1, 2000, n)).unwrap();
        let done = pair.next(false);
        assert_eq!(done.buffer.unwrap().to_vec(0..1), [n as u8]);
        while pair.a.next_completion().is_some() {}
    }
}

#[test]
fn to_itself() {
    let mut pair = pair();
    let me = pair.a.peer(pair.a.address());
    for length in [0, 10, 3 << 20] {
        pair.a.send(send_op(me, 1, &pattern(length, 1), 1)).unwrap();
        pair.a.receive(recv_op(1, length, 2)).unwrap();
        let (mut one, mut two) = (pair.next(true), pair.next(true));
        if one.kind == OperationKind::Send {
            std::mem::swap(&mut one, &mut two);
        }
        assert!(one.buffer.unwrap().to_vec(0..length) == pattern(length, 1));
        assert_eq!(two.kind, OperationKind::Send);
    }
}

#[test]
fn a_lost_peer_fails_what_waits_for_it() {
    let mut pair = pair();
    let b = pair.a.peer(pair.b.address());
    pair.a.send(SendOp { complete: CompleteWhen::Delivered, ..send_op(b, 1, b"x", 1) }).unwrap();
    pair.quiet();
    let matching = Match { from: Some(b), tagged: true, tag: 9, ignore: 0 };
    pair.a.receive(RecvOp { matching, ..recv_op(9, 8, 2) }).unwrap();
    // Like a crash: the sockets close without a goodbye.
    pair.b.site = SiteLink::new(
        TcpListener::bind("127.0.0.1:0").unwrap(),
        credentials(&pair.b),
        Duration::from_secs(1),
        None,
        false,
    )
    .unwrap();
    for context in [1, 2] {
        let done = pair.next(true);
        assert_eq!(done.user.context, context);
        assert!(matches!(done.result, Err(Failure::PeerLost { .. })), "{done:?}");
    }
    pair.a.send(send_op(b, 1, b"x", 3)).unwrap();
    assert!(matches!(pair.next(true).result, Err(Failure::PeerLost { .. })));
}

fn credentials(endpoint: &Endpoint) -> Credentials {
    Credentials { job: JobId(0), secret: Secret::NONE, me: endpoint.address() }
}

#[test]
fn an_address_where_nobody_listens_fails() {
    let mut a = endpoint();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let peer = a.peer(Address::standalone(nobody));
    a.send(send_op(peer, 1, b"x", 1)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    let done = loop {
        a.progress();
        if let Some(done) = a.next_completion() {
            break done;
        }
        assert!(Instant::now() < deadline);
    };
    assert!(matches!(&done.result, Err(Failure::PeerLost { reason, .. }) if reason.contains("refused")), "{done:?}");
}

#[test]
fn a_stranger_on_the_port_harms_nobody() {
    use std::io::Write;
    let mut pair = pair();
    let address = pair.b.address().socket;
    let junk: [&[u8]; 4] = [b"GET / HTTP/1.1\r\n\r\n", &[0; 5000], &[255; 5000], b"LBRIDGE\x02\xff\xff\xff\xff"];
    let mut strangers = Vec::new();
    for bytes in junk {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        strangers.push(stream);
        pair.quiet();
    }
    let b = pair.a.peer(pair.b.address());
    pair.b.receive(recv_op(1, 1, 1)).unwrap();
    pair.a.send(send_op(b, 1, b"x", 1)).unwrap();
    assert_eq!(pair.next(false).result, Ok(()));
}

/// Runs a test again with a site's own network between the endpoints.
fn through(provider: &'static str, test: fn()) {
    NATIVE.set(Some(provider));
    test();
    NATIVE.set(None);
}

macro_rules! through {
    ($($module:ident: $provider:literal;)*) => {$(
        mod $module {
            through! { @ $provider
                messages_of_all_lengths_arrive_whole_and_in_order
                both_dialling_at_once_leaves_one_connection
                delivery_means_in_the_receivers_buffer
                long_messages_are_truncated_and_say_so
                peek_claim_discard_and_cancel
                regions_are_written_read_and_updated
                a_flood_is_bounded_and_nothing_is_lost
                a_lost_peer_fails_what_waits_for_it
                an_address_where_nobody_listens_fails
                a_stranger_on_the_port_harms_nobody
                a_goodbye_lets_everything_arrive_first
            }
        }
    )*};
    (@ $provider:literal $($test:ident)*) => {$(
        #[test]
        fn $test() {
            super::through($provider, super::$test);
        }
    )*};
}

through! {
    through_libfabrics_tcp: "tcp";
    through_libfabrics_shm: "shm";
}

#[test]
fn a_goodbye_lets_everything_arrive_first() {
    for length in [0, 100, 60_000, 3 << 20] {
        let mut pair = pair();
        let b = pair.a.peer(pair.b.address());
        let a = pair.b.peer(pair.a.address());
        pair.b.receive(recv_op(1, length, 1)).unwrap();
        // B names A as the sender. A goodbye is not a loss, so this receive stays posted.
        let matching = Match { from: Some(a), tagged: true, tag: 9, ignore: 0 };
        pair.b.receive(RecvOp { matching, ..recv_op(9, 8, 2) }).unwrap();
        pair.a.send(send_op(b, 1, &pattern(length, 5), 3)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        assert_eq!(pair.next(true).result, Ok(()));
        // Closing waits until the other end has received the goodbye.
        let EndpointPair { mut a, mut b } = pair;
        let closing = std::thread::spawn(move || a.close());
        while b.site.connection_count() > 0 {
            assert!(Instant::now() < deadline, "the connection is still open");
            b.progress();
        }
        closing.join().unwrap();
        let done = b.next_completion().unwrap();
        assert_eq!((done.user.context, done.result.clone()), (1, Ok(())));
        assert!(done.buffer.unwrap().to_vec(0..length) == pattern(length, 5));
        assert!(b.next_completion().is_none(), "a goodbye is no loss");
    }
}

#[test]
fn a_fabric_that_is_not_there_is_named() {
    let native = Some(NativeConfig { provider: "cxi".into(), library: None });
    let config = Config { native, ..config() };
    let error = Endpoint::open(config, 0, Arc::new(Regions::default())).map(drop).unwrap_err().to_string();
    for expected in ["this node: the site's fabric `cxi` cannot be used", "tcp", "sites file by `fabric`"] {
        assert!(error.contains(expected), "{error}");
    }
}
