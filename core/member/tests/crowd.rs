//! Many members at two sites, each of which talks to all members of the other site: the bytes that their gateways hold
//! stay limited and no member starves, although gateways promise nothing to any pair. In virtual time;
//! `LANDBRIDGE_CROWD=1000` makes it 1,000 at each site.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "its figures are the result")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use member::{ATTEMPTS, Budget, Carrier, Conversations, PeerQueue, RANK_WINDOW, Route, Settings, Striping, Window};
use types::id::SlotKind;
use types::{Identity, Instance, JobId, Rank, SiteId, Slot};
use wire::frame::HEADER_LEN;
use wire::{FrameHeader, FrameKind};

const JOB: JobId = JobId(1);
const ONE: Route = Route(0);
const STEP_NS: u64 = 1_000_000;
const MAX_PAYLOAD: u32 = 16 << 10;
/// With this many bytes waiting for the trunk, a gateway stops reading its members.
const BACKED_UP: u64 = 1 << 20;
/// The payload of all frames.
static PAYLOAD: [u8; MAX_PAYLOAD as usize] = [0; MAX_PAYLOAD as usize];
/// The smallest limit on the bytes that may wait for a member, as in the gateway.
const LEAST: u64 = 32 << 10;

type Frame = (FrameHeader, u32);
type Talk = Conversations<Identity, Frame, Bytes>;

/// Bytes of queued messages.
#[derive(Debug, Default)]
struct Bytes(u64);

impl PeerQueue for Bytes {
    type Share = Infallible;

    fn is_empty(&self) -> bool {
        self.0 == 0
    }

    fn left(&self) -> u64 {
        self.0
    }

    fn next_len(&self, max_payload: u32) -> u32 {
        HEADER_LEN as u32 + (self.0.min(max_payload.into()) as u32)
    }
}

/// A member's network card in this step: the bytes it still takes, and the frames it has taken.
struct Card {
    left: i64,
    frames: Vec<Frame>,
}

impl Carrier<Frame, Bytes> for Card {
    fn room(&self, _: Route) -> Option<u32> {
        (self.left > 0).then_some(MAX_PAYLOAD)
    }

    fn cut(&mut self, queue: &mut Bytes, header: FrameHeader, most: u32) -> (Frame, u32) {
        let length = queue.0.min(most.into()) as u32;
        queue.0 -= u64::from(length);
        ((FrameHeader { length, ..header }, length), HEADER_LEN as u32 + length)
    }

    fn put(&mut self, _: Route, frame: Frame) {
        self.left -= i64::from(frame.1) + HEADER_LEN as i64;
        self.frames.push(frame);
    }

    fn notice(&mut self, _: Route, header: FrameHeader, payload: &[u8]) {
        let length = payload.len() as u32;
        self.left -= i64::from(length) + HEADER_LEN as i64;
        self.frames.push((FrameHeader { length, ..header }, length));
    }

    fn cut_share(&mut self, share: &mut Infallible, _: u32) -> Arc<Vec<u8>> {
        match *share {}
    }

    fn framed(&self, header: FrameHeader, payload: &Arc<Vec<u8>>) -> Frame {
        let length = payload.len() as u32;
        (FrameHeader { length, ..header }, length)
    }

    fn put_many(&mut self, route: Route, header: FrameHeader, block: &[u8], payload: &Arc<Vec<u8>>) {
        let length = (block.len() + payload.len()) as u32;
        self.put(route, (FrameHeader { length, ..header }, length));
    }

    fn alone(&mut self, share: &Infallible, _: &mut Bytes) {
        match *share {}
    }
}

fn bytes(frame: &Frame) -> u64 {
    u64::from(frame.1) + HEADER_LEN as u64
}

/// A gateway of one site, with its queues for the trunk and for each of its members.
#[derive(Default)]
struct Gateway {
    out: VecDeque<Frame>,
    out_bytes: u64,
    credit: u64,
    /// Frames on the trunk towards it, with their times of arrival.
    on_trunk: VecDeque<(u64, Frame)>,
    to_members: Vec<VecDeque<Frame>>,
    queued: Vec<u64>,
    /// Bytes that each member may still read in this step.
    reading: Vec<i64>,
    held: u64,
    highest: u64,
    refused: u64,
}

/// Rates are in bytes per step of one millisecond.
struct Plan {
    members: usize,
    memory: u64,
    card: u64,
    trunk: u64,
    delay: u64,
    /// Reading rate of member number `n` of the second site.
    reads: fn(usize) -> u64,
}

struct World {
    plan: Plan,
    now: u64,
    talks: [Vec<Talk>; 2],
    gateways: [Gateway; 2],
    /// Bytes that arrived in order, by receiving site and member.
    arrived: [Vec<u64>; 2],
}

fn who(site: usize, number: usize) -> Identity {
    Identity { site: SiteId(site as u16), slot: Slot::rank(Rank(number as u32), Instance(0)).unwrap() }
}

fn number(identity: Identity) -> usize {
    match identity.slot.kind() {
        SlotKind::Rank(rank, _) => rank.0 as usize,
        other => panic!("{other:?}"),
    }
}

impl World {
    fn new(plan: Plan) -> World {
        // As the gateway grants it: half of half of its memory, shared by all members that send to it.
        let share = (plan.memory / 4 / plan.members as u64).max(LEAST);
        let talk = |site, number| {
            let (striping, window) = (Striping::Adaptive { first: 0 }, Window::Adapting(RANK_WINDOW));
            let settings = Settings { job: JOB, me: who(site, number), striping, window, attempts: ATTEMPTS };
            let mut talk = Talk::new(settings, Budget::starting_with(share));
            talk.route_open(ONE);
            talk
        };
        let talks = [0, 1].map(|site| (0..plan.members).map(|number| talk(site, number)).collect());
        let gateway = || Gateway {
            to_members: (0..plan.members).map(|_| VecDeque::new()).collect(),
            queued: vec![0; plan.members],
            reading: vec![0; plan.members],
            ..Gateway::default()
        };
        let (gateways, arrived) = ([gateway(), gateway()], [vec![0; plan.members], vec![0; plan.members]]);
        World { plan, now: 0, talks, gateways, arrived }
    }

    fn say(&mut self, from: (usize, usize), to: (usize, usize), bytes: u64) {
        let (talk, peer) = (&mut self.talks[from.0][from.1], who(to.0, to.1));
        let was_empty = !talk.peer(peer, peer).has_something();
        talk.peer(peer, peer).queue.0 += bytes;
        talk.queued(peer, was_empty);
    }

    fn step(&mut self) {
        self.now += 1;
        let now_ns = self.now * STEP_NS;
        for site in 0..2 {
            for at in 0..self.plan.members {
                // Members take turns being first.
                let number = (at + self.now as usize) % self.plan.members;
                let backed_up = self.gateways[site].out_bytes >= BACKED_UP;
                let left = if backed_up { 0 } else { self.plan.card as i64 };
                let mut card = Card { left, frames: Vec::new() };
                let talk = &mut self.talks[site][number];
                talk.tick(now_ns);
                if talk.has_work() {
                    talk.send(&mut card, now_ns);
                }
                let gateway = &mut self.gateways[site];
                for frame in card.frames {
                    gateway.hold(bytes(&frame));
                    gateway.out_bytes += bytes(&frame);
                    gateway.out.push_back(frame);
                }
            }
            self.carry(site);
        }
        for site in 0..2 {
            self.arrive(site);
            self.read(site, now_ns);
        }
    }

    /// Puts as much on a gateway's trunk as it takes in a step.
    fn carry(&mut self, site: usize) {
        let (trunk, at) = (self.plan.trunk, self.now + self.plan.delay);
        let gateway = &mut self.gateways[site];
        gateway.credit = (gateway.credit + trunk).min(2 * trunk);
        let mut left = Vec::new();
        while let Some(frame) = gateway.out.front().filter(|frame| bytes(frame) <= gateway.credit).copied() {
            gateway.out.pop_front();
            gateway.credit -= bytes(&frame);
            gateway.out_bytes -= bytes(&frame);
            gateway.held -= bytes(&frame);
            left.push((at, frame));
        }
        self.gateways[1 - site].on_trunk.extend(left);
    }

    fn arrive(&mut self, site: usize) {
        let memory = self.plan.memory;
        while let Some((_, frame)) = self.gateways[site].on_trunk.front().filter(|(at, _)| *at <= self.now).copied() {
            let gateway = &mut self.gateways[site];
            gateway.on_trunk.pop_front();
            let to = number(frame.0.to);
            let queued = gateway.queued[to];
            if queued >= LEAST && queued >= (memory / 2).saturating_sub(gateway.held) {
                if frame.0.kind == FrameKind::Data {
                    gateway.refused += 1;
                    let back = FrameHeader::plain(FrameKind::Refused, JOB, frame.0.to, frame.0.from);
                    let at = self.now + self.plan.delay;
                    self.gateways[1 - site].on_trunk.push_back((at, (back, 0)));
                }
                continue;
            }
            gateway.hold(bytes(&frame));
            gateway.queued[to] += bytes(&frame);
            gateway.to_members[to].push_back(frame);
        }
    }

    fn read(&mut self, site: usize, now_ns: u64) {
        for member in 0..self.plan.members {
            let rate = if site == 1 { (self.plan.reads)(member) } else { self.plan.card } as i64;
            // A frame longer than the bytes read in a step is paid for by later steps.
            let reading = &mut self.gateways[site].reading[member];
            *reading = (*reading + rate).min(rate);
            while self.gateways[site].reading[member] > 0 {
                let gateway = &mut self.gateways[site];
                let Some((header, length)) = gateway.to_members[member].pop_front() else { break };
                let size = bytes(&(header, length));
                gateway.queued[member] -= size;
                gateway.held -= size;
                gateway.reading[member] -= size as i64;
                let payload = &PAYLOAD[..length as usize];
                let (talk, arrived) = (&mut self.talks[site][member], &mut self.arrived[site][member]);
                match header.kind {
                    FrameKind::Refused => talk.refused(ONE, header.from, now_ns),
                    FrameKind::Data => {
                        let taken = talk.data::<member::Misbehaved>(
                            ONE,
                            header.from,
                            &header,
                            payload,
                            now_ns,
                            |payload, _| {
                                *arrived += payload.len() as u64;
                                Ok(())
                            },
                        );
                        taken.unwrap();
                    }
                    _ => talk.heard(ONE, header.from, &header, &[], now_ns).unwrap(),
                }
            }
        }
    }
}

impl Gateway {
    fn hold(&mut self, bytes: u64) {
        self.held += bytes;
        self.highest = self.highest.max(self.held);
    }
}

/// Number of members at each site: few by default, for every test run.
fn crowd(few: usize) -> usize {
    std::env::var("LANDBRIDGE_CROWD").map_or(few, |text| text.parse().unwrap())
}

#[test]
fn all_to_all_fits_into_memory_and_nobody_starves() {
    all_to_all(1_250);
}

/// A trunk that carries more than slow readers take: gateways must refuse frames for those readers, and no others.
#[test]
fn slow_readers_of_an_all_to_all_hold_nobody_else_up() {
    all_to_all(10_000);
}

/// All members send to all members of the other site, over a trunk that carries this many bytes per millisecond for
/// each member.
fn all_to_all(trunk_each: u64) {
    let members = crowd(100);
    // As much memory for each as 1,000 members have of 256 MiB; a tenth of them read at a tenth of the speed.
    let memory = (256 << 20) / 1000 * members as u64;
    let reads = |member: usize| if member.is_multiple_of(10) { 2_500 } else { 25_000 };
    let (card, trunk) = (25_000, trunk_each * members as u64);
    let mut world = World::new(Plan { members, memory, card, trunk, delay: 10, reads });
    const EACH: u64 = 20_000;
    for from in 0..members {
        // As in an all-to-all, each starts with a different peer.
        for to in (0..members).map(|step| (from + step) % members) {
            world.say((0, from), (1, to), EACH);
            world.say((1, from), (0, to), EACH);
        }
    }
    let all = EACH * members as u64;
    let (mut half, mut end) = (0, 0);
    // The time at which each member of the second site had received everything.
    let mut done = vec![0; members];
    while world.arrived.iter().flatten().any(|arrived| *arrived < all) {
        world.step();
        for (done, arrived) in done.iter_mut().zip(&world.arrived[1]) {
            if *done == 0 && *arrived == all {
                *done = world.now;
            }
        }
        if half == 0 && world.arrived[0].iter().sum::<u64>() * 2 > all * members as u64 {
            half = world.now;
            let least = world.arrived[0].iter().min().unwrap();
            assert!(*least * 5 > all, "a member has {least} of {all} when half of all has arrived");
        }
        end = world.now;
        assert!(end < 2_000_000, "not done: {:?}", world.arrived[1].iter().min());
    }
    let slowest = all / 2_500;
    // Fast readers must not wait for slow ones.
    let (least, fast) = (done.iter().min().unwrap(), done.iter().enumerate().filter(|(at, _)| at % 10 != 0));
    let last = fast.map(|(_, done)| done).max().unwrap();
    println!("fast readers had all after {least} to {last} ms");
    assert!(last * 2 <= end.max(least * 3), "fast readers had all after {least} to {last} of {end} ms");
    for (site, gateway) in world.gateways.iter().enumerate() {
        let (highest, refused) = (gateway.highest, gateway.refused);
        println!(
            "site {site}: held {highest} of {memory} at most, {refused} frames refused, {end} ms (a slow reader \
             needs {slowest})"
        );
        assert!(highest <= memory / 4 * 3, "site {site} held {highest} of {memory}");
    }
    assert!(end < slowest * 3, "{end} ms, a slow reader needs {slowest}");
}

/// Bytes that the first pair exchanges in the second half of six seconds, over 1 Gbit/s and a round trip of 100 ms.
fn one_pair(members: usize) -> u64 {
    let reads = |_| 125_000;
    let plan = Plan { members, memory: 256 << 20, card: 125_000, trunk: 125_000, delay: 50, reads };
    let mut world = World::new(plan);
    world.say((0, 0), (1, 0), 1 << 30);
    (0..3000).for_each(|_| world.step());
    let before = world.arrived[1][0];
    (0..3000).for_each(|_| world.step());
    world.arrived[1][0] - before
}

#[test]
fn one_pair_of_many_fills_a_long_fat_path() {
    let (alone, among) = (one_pair(1), one_pair(64));
    println!("alone {alone}, among 64 + 64 {among}, the path carries {}", 3000u64 * 125_000);
    assert!(among * 10 >= alone * 9, "alone {alone}, among others {among}");
    assert!(alone * 10 >= 3000 * 125_000 * 9, "{alone}");
}

#[test]
fn memory_grows_with_the_peers_that_a_member_talks_to() {
    let plan = Plan { members: 1000, memory: 256 << 20, card: 125_000, trunk: 125_000, delay: 5, reads: |_| 125_000 };
    let mut world = World::new(plan);
    for to in [1, 500, 999] {
        world.say((0, 7), (1, to), 100_000);
    }
    (0..100).for_each(|_| world.step());
    assert_eq!([1, 500, 999].map(|to| world.arrived[1][to]), [100_000; 3]);
    for (site, talks) in world.talks.iter().enumerate() {
        for (number, talk) in talks.iter().enumerate() {
            let talks_to = match (site, number) {
                (0, 7) => 3,
                (1, 1 | 500 | 999) => 1,
                _ => 0,
            };
            assert_eq!(talk.iter().count(), talks_to, "member {number} of site {site}");
        }
    }
}
