//! Shares among three to five sites in the same storms, with messages to single peers among them.

use super::*;

/// Number of storms in an ordinary test run; `SHARE_STORMS` names another number.
const STORMS: u64 = 200;

/// A share that was begun: its root, its receivers, and its number of frames.
struct Begun {
    root: usize,
    to: Vec<usize>,
    frames: u64,
    /// Receivers that do not expect it yet, with the times at which they will.
    late: Vec<(usize, u64)>,
}

impl Begun {
    /// Some receivers learn of a share when part or all of it is in flight.
    fn expect(&mut self, world: &mut SimulatedJob, now: u64) {
        let root = world.members[self.root].0;
        let mut expects = |receiver: usize| world.members[receiver].1.expect_shares(root, root);
        self.late.retain(|(receiver, at)| {
            let is_late = *at > now;
            if !is_late {
                expects(*receiver);
            }
            is_late
        });
    }
}

/// A random tree of sites below the root's.
fn tree(random: &mut SplitMix64, root: usize, sites: usize) -> ShareTree {
    let mut todo: Vec<usize> = (0..sites).filter(|site| *site != root).collect();
    let (mut there, mut edges) = (vec![root], Vec::new());
    while !todo.is_empty() {
        let site = todo.swap_remove(random.below(todo.len() as u64) as usize);
        let above = there[random.below(there.len() as u64) as usize];
        edges.push((SiteId(above as u16), SiteId(site as u16)));
        there.push(site);
    }
    ShareTree { edges, weight: 1.0 + random.below(4) as f64 }
}

/// Begins a share of a random member.
fn begin(world: &mut SimulatedJob, number: u64) -> Begun {
    let (sites, members) = (world.gateways.len(), world.members.len());
    let root = world.random.below(members as u64) as usize;
    let mut to: Vec<usize> = (0..members).filter(|member| member % sites != root % sites).collect();
    // At least one receiver per site.
    let all = world.random.below(2) == 0;
    to.retain(|member| all || *member < sites);
    let frames = 1 + world.random.below(60);
    let length = |random: &mut SplitMix64| 8 + random.below(1500) as u32;
    let pieces = (0..frames).map(|index| (SHARED | number << 32 | index, length(&mut world.random))).collect();
    let trees = (0..1 + world.random.below(3)).map(|_| tree(&mut world.random, root % sites, sites)).collect();
    let keys: Vec<(Identity, Identity)> =
        to.iter().map(|member| (world.members[*member].0, world.members[*member].0)).collect();
    let now = world.now;
    // A generator of its own, which leaves the world's sequence of random numbers unchanged.
    let mut random = SplitMix64(number << 32 | now);
    let late = to.iter().map(|receiver| (*receiver, now + random.below(2) * random.below(400))).collect();
    let mut begun = Begun { root, to, frames, late };
    begun.expect(world, now);
    world.members[root].1.share(Numbers(pieces), &keys, trees);
    begun
}

/// Runs a storm. Returns true if everything arrived and was acknowledged before patience ran out, and the number of
/// frames for several receivers.
fn storm(seed: u64, rules: Rules) -> (bool, u64) {
    let mut world = SimulatedJob::new(seed, rules, 3 + (seed % 3) as usize);
    let sites = world.gateways.len();
    if !rules.ask_when_silent {
        world.introduce();
    }
    let (breaks, quiet) = (world.random.below(40), 2000);
    let mut singles: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let mut shares: Vec<Begun> = Vec::new();
    let (mut there, mut since) = (0, 0);
    loop {
        if world.now < quiet {
            if world.random.below(1000) < breaks {
                world.breaks();
            }
            if world.random.below(60) == 0 {
                let begun = begin(&mut world, shares.len() as u64);
                shares.push(begun);
            }
            let members = world.members.len() as u64;
            let (from, to) = (world.random.below(members) as usize, world.random.below(members) as usize);
            if from % sites != to % sites && world.random.below(4) == 0 {
                world.send_one(from, to, singles.entry((to, from)).or_default());
            }
        } else if world.now == quiet {
            let now_ns = world.now * STEP_NS;
            if seed.is_multiple_of(2) {
                world.members.iter_mut().for_each(|(_, talk)| talk.leave(now_ns));
            }
        }
        let now = world.now;
        shares.iter_mut().for_each(|share| share.expect(&mut world, now));
        world.step();
        if world.now <= quiet {
            continue;
        }
        let now_there = world.came.values().map(Vec::len).sum::<usize>()
            + world.members.iter().filter(|(_, talk)| talk.is_settled()).count();
        if now_there != there {
            (there, since) = (now_there, world.now);
        }
        let all = singles.values().sum::<u64>()
            + shares.iter().map(|share| share.frames * share.to.len() as u64).sum::<u64>();
        let whole = world.came.values().map(|came| came.len() as u64).sum::<u64>() == all;
        let odd = !seed.is_multiple_of(2) && world.now > quiet + 2000 && !rules.ask_when_silent;
        if whole && (odd || world.members.iter().all(|(_, talk)| talk.is_settled())) {
            check(&world, seed, &singles, &shares);
            return (true, world.many);
        }
        if world.now - since > 20_000 {
            if std::env::var_os("STORM").is_some() {
                world.describe(&singles);
            }
            return (false, world.many);
        }
    }
}

/// Checks that everything came once, in the order in which its root sent it.
fn check(world: &SimulatedJob, seed: u64, singles: &BTreeMap<(usize, usize), u64>, shares: &[Begun]) {
    for (pair, came) in &world.came {
        let single: Vec<u64> = came.iter().copied().filter(|number| number & SHARED == 0).collect();
        let sent = singles.get(pair).copied().unwrap_or(0);
        assert!(single.iter().copied().eq(0..sent), "seed {seed}: {pair:?} got {single:?}");
        for (number, share) in (0..).zip(shares) {
            let is_of = |came: &&u64| *came & SHARED != 0 && (*came & !SHARED) >> 32 == number;
            let indices: Vec<u64> = came.iter().filter(is_of).map(|came| came & 0xffff_ffff).collect();
            let frames = if share.root == pair.1 && share.to.contains(&pair.0) { share.frames } else { 0 };
            assert!(indices.iter().copied().eq(0..frames), "seed {seed}: share {number}: {pair:?} got {indices:?}");
        }
    }
}

fn storms() -> u64 {
    std::env::var("SHARE_STORMS").ok().and_then(|count| count.parse().ok()).unwrap_or(STORMS)
}

#[test]
fn shares_arrive_once_and_in_order() {
    let mut many = 0;
    for seed in 0..storms() {
        let (arrived, frames) = storm(seed, ALL);
        assert!(arrived, "seed {seed}: stalled");
        many += frames;
    }
    assert!(many > storms() * 100, "only {many} frames were for several receivers");
}

/// Among members that know each other: if a connection breaks with the very first frame of a peer, only that peer's
/// second of silence finds out. In the last storm, a copy is refused at a gateway without a trunk to the root's site;
/// that site reaches the receiver's through another gateway.
#[test]
fn notices_alone_are_enough_for_shares() {
    for seed in (0..storms()).chain([1184]) {
        assert!(storm(seed, NOTICES).0, "seed {seed}: stalled");
    }
}

#[test]
fn time_alone_is_enough_for_shares() {
    let shares = Rules { again_on_return: false, again_on_passage: false, again_below: false, ..SILENCE };
    let rules = Rules { report_copies: false, tell_of_unsaid: false, ..shares };
    for seed in 0..storms() / 2 {
        assert!(storm(seed, rules).0, "seed {seed}: stalled");
    }
}

/// Number of storms that stall without each rule when no time limit helps. Of 1,000: without reports about copies 368,
/// without retransmission after a passage 39, without retransmission of copies through a receiver's site 4, without
/// retransmission after the loss of a gateway 2, and none without the others, which only save time.
#[test]
#[ignore = "minutes in a debug build; run with --release -- --ignored --nocapture"]
#[allow(clippy::print_stderr, reason = "the figures are what a person runs it for")]
fn without_a_rule_shares_stall() {
    let cases = [
        ("again_on_return", Rules { again_on_return: false, ..NOTICES }),
        ("again_on_passage", Rules { again_on_passage: false, ..NOTICES }),
        ("again_below", Rules { again_below: false, ..NOTICES }),
        ("again_on_loss", Rules { again_on_loss: false, ..NOTICES }),
        ("report_copies", Rules { report_copies: false, ..NOTICES }),
        ("tell_of_unsaid", Rules { tell_of_unsaid: false, ..NOTICES }),
        ("ask_on_loss", Rules { ask_on_loss: false, ..NOTICES }),
        ("ask_on_return", Rules { ask_on_return: false, ..NOTICES }),
    ];
    let count = storms().max(1000);
    for (name, rules) in cases {
        let stalled = (0..count).filter(|seed| !storm(*seed, rules).0).count();
        eprintln!("without {name}: {stalled} of {count} storms stall");
    }
}

/// Sends a share along a chain of four sites, and freezes a node for five seconds. Returns the time at which each
/// receiver has all of it, in milliseconds.
fn frozen(gateways: usize, frames: u64, node: SimulatedNode) -> Vec<Option<u64>> {
    let shape = Shape {
        gateways: vec![gateways; 4],
        per_site: 1,
        window: Window::Adapting(64 << 20),
        budget: None,
        delay: 3,
        refuses: 0,
    };
    let mut world = SimulatedJob::shaped(0, ALL, SplitMix64(0), shape);
    let keys: Vec<(Identity, Identity)> = (1..4).map(|at| (world.members[at].0, world.members[at].0)).collect();
    let edges = (0..3).map(|at| (SiteId(at), SiteId(at + 1))).collect();
    let pieces = (0..frames).map(|number| (SHARED | number, 4000)).collect();
    world.members[0].1.share(Numbers(pieces), &keys, vec![ShareTree { edges, weight: 1.0 }]);
    let mut ends = vec![None; 3];
    while world.now < 20_000 && ends.iter().any(Option::is_none) {
        match world.now {
            4 => world.frozen = Some(node),
            5000 => world.frozen = None,
            _ => {}
        }
        world.step();
        for (at, end) in ends.iter_mut().enumerate() {
            let came = world.came.get(&(at + 1, 0)).map_or(0, Vec::len) as u64;
            if came == frames && end.is_none() {
                *end = Some(world.now);
            }
        }
    }
    ends
}

#[test]
fn others_do_not_wait_for_a_site_that_stands_still() {
    // More frames than windows hold, and few enough to be all sent before the node freezes.
    for frames in [5000, 30] {
        let ends = frozen(1, frames, SimulatedNode::Gateway(1, 0));
        let [one, two, three] = ends[..] else { panic!() };
        assert!(one.is_some_and(|end| end >= 5000), "{frames}: {ends:?}");
        assert!(two.max(three).is_some_and(|end| end < 1500), "{frames}: {ends:?}");
        // Only the receiver stands still.
        let ends = frozen(1, frames, SimulatedNode::Member(1));
        assert!(ends[1].max(ends[2]).is_some_and(|end| end < 1500), "{frames}: {ends:?}");
        // The other gateways reach every receiver.
        for gateway in 0..2 {
            let ends = frozen(2, frames, SimulatedNode::Gateway(1, gateway));
            assert!(ends.iter().all(|end| end.is_some_and(|end| end < 1500)), "{frames}: {ends:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_share_storm(seed: u64) {
        prop_assert!(storm(seed, ALL).0);
    }
}
