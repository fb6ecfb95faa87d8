//! Files that each hold one process's part of an array, read as the files of another layout: maps each element of a
//! target's file, which need not exist yet, to its place in the sources' files.

use thiserror::Error;

use crate::redistribution::layout::{Layout, MemoryOrder};

/// Elements that are contiguous in a target's file and in a source's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The source's process and the first element's number in its file. `None`: halo beyond the ends of the array,
    /// which reads as zeros.
    pub from: Option<(u32, u64)>,
    /// The number of elements, at least 1.
    pub length: u64,
}

/// Two layouts of one array.
#[derive(Clone, Debug)]
pub struct Files {
    from: Layout,
    to: Layout,
    /// For each axis, the owners of its indices in the source, in order of the indices.
    owners: Vec<Vec<Owned>>,
}

/// Consecutive indices of an axis.
#[derive(Clone, Copy, Debug)]
struct Owned {
    index: u64,
    length: u64,
    place: u32,
    local: u64,
}

/// Consecutive local indices of a target along an axis, and their place in the source.
#[derive(Clone, Copy, Debug)]
struct Segment {
    local: u64,
    length: u64,
    place: u32,
    source: u64,
}

/// Reasons why files of one layout cannot be read as files of the other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FilesError {
    #[error("one array has the shape {from:?}, the other {to:?}")]
    Shapes { from: Vec<u64>, to: Vec<u64> },
    #[error("one layout keeps elements in the order of C, the other in that of Fortran")]
    Orders,
}

impl Files {
    /// # Errors
    /// [`FilesError`].
    pub fn new(from: Layout, to: Layout) -> Result<Files, FilesError> {
        if from.shape() != to.shape() {
            return Err(FilesError::Shapes { from: from.shape().to_vec(), to: to.shape().to_vec() });
        }
        if from.order() != to.order() {
            return Err(FilesError::Orders);
        }
        let owners = (0..from.axes()).map(|axis| {
            let each = |place| {
                let runs: Vec<_> = from.owned(axis, place).all().collect();
                runs.into_iter().map(move |run| (run, place))
            };
            let mut owned: Vec<Owned> = (0..from.axis(axis).over())
                .flat_map(each)
                .map(|(run, place)| Owned { index: run.at, length: run.length, place, local: run.local as u64 })
                .collect();
            owned.sort_unstable_by_key(|owned| owned.index);
            owned
        });
        Ok(Files { owners: owners.collect(), from, to })
    }

    pub fn from(&self) -> &Layout {
        &self.from
    }

    pub fn to(&self) -> &Layout {
        &self.to
    }

    /// The file of one process of the target.
    pub fn file(&self, process: u32) -> File<'_> {
        let shape = self.to.local_shape(process);
        let along = |axis| self.along(axis, self.to.grid().place(process, axis));
        let order: Vec<usize> = match self.to.order() {
            MemoryOrder::C => (0..shape.len()).rev().collect(),
            MemoryOrder::Fortran => (0..shape.len()).collect(),
        };
        File { files: self, segments: (0..shape.len()).map(along).collect(), shape, order }
    }

    /// The segments that a target's process holds along an axis, sorted by local index.
    fn along(&self, axis: usize, place: u32) -> Vec<Segment> {
        let mut segments = Vec::new();
        for run in self.to.held(axis, place).all().collect::<Vec<_>>() {
            let end = run.at + run.length;
            let owned = &self.owners[axis];
            let first = owned.partition_point(|owned| owned.index + owned.length <= run.at);
            for owned in owned[first..].iter().take_while(|owned| owned.index < end) {
                let (index, until) = (owned.index.max(run.at), (owned.index + owned.length).min(end));
                segments.push(Segment {
                    local: run.local as u64 + (index - run.at),
                    length: until - index,
                    place: owned.place,
                    source: owned.local + (index - owned.index),
                });
            }
        }
        segments.sort_unstable_by_key(|segment| segment.local);
        segments
    }
}

/// The number of elements in the file of a layout's process.
pub fn elements(layout: &Layout, process: u32) -> u64 {
    layout.local_shape(process).iter().product()
}

/// A target's file.
#[derive(Clone, Debug)]
pub struct File<'a> {
    files: &'a Files,
    segments: Vec<Vec<Segment>>,
    shape: Vec<u64>,
    /// Axes from the fastest in the file to the slowest.
    order: Vec<usize>,
}

impl File<'_> {
    /// The number of elements.
    pub fn length(&self) -> u64 {
        self.shape.iter().product()
    }

    /// The contiguous stretch that begins at an element of the file; `None` past the end of the file.
    pub fn at(&self, element: u64) -> Option<Stretch> {
        if element >= self.length() {
            return None;
        }
        let Some((&inner, _)) = self.order.split_first() else {
            // An array without axes is one element.
            let process = self.files.from.grid().process(&[], 0);
            return Some(Stretch { from: Some((process, 0)), length: 1 });
        };
        let (mut rest, mut local) = (element, vec![0; self.shape.len()]);
        for &axis in &self.order {
            local[axis] = rest % self.shape[axis];
            rest /= self.shape[axis];
        }
        let row = self.shape[inner] - local[inner];
        let mut places = vec![0; self.shape.len()];
        let mut indices = vec![0; self.shape.len()];
        let mut length = row;
        for (axis, segments) in self.segments.iter().enumerate() {
            let at = segments.partition_point(|segment| segment.local + segment.length <= local[axis]);
            let found = segments.get(at).filter(|segment| segment.local <= local[axis]);
            let Some(segment) = found else {
                // Halo beyond the array: up to the next segment on the inner axis, otherwise the rest of the row.
                let next = segments.get(at).filter(|_| axis == inner).map_or(row, |next| next.local - local[inner]);
                return Some(Stretch { from: None, length: next });
            };
            let skipped = local[axis] - segment.local;
            (places[axis], indices[axis]) = (segment.place, segment.source + skipped);
            if axis == inner {
                length = segment.length - skipped;
            }
        }
        let from = &self.files.from;
        let process = from.grid().process(&places, 0);
        let strides = from.strides(process, 1);
        let offset: i64 = indices.iter().zip(&strides).map(|(index, stride)| *index as i64 * stride).sum();
        Some(Stretch { from: Some((process, offset as u64)), length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redistribution::testing::Chance;

    /// The contents of each process's file if every element holds its own number in the array, counted from 1.
    fn written(layout: &Layout) -> Vec<Vec<u64>> {
        let mut files = Vec::new();
        for process in 0..layout.processes() {
            let mut file = vec![0; elements(layout, process) as usize];
            let strides = layout.strides(process, 1);
            let mut places: Vec<(i64, u64)> = vec![(0, 0)];
            for (axis, extent) in layout.shape().iter().enumerate() {
                let held: Vec<_> = layout.held(axis, layout.grid().place(process, axis)).all().collect();
                let along: Vec<(i64, u64)> =
                    held.iter().flat_map(|run| (0..run.length).map(|n| (run.local + n as i64, run.at + n))).collect();
                let mut next = Vec::new();
                for (at, number) in &places {
                    next.extend(
                        along.iter().map(|(local, index)| (at + local * strides[axis], number * extent + index)),
                    );
                }
                places = next;
            }
            for (at, number) in places {
                if let Some(element) = file.get_mut(at as usize) {
                    *element = number + 1;
                }
            }
            files.push(file);
        }
        files
    }

    #[test]
    fn files_of_any_layout_become_those_of_any_other() {
        let mut compared = 0;
        for seed in 0..2000 {
            let mut chance = Chance::new(seed);
            let shape: Vec<u64> = (0..chance.below(4)).map(|_| chance.below(12)).collect();
            let (from, to) = (chance.layout(&shape).0, chance.layout(&shape).0);
            let files = Files::new(from.clone(), to.in_order(from.order())).unwrap();
            let (sources, targets) = (written(&from), written(files.to()));
            for (process, expected) in targets.iter().enumerate() {
                let file = files.file(process as u32);
                let mut found = Vec::new();
                while let Some(Stretch { from, length }) = file.at(found.len() as u64) {
                    assert!(length > 0);
                    let part = from.map(|(process, at)| &sources[process as usize][at as usize..][..length as usize]);
                    found.extend_from_slice(part.unwrap_or(&vec![0; length as usize]));
                }
                assert_eq!(found, *expected, "seed {seed}, process {process}");
                compared += found.len();
            }
        }
        assert!(compared > 10_000, "{compared}");
    }
}
