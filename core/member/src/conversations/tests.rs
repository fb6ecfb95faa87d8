//! Members, gateways and trunks in virtual time: connections are cut, gateways crash, notices arrive late and at
//! different times at both ends. Everything must arrive once and in order, and be acknowledged.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use types::{Rank, Slot};
use wire::many::{Astray, Block, Why};

use super::*;
use super::{Settings, Striping, Window};
use crate::Misbehaved;
use crate::share::{ShareSource, ShareTree};
use types::JobId;
use types::SiteId;
use wire::FrameKind;
use wire::Passage;
use wire::frame::HEADER_LEN;

mod shares;
mod singles;

/// The rules of [`Conversations`]. Turning one off shows its purpose.
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
    /// For shares.
    pub again_on_return: bool,
    pub again_on_passage: bool,
    pub again_below: bool,
    /// For gateways: they report copies that cannot be delivered, and notify their members where no report can go.
    pub report_copies: bool,
    pub tell_of_unsaid: bool,
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
    again_on_return: true,
    again_on_passage: true,
    again_below: true,
    report_copies: true,
    tell_of_unsaid: true,
};
/// Only notices: no requests after a time limit.
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
/// Only time limits: peers get no notice of losses, and no requests are sent at once.
const SILENCE: Rules = Rules { again_on_loss: false, answer_by_route: true, ask_when_silent: true, ..OLD };

const JOB: JobId = JobId(1);
const STEP_NS: u64 = 1_000_000;

/// Small, fast, seeded: splitmix64.
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

type TestFrame = (FrameHeader, Vec<u8>);

/// Numbers to send, each with the length of its frame. Those of a share have [`SHARED`] and the share's number in their
/// upper bits.
#[derive(Clone, Debug, Default)]
struct Numbers(VecDeque<(u64, u32)>);

const SHARED: u64 = 1 << 63;

impl Numbers {
    fn cut(&mut self) -> Vec<u8> {
        let (number, length) = self.0.pop_front().unwrap();
        let mut payload = number.to_le_bytes().to_vec();
        payload.resize(length as usize, 0);
        payload
    }
}

impl ShareSource for Numbers {
    fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    fn next_len(&self, max_payload: u32) -> u32 {
        PeerQueue::next_len(self, max_payload)
    }
}

impl PeerQueue for Numbers {
    type Share = Numbers;

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

type Talk = Conversations<Identity, TestFrame, Numbers>;

/// The kind of a node: a member of a site, or a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulatedNode {
    Member(usize),
    Gateway(usize, usize),
}

#[derive(Clone, Debug)]
enum Item {
    Frame(TestFrame),
    Passage(SiteId, Passage),
}

/// A connection between two nodes.
struct Wire {
    ends: [SimulatedNode; 2],
    up: bool,
    /// Items towards each end, in order, with their times of arrival.
    queues: [VecDeque<(u64, Item)>; 2],
    /// Time at which each end notices that it is cut; `None`: the end knows, or it is not cut.
    notices: [Option<u64>; 2],
    /// True for each end that believes it to be open.
    known: [bool; 2],
    back: u64,
}

struct SimulatedJob {
    seed: u64,
    rules: Rules,
    random: SplitMix64,
    now: u64,
    delay: u64,
    wires: Vec<Wire>,
    by_node: BTreeMap<SimulatedNode, Vec<usize>>,
    members: Vec<(Identity, Talk)>,
    /// Numbers received from a peer, by receiver and sender.
    came: BTreeMap<(usize, usize), Vec<u64>>,
    gateways: Vec<usize>,
    /// A node that reads nothing, without anybody noticing.
    frozen: Option<SimulatedNode>,
    /// Number of `Many` frames sent, and of data frames.
    many: u64,
    data: u64,
    /// Chance in a thousand that a gateway refuses a data frame.
    refuses: u64,
}

/// Frames that a member sends in one call.
struct Out {
    full: Vec<bool>,
    frames: Vec<(Route, TestFrame)>,
    many: u64,
}

impl Carrier<TestFrame, Numbers> for Out {
    fn room(&self, route: Route) -> Option<u32> {
        (!self.full[usize::from(route.0)]).then_some(4096)
    }

    fn cut(&mut self, queue: &mut Numbers, header: FrameHeader, _: u32) -> (TestFrame, u32) {
        let payload = queue.cut();
        let length = payload.len() as u32;
        ((FrameHeader { length, ..header }, payload), HEADER_LEN as u32 + length)
    }

    fn put(&mut self, route: Route, frame: TestFrame) {
        self.frames.push((route, frame));
    }

    fn notice(&mut self, route: Route, header: FrameHeader, payload: &[u8]) {
        let header = FrameHeader { length: payload.len() as u32, ..header };
        self.frames.push((route, (header, payload.to_vec())));
    }

    fn cut_share(&mut self, share: &mut Numbers, _: u32) -> Arc<Vec<u8>> {
        Arc::new(share.cut())
    }

    fn framed(&self, header: FrameHeader, payload: &Arc<Vec<u8>>) -> TestFrame {
        (FrameHeader { length: payload.len() as u32, ..header }, payload.to_vec())
    }

    fn put_many(&mut self, route: Route, header: FrameHeader, block: &[u8], payload: &Arc<Vec<u8>>) {
        let whole = [block, payload].concat();
        self.many += 1;
        self.frames.push((route, (FrameHeader { length: whole.len() as u32, ..header }, whole)));
    }

    fn alone(&mut self, share: &Numbers, queue: &mut Numbers) {
        queue.0.extend(&share.0);
    }
}

/// The parameters of a world.
struct Shape {
    /// Gateways of each site.
    gateways: Vec<usize>,
    per_site: usize,
    window: Window,
    budget: Option<u64>,
    delay: u64,
    refuses: u64,
}

impl Shape {
    fn random(random: &mut SplitMix64, sites: usize) -> Shape {
        let gateways: Vec<usize> = (0..sites).map(|_| 1 + random.below(3) as usize).collect();
        let per_site = 1 + random.below(2) as usize;
        let window = 2048 + random.below(60_000) as u32;
        let budget = (random.below(3) == 0).then(|| random.below(100_000));
        let window = if random.below(2) == 0 { Window::Fixed(window) } else { Window::Adapting(window) };
        let (delay, refuses) = (1 + random.below(20), random.below(2) * random.below(20));
        Shape { gateways, per_site, window, budget, delay, refuses }
    }
}

impl SimulatedJob {
    fn new(seed: u64, rules: Rules, sites: usize) -> SimulatedJob {
        let mut random = SplitMix64(seed);
        let shape = Shape::random(&mut random, sites);
        SimulatedJob::shaped(seed, rules, random, shape)
    }

    fn shaped(seed: u64, rules: Rules, random: SplitMix64, shape: Shape) -> SimulatedJob {
        let Shape { gateways, per_site, window, budget, delay, refuses } = shape;
        let sites = gateways.len();
        let mut world = SimulatedJob {
            seed,
            rules,
            random,
            now: 0,
            delay,
            wires: Vec::new(),
            by_node: BTreeMap::new(),
            members: Vec::new(),
            came: BTreeMap::new(),
            gateways: gateways.clone(),
            frozen: None,
            many: 0,
            data: 0,
            refuses,
        };
        for number in 0..sites * per_site {
            let site = number % sites;
            let slot = Slot::rank(Rank(number as u32), types::Instance(0)).unwrap();
            let me = Identity { site: SiteId(site as u16), slot };
            let striping = if number % 3 == 2 { Striping::First } else { Striping::Adaptive { first: number } };
            let budget = budget.map_or_else(Budget::unlimited, Budget::starting_with);
            let mut talk = Talk::new(Settings { job: JOB, me, striping, window, attempts: ATTEMPTS }, budget);
            talk.rules = rules;
            world.members.push((me, talk));
            for gateway in 0..gateways[site] {
                world.connect(SimulatedNode::Member(number), SimulatedNode::Gateway(site, gateway));
            }
        }
        for (a, b) in (0..sites).flat_map(|b| (0..b).map(move |a| (a, b))) {
            for (one, two) in (0..gateways[a]).flat_map(|one| (0..gateways[b]).map(move |two| (one, two))) {
                world.connect(SimulatedNode::Gateway(a, one), SimulatedNode::Gateway(b, two));
            }
        }
        for number in 0..world.members.len() {
            let site = number % sites;
            (0..gateways[site]).for_each(|gateway| world.members[number].1.route_open(Route(gateway as u8)));
        }
        world
    }

    fn connect(&mut self, one: SimulatedNode, two: SimulatedNode) {
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

    fn wire(&self, one: SimulatedNode, two: SimulatedNode) -> usize {
        self.by_node[&one].iter().copied().find(|wire| self.wires[*wire].ends.contains(&two)).unwrap()
    }

    fn send(&mut self, from: SimulatedNode, wire: usize, item: Item) {
        let at = self.now + 1 + self.random.below(self.delay);
        let wire = &mut self.wires[wire];
        // An item written to a cut connection is lost, and the writer does not know yet.
        if wire.up {
            let queue = &mut wire.queues[usize::from(wire.ends[0] == from)];
            let last = queue.back().map_or(0, |(at, _)| *at);
            queue.push_back((at.max(last), item));
        }
    }

    /// Returns true if a node believes a connection to be open.
    fn knows(&self, node: SimulatedNode, wire: usize) -> bool {
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

    /// Breaks a connection, or all connections of a gateway. Never the last connection of a member, because then
    /// everything is lost.
    fn breaks(&mut self) {
        let (site, gateway) = (self.random.below(self.gateways.len() as u64) as usize, self.random.below(3) as usize);
        let victims = if self.random.below(4) == 0 && gateway < self.gateways[site] {
            self.by_node[&SimulatedNode::Gateway(site, gateway)].clone()
        } else {
            vec![self.random.below(self.wires.len() as u64) as usize]
        };
        let spared = victims.iter().any(|wire| match self.wires[*wire].ends[0] {
            SimulatedNode::Member(number) => {
                let wires = &self.by_node[&SimulatedNode::Member(number)];
                wires.iter().filter(|other| self.wires[**other].up && self.wires[**other].known == [true; 2]).count()
                    < 2
            }
            SimulatedNode::Gateway(..) => false,
        });
        if !spared {
            victims.into_iter().for_each(|wire| self.cut(wire));
        }
    }

    /// A gateway's trunks to a site that it believes to be open, its partner's first.
    fn trunks(&self, site: usize, gateway: usize, to: usize) -> Vec<usize> {
        let node = SimulatedNode::Gateway(site, gateway);
        let mut open: Vec<(usize, usize)> = (0..self.gateways[to])
            .map(|other| (other, self.wire(node, SimulatedNode::Gateway(to, other))))
            .filter(|(_, wire)| self.knows(node, *wire))
            .collect();
        open.sort_by_key(|(other, _)| (*other != gateway, *other));
        open.into_iter().map(|(_, wire)| wire).collect()
    }

    fn tell_members(&mut self, (site, gateway): (usize, usize), about: usize, passage: &Passage) {
        let sites = self.gateways.len();
        for number in (0..self.members.len()).filter(|number| number % sites == site) {
            let wire = self.wire(SimulatedNode::Member(number), SimulatedNode::Gateway(site, gateway));
            if self.knows(SimulatedNode::Gateway(site, gateway), wire) {
                let item = Item::Passage(SiteId(about as u16), passage.clone());
                self.send(SimulatedNode::Gateway(site, gateway), wire, item);
            }
        }
    }

    /// A node notices that a connection is cut, or is back.
    fn changed(&mut self, node: SimulatedNode, wire: usize, up: bool) {
        let other = self.wires[wire].ends[usize::from(self.wires[wire].ends[0] == node)];
        match (node, other) {
            (SimulatedNode::Member(number), SimulatedNode::Gateway(_, gateway)) => {
                let talk = &mut self.members[number].1;
                let route = Route(gateway as u8);
                if up { talk.route_open(route) } else { talk.route_lost(route) }
            }
            (SimulatedNode::Gateway(site, gateway), SimulatedNode::Gateway(about, _)) => {
                let open = self.trunks(site, gateway, about).len();
                let passage = match (up, open) {
                    (true, 1) => Passage::Open,
                    (true, _) => return,
                    (false, 0) => Passage::Away("cut".into()),
                    (false, _) => Passage::Broken,
                };
                self.tell_members((site, gateway), about, &passage);
            }
            (SimulatedNode::Gateway(site, gateway), SimulatedNode::Member(_)) => {
                for about in (0..self.gateways.len()).filter(|about| *about != site) {
                    if up && self.trunks(site, gateway, about).is_empty() {
                        let item = Item::Passage(SiteId(about as u16), Passage::Away("cut".into()));
                        self.send(node, wire, item);
                    }
                }
            }
            (SimulatedNode::Member(_), SimulatedNode::Member(_)) => unreachable!(),
        }
    }

    fn arrives(&mut self, node: SimulatedNode, wire: usize, item: Item) {
        match node {
            SimulatedNode::Member(number) => self.member_hears(number, wire, item),
            SimulatedNode::Gateway(site, gateway) => {
                let Item::Frame((header, payload)) = item else { return };
                self.relay((site, gateway), wire, header, payload);
            }
        }
    }

    fn relay(&mut self, (site, gateway): (usize, usize), came_by: usize, header: FrameHeader, payload: Vec<u8>) {
        let node = SimulatedNode::Gateway(site, gateway);
        if header.kind == FrameKind::Many {
            return self.copy((site, gateway), &header, &payload);
        }
        let to = usize::from(header.to.site.0);
        if to != site {
            // Without a trunk the frame is lost; members have had notice, and retransmit it.
            if let Some(trunk) = self.trunks(site, gateway, to).first() {
                self.send(node, *trunk, Item::Frame((header, payload)));
            }
            return;
        }
        let number = self.members.iter().position(|(me, _)| *me == header.to).unwrap();
        let wire = self.wire(SimulatedNode::Member(number), node);
        let back = |kind| Item::Frame((FrameHeader::plain(kind, JOB, header.to, header.from), Vec::new()));
        if !self.knows(node, wire) {
            if header.kind == FrameKind::Astray {
                return;
            }
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

    /// Copies a `Many` frame as a gateway does, with the same code for blocks and headers.
    fn copy(&mut self, (site, gateway): (usize, usize), header: &FrameHeader, payload: &[u8]) {
        let (node, at) = (SimulatedNode::Gateway(site, gateway), SiteId(site as u16));
        let (block, data) = Block::split(payload, at, header.from.site).unwrap();
        let mut lost = Vec::new();
        for receiver in block.receivers() {
            let to = Identity { site: at, slot: receiver.slot };
            let wire = self.wire(SimulatedNode::Member(self.number(at, receiver.slot)), node);
            let refuses = self.random.below(1000) < self.refuses;
            if !self.knows(node, wire) || refuses {
                let why = if refuses { Why::Refused } else { Why::Absent };
                lost.push((to, receiver.sequence, Astray { at, towards: at, why }));
            } else {
                let header = header.data_of_many(at, receiver, data.len());
                self.send(node, wire, Item::Frame((header, data.to_vec())));
            }
        }
        for (next, below) in block.branches() {
            let trunk = self.trunks(site, gateway, usize::from(next.0)).first().copied();
            let refuses = self.random.below(1000) < self.refuses;
            match trunk.filter(|_| !refuses) {
                Some(trunk) => {
                    let onward = [below.bytes(), data].concat();
                    self.send(node, trunk, Item::Frame((header.onward(next, onward.len()), onward)));
                }
                None => {
                    let why = if trunk.is_some() { Why::Refused } else { Why::Away };
                    let add = &mut |site, receiver: wire::many::BlockReceiver| -> Result<(), ()> {
                        let to = Identity { site, slot: receiver.slot };
                        lost.push((to, receiver.sequence, Astray { at, towards: next, why }));
                        Ok(())
                    };
                    below.each(next, add).unwrap();
                }
            }
        }
        let mut unsaid = false;
        for (to, sequence, astray) in lost.into_iter().filter(|_| self.rules.report_copies).collect::<Vec<_>>() {
            let report = FrameHeader { length: 5, ..header.astray(to, sequence) };
            let said = self.report((site, gateway), (report, astray.encode().to_vec()));
            unsaid |= !said && usize::from(header.from.site.0) != site;
        }
        if unsaid && self.rules.tell_of_unsaid {
            let passage = Item::Passage(header.from.site, Passage::Broken);
            for receiver in block.receivers() {
                let wire = self.wire(SimulatedNode::Member(self.number(at, receiver.slot)), node);
                if self.knows(node, wire) {
                    self.send(node, wire, passage.clone());
                }
            }
        }
    }

    fn number(&self, site: SiteId, slot: Slot) -> usize {
        self.members.iter().position(|(me, _)| *me == Identity { site, slot }).unwrap()
    }

    /// Sends a report to the root. Returns true if there is a path to it.
    fn report(&mut self, (site, gateway): (usize, usize), report: TestFrame) -> bool {
        let node = SimulatedNode::Gateway(site, gateway);
        let root = usize::from(report.0.to.site.0);
        let wire = if root == site {
            let number = self.members.iter().position(|(me, _)| *me == report.0.to).unwrap();
            Some(self.wire(SimulatedNode::Member(number), node)).filter(|wire| self.knows(node, *wire))
        } else {
            self.trunks(site, gateway, root).first().copied()
        };
        wire.into_iter().for_each(|wire| self.send(node, wire, Item::Frame(report.clone())));
        wire.is_some()
    }

    fn member_hears(&mut self, number: usize, wire: usize, item: Item) {
        let SimulatedNode::Gateway(_, gateway) = self.wires[wire].ends[1] else { return };
        let (route, now_ns, seed) = (Route(gateway as u8), self.now * STEP_NS, self.seed);
        let talk = &mut self.members[number].1;
        match item {
            Item::Passage(site, passage) => talk.passage(route, site, &passage),
            Item::Frame((header, payload)) => match header.kind {
                FrameKind::Undeliverable => {
                    assert!(!talk.undeliverable(route, header.from, now_ns), "seed {seed}: a peer was given up");
                }
                FrameKind::Astray => {
                    talk.astray(header.route, header.from, Astray::decode(&payload).unwrap(), now_ns);
                }
                FrameKind::Refused => talk.refused(route, header.from, now_ns),
                FrameKind::Data => {
                    let SlotRank(from) = SlotRank::of(header.from);
                    let list = self.came.entry((number, from)).or_default();
                    let taken = talk.data::<Misbehaved>(route, header.from, &header, &payload, now_ns, |payload, _| {
                        list.push(u64::from_le_bytes(payload[..8].try_into().unwrap()));
                        Ok(())
                    });
                    taken.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
                }
                _ => talk.heard(route, header.from, &header, &payload, now_ns).unwrap(),
            },
        }
    }

    /// Prints the state of a stalled storm, for a person who investigates it.
    #[allow(clippy::print_stderr, reason = "a person asked for it")]
    fn describe(&self, sent: &BTreeMap<(usize, usize), u64>) {
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

    /// Makes every member know all members of other sites.
    fn introduce(&mut self) {
        let everybody: Vec<Identity> = self.members.iter().map(|(me, _)| *me).collect();
        for (me, talk) in &mut self.members {
            for peer in everybody.iter().filter(|peer| peer.site != me.site) {
                talk.peer(*peer, *peer);
            }
        }
    }

    /// Queues a frame from one member for another, with the pair's next number.
    fn send_one(&mut self, from: usize, to: usize, next: &mut u64) {
        let length = 8 + self.random.below(1500) as u32;
        let peer = self.members[to].0;
        let talk = &mut self.members[from].1;
        let was_empty = !talk.peer(peer, peer).has_something();
        talk.peer(peer, peer).queue.0.push_back((*next, length));
        talk.queued(peer, was_empty);
        *next += 1;
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
                let takes = self.frozen != Some(node);
                while takes && self.wires[at].queues[end].front().is_some_and(|(when, _)| *when <= self.now) {
                    let (_, item) = self.wires[at].queues[end].pop_front().unwrap();
                    self.arrives(node, at, item);
                }
            }
            let wire = &mut self.wires[at];
            if !wire.up && wire.known == [false; 2] && wire.back <= self.now {
                (wire.up, wire.known) = (true, [true; 2]);
                let ends = wire.ends;
                // A gateway knows of a member before the member knows of the gateway.
                [ends[1], ends[0]].into_iter().for_each(|node| self.changed(node, at, true));
            }
        }
        for number in 0..self.members.len() {
            let node = SimulatedNode::Member(number);
            let site = number % self.gateways.len();
            let gateways = self.gateways[site];
            let full = (0..gateways).map(|_| self.random.below(10) == 0).collect();
            let mut out = Out { full, frames: Vec::new(), many: 0 };
            let now_ns = self.now * STEP_NS;
            self.members[number].1.tick(now_ns);
            self.members[number].1.send(&mut out, now_ns);
            self.many += out.many;
            self.data += out.frames.iter().filter(|(_, (header, _))| header.kind == FrameKind::Data).count() as u64;
            for (route, frame) in out.frames {
                let wire = self.wire(node, SimulatedNode::Gateway(site, usize::from(route.0)));
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
