//! A layout: the distribution of an array over processes.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::redistribution::axis::{Axis, Halo, Spread};
use crate::redistribution::grid::Grid;
use crate::redistribution::pattern::Pattern;

/// The most axes of an array, as in NumPy.
const MOST_AXES: usize = 64;
/// The most indices of an axis, so that sums of indices do not overflow.
const MOST_INDICES: u64 = 1 << 40;

/// The default order of local elements in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryOrder {
    /// The last axis is contiguous.
    #[default]
    C,
    /// The first axis is contiguous.
    Fortran,
}

/// A layout: the distribution of an array over processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Vec<u64>,
    spreads: Vec<Spread>,
    grid: Grid,
    order: MemoryOrder,
}

/// Reasons for rejecting a layout; the caller must describe it differently.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error("an array of {0} axes: at most {MOST_AXES} are possible")]
    TooManyAxes(usize),
    #[error("{given} axes are described, but the array has {axes}")]
    Axes { given: usize, axes: usize },
    #[error("axis {axis}: {extent} indices: at most {MOST_INDICES} are possible")]
    TooLong { axis: usize, extent: u64 },
    #[error("axis {axis}: spread over 0 processes")]
    NoProcesses { axis: usize },
    #[error("axis {axis}: {given} sizes are given for {over} processes")]
    Sizes { axis: usize, given: usize, over: u32 },
    #[error("axis {axis}: the sizes add up to {sum}, but the axis has {extent} indices")]
    Sum { axis: usize, sum: u64, extent: u64 },
    #[error("axis {axis}: a block of 0 indices")]
    EmptyBlock { axis: usize },
    #[error("axis {axis}: the first block belongs to process {first}, but there are {over}")]
    First { axis: usize, first: u32, over: u32 },
    #[error("axis {axis}: process {process} owns index {index}, but the axis has {extent} indices")]
    Outside { axis: usize, process: usize, index: u64, extent: u64 },
    #[error("axis {axis}: index {index} is owned by process {one} and by process {other}")]
    TwoOwners { axis: usize, index: u64, one: usize, other: usize },
    #[error("axis {axis}: nobody owns index {index}")]
    NoOwner { axis: usize, index: u64 },
    #[error("axis {axis}: only a block axis can have a halo")]
    Halo { axis: usize },
    #[error("axis {axis}: a halo of {width} indices: at most {MOST_INDICES} are possible")]
    WideHalo { axis: usize, width: u64 },
    #[error("axis {axis}: spread over {over} processes, but the grid has {along} along it")]
    Grid { axis: usize, over: u32, along: u32 },
    #[error("axis {axis}: dimension {dimension} of the grid does not exist")]
    NoDimension { axis: usize, dimension: usize },
    #[error("axis {axis}: dimension {dimension} of the grid is used twice")]
    UsedTwice { axis: usize, dimension: usize },
    #[error("the grid has 0 processes along dimension {0}")]
    EmptyGrid(usize),
    #[error("the grid has more processes than can be numbered (2^32 - 1)")]
    TooManyProcesses,
}

impl Layout {
    /// An array of this shape, with one dimension of the process grid for each axis; ranks are row-major over it.
    ///
    /// # Errors
    /// [`LayoutError`] if an axis is not valid.
    pub fn new(shape: Vec<u64>, axes: Vec<Axis>) -> Result<Layout, LayoutError> {
        let count = shape.len();
        if count > MOST_AXES {
            return Err(LayoutError::TooManyAxes(count));
        }
        if axes.len() != count {
            return Err(LayoutError::Axes { given: axes.len(), axes: count });
        }
        for (number, (axis, extent)) in axes.iter().zip(&shape).enumerate() {
            check_axis(number, axis, *extent)?;
        }
        let grid = Grid::of(&axes.iter().map(Axis::over).collect::<Vec<_>>());
        grid.processes().ok_or(LayoutError::TooManyProcesses)?;
        let spreads = axes.into_iter().zip(&shape).map(|(axis, extent)| Spread::new(axis, *extent, Halo::default()));
        Ok(Layout { spreads: spreads.collect(), shape, grid, order: MemoryOrder::C })
    }

    /// The same layout with its processes in another order, or with copies.
    ///
    /// # Errors
    /// The grid is not valid, or its number of processes along an axis differs from the layout's.
    pub fn over(self, grid: Grid) -> Result<Layout, LayoutError> {
        check_grid(&grid, &self.spreads)?;
        Ok(Layout { grid, ..self })
    }

    /// The same layout with a halo along an axis.
    ///
    /// # Errors
    /// There is no such axis, the axis cannot have a halo, or the halo is too wide.
    pub fn with_halo(mut self, axis: usize, halo: Halo) -> Result<Layout, LayoutError> {
        let axes = self.spreads.len();
        let spread = self.spreads.get_mut(axis).ok_or(LayoutError::Axes { given: axis + 1, axes })?;
        let width = halo.before.saturating_add(halo.after);
        if width > MOST_INDICES {
            return Err(LayoutError::WideHalo { axis, width });
        }
        if width > 0 && !spread.axis.is_block() {
            return Err(LayoutError::Halo { axis });
        }
        spread.halo = halo;
        Ok(self)
    }

    /// The same layout with local elements in this order.
    pub fn in_order(self, order: MemoryOrder) -> Layout {
        Layout { order, ..self }
    }

    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The number of axes of the array.
    pub fn axes(&self) -> usize {
        self.shape.len()
    }

    pub fn axis(&self, axis: usize) -> &Axis {
        &self.spreads[axis].axis
    }

    pub fn halo(&self, axis: usize) -> Halo {
        self.spreads[axis].halo
    }

    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    pub fn order(&self) -> MemoryOrder {
        self.order
    }

    /// The number of processes of the layout.
    pub fn processes(&self) -> u32 {
        self.grid.processes().unwrap_or(0)
    }

    /// The shape of a process's local part, halos included. If the process owns no index of an axis, that length is 0
    /// and the other axes keep theirs, as in an empty slice.
    pub fn local_shape(&self, process: u32) -> Vec<u64> {
        let length = |(axis, spread): (usize, &Spread)| spread.local_length(self.grid.place(process, axis));
        self.spreads.iter().enumerate().map(length).collect()
    }

    /// Distances in bytes between neighbouring elements of a process's local part along each axis, for a part without
    /// gaps. `element` is the size of an element in bytes.
    pub fn strides(&self, process: u32, element: usize) -> Vec<i64> {
        let shape = self.local_shape(process);
        let mut strides = vec![0; shape.len()];
        let mut next = element as i64;
        let mut axis = |axis: usize| {
            strides[axis] = next;
            next = next.saturating_mul(shape[axis].max(1) as i64);
        };
        match self.order() {
            MemoryOrder::C => (0..shape.len()).rev().for_each(&mut axis),
            MemoryOrder::Fortran => (0..shape.len()).for_each(&mut axis),
        }
        strides
    }

    /// The process that owns the element at an index; if there are copies, the first one. `None` if the index does not
    /// exist.
    pub fn owner(&self, index: &[u64]) -> Option<u32> {
        if index.len() != self.shape.len() || index.iter().zip(&self.shape).any(|(at, extent)| at >= extent) {
            return None;
        }
        let places: Option<Vec<u32>> = self.spreads.iter().zip(index).map(|(spread, at)| spread.owner(*at)).collect();
        Some(self.grid.process(&places?, 0))
    }

    /// The indices of an axis that the processes at a place along it own.
    pub(crate) fn owned(&self, axis: usize, place: u32) -> Pattern {
        self.spreads[axis].owned(place)
    }

    /// The indices that they hold, halo included.
    pub(crate) fn held(&self, axis: usize, place: u32) -> Pattern {
        self.spreads[axis].held(place)
    }
}

fn check_axis(axis: usize, spread: &Axis, extent: u64) -> Result<(), LayoutError> {
    if extent > MOST_INDICES {
        return Err(LayoutError::TooLong { axis, extent });
    }
    let over = spread.over();
    if over == 0 {
        return Err(LayoutError::NoProcesses { axis });
    }
    match spread {
        Axis::Block { sizes: Some(sizes), .. } => {
            if sizes.len() != over as usize {
                return Err(LayoutError::Sizes { axis, given: sizes.len(), over });
            }
            let sum = sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size));
            if sum != extent {
                return Err(LayoutError::Sum { axis, sum, extent });
            }
            Ok(())
        }
        Axis::Cyclic { block: 0, .. } => Err(LayoutError::EmptyBlock { axis }),
        Axis::Cyclic { first, .. } if *first >= over => Err(LayoutError::First { axis, first: *first, over }),
        Axis::Lists(lists) => check_lists(axis, lists, extent),
        _ => Ok(()),
    }
}

fn check_grid(grid: &Grid, spreads: &[Spread]) -> Result<(), LayoutError> {
    if grid.axes.len() != spreads.len() {
        return Err(LayoutError::Axes { given: grid.axes.len(), axes: spreads.len() });
    }
    if let Some(at) = grid.dimensions.iter().position(|size| *size == 0) {
        return Err(LayoutError::EmptyGrid(at));
    }
    let mut used = vec![false; grid.dimensions.len()];
    for (axis, runs_along) in grid.axes.iter().enumerate() {
        for dimension in runs_along.iter().copied() {
            let Some(used) = used.get_mut(dimension) else { return Err(LayoutError::NoDimension { axis, dimension }) };
            if std::mem::replace(used, true) {
                return Err(LayoutError::UsedTwice { axis, dimension });
            }
        }
    }
    grid.processes().ok_or(LayoutError::TooManyProcesses)?;
    for (axis, spread) in spreads.iter().enumerate() {
        let (over, along) = (spread.axis.over(), grid.along(axis).unwrap_or(0));
        if over != along {
            return Err(LayoutError::Grid { axis, over, along });
        }
    }
    Ok(())
}

/// Checks that each index is owned exactly once.
fn check_lists(axis: usize, lists: &[Vec<u64>], extent: u64) -> Result<(), LayoutError> {
    let owned = lists.iter().enumerate().flat_map(|(process, list)| list.iter().map(move |index| (*index, process)));
    let mut owned: Vec<(u64, usize)> = owned.collect();
    owned.sort_unstable();
    if let Some((index, process)) = owned.last().copied().filter(|(index, _)| *index >= extent) {
        return Err(LayoutError::Outside { axis, process, index, extent });
    }
    if let Some(pair) = owned.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(LayoutError::TwoOwners { axis, index: pair[0].0, one: pair[0].1, other: pair[1].1 });
    }
    let missing = owned.iter().zip(0..).find(|((index, _), at)| index != at).map(|(_, at)| at);
    match missing.or((owned.len() as u64 != extent).then_some(owned.len() as u64)) {
        Some(index) => Err(LayoutError::NoOwner { axis, index }),
        None => Ok(()),
    }
}
