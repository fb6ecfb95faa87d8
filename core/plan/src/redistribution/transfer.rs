//! Transfers: the messages from each process to each other process.

use std::rc::Rc;

use crate::redistribution::layout::{Layout, MemoryOrder};
use crate::redistribution::mapping::{Mapping, MappingError, Pick};
use crate::redistribution::pattern::{Pattern, Run, SharedPositions, SharedRun};

/// A redistribution: two layouts, and the mapping of elements from one to the other.
///
/// Elements come from their owners. A target gets them at every place that holds them, including halos and all copies.
/// If the source has copies, the target's number chooses the copy that sends, so that the copies share the work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Transfer {
    source: Layout,
    target: Layout,
    /// From the slowest in the source's memory to the fastest, the order of elements in messages.
    dimensions: Vec<Dimension>,
}

/// The selection along one axis of the source, of the target or (usually) of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Dimension {
    source: Option<Selected>,
    target: Option<Selected>,
    /// The position of the source that comes first.
    shift: u64,
}

/// The indices `start`, `start + step`, … of an axis: `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Selected {
    axis: usize,
    start: u64,
    step: i64,
    count: u64,
}

/// The role of a process in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageRole {
    Sends,
    Receives,
}

/// A message from one process to another: the product of the positions that go along each axis.
#[derive(Clone, Debug)]
pub struct TransferMessage {
    /// The process at the other end.
    pub peer: u32,
    end: MessageRole,
    /// From the slowest to the fastest: the local array's axis, if it has one, and the positions shared along it.
    parts: Vec<(Option<usize>, Rc<SharedPositions>)>,
}

/// Elements of a message at equal distances in local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StridedRun {
    /// The place of the first element, in units of the strides.
    pub start: i64,
    pub count: u64,
    /// The distance between neighbouring elements.
    pub stride: i64,
}

impl Transfer {
    /// A transfer of elements of `source` to elements of `target`, as given by `mapping`.
    ///
    /// # Errors
    /// [`MappingError`] if the mapping does not fit the layouts.
    pub fn new(source: Layout, target: Layout, mapping: &Mapping) -> Result<Transfer, MappingError> {
        mapping.check(&source, &target)?;
        let (from, from_fixed) = selections(&mapping.from);
        let (to, to_fixed) = selections(&mapping.to);
        let mut dimensions: Vec<Dimension> = Vec::with_capacity(from.len());
        for ((number, source), shift) in from.into_iter().enumerate().zip(&mapping.shifts) {
            let target = mapping.order.iter().position(|of| *of == number).map(|at| to[at]);
            dimensions.push(Dimension { source: Some(source), target, shift: *shift });
        }
        if source.order() == MemoryOrder::Fortran {
            dimensions.reverse();
        }
        let fixed = from_fixed.into_iter().map(|source| Dimension { source: Some(source), target: None, shift: 0 });
        let fixed =
            fixed.chain(to_fixed.into_iter().map(|target| Dimension { source: None, target: Some(target), shift: 0 }));
        dimensions.splice(0..0, fixed);
        Ok(Transfer { source, target, dimensions })
    }

    pub fn source(&self) -> &Layout {
        &self.source
    }

    pub fn target(&self) -> &Layout {
        &self.target
    }

    /// The messages that a process of the source sends, by ascending number of the receiver.
    pub fn sends(&self, process: u32) -> Vec<TransferMessage> {
        let (copies, own) = (self.source.grid().copies(), self.source.grid().copy(process));
        let mut messages = self.messages(process, MessageRole::Sends);
        messages.retain(|message| message.peer % copies == own);
        messages
    }

    /// The messages that a process of the target receives, by ascending number of the sender.
    pub fn receives(&self, process: u32) -> Vec<TransferMessage> {
        let serves = process % self.source.grid().copies();
        let mut messages = self.messages(process, MessageRole::Receives);
        messages.retain(|message| self.source.grid().copy(message.peer) == serves);
        messages
    }

    /// The target processes that receive the same elements as `target` from one source process, `target` included,
    /// ascending: the copies of `target` that the same copy of the source serves.
    pub fn sharers(&self, source: u32, target: u32) -> Vec<u32> {
        let (grid, copies) = (self.target.grid(), self.source.grid().copies());
        let places: Vec<u32> = (0..self.target.axes()).map(|axis| grid.place(target, axis)).collect();
        let all = (0..grid.copies()).map(|copy| grid.process(&places, copy));
        let mut all: Vec<u32> = all.filter(|process| process % copies == self.source.grid().copy(source)).collect();
        all.sort_unstable();
        all
    }

    /// The same message from the peer's point of view.
    pub fn at_peer(&self, process: u32, message: &TransferMessage) -> TransferMessage {
        let end = match message.end {
            MessageRole::Sends => MessageRole::Receives,
            MessageRole::Receives => MessageRole::Sends,
        };
        let parts = self.dimensions.iter().zip(&message.parts);
        let parts = parts.map(|(dimension, (_, shared))| (dimension.ends(end).0.map(|own| own.axis), shared.clone()));
        TransferMessage { peer: process, end, parts: parts.collect() }
    }

    /// True if every element of the source is sent.
    pub fn takes_all(&self) -> bool {
        let takes = |dimension: &Dimension, axis| {
            dimension.source.is_some_and(|taken| taken.axis == axis && taken.count == self.source.shape()[axis])
        };
        (0..self.source.axes()).all(|axis| self.dimensions.iter().any(|dimension| takes(dimension, axis)))
    }

    /// The number of axes in the product that forms a message.
    pub(crate) fn dimensions(&self) -> usize {
        self.dimensions.len()
    }

    /// The numbers of places of the source and of the target along one of these axes.
    pub(crate) fn places(&self, dimension: usize) -> (u32, u32) {
        let Dimension { source, target, .. } = self.dimensions[dimension];
        let over = |layout: &Layout, end: Option<Selected>| end.map_or(1, |end| layout.axis(end.axis).over());
        (over(&self.source, source), over(&self.target, target))
    }

    /// The places of two processes along one of these axes.
    pub(crate) fn edge(&self, dimension: usize, from: u32, to: u32) -> (u32, u32) {
        let Dimension { source, target, .. } = self.dimensions[dimension];
        let place = |layout: &Layout, end: Option<Selected>, of| end.map_or(0, |end| layout.grid().place(of, end.axis));
        (place(&self.source, source, from), place(&self.target, target, to))
    }

    /// The pairs of a source place and a target place that share positions along one of these axes.
    pub(crate) fn edges(&self, dimension: usize) -> Vec<(u32, u32)> {
        let (sources, targets) = self.places(dimension);
        let dimension = &self.dimensions[dimension];
        let wanted: Vec<Pattern> = (0..targets).map(|to| self.target_pattern(dimension, to)).collect();
        let from = (0..sources).flat_map(|from| {
            let source = self.source_pattern(dimension, from);
            let shares = |(target, to): (&Pattern, u32)| SharedPositions::exists(&source, target).then_some((from, to));
            wanted.iter().zip(0..).filter_map(shares).collect::<Vec<_>>()
        });
        from.collect()
    }

    /// The messages of a process with all copies of all peers.
    fn messages(&self, process: u32, end: MessageRole) -> Vec<TransferMessage> {
        let (here, there) = match end {
            MessageRole::Sends => (&self.source, &self.target),
            MessageRole::Receives => (&self.target, &self.source),
        };
        let mut along = Vec::with_capacity(self.dimensions.len());
        for dimension in &self.dimensions {
            let (own, other) = dimension.ends(end);
            let place = own.map_or(0, |own| here.grid().place(process, own.axis));
            let places = other.map_or(1, |other| there.axis(other.axis).over());
            let pattern = match end {
                MessageRole::Sends => self.source_pattern(dimension, place),
                MessageRole::Receives => self.target_pattern(dimension, place),
            };
            let shared = |other| match end {
                MessageRole::Sends => SharedPositions::new(&pattern, &self.target_pattern(dimension, other)),
                MessageRole::Receives => SharedPositions::new(&self.source_pattern(dimension, other), &pattern),
            };
            let shared = (0..places).map(|other| (other, Rc::new(shared(other))));
            let shared: Vec<_> = shared.filter(|(_, shared)| !shared.is_empty()).collect();
            along.push((own.map(|own| own.axis), other.map(|other| other.axis), shared));
        }
        let mut messages = Vec::new();
        let mut choice = vec![0; along.len()];
        let mut places = vec![0; there.axes()];
        if along.iter().any(|(.., shared)| shared.is_empty()) {
            return messages;
        }
        loop {
            for ((_, axis, shared), chosen) in along.iter().zip(&choice) {
                axis.iter().for_each(|axis| places[*axis] = shared[*chosen].0);
            }
            for copy in 0..there.grid().copies() {
                let parts = along.iter().zip(&choice).map(|((axis, _, shared), at)| (*axis, shared[*at].1.clone()));
                messages.push(TransferMessage {
                    peer: there.grid().process(&places, copy),
                    end,
                    parts: parts.collect(),
                });
            }
            // Go to the next combination, like an odometer.
            let Some(at) = (0..choice.len()).rev().find(|at| choice[*at] + 1 < along[*at].2.len()) else { break };
            choice[at] += 1;
            choice[at + 1..].fill(0);
        }
        messages.sort_by_key(|message| message.peer);
        messages
    }

    fn source_pattern(&self, dimension: &Dimension, place: u32) -> Pattern {
        let Some(Selected { axis, start, step, count }) = dimension.source else { return one() };
        self.source.owned(axis, place).select(start, step, count).shifted(dimension.shift)
    }

    fn target_pattern(&self, dimension: &Dimension, place: u32) -> Pattern {
        let Some(Selected { axis, start, step, count }) = dimension.target else { return one() };
        self.target.held(axis, place).select(start, step, count)
    }
}

impl Dimension {
    /// The selections at this end and at the other.
    fn ends(&self, end: MessageRole) -> (Option<Selected>, Option<Selected>) {
        match end {
            MessageRole::Sends => (self.source, self.target),
            MessageRole::Receives => (self.target, self.source),
        }
    }
}

/// The pattern of a missing axis: one position.
fn one() -> Pattern {
    Pattern::once(vec![Run { at: 0, length: 1, local: 0, step: 1 }], 1)
}

/// The selections on the axes that the part keeps, and on those it drops.
fn selections(picks: &[Pick]) -> (Vec<Selected>, Vec<Selected>) {
    let (mut kept, mut fixed) = (Vec::new(), Vec::new());
    for (axis, pick) in picks.iter().enumerate() {
        match *pick {
            Pick::Index(start) => fixed.push(Selected { axis, start, step: 1, count: 1 }),
            Pick::Slice { start, step, count } => kept.push(Selected { axis, start, step, count }),
        }
    }
    (kept, fixed)
}

impl TransferMessage {
    pub(crate) fn end(&self) -> MessageRole {
        self.end
    }

    /// True if the process sends the message, false if it receives it.
    pub fn is_sent(&self) -> bool {
        self.end == MessageRole::Sends
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.parts.iter().map(|(_, shared)| shared.count()).product()
    }

    /// The factors of the message, from the slowest axis to the fastest: the places along each axis, in message order.
    /// `strides` gives, for each axis of the local array, the distance between neighbouring elements, in any unit.
    pub fn levels<'a>(
        &'a self,
        strides: &'a [i64],
    ) -> impl DoubleEndedIterator<Item = impl Iterator<Item = StridedRun> + 'a> + 'a {
        self.parts.iter().map(move |(axis, shared)| {
            let stride = axis.map_or(0, |axis| strides[axis]);
            shared.runs().map(move |run| {
                let (local, step) = self.place(&run);
                StridedRun { start: local * stride, count: run.length, stride: step * stride }
            })
        })
    }

    /// Calls `work` for the message's elements, in message order.
    pub fn for_each_piece(&self, strides: &[i64], work: &mut impl FnMut(StridedRun)) {
        let levels: Vec<Vec<StridedRun>> = self.levels(strides).map(Iterator::collect).collect();
        walk(&levels, 0, work);
    }

    /// The local index at which a run begins, and its step.
    fn place(&self, run: &SharedRun) -> (i64, i64) {
        match self.end {
            MessageRole::Sends => (run.from, run.from_step),
            MessageRole::Receives => (run.to, run.to_step),
        }
    }
}

fn walk(levels: &[Vec<StridedRun>], start: i64, work: &mut impl FnMut(StridedRun)) {
    let Some((level, rest)) = levels.split_first() else {
        return work(StridedRun { start, count: 1, stride: 0 });
    };
    for piece in level {
        let first = start + piece.start;
        match rest {
            [] => work(StridedRun { start: first, ..*piece }),
            _ => (0..piece.count as i64).for_each(|at| walk(rest, first + at * piece.stride, work)),
        }
    }
}
