//! Messages to single peers in storms between two sites.

use super::*;

/// Runs a storm. Returns true if everything arrived and was acknowledged before patience ran out.
fn storm(seed: u64, rules: Rules) -> bool {
    let mut world = SimulatedJob::new(seed, rules, 2);
    let (breaks, quiet) = (world.random.below(30), 3000);
    let one_way = world.random.below(3) == 0;
    let mut sent: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    let settled = |world: &SimulatedJob| world.members.iter().filter(|(_, talk)| talk.is_settled()).count();
    let (mut there, mut since) = ((0, 0), 0);
    loop {
        if world.now < quiet {
            if world.random.below(1000) < breaks {
                world.breaks();
            }
            let (from, to) = (world.random.below(world.members.len() as u64) as usize, 0);
            let to = (from + 1 + 2 * (world.random.below(2) as usize + to)) % world.members.len();
            if (from + to) % 2 == 1 && !(one_way && from % 2 == 1) {
                world.send_one(from, to, sent.entry((to, from)).or_default());
            }
        } else if world.now == quiet {
            let now_ns = world.now * STEP_NS;
            if seed.is_multiple_of(2) {
                world.members.iter_mut().for_each(|(_, talk)| talk.leave(now_ns));
            }
        }
        world.step();
        let arrived = |(pair, count): (&(usize, usize), &u64)| {
            let came = world.came.get(pair).map_or(&[][..], Vec::as_slice);
            assert!(came.iter().copied().eq(0..came.len() as u64), "seed {seed}: {pair:?} got {came:?}");
            came.len() == *count as usize
        };
        if world.now > quiet && sent.iter().all(arrived) && world.members.iter().all(|(_, talk)| talk.is_settled()) {
            assert!(world.members.iter().all(|(_, talk)| talk.budget().in_flight() == 0), "seed {seed}");
            return true;
        }
        // A sender whose receiver acknowledges late may only settle after a request.
        let odd = !seed.is_multiple_of(2) && world.now > quiet + 2000;
        if odd && sent.iter().all(arrived) && !rules.ask_when_silent {
            return true;
        }
        let now_there = (world.came.values().map(Vec::len).sum::<usize>(), settled(&world));
        if now_there != there {
            (there, since) = (now_there, world.now);
        }
        if world.now > quiet && world.now - since > 20_000 {
            if std::env::var_os("STORM").is_some() {
                world.describe(&sent);
            }
            return false;
        }
    }
}

#[test]
fn storms_of_cut_connections_and_crashed_gateways() {
    for seed in 0..300 {
        assert!(storm(seed, ALL), "seed {seed}: stalled");
    }
}

#[test]
fn notices_alone_are_enough() {
    for seed in 0..300 {
        assert!(storm(seed, NOTICES), "seed {seed}: stalled");
    }
}

#[test]
fn time_alone_is_enough() {
    for seed in 0..150 {
        assert!(storm(seed, SILENCE), "seed {seed}: stalled");
    }
}

/// Gateways' delays differ, and a small window makes senders ask again and again: late frames must not count as lost.
#[test]
fn what_is_late_is_not_sent_again() {
    for seed in 0..200 {
        let mut random = SplitMix64(seed);
        let shape = Shape { refuses: 0, ..Shape::random(&mut random, 2) };
        let mut world = SimulatedJob::shaped(seed, ALL, random, shape);
        let mut sent: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        let settled = |world: &SimulatedJob| world.members.iter().all(|(_, talk)| talk.is_settled());
        while world.now < 1000 || !settled(&world) {
            if world.now < 1000 {
                let from = world.random.below(world.members.len() as u64) as usize;
                let to = (from + 1) % world.members.len();
                for _ in 0..world.random.below(8) {
                    world.send_one(from, to, sent.entry((to, from)).or_default());
                }
            }
            world.step();
            assert!(world.now < 200_000, "seed {seed}: stalled");
        }
        assert_eq!(world.data, sent.values().sum::<u64>(), "seed {seed}: something was sent twice");
    }
}

#[test]
fn without_the_rules_storms_stall() {
    assert!((0..400).any(|seed| !storm(seed, OLD)), "these storms show nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_storm(seed: u64) {
        prop_assert!(storm(seed, ALL));
    }
}
