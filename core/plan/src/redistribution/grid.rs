//! The grid of processes: the place of each process along the axes of an array.

use serde::{Deserialize, Serialize};

/// The processes of a layout, numbered row-major over the dimensions of a grid.
///
/// Each axis of the array runs along some dimensions of the grid, the last of them fastest. Processes that differ only
/// in other dimensions hold the same elements: they are *copies* of each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grid {
    /// Processes along each dimension.
    pub dimensions: Vec<u32>,
    /// For each axis of the array, the numbers of the dimensions along which it runs.
    pub axes: Vec<Vec<usize>>,
}

impl Grid {
    /// A grid with one dimension for each axis; `over` gives the number of processes along each.
    pub fn of(over: &[u32]) -> Grid {
        Grid { dimensions: over.to_vec(), axes: (0..over.len()).map(|axis| vec![axis]).collect() }
    }

    /// The number of processes; `None` if it exceeds `u32::MAX`.
    pub fn processes(&self) -> Option<u32> {
        self.dimensions.iter().try_fold(1u32, |all, some| all.checked_mul(*some))
    }

    /// The number of processes along an axis; `None` if it exceeds `u32::MAX` or a dimension does not exist.
    pub(crate) fn along(&self, axis: usize) -> Option<u32> {
        self.axes[axis].iter().try_fold(1u32, |all, at| all.checked_mul(*self.dimensions.get(*at)?))
    }

    /// The dimensions along which no axis runs.
    fn spare(&self) -> Vec<usize> {
        (0..self.dimensions.len()).filter(|at| !self.axes.iter().flatten().any(|used| used == at)).collect()
    }

    /// The number of processes that hold the same elements.
    pub(crate) fn copies(&self) -> u32 {
        self.spare().iter().map(|at| self.dimensions[*at]).product()
    }

    /// The place of a process along an axis.
    pub(crate) fn place(&self, process: u32, axis: usize) -> u32 {
        self.number(process, &self.axes[axis])
    }

    /// The number of the copy that a process is.
    pub(crate) fn copy(&self, process: u32) -> u32 {
        self.number(process, &self.spare())
    }

    /// The row-major number of a process over these dimensions alone.
    fn number(&self, process: u32, dimensions: &[usize]) -> u32 {
        dimensions.iter().fold(0, |number, at| {
            let below: u32 = self.dimensions[at + 1..].iter().product();
            number * self.dimensions[*at] + process / below % self.dimensions[*at]
        })
    }

    /// The process at these places along the axes that is this copy.
    pub(crate) fn process(&self, places: &[u32], copy: u32) -> u32 {
        let mut coordinates = vec![0; self.dimensions.len()];
        let spare = self.spare();
        let along = self.axes.iter().zip(places.iter().copied()).chain([(&spare, copy)]);
        for (dimensions, mut number) in along {
            for at in dimensions.iter().rev() {
                coordinates[*at] = number % self.dimensions[*at];
                number /= self.dimensions[*at];
            }
        }
        self.dimensions.iter().zip(coordinates).fold(0, |process, (size, at)| process * size + at)
    }
}
