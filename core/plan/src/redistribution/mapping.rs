//! The mapping of elements of one array to elements of another: parts of both, of the same shape.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::redistribution::layout::Layout;

/// The indices selected on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Pick {
    /// One index; the axis is dropped from the part.
    Index(u64),
    /// The indices `start`, `start + step`, …: `count` of them.
    Slice { start: u64, step: i64, count: u64 },
}

impl Pick {
    /// All of an axis.
    pub fn all(extent: u64) -> Pick {
        Pick::Slice { start: 0, step: 1, count: extent }
    }

    fn count(&self) -> Option<u64> {
        match self {
            Pick::Index(_) => None,
            Pick::Slice { count, .. } => Some(*count),
        }
    }

    /// An index of the selection outside the axis, if there is one.
    fn outside(&self, extent: u64) -> Option<i128> {
        let ends = match *self {
            Pick::Index(at) => [i128::from(at); 2],
            Pick::Slice { count: 0, .. } => return None,
            Pick::Slice { start, step, count } => {
                [start.into(), i128::from(start) + i128::from(step) * i128::from(count - 1)]
            }
        };
        ends.into_iter().find(|at| *at < 0 || *at >= i128::from(extent))
    }
}

/// A mapping from a part of the source to a part of the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mapping {
    /// The selection on each axis of the source.
    pub from: Vec<Pick>,
    /// The selection on each axis of the target.
    pub to: Vec<Pick>,
    /// For each axis of the target's part, the number of the matching axis of the source's part: `[1, 0]` transposes.
    pub order: Vec<usize>,
    /// For each axis of the source's part, the position that comes first; the positions before it come last.
    pub shifts: Vec<u64>,
}

/// Reasons for rejecting a mapping; the caller must select other elements.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MappingError {
    #[error("{side}: {given} axes are selected from, but the array has {axes}")]
    Axes { side: &'static str, given: usize, axes: usize },
    #[error("{side}, axis {axis}: index {index} is selected, but the axis has {extent} indices")]
    Outside { side: &'static str, axis: usize, index: i128, extent: u64 },
    #[error("{side}, axis {axis}: a step of 0")]
    NoStep { side: &'static str, axis: usize },
    #[error("the selection of the source has {from} axes, that of the target {to}")]
    Dimensions { from: usize, to: usize },
    #[error("the order of axes names {given} of {axes} axes")]
    Order { given: usize, axes: usize },
    #[error("the order of axes is not a permutation: axis {0} is named twice or does not exist")]
    NoPermutation(usize),
    #[error("{given} shifts are given for {axes} axes")]
    Shifts { given: usize, axes: usize },
    #[error("axis {axis} of the selections: {from} positions in the source, {to} in the target")]
    Shapes { axis: usize, from: u64, to: u64 },
}

impl Mapping {
    /// Maps all of the source to all of the target.
    pub fn all(source: &Layout, target: &Layout) -> Mapping {
        let all = |layout: &Layout| layout.shape().iter().map(|extent| Pick::all(*extent)).collect();
        let axes = source.shape().len();
        Mapping { from: all(source), to: all(target), order: (0..axes).collect(), shifts: vec![0; axes] }
    }

    pub(crate) fn check(&self, source: &Layout, target: &Layout) -> Result<(), MappingError> {
        check_picks("source", &self.from, source.shape())?;
        check_picks("target", &self.to, target.shape())?;
        let counts = |picks: &[Pick]| picks.iter().filter_map(Pick::count).collect::<Vec<u64>>();
        let (from, to) = (counts(&self.from), counts(&self.to));
        if from.len() != to.len() {
            return Err(MappingError::Dimensions { from: from.len(), to: to.len() });
        }
        if self.order.len() != to.len() {
            return Err(MappingError::Order { given: self.order.len(), axes: to.len() });
        }
        if self.shifts.len() != from.len() {
            return Err(MappingError::Shifts { given: self.shifts.len(), axes: from.len() });
        }
        let mut named = vec![false; from.len()];
        for at in &self.order {
            if named.get_mut(*at).is_none_or(|named| std::mem::replace(named, true)) {
                return Err(MappingError::NoPermutation(*at));
            }
        }
        for (axis, (at, to)) in self.order.iter().zip(to).enumerate() {
            let from = from[*at];
            if from != to {
                return Err(MappingError::Shapes { axis, from, to });
            }
        }
        Ok(())
    }
}

fn check_picks(side: &'static str, picks: &[Pick], shape: &[u64]) -> Result<(), MappingError> {
    if picks.len() != shape.len() {
        return Err(MappingError::Axes { side, given: picks.len(), axes: shape.len() });
    }
    for (axis, (pick, extent)) in picks.iter().zip(shape).enumerate() {
        if matches!(pick, Pick::Slice { step: 0, .. }) {
            return Err(MappingError::NoStep { side, axis });
        }
        if let Some(index) = pick.outside(*extent) {
            return Err(MappingError::Outside { side, axis, index, extent: *extent });
        }
    }
    Ok(())
}
