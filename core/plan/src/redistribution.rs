//! Redistribution of an array from one set of processes to another that holds it in another layout: which elements go
//! from which process to which, and where they are in local memory.
//!
//! Each process finds its own messages from the two layouts alone, in time and memory that grow with the number of its
//! neighbours: no messages are exchanged, and no table of all processes is made. The elements that go from one process
//! to another are the product of index sets along each axis, and are stored as such (Prylli and Tourancheau, "Fast
//! Runtime Block Cyclic Data Redistribution on Multiprocessors", 1997).
//!
//! Start at [`Layout`], then [`Transfer`], which gives the [`TransferMessage`]s of a process. If no layout states
//! which process holds which elements, [`directory`] finds out.

mod axis;
pub mod compact;
mod description;
pub mod directory;
pub mod files;
mod grid;
mod layout;
mod mapping;
mod pattern;
mod steps;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, missing_docs)]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod text;
mod transfer;

pub use axis::{Axis, AxisError, AxisKind, AxisParameters, Halo};
pub use description::Description;
pub use grid::Grid;
pub use layout::{Layout, LayoutError, MemoryOrder};
pub use mapping::{Mapping, MappingError, Pick};
pub use pattern::{Pattern, Run, SharedPositions, SharedRun};
pub use steps::Steps;
pub use transfer::{StridedRun, Transfer, TransferMessage};
