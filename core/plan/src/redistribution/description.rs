//! Layouts as programs send them to each other.

use serde::{Deserialize, Serialize};

use crate::redistribution::axis::{Axis, Halo};
use crate::redistribution::grid::Grid;
use crate::redistribution::layout::{Layout, LayoutError, MemoryOrder};

/// A layout from another program, not checked yet. Check [`Description::processes`] before calling
/// [`Description::layout`], which allocates memory for each process along an axis.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    shape: Vec<u64>,
    axes: Vec<(Axis, Halo)>,
    grid: Grid,
    order: MemoryOrder,
}

impl Description {
    pub fn of(layout: &Layout) -> Description {
        let axes = (0..layout.axes()).map(|axis| (layout.axis(axis).clone(), layout.halo(axis)));
        Description {
            shape: layout.shape().to_vec(),
            axes: axes.collect(),
            grid: layout.grid().clone(),
            order: layout.order(),
        }
    }

    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The number of processes of the layout; `None` if it exceeds `u32::MAX`.
    pub fn processes(&self) -> Option<u32> {
        let along = self.axes.iter().try_fold(1u32, |all, (axis, _)| all.checked_mul(axis.over()))?;
        Some(along.max(self.grid.processes()?))
    }

    /// Checks the description and builds the layout.
    ///
    /// # Errors
    /// [`LayoutError`] if the description is not valid.
    pub fn layout(self) -> Result<Layout, LayoutError> {
        let (axes, halos): (Vec<Axis>, Vec<Halo>) = self.axes.into_iter().unzip();
        let mut layout = Layout::new(self.shape, axes)?;
        for (axis, halo) in halos.into_iter().enumerate() {
            layout = layout.with_halo(axis, halo)?;
        }
        Ok(layout.over(self.grid)?.in_order(self.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redistribution::testing::{Case, Chance};

    #[test]
    fn a_described_layout_is_the_same() {
        for seed in 0..500 {
            let case = Case::new(&mut Chance::new(seed));
            for layout in [case.transfer.source(), case.transfer.target()] {
                let text = serde_json::to_string(&Description::of(layout)).unwrap();
                let description: Description = serde_json::from_str(&text).unwrap();
                assert!(description.processes().unwrap() >= 1);
                assert_eq!(description.layout().unwrap(), *layout, "seed {seed}");
            }
        }
    }

    #[test]
    fn too_many_processes_are_seen_before_the_layout_is_made() {
        let axis = (Axis::Block { over: u32::MAX, sizes: None }, Halo::default());
        let grid = Grid::of(&[u32::MAX, u32::MAX]);
        let description =
            Description { shape: vec![1, 1], axes: vec![axis.clone(), axis], grid, order: MemoryOrder::C };
        assert_eq!(description.processes(), None);
    }
}
