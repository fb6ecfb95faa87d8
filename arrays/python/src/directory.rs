//! Parts of arrays that only their own process knows, for Python. Lists of whole numbers are passed as bytes: each
//! number is a `u64` of this machine.

use plan::redistribution::directory::{self, Segment};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{Packed, PyLayout, invalid};

/// The elements that a process has, or wants.
#[pyclass(frozen, name = "Part", module = "landbridge._core")]
pub(crate) struct PyPart(directory::Part);

#[pymethods]
impl PyPart {
    /// `runs`: for each run, its first element's number in an array of this shape, and its number of elements; the
    /// process stores the runs one after the other.
    #[new]
    fn new(shape: Vec<u64>, runs: &[u8]) -> PyResult<PyPart> {
        let mut local = 0u64;
        let segments = numbers::<2>(runs)?.map(|[start, length]| {
            let segment = Segment { start, length, local };
            local = local.saturating_add(length);
            segment
        });
        let elements = directory::elements(&shape).map_err(invalid)?;
        directory::Part::new(segments.collect(), elements).map(PyPart).map_err(invalid)
    }

    /// The elements that a process of a layout owns (), or all that it holds.
    #[staticmethod]
    fn of(layout: &PyLayout, rank: u32, owned: bool) -> PyResult<PyPart> {
        directory::Part::of(&layout.0, rank, owned).map(PyPart).map_err(invalid)
    }

    #[getter]
    fn count(&self) -> u64 {
        self.0.count()
    }
}

/// One rank's state of a redistribution in which each process knows only its own part: see [`couple::directory`].
#[pyclass(module = "landbridge._core")]
pub(crate) struct Directory(couple::directory::Directory);

#[pymethods]
impl Directory {
    /// `source`, `target`: this rank's process of each, and its part; `ranks`: the ranks of the processes of both.
    #[new]
    fn new(
        source: Option<(u32, PyRef<'_, PyPart>)>,
        target: Option<(u32, PyRef<'_, PyPart>)>,
        ranks: [Vec<u32>; 2],
        size: u32,
    ) -> Directory {
        let parts = [source, target].map(|own| own.map(|(process, part)| (process, part.0.clone())));
        Directory(couple::directory::Directory::new(parts, ranks, size))
    }

    /// The letter to a rank in this round.
    fn letter<'py>(&self, py: Python<'py>, to: u32) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.letter(to))
    }

    /// Reads the letters of all ranks to this one.
    fn read(&mut self, py: Python<'_>, letters: Vec<Vec<u8>>) -> PyResult<()> {
        let letters: Vec<&[u8]> = letters.iter().map(Vec::as_slice).collect();
        py.detach(|| self.0.read(&letters)).map_err(invalid)
    }

    #[getter]
    fn steps(&self) -> usize {
        self.0.steps()
    }

    /// The messages in the order of sending: the process at the other end, and the number of elements.
    fn messages(&self, sends: bool) -> Vec<(u32, u64)> {
        self.0.messages(sends).collect()
    }

    /// The packings of these messages, from or to an array of this shape and these strides (in bytes).
    fn packings(&self, sends: bool, shape: Vec<u64>, strides: Vec<i64>, element: usize) -> PyResult<Vec<Packed>> {
        let packings = self.0.packings(sends, &shape, &strides, element);
        let packings =
            packings.ok_or_else(|| PyMemoryError::new_err("a message has more bytes than memory can have"))?;
        Ok(packings.into_iter().map(|packing| Packed(packing.into())).collect())
    }
}

/// Groups of `COUNT` numbers.
fn numbers<const COUNT: usize>(bytes: &[u8]) -> PyResult<impl Iterator<Item = [u64; COUNT]> + '_> {
    if !bytes.len().is_multiple_of(8 * COUNT) {
        return Err(PyValueError::new_err(format!("{} bytes are not groups of {COUNT} numbers", bytes.len())));
    }
    Ok(bytes.chunks_exact(8 * COUNT).map(|group| {
        let mut numbers = [0; COUNT];
        for (number, bytes) in numbers.iter_mut().zip(group.chunks_exact(8)) {
            *number = bytes.try_into().map_or(0, u64::from_ne_bytes);
        }
        numbers
    }))
}
