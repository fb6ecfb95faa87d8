//! Members, gateways and trunks in virtual time: connections are cut, gateways crash, notices arrive late and at
//! different times at both ends. Everything must arrive once and in order, and be known to have arrived.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use types::{Rank, Slot};

use super::*;

/// The rules of [`Conversations`]: leaving one out shows what it is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub ask_on_return: bool,
    pub ask_on_loss: bool,
    pub again_on_loss: bool,
    pub answer_by_route: bool,
    pub ask_when_silent: bool,
    pub ask_when_full: bool,
    /// For gateways: they report acknowledgements that cannot be delivered.
    pub report_acks: bool,
}

impl Default for Rules {
    fn default() -> Rules {
        ALL
    }
}

const ALL: Rules = Rules {
    ask_on_return: true,
    ask_on_loss: true,
    again_on_loss: true,
    answer_by_route: true,
    ask_when_silent: true,
    ask_when_full: true,
    report_acks: true,
};
/// Only notices: no requests because time has passed.
const NOTICES: Rules = Rules { ask_when_silent: false, ..ALL };
/// Version 0.1.
const OLD: Rules = Rules {
    ask_on_return: false,
    ask_on_loss: false,
    answer_by_route: false,
    ask_when_full: false,
    report_acks: false,
    ..NOTICES
};
/// Only time: peers are not told about losses, and no requests are sent at once.
const SILENCE: Rules = Rules { again_on_loss: false, answer_by_route: true, ask_when_silent: true, ..OLD };

const JOB: JobId = JobId(1);
const STEP_NS: u64 = 1_000_000;

/// Small, fast, seeded: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

type Frame = (FrameHeader, Vec<u8>);

/// Numbers to be sent, each with the length of its frame.
#[derive(Debug, Default)]
struct Numbers(VecDeque<(u32, u32)>);

impl Queue for Numbers {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn left(&self) -> u64 {
        self.0.front().map_or(0, |(_, length)| u64::from(*length))
    }

    fn next_len(&self, _: u32) -> u32 {
        HEADER_LEN as u32 + self.0.front().map_or(0, |(_, length)| *length)
    }
}

type Talk = Conversations<Identity, Frame, Numbers>;

/// The kind of a node: a member of a site, or a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Member(usize),
    Gateway(usize, usize),
}

#[derive(Clone, Debug)]
enum Item {
    Frame(Frame),
    Passage(SiteId, Passage),
}

/// A connection between two nodes.
struct Wire {
    ends: [Node; 2],
    up: bool,
    /// Towards each end, in order, with the time of arrival.
    queues: [VecDeque<(u64, Item)>; 2],
    /// When each end notices that it is cut; `None`: it knows, or it is not cut.
    notices: [Option<u64>; 2],
    /// Whether each end believes it to be open.
    known: [bool; 2],
    back: u64,
}

struct World {
    seed: u64,
    rules: Rules,
    random: Random,
    now: u64,
    delay: u64,
    wires: Vec<Wire>,
    by_node: BTreeMap<Node, Vec<usize>>,
    members: Vec<(Identity, Talk)>,
    /// Numbers received from a peer, by receiver and sender.
    came: BTreeMap<(usize, usize), Vec<u32>>,
    gateways: [usize; 2],
    /// Chance in a thousand that a gateway refuses a data frame.
    refuses: u64,
}

/// Frames that a member sends in one call.
struct Out {
    full: Vec<bool>,
    frames: Vec<(Route, Frame)>,
}

impl Carrier<Frame, Numbers> for Out {
    fn room(&self, route: Route) -> Option<u32> {
        (!self.full[usize::from(route.0)]).then_some(4096)
    }

    fn cut(&mut self, queue: &mut Numbers, header: FrameHeader, _: u32) -> (Frame, u32) {
        let (number, length) = queue.0.pop_front().unwrap();
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize(length as usize, 0);
        ((FrameHeader { length, ..header }, payload), HEADER_LEN as u32 + length)
    }

    fn put(&mut self, route: Route, frame: Frame) {
        self.frames.push((route, frame));
    }

    fn notice(&mut self, route: Route, header: FrameHeader, payload: &[u8]) {
        let header = FrameHeader { length: payload.len() as u32, ..header };
        self.frames.push((route, (header, payload.to_vec())));
    }
}

impl World {
    fn new(seed: u64, rules: Rules) -> World {
        let mut random = Random(seed);
        let gateways = [1 + random.below(3) as usize, 1 + random.below(3) as usize];
        let per_site = 1 + random.below(2) as usize;
        let window = 2048 + random.below(60_000) as u32;
        let budget = (random.below(3) == 0).then(|| random.below(100_000));
        let window = if random.below(2) == 0 { Window::Fixed(window) } else { Window::Adapting(window) };
        let (delay, refuses) = (1 + random.below(20), random.below(2) * random.below(20));
        let mut world = World {
            seed,
            rules,
            random,
            now: 0,
            delay,
            wires: Vec::new(),
            by_node: BTreeMap::new(),
            members: Vec::new(),
            came: BTreeMap::new(),
            gateways,
            refuses,
        };
        for number in 0..2 * per_site {
            let site = number % 2;
            let slot = Slot::rank(Rank(number as u32), types::Instance(0)).unwrap();
            let me = Identity { site: SiteId(site as u16), slot };
            let striping = if number % 3 == 2 { Striping::First } else { Striping::Adaptive { first: number } };
            let budget = budget.map_or_else(Budget::unlimited, Budget::starting_with);
            let mut talk = Talk::new(Settings { job: JOB, me, striping, window }, budget);
            talk.rules = rules;
            world.members.push((me, talk));
            for gateway in 0..gateways[site] {
                world.connect(Node::Member(number), Node::Gateway(site, gateway));
            }
        }
        for one in 0..gateways[0] {
            for two in 0..gateways[1] {
                world.connect(Node::Gateway(0, one), Node::Gateway(1, two));
            }
        }
        for number in 0..world.members.len() {
            let site = number % 2;
            (0..gateways[site]).for_each(|gateway| world.members[number].1.route_open(Route(gateway as u8)));
        }
        world
    }

    fn connect(&mut self, one: Node, two: Node) {
        let wire = self.wires.len();
        self.by_node.entry(one).or_default().push(wire);
        self.by_node.entry(two).or_default().push(wire);
        self.wires.push(Wire {
            ends: [one, two],
            up: true,
            queues: Default::default(),
            notices: [None; 2],
            known: [true; 2],
            back: 0,
        });
    }

    fn wire(&self, one: Node, two: Node) -> usize {
        self.by_node[&one].iter().copied().find(|wire| self.wires[*wire].ends.contains(&two)).unwrap()
    }

    fn send(&mut self, from: Node, wire: usize, item: Item) {
        let at = self.now + 1 + self.random.below(self.delay);
        let wire = &mut self.wires[wire];
        // What is written to a cut connection is lost, and the writer does not know yet.
        if wire.up {
            let queue = &mut wire.queues[usize::from(wire.ends[0] == from)];
            let last = queue.back().map_or(0, |(at, _)| *at);
            queue.push_back((at.max(last), item));
        }
    }

    /// Whether a node believes a connection to be open.
    fn knows(&self, node: Node, wire: usize) -> bool {
        self.wires[wire].known[usize::from(self.wires[wire].ends[1] == node)]
    }

    fn cut(&mut self, wire: usize) {
        let late = [self.random.below(12), self.random.below(12)].map(|late| Some(self.now + late));
        let back = self.now + 15 + self.random.below(80);
        let wire = &mut self.wires[wire];
        if wire.up {
            (wire.up, wire.notices, wire.back) = (false, late, back);
            wire.queues.iter_mut().for_each(VecDeque::clear);
        }
    }

    /// Breaks something: a connection, or all of a gateway. Never the last connection of a member, because then
    /// everything is lost.
    fn breaks(&mut self) {
        let (site, gateway) = (self.random.below(2) as usize, self.random.below(3) as usize);
        let victims = if self.random.below(4) == 0 && gateway < self.gateways[site] {
            self.by_node[&Node::Gateway(site, gateway)].clone()
        } else {
            vec![self.random.below(self.wires.len() as u64) as usize]
        };
        let spared = victims.iter().any(|wire| match self.wires[*wire].ends[0] {
            Node::Member(number) => {
                let wires = &self.by_node[&Node::Member(number)];
                wires.iter().filter(|other| self.wires[**other].up && self.wires[**other].known == [true; 2]).count()
                    < 2
            }
            Node::Gateway(..) => false,
        });
        if !spared {
            victims.into_iter().for_each(|wire| self.cut(wire));
        }
    }

    /// The trunks of a gateway that it believes to be open, its partner's first.
    fn trunks(&self, site: usize, gateway: usize) -> Vec<usize> {
        let node = Node::Gateway(site, gateway);
        let mut open: Vec<(usize, usize)> = (0..self.gateways[1 - site])
            .map(|other| (other, self.wire(node, Node::Gateway(1 - site, other))))
            .filter(|(_, wire)| self.knows(node, *wire))
            .collect();
        open.sort_by_key(|(other, _)| (*other != gateway, *other));
        open.into_iter().map(|(_, wire)| wire).collect()
    }

    fn tell_members(&mut self, site: usize, gateway: usize, passage: &Passage) {
        for number in (0..self.members.len()).filter(|number| number % 2 == site) {
            let wire = self.wire(Node::Member(number), Node::Gateway(site, gateway));
            if self.knows(Node::Gateway(site, gateway), wire) {
                let item = Item::Passage(SiteId(1 - site as u16), passage.clone());
                self.send(Node::Gateway(site, gateway), wire, item);
            }
        }
    }

    /// A node notices that a connection is cut, or that it is back.
    fn changed(&mut self, node: Node, wire: usize, up: bool) {
        let other = self.wires[wire].ends[usize::from(self.wires[wire].ends[0] == node)];
        match (node, other) {
            (Node::Member(number), Node::Gateway(_, gateway)) => {
                let talk = &mut self.members[number].1;
                let route = Route(gateway as u8);
                if up { talk.route_open(route) } else { talk.route_lost(route) }
            }
            (Node::Gateway(site, gateway), Node::Gateway(..)) => {
                let open = self.trunks(site, gateway).len();
                let passage = match (up, open) {
                    (true, 1) => Passage::Open,
                    (true, _) => return,
                    (false, 0) => Passage::Away("cut".into()),
                    (false, _) => Passage::Broken,
                };
                self.tell_members(site, gateway, &passage);
            }
            (Node::Gateway(site, gateway), Node::Member(_)) => {
                if up && self.trunks(site, gateway).is_empty() {
                    let item = Item::Passage(SiteId(1 - site as u16), Passage::Away("cut".into()));
                    self.send(node, wire, item);
                }
            }
            (Node::Member(_), Node::Member(_)) => unreachable!(),
        }
    }

    fn arrives(&mut self, node: Node, wire: usize, item: Item) {
        match node {
            Node::Member(number) => self.member_hears(number, wire, item),
            Node::Gateway(site, gateway) => {
                let Item::Frame((header, payload)) = item else { return };
                self.relay((site, gateway), wire, header, payload);
            }
        }
    }

    fn relay(&mut self, (site, gateway): (usize, usize), came_by: usize, header: FrameHeader, payload: Vec<u8>) {
        let node = Node::Gateway(site, gateway);
        if usize::from(header.to.site.0) != site {
            // Without a trunk the frame is lost; members have been told, and retransmit it.
            if let Some(trunk) = self.trunks(site, gateway).first() {
                self.send(node, *trunk, Item::Frame((header, payload)));
            }
            return;
        }
        let number = self.members.iter().position(|(me, _)| *me == header.to).unwrap();
        let wire = self.wire(Node::Member(number), node);
        let back = |kind| Item::Frame((FrameHeader::plain(kind, JOB, header.to, header.from), Vec::new()));
        if !self.knows(node, wire) {
            let is_told = !matches!(header.kind, FrameKind::Ack | FrameKind::Answer) || self.rules.report_acks;
            if header.kind.acknowledges() && is_told {
                self.send(node, came_by, back(FrameKind::Undeliverable));
            }
        } else if header.kind == FrameKind::Data && self.random.below(1000) < self.refuses {
            self.send(node, came_by, back(FrameKind::Refused));
        } else {
            self.send(node, wire, Item::Frame((header, payload)));
        }
    }

    fn member_hears(&mut self, number: usize, wire: usize, item: Item) {
        let Node::Gateway(_, gateway) = self.wires[wire].ends[1] else { return };
        let (route, now_ns, seed) = (Route(gateway as u8), self.now * STEP_NS, self.seed);
        let talk = &mut self.members[number].1;
        match item {
            Item::Passage(site, passage) => talk.passage(route, site, &passage),
            Item::Frame((header, payload)) => match header.kind {
                FrameKind::Undeliverable => {
                    assert!(!talk.undeliverable(route, header.from, now_ns), "seed {seed}: a peer was given up");
                }
                FrameKind::Refused => talk.refused(route, header.from, now_ns),
                FrameKind::Data => {
                    let SlotRank(from) = SlotRank::of(header.from);
                    let list = self.came.entry((number, from)).or_default();
                    let taken = talk.data::<Misbehaved>(route, header.from, &header, &payload, now_ns, |payload| {
                        list.push(u32::from_le_bytes(payload[..4].try_into().unwrap()));
                        Ok(())
                    });
                    taken.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
                }
                _ => talk.heard(route, header.from, &header, &payload, now_ns).unwrap(),
            },
        }
    }

    /// Why a storm stalls, for a person who investigates one.
    #[allow(clippy::print_stderr, reason = "a person asked for it")]
    fn describe(&self, sent: &BTreeMap<(usize, usize), u32>) {
        let came: Vec<_> = self.came.iter().map(|(pair, came)| (pair, came.len(), sent.get(pair))).collect();
        let seed = self.seed;
        let mut text =
            format!("seed {seed}: came, of: {came:?}; gateways {:?}; refuses {}\n", self.gateways, self.refuses);
        for (me, talk) in &self.members {
            let open: Vec<Route> = talk.routes.open().collect();
            let lists = (&talk.again, &talk.ready, &talk.told, &talk.refused);
            text += &format!("{me}: open {open:?} lists {lists:?} {:?} leaving {}\n", talk.budget, talk.leaving);
            for (key, peer) in &talk.peers {
                let waits: Vec<_> = peer.queue.0.iter().take(3).collect();
                text += &format!(
                    "  {key}: queue {} {waits:?} in flight {} missing {} next {} routes {:b} room {} barred {:b} \
                     retry {:?} strays {} asks {} {:b} asked {:?} nudged {} ack due {} expected {} silences {}\n",
                    peer.queue.0.len(),
                    peer.in_flight(),
                    peer.outbound.has_missing(),
                    peer.outbound.next(),
                    peer.outbound.routes_in_flight(),
                    peer.outbound.room(),
                    peer.barred,
                    peer.retry_ns,
                    peer.strays,
                    peer.asks,
                    peer.asks_by,
                    peer.asked,
                    peer.nudged,
                    peer.inbound.ack_is_due(),
                    peer.inbound.expected(),
                    peer.silences,
                );
            }
        }
        eprintln!("{text}now {}", self.now);
    }

    fn step(&mut self) {
        self.now += 1;
        for at in 0..self.wires.len() {
            for end in 0..2 {
                let node = self.wires[at].ends[end];
                if self.wires[at].notices[end].is_some_and(|when| when <= self.now) {
                    self.wires[at].notices[end] = None;
                    self.wires[at].known[end] = false;
                    self.changed(node, at, false);
                }
                while self.wires[at].queues[end].front().is_some_and(|(when, _)| *when <= self.now) {
                    let (_, item) = self.wires[at].queues[end].pop_front().unwrap();
                    self.arrives(node, at, item);
                }
            }
            let wire = &mut self.wires[at];
            if !wire.up && wire.known == [false; 2] && wire.back <= self.now {
                (wire.up, wire.known) = (true, [true; 2]);
                let ends = wire.ends;
                // A gateway knows of a member before the member knows of it.
                [ends[1], ends[0]].into_iter().for_each(|node| self.changed(node, at, true));
            }
        }
        for number in 0..self.members.len() {
            let node = Node::Member(number);
            let gateways = self.gateways[number % 2];
            let full = (0..gateways).map(|_| self.random.below(10) == 0).collect();
            let mut out = Out { full, frames: Vec::new() };
            let now_ns = self.now * STEP_NS;
            self.members[number].1.tick(now_ns);
            self.members[number].1.send(&mut out, now_ns);
            for (route, frame) in out.frames {
                let wire = self.wire(node, Node::Gateway(number % 2, usize::from(route.0)));
                self.send(node, wire, Item::Frame(frame));
            }
        }
    }
}

/// The rank of an identity of these tests.
struct SlotRank(usize);

impl SlotRank {
    fn of(identity: Identity) -> SlotRank {
        match identity.slot.kind() {
            types::id::SlotKind::Rank(rank, _) => SlotRank(rank.0 as usize),
            other => panic!("{other:?}"),
        }
    }
}

/// Runs a storm; returns whether everything arrived, and was known to have arrived, before patience ran out.
fn storm(seed: u64, rules: Rules) -> bool {
    let mut world = World::new(seed, rules);
    let (breaks, quiet) = (world.random.below(30), 3000);
    let one_way = world.random.below(3) == 0;
    let mut sent: BTreeMap<(usize, usize), u32> = BTreeMap::new();
    let settled = |world: &World| world.members.iter().filter(|(_, talk)| talk.is_settled()).count();
    let (mut there, mut since) = ((0, 0), 0);
    loop {
        if world.now < quiet {
            if world.random.below(1000) < breaks {
                world.breaks();
            }
            let (from, to) = (world.random.below(world.members.len() as u64) as usize, 0);
            let to = (from + 1 + 2 * (world.random.below(2) as usize + to)) % world.members.len();
            if (from + to) % 2 == 1 && !(one_way && from % 2 == 1) {
                let number = sent.entry((to, from)).or_default();
                let length = 4 + world.random.below(1500) as u32;
                let peer = world.members[to].0;
                let talk = &mut world.members[from].1;
                let was_empty = !talk.peer(peer, peer).has_something();
                talk.peer(peer, peer).queue.0.push_back((*number, length));
                talk.queued(peer, was_empty);
                *number += 1;
            }
        } else if world.now == quiet {
            let now_ns = world.now * STEP_NS;
            if seed.is_multiple_of(2) {
                world.members.iter_mut().for_each(|(_, talk)| talk.leave(now_ns));
            }
        }
        world.step();
        let arrived = |(pair, count): (&(usize, usize), &u32)| {
            let came = world.came.get(pair).map_or(&[][..], Vec::as_slice);
            assert!(came.iter().copied().eq(0..came.len() as u32), "seed {seed}: {pair:?} got {came:?}");
            came.len() == *count as usize
        };
        if world.now > quiet && sent.iter().all(arrived) && world.members.iter().all(|(_, talk)| talk.is_settled()) {
            assert!(world.members.iter().all(|(_, talk)| talk.budget().in_flight() == 0), "seed {seed}");
            return true;
        }
        // A sender whose receiver acknowledges late may only settle when it sends a request.
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

#[test]
fn without_the_rules_storms_stall() {
    let stalled = (0..100).filter(|seed| !storm(*seed, OLD)).count();
    assert!(stalled > 0, "these storms show nothing");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_storm(seed: u64) {
        prop_assert!(storm(seed, ALL));
    }
}
