//! Two sides in virtual time: messages between two processes stay in order; everything else arrives in any order.

use std::collections::{BTreeMap, HashSet};

use plan::redistribution::testing::{Case, Chance};
use plan::redistribution::{Pick, Transfer};
use types::links::LinkFigures;

use super::*;
use crate::message::Described;
use crate::pack::Packing;
use crate::sealed;

type Name = (usize, u32);

struct SimulatedCoupling {
    sides: [Vec<Exchange>; 2],
    /// Messages in flight, in order, by sender and receiver.
    messages: BTreeMap<(Name, Name), VecDeque<ExchangeMessage>>,
    /// Elements in flight, with sender, receiver and ticket.
    elements: Vec<(Name, Name, u32, Vec<u8>)>,
    awaited: HashSet<(Name, Name, u32)>,
    told: usize,
    /// Bytes of elements that went from one site to another.
    crossed: usize,
    /// Limit of the bytes in flight from a site to a process, if there is one.
    most_on_the_way: Option<usize>,
}

impl SimulatedCoupling {
    /// `sites`: the site of each process.
    fn new(sizes: [u32; 2], sites: impl Fn(Name) -> u16) -> SimulatedCoupling {
        let sites_of = |side: usize| (0..sizes[side]).map(|process| SiteId(sites((side, process)))).collect::<Vec<_>>();
        let side = |own: usize| {
            // Some processes share a host, some are alone.
            let memory = |process: u32| Memory { host: u64::from(process % 4), pid: 7, first_mark: 9 };
            let exchange = |process| Exchange::new(process, [sites_of(own), sites_of(1 - own)], memory(process));
            (0..sizes[own]).map(exchange).collect()
        };
        let (messages, awaited) = (BTreeMap::new(), HashSet::new());
        SimulatedCoupling {
            sides: [side(0), side(1)],
            messages,
            elements: Vec::new(),
            awaited,
            told: 0,
            crossed: 0,
            most_on_the_way: None,
        }
    }

    /// Sends pieces of this many bytes over links of this rate in bytes per second.
    fn cut(&mut self, piece: usize, rate: f64) {
        for exchange in self.sides.iter_mut().flatten() {
            exchange.piece = piece;
            for site in exchange.ways().0 {
                exchange.measured(site, LinkFigures { round_trip: Some(0.0), rate: Some(rate) });
            }
        }
        self.most_on_the_way = (rate == 1.0).then_some(2 * piece);
    }

    /// Bytes in flight to a process from another site.
    fn on_the_way(&self, from: SiteId, to: Name) -> usize {
        let is_there = |(sender, receiver, ..): &&(Name, Name, u32, Vec<u8>)| {
            *receiver == to && sender.0 != to.0 && self.site(*sender) == from
        };
        self.elements.iter().filter(is_there).map(|(.., bytes)| bytes.len() - sealed::SEAL).sum()
    }

    fn site(&self, (side, process): Name) -> SiteId {
        self.sides[side][process as usize].sites[0][process as usize]
    }

    fn process(&mut self, (side, process): Name) -> &mut Exchange {
        &mut self.sides[side][process as usize]
    }

    /// Carries out the actions of a process.
    fn act(&mut self, who: Name) {
        let side = who.0;
        while let Some(action) = self.process(who).actions.pop_front() {
            match action {
                ExchangeAction::Tell(party, message) => {
                    let to = (if party.own { side } else { 1 - side }, party.process);
                    self.told += 1;
                    self.messages.entry((who, to)).or_default().push_back(*message);
                }
                ExchangeAction::Send { to, ticket, bytes } => {
                    let to = (if to.own { side } else { 1 - side }, to.process);
                    if self.site(who) != self.site(to) {
                        self.crossed += bytes.len() - sealed::SEAL;
                    }
                    self.elements.push((who, to, ticket, bytes));
                    if let Some(most) = self.most_on_the_way
                        && self.site(who) != self.site(to)
                    {
                        assert!(self.on_the_way(self.site(who), to) <= most);
                    }
                }
                ExchangeAction::Await { from, ticket, length } => {
                    assert!(length >= sealed::SEAL);
                    let from = (if from.own { side } else { 1 - side }, from.process);
                    assert!(self.awaited.insert((from, who, ticket)));
                }
                ExchangeAction::Forget { ticket } => self.awaited.retain(|(_, to, of)| (*to, *of) != (who, ticket)),
            }
        }
    }

    /// Delivers one message or piece. Returns false if there is none.
    fn deliver(&mut self, chance: &mut Chance) -> bool {
        let waiting: Vec<(Name, Name)> = self.messages.keys().copied().collect();
        let all = waiting.len() + self.elements.len();
        if all == 0 {
            return false;
        }
        let at = chance.below(all as u64) as usize;
        if let Some((from, to)) = waiting.get(at).copied() {
            let queue = self.messages.get_mut(&(from, to)).unwrap();
            let message = queue.pop_front().unwrap();
            if queue.is_empty() {
                self.messages.remove(&(from, to));
            }
            // The message passes through its encoding, as on a connection.
            let parts = message.parts().unwrap();
            let mut arriving = crate::message::PartialMessage::default();
            let message = parts.iter().find_map(|part| arriving.part(part).unwrap()).unwrap();
            self.process(to).handle_message(Party { own: from.0 == to.0, process: from.1 }, message);
            self.act(to);
        } else {
            let (from, to, ticket, bytes) = self.elements.swap_remove(at - waiting.len());
            assert!(self.awaited.remove(&(from, to, ticket)), "no memory was ready for it");
            let party = Party { own: from.0 == to.0, process: from.1 };
            self.process(to).arrived(party, ticket, bytes);
            self.act(to);
        }
        true
    }
}

const ELEMENT: usize = 8;
const ALONE: Memory = Memory { host: 0, pid: 0, first_mark: 0 };

/// A process's part of version `version`.
fn part(layout: &Layout, process: u32, version: u64) -> Vec<u8> {
    if process >= layout.processes() {
        return Vec::new();
    }
    let count: u64 = layout.local_shape(process).iter().product();
    (0..count).flat_map(|at| (version << 32 | u64::from(process) << 24 | at).to_le_bytes()).collect()
}

/// The expected array of a process of the target, by the messages of both ends.
fn expected(transfer: &Transfer, process: u32, version: u64) -> Vec<u8> {
    let target = transfer.target();
    let mut array = vec![0; part(target, process, 0).len()];
    if process >= target.processes() {
        return array;
    }
    let strides = target.strides(process, ELEMENT);
    for message in transfer.receives(process) {
        let source = part(transfer.source(), message.peer, version);
        let there = transfer.source().strides(message.peer, ELEMENT);
        let sent = transfer.sends(message.peer).into_iter().find(|sent| sent.peer == process).unwrap();
        // SAFETY: parts are contiguous, and messages were made for their strides.
        unsafe {
            let sent = Packing::new(&sent, &there, ELEMENT).unwrap();
            let mut bytes = vec![0; sent.bytes()];
            sent.pack(source.as_ptr(), bytes.as_mut_ptr());
            Packing::new(&message, &strides, ELEMENT).unwrap().unpack(bytes.as_ptr(), array.as_mut_ptr());
        }
    }
    array
}

fn exported(layout: &Layout) -> Variable {
    Variable { dtype: "<u8".into(), element: ELEMENT, layout: layout.clone() }
}

/// The remaining steps of one process.
struct Script {
    who: Name,
    /// Indices of variables, with versions.
    steps: VecDeque<(usize, u64)>,
    fetching: Option<(FetchId, Vec<u8>)>,
}

#[test]
fn everything_arrives_once_in_any_order() {
    let count = std::env::var("EXCHANGES").map_or(300, |text| text.parse().unwrap());
    for seed in 0..count {
        let mut chance = Chance::new(seed);
        // Each variable has an exporting side and some versions.
        let variables: Vec<(usize, Case)> =
            (0..1 + chance.below(3)).map(|_| (chance.below(2) as usize, Case::new(&mut chance))).collect();
        let needs = |side: usize, (from, case): &(usize, Case)| {
            if *from == side { case.transfer.source().processes() } else { case.transfer.target().processes() }
        };
        let size = |side: usize| variables.iter().map(|variable| needs(side, variable)).max().unwrap_or(1);
        let sizes = [size(0) + chance.below(2) as u32, size(1) + chance.below(2) as u32];
        let places: Vec<u16> = (0..sizes[0] + sizes[1]).map(|_| chance.below(3) as u16).collect();
        let mut world =
            SimulatedCoupling::new(sizes, |(side, process)| places[(side as u32 * sizes[0] + process) as usize]);
        // Pieces have few elements or are whole messages, and few bytes may be in flight.
        let piece = ELEMENT * [3, 5, 1000][chance.below(3) as usize];
        world.cut(piece, [1.0, 1e9][chance.below(2) as usize]);
        let versions = 1 + chance.below(4);
        let skipped = versions > 1 && chance.below(3) == 0;
        let mut scripts = Vec::new();
        for (side, size) in sizes.into_iter().enumerate() {
            for process in 0..size {
                let steps = (1..=versions)
                    .flat_map(|version| (0..variables.len()).map(move |variable| (variable, version * 10)));
                let steps = steps.filter(|(at, version)| !(skipped && variables[*at].0 != side && *version == 10));
                scripts.push(Script { who: (side, process), steps: steps.collect(), fetching: None });
            }
        }
        let mut idle = 0;
        while scripts.iter().any(|script| !script.steps.is_empty()) {
            let at = chance.below(scripts.len() as u64) as usize;
            // The caller's duty: all processes have finished a fetch before any begins the next.
            let (side, left) = (scripts[at].who.0, scripts[at].steps.len());
            let others = || scripts.iter().filter(|script| script.who.0 == side);
            let together = others().all(|script| script.steps.len() <= left);
            let fetches = scripts[at].steps.front().is_some_and(|(variable, _)| variables[*variable].0 != side);
            if fetches && scripts[at].fetching.is_none() && !together {
                continue;
            }
            let moved = advance(&mut world, &mut scripts[at], &variables, seed);
            let delivered = chance.below(2) == 0 && world.deliver(&mut chance);
            idle = if moved || delivered { 0 } else { idle + 1 };
            assert!(idle < 100_000, "seed {seed}: nothing moves");
        }
        while world.deliver(&mut chance) {}
        for exchange in world.sides.iter().flatten() {
            assert_eq!((exchange.check(), exchange.unfetched(), exchange.held()), (Ok(()), vec![], 0), "seed {seed}");
            assert!(exchange.tickets.is_empty() && exchange.fetches.is_empty());
            assert!(exchange.relays.is_empty() && exchange.forwards.is_empty());
            assert!(exchange.passing.is_empty() && exchange.passed.is_empty());
            assert!(exchange.paths.values().all(|path| path.is_idle()));
        }
        assert!(world.awaited.is_empty());
    }
}

fn advance(world: &mut SimulatedCoupling, script: &mut Script, variables: &[(usize, Case)], seed: u64) -> bool {
    let (side, process) = script.who;
    let Some((at, version)) = script.steps.front().copied() else { return false };
    let (from, case) = &variables[at];
    let (name, transfer) = (format!("v{at}"), &case.transfer);
    let exchange = world.process(script.who);
    if *from == side {
        let data = part(transfer.source(), process, version);
        let source = transfer.source();
        let strides = match process < source.processes() {
            true => source.strides(process, ELEMENT),
            false => vec![0; source.axes()],
        };
        // In half of the cases, elements are packed for the current wish, if one is known.
        let content = match exchange.packings(&name, &strides).filter(|_| (u64::from(process) + version / 10) % 2 == 0)
        {
            None => Content::Part(data),
            Some((wish, packings)) => {
                let mut messages = vec![vec![7; 3]; packings.len()];
                let pairs = packings.iter().map(|(_, packing)| packing).zip(&mut messages);
                // SAFETY: the data are contiguous.
                unsafe { sealed::pack(pairs, data.as_ptr()) };
                Content::Messages { wish, messages: packings.iter().map(|(to, _)| *to).zip(messages).collect() }
            }
        };
        exchange.export(&name, version, exported(source), content).unwrap();
        script.steps.pop_front();
    } else if let Some((id, array)) = &mut script.fetching {
        let (arrived, done) = exchange.take(*id).unwrap();
        let any = !arrived.is_empty();
        for one in &arrived {
            let bytes = match &one.source {
                ElementSource::Here(bytes) => bytes.as_slice(),
                // One in three cannot be read.
                ElementSource::Beside { .. } if (seed + u64::from(one.ticket)).is_multiple_of(3) => {
                    exchange.unreadable(one);
                    continue;
                }
                // SAFETY: the owner keeps the elements until the receiver reports that it has taken them.
                ElementSource::Beside { address, mark, .. } => unsafe {
                    let bytes = std::slice::from_raw_parts(*address as *const u8, one.bytes() + sealed::SEAL);
                    assert_eq!(bytes.last_chunk(), Some(&mark.to_le_bytes()));
                    bytes
                },
            };
            // SAFETY: the array is contiguous, and the fetch was begun with its strides.
            unsafe { one.unpack(bytes.as_ptr(), array.as_mut_ptr()) };
            exchange.taken(one);
        }
        if any {
            world.act(script.who);
            return true;
        }
        if !done {
            return false;
        }
        assert_eq!(*array, expected(transfer, process, version), "seed {seed}, {name}, version {version}");
        script.fetching = None;
        script.steps.pop_front();
    } else {
        // In half of the cases, the wish precedes the variable on this side.
        if exchange.variable(&name).is_none() {
            if seed.is_multiple_of(2) {
                exchange.wish(&name, transfer.target(), &case.mapping);
                world.act(script.who);
            }
            return false;
        }
        let target = transfer.target();
        let strides = match process < target.processes() {
            true => target.strides(process, ELEMENT),
            false => vec![0; target.axes()],
        };
        let id = exchange.fetch(&name, version, target, &case.mapping, (&strides, ELEMENT)).unwrap();
        script.fetching = Some((id, vec![0; part(target, process, 0).len()]));
    }
    world.act(script.who);
    true
}

/// Sites of two sides whose processes are all at one site.
fn at_home(own: usize, others: usize) -> [Vec<SiteId>; 2] {
    [vec![SiteId(0); own], vec![SiteId(0); others]]
}

fn whole(extent: u64) -> Layout {
    Layout::new(vec![extent], vec![plan::redistribution::Axis::Whole]).unwrap()
}

fn blocks(extent: u64, over: u32) -> Layout {
    Layout::new(vec![extent], vec![plan::redistribution::Axis::Block { over, sizes: None }]).unwrap()
}

fn all(extent: u64) -> Mapping {
    let all = vec![plan::redistribution::Pick::all(extent)];
    Mapping { from: all.clone(), to: all, order: vec![0], shifts: vec![0] }
}

/// Exports a variable on side 0 and begins to fetch it on side 1.
fn begun(sizes: [u32; 2]) -> (SimulatedCoupling, Vec<FetchId>) {
    let (mut world, mut chance) = (SimulatedCoupling::new(sizes, |_| 0), Chance::new(1));
    for process in 0..sizes[0] {
        let layout = blocks(60, sizes[0]);
        let data = part(&layout, process, 1);
        world.process((0, process)).export("v", 1, exported(&layout), Content::Part(data)).unwrap();
        world.act((0, process));
    }
    while world.deliver(&mut chance) {}
    let layout = blocks(60, sizes[1]);
    let fetch = |process| world.process((1, process)).fetch("v", 1, &layout, &all(60), (&[8], 8)).unwrap();
    let ids = (0..sizes[1]).map(fetch).collect();
    (0..sizes[1]).for_each(|process| world.act((1, process)));
    (world, ids)
}

#[test]
fn a_flipped_byte_ends_the_coupling_for_all() {
    let (mut world, ids) = begun([4, 3]);
    let mut chance = Chance::new(2);
    while world.elements.is_empty() {
        assert!(world.deliver(&mut chance));
    }
    let ((_, sender), (_, receiver), ..) = world.elements[0];
    world.elements[0].3[11] ^= 4;
    while world.deliver(&mut chance) {}
    for exchange in world.sides.iter().flatten() {
        let error = exchange.check().unwrap_err().to_string();
        let text = format!("v, version 1: the bytes from process {sender} were changed on the way");
        assert!(error.contains(&text), "{error}");
    }
    // Other processes may have received everything before.
    let receiver = receiver as usize;
    assert!(world.sides[1][receiver].take(ids[receiver]).is_err());
    // Both sides' first processes notify the others, so there are few messages.
    assert!(world.told < 60, "{}", world.told);
}

#[test]
fn an_end_reaches_everybody_with_few_messages() {
    for who in [(0, 0), (0, 5), (1, 0), (1, 39)] {
        let mut world = SimulatedCoupling::new([50, 40], |_| 0);
        world.process(who).fail("out of memory".into(), None);
        world.act(who);
        while world.deliver(&mut Chance::new(3)) {}
        for exchange in world.sides.iter().flatten() {
            assert_eq!(exchange.check(), Err(ExchangeError::Over("out of memory".into())));
        }
        assert!(world.told <= 100, "{}", world.told);
    }
}

#[test]
fn the_other_side_hears_of_a_helper_that_is_lost() {
    let (mut world, _) = begun([6, 40]);
    world.process((0, 0)).fail_alone("its helper has ended".into(), "the other side's helper has ended".into());
    world.act((0, 0));
    while world.deliver(&mut Chance::new(3)) {}
    for (exchanges, reason) in world.sides.iter().zip(["its helper has ended", "the other side's helper has ended"]) {
        for exchange in exchanges {
            assert_eq!(exchange.check(), Err(ExchangeError::Over(reason.into())));
        }
    }
}

#[test]
fn a_process_that_leaves_alone_is_told_to_its_own_side_as_such() {
    for (who, over_before) in [((0, 0), false), ((0, 5), false), ((1, 39), false), ((0, 3), true)] {
        let mut world = SimulatedCoupling::new([50, 40], |_| 0);
        if over_before {
            world.process((1, 0)).fail("out of memory".into(), None);
            world.act((1, 0));
            while world.deliver(&mut Chance::new(3)) {}
        }
        world.process(who).leave("a mistake".into(), None);
        world.act(who);
        while world.deliver(&mut Chance::new(3)) {}
        for (side, exchanges) in world.sides.iter().enumerate() {
            for exchange in exchanges {
                let reason = if over_before { "out of memory" } else { "a mistake" };
                assert_eq!(exchange.check(), Err(ExchangeError::Over(reason.into())));
                assert_eq!(exchange.left(), (side == who.0).then_some("a mistake"), "{who:?}");
            }
        }
        assert!(world.told <= 200, "{}", world.told);
    }
}

#[test]
fn what_was_taken_before_the_end_is_taken_although_the_end_is_heard_first() {
    let (mut world, ids) = begun([2, 2]);
    let mut chance = Chance::new(5);
    while world.deliver(&mut chance) {}
    let reader = world.process((1, 1));
    for arrived in reader.take(ids[1]).unwrap().0 {
        assert!(matches!(arrived.source, ElementSource::Beside { .. }));
        reader.taken(&arrived);
    }
    world.act((1, 1));
    let exporter = world.process((0, 1));
    assert!(exporter.lends());
    exporter.fail("the other side has left".into(), Some(Party::other(0)));
    while world.deliver(&mut chance) {}
    let exporter = world.process((0, 1));
    assert_eq!((exporter.lends(), exporter.unfetched()), (false, Vec::new()));
    assert!(exporter.check().is_err());
}

#[test]
fn what_is_exported_after_the_end_is_never_fetched() {
    let mut exchange = Exchange::new(0, at_home(1, 1), ALONE);
    exchange.export("v", 1, exported(&whole(10)), Content::Part(vec![0; 80])).unwrap();
    exchange.handle_message(Party::other(0), ExchangeMessage::Over { reason: "gone".into() });
    exchange.export("w", 3, exported(&whole(10)), Content::Part(vec![0; 80])).unwrap();
    assert_eq!(exchange.unfetched(), [("v".to_owned(), 1), ("w".to_owned(), 3)]);
}

#[test]
fn wrong_use_is_named() {
    let mut exchange = Exchange::new(0, at_home(2, 3), ALONE);
    let layout = blocks(10, 2);
    let export = |exchange: &mut Exchange, version, layout: &Layout, bytes: usize| {
        exchange.export("v", version, exported(layout), Content::Part(vec![0; bytes])).unwrap_err().to_string()
    };
    assert_eq!(export(&mut exchange, 1, &layout, 39), "v: 39 bytes are given, but this process's part has 40");
    assert_eq!(export(&mut exchange, 1, &blocks(10, 3), 32), "v: a layout for 3 processes, but this side has 2");
    exchange.export("v", 5, exported(&layout), Content::Part(vec![0; 40])).unwrap();
    let old = export(&mut exchange, 5, &layout, 40);
    assert!(old.starts_with("v: version 5 is not above the last exported version"), "{old}");
    let changed = export(&mut exchange, 6, &whole(10), 80);
    assert_eq!(changed, "v: exported before as [10] of <u8 over 2 processes, now as [10] of <u8 over 1 processes");
}

#[test]
fn what_is_not_fetched_now_may_be_fetched_of_the_next_version() {
    let mut exchange = Exchange::new(0, at_home(1, 1), ALONE);
    exchange.export("w", 1, exported(&whole(10)), Content::Part(vec![0; 80])).unwrap();
    let half = |start| {
        let from = vec![Pick::Slice { start, step: 2, count: 5 }];
        Mapping { from, to: vec![Pick::all(5)], order: vec![0], shifts: vec![0] }
    };
    let wishes = [(whole(5), half(0), false), (whole(5), half(1), false), (blocks(10, 1), all(10), true)];
    for (wish, (layout, mapping, packs)) in (0..).zip(wishes) {
        let layout = Description::of(&layout);
        exchange.handle_message(Party::other(0), ExchangeMessage::Wish { name: "w".into(), wish, layout, mapping });
        exchange.handle_message(
            Party::other(0),
            ExchangeMessage::Begin { name: "w".into(), wish, version: u64::from(wish) + 1 },
        );
        assert_eq!(exchange.check(), Ok(()));
        assert_eq!(exchange.packings("w", &[8]).is_some(), packs, "wish {wish}");
    }
}

#[test]
fn what_a_strange_peer_says_ends_the_coupling() {
    let described = |layout: &Layout| Described { dtype: "<u8".into(), element: 8, layout: Description::of(layout) };
    let variable = |layout: &Layout, element| {
        let variable = Described { element, ..described(layout) };
        ExchangeMessage::Variable { name: "v".into(), variable }
    };
    let wish = |layout: &Layout, extent| {
        let layout = Description::of(layout);
        ExchangeMessage::Wish { name: "w".into(), wish: 0, layout, mapping: all(extent) }
    };
    let request =
        |wish, version| ExchangeMessage::Request { name: "w".into(), wish, version, ticket: 0, host: 0, pieces: 0 };
    for (messages, text) in [
        (vec![variable(&blocks(10, 4), 8)], "v: its layout is for 4 processes, but it has 3"),
        (vec![variable(&whole(10), 0)], "v: elements of 0 bytes"),
        (vec![variable(&whole(10), 8), variable(&whole(11), 8)], "v: it exports [11] of <u8 over 1 processes, and"),
        (vec![wish(&whole(10), 10), request(0, 1)], "w: process 2 asks for a part that it does not need"),
        (
            vec![ExchangeMessage::Refused { ticket: 7, reason: String::new() }],
            "process 2 sent 0 bytes that nobody awaits",
        ),
    ] {
        let mut exchange = Exchange::new(0, at_home(2, 3), ALONE);
        exchange.export("w", 1, exported(&whole(10)), Content::Part(vec![0; 80])).unwrap();
        messages.into_iter().for_each(|message| exchange.handle_message(Party::other(2), message));
        let error = exchange.check().unwrap_err().to_string();
        assert!(error.starts_with("the other side: ") && error.contains(text), "{error}");
    }
}

/// A million elements in two blocks at site 0, copied to each of 8 processes of side 1, at sites 1 and 2.
fn copied(export: bool) -> (SimulatedCoupling, Layout, Vec<FetchId>) {
    let (mut world, mut chance) = (
        SimulatedCoupling::new([2, 8], |(side, process)| if side == 0 { 0 } else { 1 + process as u16 % 2 }),
        Chance::new(4),
    );
    let (source, extent) = (blocks(1_000_000, 2), 1_000_000);
    for process in 0..2 {
        for version in if export { vec![1, 2] } else { vec![2] } {
            let data = part(&source, process, version);
            world.process((0, process)).export("v", version, exported(&source), Content::Part(data)).unwrap();
        }
        world.act((0, process));
    }
    while world.deliver(&mut chance) {}
    let grid = plan::redistribution::Grid { dimensions: vec![8, 1], axes: vec![vec![1]] };
    let target = whole(extent).over(grid).unwrap();
    let mut fetch = |process| world.process((1, process)).fetch("v", 1, &target, &all(extent), (&[8], 8)).unwrap();
    let ids = (0..8).map(&mut fetch).collect();
    // The last process sends its request first.
    (0..8).rev().for_each(|process| world.act((1, process)));
    (world, target, ids)
}

#[test]
fn copies_cross_between_two_sites_once() {
    let (mut world, target, ids) = copied(true);
    // The sender stays until all processes have the elements.
    while world.elements.is_empty() {
        world.deliver(&mut Chance::new(5));
    }
    assert!((0..2).any(|process| world.process((0, process)).is_passing()));
    while world.deliver(&mut Chance::new(5)) {}
    let transfer = Transfer::new(blocks(1_000_000, 2), target, &all(1_000_000)).unwrap();
    for (process, id) in (0..).zip(ids) {
        let (arrived, done) = world.process((1, process)).take(id).unwrap();
        let mut array = vec![0; 8_000_000];
        for one in &arrived {
            let ElementSource::Here(bytes) = &one.source else { panic!("{:?}", one.source) };
            // SAFETY: the array has the elements that were fetched.
            unsafe { one.unpack(bytes.as_ptr(), array.as_mut_ptr()) };
        }
        assert!(done && array == expected(&transfer, process, 1), "process {process}");
        assert!(world.process((1, process)).relays.is_empty());
    }
    assert!((0..2).all(|process| !world.process((0, process)).is_passing()));
    // The elements cross once to each of two sites.
    assert_eq!(world.crossed, 2 * 8_000_000);
}

#[test]
fn a_refusal_is_passed_on() {
    let (mut world, _, ids) = copied(false);
    while world.deliver(&mut Chance::new(6)) {}
    for (process, id) in (0..).zip(ids) {
        let refused = world.process((1, process)).take(id).unwrap_err().to_string();
        assert!(refused.contains("v, version 1: it is not there"), "{refused}");
        assert!(world.process((1, process)).relays.is_empty());
    }
}

#[test]
fn few_messages_are_on_their_way_at_a_time() {
    let mut world = SimulatedCoupling::new([4, 1], |(side, _)| side as u16);
    let (source, target) = (blocks(4000, 4), whole(4000));
    let mut chance = Chance::new(7);
    let piece = 10 * ELEMENT;
    world.cut(piece, 1.0);
    for process in 0..4 {
        let data = part(&source, process, 1);
        world.process((0, process)).export("v", 1, exported(&source), Content::Part(data)).unwrap();
        world.act((0, process));
    }
    while world.deliver(&mut chance) {}
    let id = world.process((1, 0)).fetch("v", 1, &target, &all(4000), (&[8], 8)).unwrap();
    world.act((1, 0));
    // Of four messages of 100 pieces, one is sent at a time, two pieces at a time.
    let mut most = 0;
    while world.deliver(&mut chance) {
        let all: usize = (0..4).map(|process| usize::from(world.process((0, process)).lends())).sum();
        most = most.max(all);
    }
    assert_eq!(most, 1);
    assert!(world.process((1, 0)).take(id).unwrap().1);
}

#[test]
fn who_asks_for_more_than_there_is_ends_the_coupling() {
    for (first, then) in [(1, 5), (5, 1)] {
        let mut world = SimulatedCoupling::new([1, 1], |(side, _)| side as u16);
        world.cut(ELEMENT, 1.0);
        let exchange = world.process((0, 0));
        exchange.export("w", 1, exported(&whole(4)), Content::Part(vec![0; 32])).unwrap();
        let (layout, name) = (Description::of(&whole(4)), "w".to_owned());
        exchange.handle_message(
            Party::other(0),
            ExchangeMessage::Wish { name: name.clone(), wish: 0, layout, mapping: all(4) },
        );
        let request = ExchangeMessage::Request { name, wish: 0, version: 1, ticket: 3, host: 0, pieces: first };
        exchange.handle_message(Party::other(0), request);
        exchange.handle_message(Party::other(0), ExchangeMessage::More { ticket: 3, pieces: then });
        let error = exchange.check().unwrap_err().to_string();
        assert!(error.contains("process 0 asks for more pieces than its message has"), "{error}");
    }
}

#[test]
fn what_a_process_of_this_side_may_not_ask_for_ends_the_coupling() {
    let (mut world, ..) = copied(true);
    let forward = ExchangeMessage::Forward { fetch: 0, source: 0, ticket: 5 };
    world.process((1, 0)).handle_message(Party { own: true, process: 5 }, forward);
    let error = world.process((1, 0)).check().unwrap_err().to_string();
    assert!(error.contains("this side: process 5 sent 0 bytes that nobody awaits"), "{error}");
}
