//! The distribution of one axis of an array over the processes along it, and its description in other languages and in
//! texts.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::redistribution::pattern::{Pattern, Run};

/// The most indices of an axis, so that sums of indices do not overflow.
pub(super) const MOST_INDICES: u64 = 1 << 40;

/// The distribution of an axis's indices over processes, which are numbered from 0 along the axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Axis {
    /// One process along the axis owns all of it.
    Whole,
    /// Each process owns consecutive indices. `sizes` gives the number for each process. With `None`, each owns `ceil(n
    /// / over)`, the last ones fewer, as in High Performance Fortran and MPI's darray.
    Block { over: u32, sizes: Option<Vec<u64>> },
    /// Blocks are dealt out in turn, the first one to process `first`. A process stores its blocks one after the other,
    /// as in ScaLAPACK.
    Cyclic { over: u32, block: u64, first: u32 },
    /// The indices that each process owns, in their order in its memory.
    Lists(Vec<Vec<u64>>),
}

/// The kind of an axis, by which other languages and texts name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisKind {
    Whole,
    Block,
    Cyclic,
    Lists,
}

impl AxisKind {
    /// The kinds with their names in Python and in texts; the place of each is its number in `landbridge.h`,
    /// so a new one is the last.
    pub(crate) const ALL: [(&str, AxisKind); 4] = [
        ("whole", AxisKind::Whole),
        ("block", AxisKind::Block),
        ("cyclic", AxisKind::Cyclic),
        ("lists", AxisKind::Lists),
    ];

    pub fn named(name: &str) -> Option<AxisKind> {
        AxisKind::ALL.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// The kind with this number, as `LB_WHOLE` and its siblings number them.
    pub fn numbered(number: i32) -> Option<AxisKind> {
        AxisKind::ALL.get(usize::try_from(number).ok()?).map(|(_, kind)| *kind)
    }
}

/// The parameters in a description of an axis. [`Axis::described`] reads only those that its kind has, each
/// once.
pub trait AxisParameters {
    /// The reason why a parameter is missing or not valid.
    type Error;

    /// The number of processes along the axis.
    ///
    /// # Errors
    /// As [`AxisParameters::Error`]; so for the others.
    fn over(&mut self) -> Result<u32, Self::Error>;

    /// The number of indices of each process, if it is given.
    ///
    /// # Errors
    /// See [`AxisParameters::over`].
    fn sizes(&mut self) -> Result<Option<Vec<u64>>, Self::Error>;

    /// The number of indices in a block that is dealt out.
    ///
    /// # Errors
    /// See [`AxisParameters::over`].
    fn block(&mut self) -> Result<u64, Self::Error>;

    /// The process that gets the first block.
    ///
    /// # Errors
    /// See [`AxisParameters::over`].
    fn first(&mut self) -> Result<u32, Self::Error>;

    /// The indices of each process.
    ///
    /// # Errors
    /// See [`AxisParameters::over`].
    fn lists(&mut self) -> Result<Vec<Vec<u64>>, Self::Error>;
}

/// Reasons for rejecting an axis of some extent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AxisError {
    #[error("{0} indices: at most {MOST_INDICES} are possible")]
    TooLong(u64),
    #[error("spread over 0 processes")]
    NoProcesses,
    #[error("{given} sizes are given for {over} processes")]
    Sizes { given: usize, over: u32 },
    #[error("the sizes add up to {sum}, but the axis has {extent} indices")]
    Sum { sum: u64, extent: u64 },
    #[error("a block of 0 indices")]
    EmptyBlock,
    #[error("the first block belongs to process {first}, but there are {over}")]
    First { first: u32, over: u32 },
    #[error("process {process} owns index {index}, but the axis has {extent} indices")]
    Outside { process: usize, index: u64, extent: u64 },
    #[error("index {index} is owned by process {one} and by process {other}")]
    TwoOwners { index: u64, one: usize, other: usize },
    #[error("nobody owns index {0}")]
    NoOwner(u64),
}

/// Copies of neighbouring indices that other processes own. A process has memory for the whole halo, even past the ends
/// of the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Halo {
    /// The number of indices before the first own index; `after` counts those after the last one.
    pub before: u64,
    pub after: u64,
    /// True if the first index of the axis follows the last one.
    pub periodic: bool,
}

impl Halo {
    fn width(&self) -> u64 {
        self.before + self.after
    }
}

impl Axis {
    /// The axis of a description.
    ///
    /// # Errors
    /// A parameter of this kind cannot be read.
    pub fn described<P: AxisParameters>(kind: AxisKind, parameters: &mut P) -> Result<Axis, P::Error> {
        Ok(match kind {
            AxisKind::Whole => Axis::Whole,
            AxisKind::Block => Axis::Block { over: parameters.over()?, sizes: parameters.sizes()? },
            AxisKind::Cyclic => {
                Axis::Cyclic { over: parameters.over()?, block: parameters.block()?, first: parameters.first()? }
            }
            AxisKind::Lists => Axis::Lists(parameters.lists()?),
        })
    }

    /// Checks that the axis distributes each of `extent` indices to one process.
    pub(super) fn check(&self, extent: u64) -> Result<(), AxisError> {
        if extent > MOST_INDICES {
            return Err(AxisError::TooLong(extent));
        }
        let over = self.over();
        if over == 0 {
            return Err(AxisError::NoProcesses);
        }
        match self {
            Axis::Block { sizes: Some(sizes), .. } if sizes.len() != over as usize => {
                Err(AxisError::Sizes { given: sizes.len(), over })
            }
            Axis::Block { sizes: Some(sizes), .. } => {
                let sum = sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size));
                if sum == extent { Ok(()) } else { Err(AxisError::Sum { sum, extent }) }
            }
            Axis::Cyclic { block: 0, .. } => Err(AxisError::EmptyBlock),
            Axis::Cyclic { first, .. } if *first >= over => Err(AxisError::First { first: *first, over }),
            Axis::Lists(lists) => check_lists(lists, extent),
            Axis::Whole | Axis::Block { .. } | Axis::Cyclic { .. } => Ok(()),
        }
    }

    /// The number of processes along the axis.
    pub fn over(&self) -> u32 {
        match self {
            Axis::Whole => 1,
            Axis::Block { over, .. } | Axis::Cyclic { over, .. } => *over,
            Axis::Lists(lists) => lists.len() as u32,
        }
    }

    /// True if each process owns consecutive indices.
    pub(crate) fn is_block(&self) -> bool {
        matches!(self, Axis::Whole | Axis::Block { .. })
    }
}

/// An axis of a known extent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Spread {
    pub axis: Axis,
    pub extent: u64,
    pub halo: Halo,
    /// For a block axis: the first index of each process, then the end of the last process's block.
    cuts: Vec<u64>,
}

impl Spread {
    /// Spreads an axis of this extent. The caller has checked that the axis fits the extent.
    pub(crate) fn new(axis: Axis, extent: u64, halo: Halo) -> Spread {
        let over = u64::from(axis.over());
        let cuts = match &axis {
            Axis::Whole => vec![0, extent],
            Axis::Block { sizes: None, .. } => {
                let each = each(extent, axis.over());
                (0..=over).map(|process| process.saturating_mul(each).min(extent)).collect()
            }
            Axis::Block { sizes: Some(sizes), .. } => {
                let ends = sizes.iter().scan(0, |end, size| {
                    *end += size;
                    Some(*end)
                });
                [0].into_iter().chain(ends).collect()
            }
            Axis::Cyclic { .. } | Axis::Lists(_) => Vec::new(),
        };
        Spread { axis, extent, halo, cuts }
    }

    /// The indices that a process owns, with their local indices counted from the start of its halo.
    pub(crate) fn owned(&self, process: u32) -> Pattern {
        match &self.axis {
            Axis::Whole | Axis::Block { .. } => {
                let (start, end) = self.block(process);
                let run = Run { at: start, length: end - start, local: self.halo.before as i64, step: 1 };
                Pattern::once(Vec::from_iter((start < end).then_some(run)), self.extent)
            }
            Axis::Cyclic { over, block, first } => {
                let over = u64::from(*over);
                // A block holds at most the whole axis.
                let block = (*block).min(self.extent.max(1));
                let turn = (u64::from(process) + over - u64::from(*first)) % over;
                let run = Run { at: turn.saturating_mul(block), length: block, local: 0, step: 1 };
                Pattern::repeated(vec![run], block.saturating_mul(over), block as i64, self.extent)
            }
            Axis::Lists(lists) => Pattern::once(runs_of(&lists[process as usize]), self.extent),
        }
    }

    /// The indices that a process holds: its own and those of its halo.
    pub(crate) fn held(&self, process: u32) -> Pattern {
        if self.halo.width() == 0 {
            return self.owned(process);
        }
        let (start, end) = self.block(process);
        if start == end {
            return Pattern::once(Vec::new(), self.extent);
        }
        let extent = self.extent as i64;
        let (from, to) = (start as i64 - self.halo.before as i64, end as i64 + self.halo.after as i64);
        let mut runs = Vec::new();
        // Each wrap around the axis that the halo reaches.
        for turn in from.div_euclid(extent)..=(to - 1).div_euclid(extent) {
            if turn != 0 && !self.halo.periodic {
                continue;
            }
            let (first, last) = (from.max(turn * extent), to.min((turn + 1) * extent));
            let at = (first - turn * extent) as u64;
            runs.push(Run { at, length: (last - first) as u64, local: first - from, step: 1 });
        }
        runs.sort_by_key(|run| (run.at, run.local));
        Pattern::once(runs, self.extent)
    }

    /// Local length of a process, with its halo.
    pub(crate) fn local_length(&self, process: u32) -> u64 {
        match self.owned(process).count() {
            0 => 0,
            owned => owned + self.halo.width(),
        }
    }

    /// The process that owns an index of the axis.
    pub(crate) fn owner(&self, index: u64) -> Option<u32> {
        match &self.axis {
            Axis::Whole | Axis::Block { .. } => {
                u32::try_from(self.cuts.partition_point(|cut| *cut <= index).checked_sub(1)?).ok()
            }
            Axis::Cyclic { over, block, first } => {
                Some(((index / block + u64::from(*first)) % u64::from(*over)) as u32)
            }
            Axis::Lists(lists) => lists.iter().position(|list| list.contains(&index)).map(|at| at as u32),
        }
    }

    /// The first index of a process's block, and the index after its last one.
    fn block(&self, process: u32) -> (u64, u64) {
        (self.cuts[process as usize], self.cuts[process as usize + 1])
    }
}

/// The number of indices of each process of a block axis without sizes; the last processes may have fewer.
fn each(extent: u64, over: u32) -> u64 {
    extent.div_ceil(over.into()).max(1)
}

/// The runs of a list of indices, in ascending order.
fn runs_of(list: &[u64]) -> Vec<Run> {
    let mut places: Vec<(u64, i64)> = list.iter().copied().zip(0..).collect();
    places.sort_unstable();
    let mut runs: Vec<Run> = Vec::new();
    for (at, local) in places {
        match runs.last_mut() {
            Some(run) if run.at + run.length == at && run.local + run.length as i64 == local => run.length += 1,
            _ => runs.push(Run { at, length: 1, local, step: 1 }),
        }
    }
    runs
}

/// Checks that each index is owned exactly once.
fn check_lists(lists: &[Vec<u64>], extent: u64) -> Result<(), AxisError> {
    let owned = lists.iter().enumerate().flat_map(|(process, list)| list.iter().map(move |index| (*index, process)));
    let mut owned: Vec<(u64, usize)> = owned.collect();
    owned.sort_unstable();
    if let Some((index, process)) = owned.last().copied().filter(|(index, _)| *index >= extent) {
        return Err(AxisError::Outside { process, index, extent });
    }
    if let Some(pair) = owned.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(AxisError::TwoOwners { index: pair[0].0, one: pair[0].1, other: pair[1].1 });
    }
    let missing = owned.iter().zip(0..).find(|((index, _), at)| index != at).map(|(_, at)| at);
    match missing.or((owned.len() as u64 != extent).then_some(owned.len() as u64)) {
        Some(index) => Err(AxisError::NoOwner(index)),
        None => Ok(()),
    }
}
