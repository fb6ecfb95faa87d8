//! Redistributions of random layouts against the places computed from each element's index.

use std::collections::HashMap;

use super::testing::{Case, Chance};
use super::*;

/// For each local index along an axis: the array's index held there, and true if the process owns it; `None` past the
/// array's ends. Computed from the definition of each kind of axis, without runs.
fn slots(layout: &Layout, halo: &Halo, axis: usize, place: u32) -> Vec<Option<(u64, bool)>> {
    let extent = layout.shape()[axis];
    let owned: Vec<u64> = match layout.axis(axis) {
        Axis::Whole => (0..extent).collect(),
        Axis::Block { over, sizes } => {
            let each = extent.div_ceil(u64::from(*over));
            let size = |at: u32| sizes.as_ref().map_or(each, |sizes| sizes[at as usize]);
            let start: u64 = (0..place).map(size).sum();
            (start..(start + size(place)).min(extent)).collect()
        }
        Axis::Cyclic { over, block, first } => {
            let owner = |at: &u64| (at / block + u64::from(*first)) % u64::from(*over);
            (0..extent).filter(|at| owner(at) == u64::from(place)).collect()
        }
        Axis::Lists(lists) => lists[place as usize].clone(),
    };
    let (Some(first), Some(last)) = (owned.first().copied(), owned.last().copied()) else { return Vec::new() };
    let around = |at: i64| {
        let inside = at >= 0 && at < extent as i64;
        (inside || halo.periodic).then(|| (at.rem_euclid(extent as i64) as u64, false))
    };
    let before = (first as i64 - halo.before as i64..first as i64).map(around);
    let after = (last as i64 + 1..=last as i64 + halo.after as i64).map(around);
    before.chain(owned.iter().map(|at| Some((*at, true)))).chain(after).collect()
}

/// For each place in a process's memory, in C order of its local part: the index of the element held there, and true if
/// the process owns it.
fn elements(layout: &Layout, halos: &[Halo], process: u32) -> Vec<Option<(Vec<u64>, bool)>> {
    let mut all = vec![Some((Vec::new(), true))];
    for (axis, halo) in halos.iter().enumerate() {
        let slots = slots(layout, halo, axis, layout.grid().place(process, axis));
        let both = |one: &Option<(Vec<u64>, bool)>, slot: &Option<(u64, bool)>| {
            let ((index, owned), (at, is_own)) = (one.as_ref()?, slot.as_ref()?);
            Some((index.iter().copied().chain([*at]).collect(), *owned && *is_own))
        };
        all = all.iter().flat_map(|one| slots.iter().map(move |slot| both(one, slot))).collect();
    }
    all
}

/// Strides of a local part in C order; the plan must not depend on them.
fn strides(shape: &[u64]) -> Vec<i64> {
    let mut strides = vec![1; shape.len()];
    (1..shape.len()).rev().for_each(|axis| strides[axis - 1] = strides[axis] * shape[axis] as i64);
    strides
}

/// The places of a message's elements in local memory, in message order.
fn places(message: &TransferMessage, shape: &[u64]) -> Vec<usize> {
    let mut places = Vec::new();
    message.for_each_piece(&strides(shape), &mut |piece| {
        places.extend((0..piece.count as i64).map(|at| (piece.start + at * piece.stride) as usize));
    });
    assert_eq!(places.len() as u64, message.elements());
    places
}

/// The row-major number of an element.
fn number(index: &[u64], shape: &[u64]) -> i64 {
    index.iter().zip(shape).fold(0, |number, (at, extent)| number * *extent as i64 + *at as i64)
}

/// The position of an index among the selected ones.
fn position(pick: &Pick, at: u64) -> Option<u64> {
    let Pick::Slice { start, step, count } = *pick else { return None };
    (0..count).find(|k| start as i64 + step * *k as i64 == at as i64)
}

/// The source's index whose element must arrive at this index of the target.
fn expected(mapping: &Mapping, index: &[u64]) -> Option<Vec<u64>> {
    let mut part = Vec::new();
    for (pick, at) in mapping.to.iter().zip(index) {
        match pick {
            Pick::Index(only) if only == at => {}
            Pick::Index(_) => return None,
            Pick::Slice { .. } => part.push(position(pick, *at)?),
        }
    }
    let mut in_source = vec![0; part.len()];
    mapping.order.iter().zip(part).for_each(|(of, at)| in_source[*of] = at);
    let mut kept = in_source.iter().zip(&mapping.shifts);
    let of = |pick: &Pick| match *pick {
        Pick::Index(at) => Some(at),
        Pick::Slice { start, step, count } => {
            let (at, shift) = kept.next()?;
            Some((start as i64 + step * ((at + shift) % count) as i64) as u64)
        }
    };
    mapping.from.iter().map(of).collect()
}

impl Case {
    /// Runs the transfer and compares every place of the target's memory.
    fn check(&self) {
        let (source, target) = (self.transfer.source(), self.transfer.target());
        let mut in_flight: HashMap<(u32, u32), Vec<i64>> = HashMap::new();
        for process in 0..source.processes() {
            let elements = elements(source, &self.halos[0], process);
            let shape = source.local_shape(process);
            assert_eq!(shape.iter().product::<u64>(), elements.len() as u64);
            // Elements that are only in a halo must not be sent.
            let held = |element: &Option<(Vec<u64>, bool)>| match element {
                Some((index, true)) => number(index, source.shape()),
                _ => -7,
            };
            let memory: Vec<i64> = elements.iter().map(held).collect();
            for message in self.transfer.sends(process) {
                let payload = places(&message, &shape).into_iter().map(|at| memory[at]).collect();
                assert!(in_flight.insert((process, message.peer), payload).is_none(), "two messages");
            }
        }
        for process in 0..target.processes() {
            let elements = elements(target, &self.halos[1], process);
            let shape = target.local_shape(process);
            let mut memory = vec![-1; elements.len()];
            for message in self.transfer.receives(process) {
                let payload = in_flight.remove(&(message.peer, process)).expect("a message that is awaited is sent");
                let places = places(&message, &shape);
                assert_eq!(places.len(), payload.len());
                for (at, value) in places.into_iter().zip(payload) {
                    assert_eq!(std::mem::replace(&mut memory[at], value), -1, "written once");
                }
            }
            for (element, value) in elements.iter().zip(&memory) {
                let from = element.as_ref().and_then(|(index, _)| expected(&self.mapping, index));
                assert_eq!(*value, from.map_or(-1, |index| number(&index, source.shape())), "{element:?}");
            }
        }
        assert!(in_flight.is_empty(), "all that is sent is awaited: {:?}", in_flight.keys());
    }

    /// Checks that no process has two messages in one step, and that both ends agree on the step.
    fn check_steps(&self) {
        let (steps, transfer) = (Steps::new(&self.transfer), &self.transfer);
        let (mut at_ends, mut agreed, mut most) = (HashMap::new(), HashMap::new(), 0);
        for from in 0..transfer.source().processes() {
            let messages = transfer.sends(from);
            most = most.max(messages.len() as u64);
            for message in messages {
                let step = steps.of(from, &message);
                assert!(step < steps.count());
                for end in [("sends", from), ("receives", message.peer)] {
                    assert!(at_ends.insert((end, step), ()).is_none(), "{end:?} two messages in step {step}");
                }
                agreed.insert((from, message.peer), step);
            }
        }
        for to in 0..transfer.target().processes() {
            let messages = transfer.receives(to);
            most = most.max(messages.len() as u64);
            for message in messages {
                assert_eq!(steps.of(to, &message), agreed[&(message.peer, to)]);
            }
        }
        let copies = transfer.source().grid().copies() * transfer.target().grid().copies();
        let is_least = copies == 1 && transfer.dimensions() < 2;
        assert!(most == 0 || if is_least { steps.count() == most } else { steps.count() >= most });
    }
}

#[test]
fn every_element_arrives_once_and_nothing_else_is_touched() {
    let seeds = std::env::var("REDISTRIBUTIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(3000);
    for seed in 0..seeds {
        let case = Case::new(&mut Chance::new(seed));
        let check = || {
            case.check();
            case.check_steps();
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
        assert!(result.is_ok(), "seed {seed}: {:?} with {:?}", case.transfer, case.mapping);
    }
}

#[test]
fn owners_and_local_shapes_agree_with_what_is_held() {
    for seed in 0..500 {
        let mut chance = Chance::new(seed);
        let shape: Vec<u64> = (0..chance.below(4)).map(|_| chance.below(9)).collect();
        let (layout, halos) = chance.layout(&shape);
        for process in 0..layout.processes() {
            for (index, owned) in elements(&layout, &halos, process).into_iter().flatten() {
                let is_first = layout.grid().copy(process) == 0;
                assert!(!owned || !is_first || layout.owner(&index) == Some(process), "seed {seed}: {index:?}");
            }
        }
        assert_eq!(layout.owner(&shape), if shape.is_empty() { Some(0) } else { None });
    }
}

#[test]
fn a_process_without_an_index_of_one_axis_keeps_the_lengths_of_the_others() {
    let halo = Halo { before: 1, after: 2, periodic: false };
    let lists = Axis::Lists(vec![vec![2, 0], vec![], vec![1], vec![]]);
    let block = Axis::Block { over: 4, sizes: None };
    for (axis, empty) in [(block, 3), (Axis::Cyclic { over: 5, block: 1, first: 1 }, 0), (lists, 1)] {
        let layout = Layout::new(vec![3, 4], vec![axis.clone(), Axis::Whole]).unwrap();
        assert_eq!(layout.local_shape(empty), [0, 4], "{axis:?}");
        assert_eq!(layout.with_halo(1, halo).unwrap().local_shape(empty), [0, 7], "{axis:?}");
        let columns = Layout::new(vec![4, 3], vec![Axis::Block { over: 2, sizes: None }, axis.clone()]).unwrap();
        assert_eq!(columns.local_shape(empty), [2, 0], "{axis:?}");
    }
    // A process without rows has no halo.
    let rows = Layout::new(vec![3, 4], vec![Axis::Block { over: 4, sizes: None }, Axis::Whole]).unwrap();
    assert_eq!(rows.with_halo(0, halo).unwrap().local_shape(3), [0, 4]);
}

/// A side of 65,536 elements in blocks of `block`, dealt out to `over` processes.
fn dealt(over: u32, block: u64) -> Axis {
    Axis::Cyclic { over, block, first: 0 }
}

#[test]
fn something_is_shared_where_the_shared_is_not_empty() {
    let (mut shared, mut not) = (0, 0);
    for seed in 0..2000 {
        let mut chance = Chance::new(seed);
        let extent = chance.below(30);
        let ((source, _), (target, _)) = (chance.layout(&[extent]), chance.layout(&[extent]));
        for (from, to) in
            (0..source.axis(0).over()).flat_map(|from| (0..target.axis(0).over()).map(move |to| (from, to)))
        {
            let (held, wanted) = (source.owned(0, from), target.held(0, to));
            let exists = SharedPositions::exists(&held, &wanted);
            assert_eq!(exists, !SharedPositions::new(&held, &wanted).is_empty(), "seed {seed}: {from} to {to}");
            *if exists { &mut shared } else { &mut not } += 1;
        }
    }
    assert!(shared > 1000 && not > 1000, "{shared}, {not}");
}

#[test]
fn blocks_meet_cyclic_axes_of_any_length_at_once() {
    const LONG: u64 = (1 << 40) - 77;
    let block = Axis::Block { over: 4, sizes: None };
    for (source, target) in [(block.clone(), dealt(4, 64)), (dealt(4, 1000), block)] {
        let of = |axis: &Axis| Layout::new(vec![LONG], vec![axis.clone()]).unwrap();
        let (source, target) = (of(&source), of(&target));
        let mapping = Mapping::all(&source, &target);
        let transfer = Transfer::new(source, target, &mapping).unwrap();
        let all: u64 = (0..4).flat_map(|from| transfer.sends(from)).map(|message| message.elements()).sum();
        assert_eq!(all, LONG);
        assert_eq!(transfer.edges(0).len(), 16);
        let come: u64 = (0..4).flat_map(|to| transfer.receives(to)).map(|message| message.elements()).sum();
        assert_eq!(come, LONG);
    }
}

#[test]
fn rows_become_columns_in_as_many_steps_as_there_are_messages() {
    let over = |axis: usize, over| {
        let mut axes = vec![Axis::Whole; 2];
        axes[axis] = Axis::Block { over, sizes: None };
        Layout::new(vec![420, 420], axes).unwrap()
    };
    for (rows, columns) in [(4, 4), (5, 3), (2, 7), (1, 6)] {
        let (source, target) = (over(0, rows), over(1, columns));
        let transfer = Transfer::new(source.clone(), target.clone(), &Mapping::all(&source, &target)).unwrap();
        let steps = Steps::new(&transfer);
        assert_eq!(steps.count(), u64::from(rows.max(columns)));
        // No two processes begin with the same message.
        let mut first: Vec<u64> = (0..rows).map(|row| steps.of(row, &transfer.sends(row)[0])).collect();
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len() as u32, rows);
    }
}

#[test]
fn plans_grow_with_neighbours_not_with_elements() {
    let shape = vec![1 << 16; 2];
    let source = Layout::new(shape.clone(), vec![dealt(32, 64), dealt(32, 64)]).unwrap();
    let target = Layout::new(shape.clone(), vec![dealt(48, 48), dealt(24, 80)]).unwrap();
    let transfer = Transfer::new(source.clone(), target.clone(), &Mapping::all(&source, &target)).unwrap();
    let messages: usize = (0..1024).map(|process| transfer.sends(process).len()).sum();
    assert_eq!(messages, 442_368);
    let sent: u64 = transfer.sends(77).iter().map(TransferMessage::elements).sum();
    assert_eq!(sent, source.local_shape(77).iter().product::<u64>());
    let steps = Steps::new(&transfer);
    let most = transfer.sends(0).len() as u64;
    assert!((most..2 * most).contains(&steps.count()), "{}, {most}", steps.count());
    // A trillion indices, dealt out one at a time.
    let long = |over| Layout::new(vec![1 << 40], vec![dealt(over, 1)]).unwrap();
    let transfer = Transfer::new(long(6), long(4), &Mapping::all(&long(6), &long(4))).unwrap();
    let messages = transfer.sends(5);
    assert_eq!(messages.len(), 2);
    assert_eq!(messages.iter().map(TransferMessage::elements).sum::<u64>(), long(6).local_shape(5)[0]);
}

#[test]
fn a_replicated_source_shares_the_work() {
    let copies = |over: u32| {
        let grid = Grid { dimensions: vec![over, 1], axes: vec![vec![1]] };
        Layout::new(vec![100], vec![Axis::Whole]).unwrap().over(grid).unwrap()
    };
    let (source, target) = (copies(3), copies(7));
    let transfer = Transfer::new(source.clone(), target.clone(), &Mapping::all(&source, &target)).unwrap();
    let peers = |process| transfer.sends(process).iter().map(|message| message.peer).collect::<Vec<_>>();
    assert_eq!([peers(0), peers(1), peers(2)], [vec![0, 3, 6], vec![1, 4], vec![2, 5]]);
}

#[test]
fn a_layout_that_cannot_be_names_axis_process_and_value() {
    let block = |sizes: &[u64]| Axis::Block { over: 2, sizes: Some(sizes.to_vec()) };
    let cases = [
        (vec![block(&[3, 4])], "axis 0: the sizes add up to 7, but the axis has 6 indices"),
        (vec![block(&[6])], "axis 0: 1 sizes are given for 2 processes"),
        (vec![Axis::Block { over: 0, sizes: None }], "axis 0: spread over 0 processes"),
        (vec![Axis::Cyclic { over: 2, block: 0, first: 0 }], "axis 0: a block of 0 indices"),
        (
            vec![Axis::Cyclic { over: 2, block: 1, first: 2 }],
            "axis 0: the first block belongs to process 2, but there are 2",
        ),
        (
            vec![Axis::Lists(vec![vec![0, 1, 2], vec![2, 3, 4, 5]])],
            "axis 0: index 2 is owned by process 0 and by process 1",
        ),
        (vec![Axis::Lists(vec![vec![0, 1, 2], vec![4, 5]])], "axis 0: nobody owns index 3"),
        (
            vec![Axis::Lists(vec![vec![0, 1, 2], vec![3, 4, 5, 6]])],
            "axis 0: process 1 owns index 6, but the axis has 6 indices",
        ),
        (vec![Axis::Whole, Axis::Whole], "2 axes are described, but the array has 1"),
    ];
    for (axes, message) in cases {
        assert_eq!(Layout::new(vec![6], axes).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_mapping_that_cannot_be_names_side_axis_and_value() {
    let layout = Layout::new(vec![6, 4], vec![Axis::Whole, Axis::Whole]).unwrap();
    let all = Mapping::all(&layout, &layout);
    let slice = |start, step, count| Pick::Slice { start, step, count };
    let cases = [
        (
            Mapping { from: vec![slice(1, 1, 6), Pick::all(4)], ..all.clone() },
            "source, axis 0: index 6 is selected, but the axis has 6 indices",
        ),
        (
            Mapping { to: vec![Pick::all(6), slice(0, -1, 2)], ..all.clone() },
            "target, axis 1: index -1 is selected, but the axis has 4 indices",
        ),
        (Mapping { to: vec![slice(0, 0, 6), Pick::all(4)], ..all.clone() }, "target, axis 0: a step of 0"),
        (
            Mapping { from: vec![Pick::Index(0), Pick::all(4)], ..all.clone() },
            "the selection of the source has 1 axes, that of the target 2",
        ),
        (
            Mapping { order: vec![1, 0], ..all.clone() },
            "axis 0 of the selections: 4 positions in the source, 6 in the target",
        ),
        (
            Mapping { order: vec![1, 1], ..all.clone() },
            "the order of axes is not a permutation: axis 1 is named twice or does not exist",
        ),
        (Mapping { shifts: vec![0], ..all.clone() }, "1 shifts are given for 2 axes"),
    ];
    for (mapping, message) in cases {
        let error = Transfer::new(layout.clone(), layout.clone(), &mapping).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn a_message_is_the_same_at_both_ends() {
    for seed in 0..2000 {
        let transfer = Case::new(&mut Chance::new(seed)).transfer;
        let pieces = |message: &TransferMessage| {
            let mut pieces = Vec::new();
            let strides: Vec<i64> = (0..8).map(|axis| 100i64.pow(axis)).collect();
            message.for_each_piece(&strides, &mut |piece| pieces.push(piece));
            (message.peer, message.is_sent(), pieces)
        };
        for process in 0..transfer.source().processes() {
            for message in transfer.sends(process) {
                let there = transfer.receives(message.peer).into_iter().find(|there| there.peer == process).unwrap();
                assert_eq!(pieces(&transfer.at_peer(process, &message)), pieces(&there), "seed {seed}");
                assert_eq!(pieces(&transfer.at_peer(message.peer, &there)), pieces(&message), "seed {seed}");
            }
        }
    }
}

#[test]
fn a_block_that_begins_inside_a_cyclic_run_cuts_no_other_run() {
    let block = Axis::Block { over: 2, sizes: None };
    for (source, target) in [(block.clone(), dealt(2, 3)), (dealt(2, 3), block)] {
        // The second block begins at 500, inside 498..501.
        let of = |axis: &Axis| Layout::new(vec![1000], vec![axis.clone()]).unwrap();
        let (source, target) = (of(&source), of(&target));
        let mapping = Mapping::all(&source, &target);
        let transfer = Transfer::new(source, target, &mapping).unwrap();
        for message in (0..2).flat_map(|from| transfer.sends(from)) {
            let runs: Vec<u64> = message.levels(&[1]).flat_map(|level| level.map(|run| run.count)).collect();
            let cut = runs.iter().filter(|count| **count != 3).count();
            assert!(cut <= 2 && runs.len() > 80, "{runs:?}");
        }
    }
}
