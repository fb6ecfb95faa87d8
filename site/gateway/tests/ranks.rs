//! Ranks that share bytes with ranks at other sites: real endpoints behind real gateways.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use endpoint::operation::{CompleteWhen, Match, RecvOp, SendOp};
use endpoint::{
    Completion, Config, Endpoint, EndpointLimits, Failure, JobConfig, NotBegun, PeerId, ShareOp, ShareTree, UserData,
};
use memory::{Buffer, Regions};
use support::*;
use tokio::sync::oneshot;
use types::{Address, Rank, Roster, SiteId};

/// Ranks 0 and 1 at a, 2 and 3 at b, 4 and 5 at c, on a node each.
const ROSTER: &str = "a:n1*1,n2*1;b:n1*1,n2*1;c:n1*1,n2*1";
const CHAIN: &[(u16, u16)] = &[(0, 1), (1, 2)];
const STAR: &[(u16, u16)] = &[(0, 1), (0, 2)];
const MIB: usize = 1 << 20;

/// The job's launcher, which answers its gateway until it is dropped.
struct Launcher {
    _stop: oneshot::Sender<()>,
}

/// Three sites and the ranks of a job, all driven by the test's thread.
struct World {
    sites: Vec<Running>,
    ranks: Vec<Option<Endpoint>>,
    launcher: Option<Launcher>,
    done: BTreeMap<(usize, usize), Completion>,
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ seed.wrapping_mul(101) ^ (at >> 8)) as u8).collect()
}

fn tree(edges: &[(u16, u16)]) -> ShareTree {
    ShareTree { edges: edges.iter().map(|(above, site)| (SiteId(*above), SiteId(*site))).collect(), weight: 1.0 }
}

fn user(context: usize) -> UserData {
    UserData { context, flags: 0 }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

impl World {
    fn new() -> World {
        World::with(&Plan { names: vec!["a", "b", "c"], ..Plan::default() })
    }

    fn with(plan: &Plan) -> World {
        let sites = start(plan);
        let runtime = runtime();
        let mut job = runtime.block_on(async {
            for (site, other) in [(0, "b"), (0, "c"), (1, "c")] {
                within("trunk", async { sites[site].client().await.probe(other).await }).await.unwrap();
            }
            open(&sites[0], "a", 1, ROSTER).await
        });
        let (id, secret) = (job.id, job.secret.clone());
        let (stop, mut stopped) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = &mut stopped => return job.close().await,
                        frame = job.launcher.receive() => if !matches!(frame, Ok(Some(_))) { return },
                    }
                }
            });
        });
        let roster: Roster = ROSTER.parse().unwrap();
        let open = |rank| {
            let site = &sites[usize::from(roster.place(rank).unwrap().site.0)];
            let gateway = endpoint::config::SiteGateway {
                site: site.gateway.site.clone(),
                name: "gw1".into(),
                address: site.inside.parse().unwrap(),
            };
            let job = JobConfig {
                id,
                secret: secret.clone(),
                roster: roster.clone(),
                rank,
                gateways: vec![gateway],
                watched: false,
                window: 1 << 20,
                memory: Vec::new(),
                encrypted: None,
            };
            let limits = EndpointLimits { linger: Duration::ZERO, ..EndpointLimits::default() };
            let config = Config { job: Some(job), limits, ..Config::standalone("127.0.0.1:0".parse().unwrap()) };
            Some(Endpoint::open(config, 0, Arc::new(Regions::default())).unwrap())
        };
        let ranks = (0..roster.size()).map(|rank| open(Rank(rank))).collect();
        World { sites, ranks, launcher: Some(Launcher { _stop: stop }), done: BTreeMap::new() }
    }

    fn rank(&mut self, rank: usize) -> &mut Endpoint {
        self.ranks[rank].as_mut().expect("a rank that lives")
    }

    fn address(&self, rank: usize) -> Address {
        let own = self.ranks.iter().flatten().next().unwrap().address();
        let identity = support::rank(rank as u16 / 2, rank as u32);
        Address { socket: "0.0.0.0:0".parse().unwrap(), identity, ..own }
    }

    fn peer(&mut self, at: usize, of: usize) -> PeerId {
        let address = self.address(of);
        self.rank(at).peer(address)
    }

    fn share(&mut self, root: usize, key: u64, to: &[usize], bytes: Vec<u8>, trees: &[&[(u16, u16)]], context: usize) {
        let to = to.iter().map(|rank| self.peer(root, *rank)).collect();
        let trees = trees.iter().map(|edges| tree(edges)).collect();
        let op = ShareOp { key, to, buffer: Buffer::owned(bytes), trees, user: user(context) };
        self.rank(root).share(op).unwrap();
    }

    fn receive(&mut self, at: usize, root: usize, key: u64, length: usize, context: usize) {
        let from = self.peer(at, root);
        self.rank(at).receive_share(from, key, Buffer::owned(vec![0; length]), user(context)).unwrap();
    }

    fn turn(&mut self) -> bool {
        let mut moved = false;
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let Some(rank) = rank else { continue };
            moved |= rank.progress();
            while let Some(done) = rank.next_share_completion().or_else(|| rank.next_completion()) {
                let context = done.user.context;
                assert!(
                    self.done.insert((number, context), done).is_none(),
                    "rank {number}: {context} completes twice"
                );
            }
        }
        moved
    }

    /// The completion of this context at a rank.
    fn done(&mut self, rank: usize, context: usize) -> Completion {
        let mut wait = client::patience::Wait::new(LIMIT);
        loop {
            if let Some(done) = self.done.remove(&(rank, context)) {
                return done;
            }
            assert!(wait.left().is_some(), "rank {rank}: {context} not within {:?}", wait.elapsed());
            if !self.turn() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    fn arrives(&mut self, rank: usize, context: usize, expected: &[u8]) {
        let done = self.done(rank, context);
        assert_eq!((&done.result, done.length as usize), (&Ok(()), expected.len()), "rank {rank}: {context}");
        assert!(done.buffer.unwrap().to_vec(0..expected.len()) == expected, "rank {rank}: {context}");
    }

    fn turns(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn();
        }
    }

    /// Bytes of the job that each site's gateway has received from other sites and sent to them. A gateway's own
    /// measurements, which may begin at any time, do not count.
    fn crossed(&mut self) -> BTreeMap<String, (u64, u64)> {
        let mut crossed = BTreeMap::new();
        for site in &self.sites {
            let view = runtime().block_on(async { site.client().await.observe().await }).unwrap();
            let traffic = view.jobs.iter().map(|job| job.traffic).next().expect("the job is open");
            crossed.insert(view.site, (traffic.received, traffic.sent));
        }
        crossed
    }
}

/// Traffic between sites since `before`, in copies of `size` bytes: for each site, received and sent.
fn copies(world: &mut World, before: &BTreeMap<String, (u64, u64)>, size: usize) -> Vec<(String, f64, f64)> {
    let of = |now: u64, before: u64| (now - before) as f64 / size as f64;
    let crossed = world.crossed().into_iter();
    crossed.map(|(site, now)| (site.clone(), of(now.0, before[&site].0), of(now.1, before[&site].1))).collect()
}

#[test]
fn one_copy_goes_into_a_site_whatever_the_tree() {
    let mut world = World::new();
    for edges in [CHAIN, STAR, &[(0, 2), (2, 1)]] {
        for to in [&[2, 4][..], &[2, 3, 4, 5]] {
            // On a machine that is too busy for timely acknowledgements, frames are retransmitted.
            let problems = (0..4).map_while(|_| one_copy(&mut world, edges, to).err());
            let problems: Vec<Box<dyn Error>> = problems.collect();
            assert!(problems.len() < 4, "{problems:?}");
        }
    }
}

/// Broadcasts, and compares the traffic between sites with the tree's.
fn one_copy(world: &mut World, edges: &[(u16, u16)], to: &[usize]) -> Result<(), Box<dyn Error>> {
    let (size, before) = (4 * MIB, world.crossed());
    for receiver in to {
        world.receive(*receiver, 0, 7, size, 1);
    }
    world.share(0, 7, to, bytes(size, to.len()), &[edges], 2);
    for receiver in to {
        world.arrives(*receiver, 1, &bytes(size, to.len()));
    }
    assert_eq!(world.done(0, 2).result, Ok(()));
    for (number, (site, received, sent)) in copies(world, &before, size).into_iter().enumerate() {
        let branches = |is: fn(&(u16, u16)) -> u16| edges.iter().filter(|edge| is(edge) == number as u16).count();
        let (into, out) = (branches(|edge| edge.1) as f64, branches(|edge| edge.0) as f64);
        if !((into..into + 0.02).contains(&received) && (out..out + 0.02).contains(&sent)) {
            return Err(format!("{edges:?}: {received} copies came to {site}, {sent} left").into());
        }
    }
    Ok(())
}

#[test]
fn nothing_is_sent_before_all_are_ready_or_have_room() {
    let mut world = World::new();
    // More than half of the memory that a rank keeps for one of five others.
    let long = 8 * MIB;
    let before = world.crossed();
    world.receive(2, 0, 1, long, 1);
    world.share(0, 1, &[2, 5], bytes(long, 1), &[CHAIN], 2);
    world.turns(Duration::from_millis(200));
    assert!(copies(&mut world, &before, long).iter().all(|(_, received, sent)| *received < 0.01 && *sent < 0.01));
    assert_eq!(world.rank(2).share_arrived(user(1)), Some(0));
    world.receive(5, 0, 1, long, 1);
    world.arrives(2, 1, &bytes(long, 1));
    world.arrives(5, 1, &bytes(long, 1));
    assert_eq!(world.done(0, 2).result, Ok(()));
    // Bytes that a receiver has room for arrive before they are awaited.
    world.share(0, 3, &[2, 5], bytes(MIB, 3), &[CHAIN], 2);
    assert_eq!(world.done(0, 2).result, Ok(()));
    world.turns(Duration::from_millis(200));
    for receiver in [2, 5] {
        world.receive(receiver, 0, 3, MIB, 1);
        world.arrives(receiver, 1, &bytes(MIB, 3));
    }
}

#[test]
fn a_receiver_that_ends_costs_the_others_nothing() {
    let mut world = World::new();
    let lost = world.address(3);
    for (edges, key) in [(CHAIN, 1), (STAR, 2)] {
        let size = 16 * MIB;
        let to: Vec<usize> = [2, 3, 4, 5].into_iter().filter(|rank| world.ranks[*rank].is_some()).collect();
        for receiver in &to {
            world.receive(*receiver, 0, key, size, 1);
        }
        world.share(0, key, &to, bytes(size, 1), &[edges], 2);
        while world.ranks[3].is_some() && world.rank(3).share_arrived(user(1)).unwrap() < MIB as u64 {
            world.turn();
        }
        let ended = world.ranks[3].take().is_some();
        for receiver in [2, 4, 5] {
            world.arrives(receiver, 1, &bytes(size, 1));
        }
        let result = world.done(0, 2).result;
        if ended {
            assert!(
                matches!(&result, Err(Failure::PeerLost { address, .. }) if address.identity == lost.identity),
                "{result:?}"
            );
        } else {
            assert_eq!(result, Ok(()));
        }
    }
    // A receiver that is known to be lost fails a share at its end, and the others get the share.
    let lost_id = world.peer(0, 3);
    world.receive(4, 0, 3, MIB, 1);
    world.share(0, 3, &[3, 4], bytes(MIB, 3), &[STAR], 2);
    world.arrives(4, 1, &bytes(MIB, 3));
    assert!(matches!(world.done(0, 2).result, Err(Failure::PeerLost { .. })));
    assert_eq!(world.rank(0).peer_address(lost_id).unwrap().identity, lost.identity);
}

#[test]
fn a_job_that_loses_its_root_ends_and_names_it() {
    let mut world = World::new();
    let size = 64 * MIB;
    for receiver in [2, 4] {
        world.receive(receiver, 0, 1, size, 1);
    }
    world.share(0, 1, &[2, 4], bytes(size, 1), &[CHAIN], 2);
    let root = world.address(0).identity;
    while world.rank(4).share_arrived(user(1)).unwrap() < MIB as u64 {
        world.turn();
    }
    drop(world.ranks[0].take());
    world.turns(Duration::from_millis(100));
    // The root's agent notifies the launcher, which ends the job.
    drop(world.launcher.take());
    for receiver in [2, 4] {
        let result = world.done(receiver, 1).result;
        assert!(matches!(&result, Err(Failure::PeerLost { address, .. }) if address.identity == root), "{result:?}");
    }
}

#[test]
fn buffers_may_be_shorter_than_the_share() {
    let mut world = World::new();
    let size = MIB + 5;
    for (receiver, length) in [(2, 1000), (3, 0), (4, size), (5, 2 * size)] {
        world.receive(receiver, 0, 1, length, 1);
    }
    world.share(0, 1, &[2, 3, 4, 5], bytes(size, 1), &[CHAIN, STAR], 2);
    for (receiver, kept) in [(2, 1000), (3, 0)] {
        let done = world.done(receiver, 1);
        assert_eq!(done.result, Err(Failure::Truncated { total: size as u64, kept }));
        assert!(done.buffer.unwrap().to_vec(0..kept as usize) == bytes(size, 1)[..kept as usize]);
    }
    world.arrives(4, 1, &bytes(size, 1));
    world.arrives(5, 1, &bytes(size, 1));
    assert_eq!(world.done(0, 2).result, Ok(()));
}

/// Small, fast, seeded: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % limit as u64) as usize
    }

    fn tree(&mut self, root: u16) -> [(u16, u16); 2] {
        let others: Vec<u16> = (0..3).filter(|site| *site != root).collect();
        let first = self.below(2);
        let (first, second) = (others[first], others[1 - first]);
        [(root, first), (if self.below(2) == 0 { root } else { first }, second)]
    }
}

#[test]
fn shares_of_all_ranks_and_messages_between_them_do_not_mix() {
    let mut world = World::new();
    let mut random = Random(1);
    let mut expected = Vec::new();
    let lengths = [0, 1, 1000, 16_384, 100_000, 1_000_000];
    for number in 0..40 {
        let (root, length) = (random.below(6), lengths[random.below(lengths.len())]);
        let others: Vec<usize> = (0..6).filter(|rank| rank / 2 != root / 2).collect();
        let to: Vec<usize> = match random.below(3) {
            0 => others.clone(),
            1 => vec![others[random.below(2)], others[2 + random.below(2)]],
            _ => vec![others[random.below(4)]],
        };
        let trees: Vec<[(u16, u16); 2]> = (0..1 + random.below(3)).map(|_| random.tree(root as u16 / 2)).collect();
        let trees: Vec<&[(u16, u16)]> = trees.iter().map(|tree| &tree[..]).collect();
        let late = random.below(2) == 0;
        let ready = |world: &mut World| {
            to.iter().for_each(|rank| world.receive(*rank, root, number as u64, length, number));
        };
        if !late {
            ready(&mut world);
        }
        world.share(root, number as u64, &to, bytes(length, number), &trees, number);
        if late {
            ready(&mut world);
        }
        // A message from the root to each receiver, and back.
        for rank in &to {
            for (from, at) in [(root, *rank), (*rank, root)] {
                let length = lengths[random.below(lengths.len())];
                let (tag, context) = ((1000 * number + 10 * from + at) as u64, 10_000 + 200 * number + 10 * from + at);
                let matching = Match { from: Some(world.peer(at, from)), tagged: true, tag, ignore: 0 };
                let buffer = Buffer::owned(vec![0; length]);
                world.rank(at).receive(RecvOp { matching, buffer, multi: None, user: user(context) }).unwrap();
                let (to, buffer) = (world.peer(from, at), Buffer::owned(bytes(length, tag as usize)));
                let complete = CompleteWhen::Sent;
                let sent = SendOp { to, tag: Some(tag), data: None, buffer, complete, user: user(100_000 + context) };
                world.rank(from).send(sent).unwrap();
                expected.push((at, context, bytes(length, tag as usize)));
                expected.push((from, 100_000 + context, Vec::new()));
            }
            expected.push((*rank, number, bytes(length, number)));
        }
        expected.push((root, number, Vec::new()));
        world.turns(Duration::from_millis(random.below(20) as u64));
    }
    for (rank, context, bytes) in expected {
        if bytes.is_empty() {
            assert_eq!(world.done(rank, context).result, Ok(()), "rank {rank}: {context}");
        } else {
            world.arrives(rank, context, &bytes);
        }
    }
    assert!(world.sites.iter().all(|site| site.counters.snapshot().violations == 0));
}

#[test]
fn shares_that_cannot_be_sent_are_refused() {
    let mut world = World::new();
    let to = world.peer(0, 2);
    let op = |to: Vec<PeerId>| ShareOp { key: 1, to, buffer: Buffer::empty(), trees: vec![tree(CHAIN)], user: user(1) };
    assert!(matches!(world.rank(0).share(op(vec![to, to])), Err(NotBegun::Tree(_))));
    let own = world.peer(0, 1);
    assert!(matches!(world.rank(0).share(op(vec![own])), Err(NotBegun::Tree(_))));
}
