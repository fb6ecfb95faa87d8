//! A layout: the distribution of an array over processes.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::redistribution::axis::{Axis, AxisError, Halo, MOST_INDICES, Spread};
use crate::redistribution::grid::Grid;
use crate::redistribution::pattern::Pattern;

/// The most axes of an array, as in NumPy.
const MOST_AXES: usize = 64;

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
    #[error("axis {axis}: {error}")]
    Axis { axis: usize, error: AxisError },
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
            axis.check(*extent).map_err(|error| LayoutError::Axis { axis: number, error })?;
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
