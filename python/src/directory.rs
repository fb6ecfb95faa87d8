//! Parts of arrays of which each process knows its own alone, for Python. Lists of whole numbers come and go as bytes:
//! each number is a `u64` of this machine.

use couple::Packing;
use plan::redistribution::directory::{self, Segment, Span};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{Layout, Packed, invalid};

/// What a process has, or wants.
#[pyclass(frozen, module = "landbridge._core")]
pub(crate) struct Part(directory::Part);

#[pymethods]
impl Part {
    /// `runs`: of each run the first element's number in an array of this shape, and how many; the process keeps them
    /// one after the other.
    #[new]
    fn new(shape: Vec<u64>, runs: &[u8]) -> PyResult<Part> {
        let mut local = 0u64;
        let segments = numbers::<2>(runs)?.map(|[start, length]| {
            let segment = Segment { start, length, local };
            local = local.saturating_add(length);
            segment
        });
        let elements = directory::elements(&shape).map_err(invalid)?;
        directory::Part::new(segments.collect(), elements).map(Part).map_err(invalid)
    }

    /// What a process of a layout owns, or all that it holds.
    #[staticmethod]
    fn of(layout: &Layout, rank: u32, owned: bool) -> PyResult<Part> {
        directory::Part::of(&layout.0, rank, owned).map(Part).map_err(invalid)
    }

    #[getter]
    fn count(&self) -> u64 {
        self.0.count()
    }

    /// What each of this many keepers is told: triples.
    fn told<'py>(&self, py: Python<'py>, keepers: u32) -> Vec<Bound<'py, PyBytes>> {
        let told = py.detach(|| self.0.told(keepers));
        told.iter().map(|spans| PyBytes::new(py, &bytes(spans.iter().map(triple)))).collect()
    }

    /// How the elements of a message are copied, which consists of these triples, from or to an array of this shape and
    /// these strides, in bytes.
    fn packing(
        &self,
        spans: &[u8],
        sends: bool,
        shape: Vec<u64>,
        strides: Vec<i64>,
        element: usize,
    ) -> PyResult<Packed> {
        let places = self.0.places(numbers::<3>(spans)?.map(span).collect(), sends);
        let packing = Packing::of_places(&places, &shape, &strides, element);
        packing
            .map(|packing| Packed(packing.into()))
            .ok_or_else(|| PyMemoryError::new_err("a message has more bytes than memory can have"))
    }
}

/// A process and triples.
type Told = (u32, Vec<u8>);

/// What a keeper finds from what processes of the source and of the target have told it: for each pair of both its
/// triples.
#[pyfunction]
pub(crate) fn matched<'py>(
    py: Python<'py>,
    sources: Vec<Told>,
    targets: Vec<Told>,
) -> PyResult<Vec<(u32, u32, Bound<'py, PyBytes>)>> {
    let read = |told: Vec<Told>| {
        let each = |(process, bytes): Told| Ok((process, numbers::<3>(&bytes)?.map(span).collect()));
        told.into_iter().map(each).collect::<PyResult<Vec<(u32, Vec<Span>)>>>()
    };
    let (sources, targets) = (read(sources)?, read(targets)?);
    let mut found = py.detach(|| directory::matched(&sources, &targets)).map_err(invalid)?;
    found.sort_unstable_by_key(|found| (found.source, found.target, found.span));
    let pairs = found.chunk_by(|one, other| (one.source, one.target) == (other.source, other.target));
    let of_pair = |pair: &[directory::Match]| {
        let spans = pair.iter().map(|found| triple(&found.span));
        (pair[0].source, pair[0].target, PyBytes::new(py, &bytes(spans)))
    };
    Ok(pairs.map(of_pair).collect())
}

fn triple(span: &Span) -> [u64; 3] {
    [span.layer, span.start, span.length]
}

fn span([layer, start, length]: [u64; 3]) -> Span {
    Span { layer, start, length }
}

fn bytes<const COUNT: usize>(all: impl Iterator<Item = [u64; COUNT]>) -> Vec<u8> {
    all.flatten().flat_map(u64::to_ne_bytes).collect()
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
