//! Native core of the Python package `landbridge`: layouts, and the messages between processes. Only the package's
//! Python code imports it, and that code checks the addresses it passes.

mod address;
mod coupling;
mod directory;
mod moving;
mod pieces;

use std::sync::Arc;

use couple::Packing;
use couple::datatype::{DatatypeStep, StridedElements};
use plan::redistribution as arrays;
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyValueError};
use pyo3::prelude::*;

fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// An axis as Python describes it: kind, processes, block, first, sizes or lists, halo.
#[derive(FromPyObject)]
struct AxisOf {
    kind: String,
    over: u32,
    block: u64,
    first: u32,
    sizes: Option<Vec<u64>>,
    lists: Option<Vec<Vec<u64>>>,
    before: u64,
    after: u64,
    periodic: bool,
}

impl AxisOf {
    fn axis(&mut self) -> PyResult<arrays::Axis> {
        let no_such = || invalid(format_args!("no such kind of axis: {}", self.kind));
        let kind = arrays::AxisKind::named(&self.kind).ok_or_else(no_such)?;
        arrays::Axis::described(kind, self)
    }
}

/// Python has checked the parameters.
impl arrays::AxisParameters for AxisOf {
    type Error = PyErr;

    fn over(&mut self) -> PyResult<u32> {
        Ok(self.over)
    }

    fn sizes(&mut self) -> PyResult<Option<Vec<u64>>> {
        Ok(self.sizes.take())
    }

    fn block(&mut self) -> PyResult<u64> {
        Ok(self.block)
    }

    fn first(&mut self) -> PyResult<u32> {
        Ok(self.first)
    }

    fn lists(&mut self) -> PyResult<Vec<Vec<u64>>> {
        Ok(self.lists.take().unwrap_or_default())
    }
}

#[pyclass(frozen, eq, hash, name = "Layout", module = "landbridge._core")]
#[derive(PartialEq, Eq, Hash)]
struct PyLayout(arrays::Layout);

#[pymethods]
impl PyLayout {
    /// `grid`: the processes along each dimension; `along`: for each axis, the dimensions along which it runs.
    #[new]
    fn new(
        shape: Vec<u64>,
        mut axes: Vec<AxisOf>,
        fortran: bool,
        grid: Vec<u32>,
        along: Vec<Vec<usize>>,
    ) -> PyResult<PyLayout> {
        let halo = |axis: &AxisOf| arrays::Halo { before: axis.before, after: axis.after, periodic: axis.periodic };
        let halos: Vec<arrays::Halo> = axes.iter().map(halo).collect();
        let kinds = axes.iter_mut().map(AxisOf::axis).collect::<PyResult<Vec<_>>>()?;
        let mut layout = arrays::Layout::new(shape, kinds).map_err(invalid)?;
        for (axis, halo) in halos.into_iter().enumerate() {
            layout = layout.with_halo(axis, halo).map_err(invalid)?;
        }
        layout = layout.over(arrays::Grid { dimensions: grid, axes: along }).map_err(invalid)?;
        let order = if fortran { arrays::MemoryOrder::Fortran } else { arrays::MemoryOrder::C };
        Ok(PyLayout(layout.in_order(order)))
    }

    #[getter]
    fn size(&self) -> u32 {
        self.0.processes()
    }

    fn shape(&self) -> Vec<u64> {
        self.0.shape().to_vec()
    }

    fn local_shape(&self, rank: u32) -> PyResult<Vec<u64>> {
        if rank >= self.0.processes() {
            return Err(PyIndexError::new_err(format!("rank {rank}: the layout is for {} processes", self.size())));
        }
        Ok(self.0.local_shape(rank))
    }

    fn owner(&self, index: Vec<u64>) -> PyResult<u32> {
        let outside = || PyIndexError::new_err(format!("index {index:?}: the array has shape {:?}", self.0.shape()));
        self.0.owner(&index).ok_or_else(outside)
    }
}

/// An index, or a start, a step and a count.
#[derive(FromPyObject)]
enum PickOf {
    Slice(u64, i64, u64),
    Index(u64),
}

impl From<PickOf> for arrays::Pick {
    fn from(pick: PickOf) -> arrays::Pick {
        match pick {
            PickOf::Index(at) => arrays::Pick::Index(at),
            PickOf::Slice(start, step, count) => arrays::Pick::Slice { start, step, count },
        }
    }
}

fn mapping(from: Vec<PickOf>, to: Vec<PickOf>, order: Vec<usize>, shifts: Vec<u64>) -> arrays::Mapping {
    let picks = |picks: Vec<PickOf>| picks.into_iter().map(Into::into).collect();
    arrays::Mapping { from: picks(from), to: picks(to), order, shifts }
}

/// The MPI function that builds a datatype, and its arguments.
#[derive(IntoPyObject)]
enum StepOf {
    Vector(&'static str, (u64, u64, i64)),
    IndexedBlock(&'static str, (u64, Vec<i64>)),
    Indexed(&'static str, (Vec<u64>, Vec<i64>)),
}

impl From<DatatypeStep> for StepOf {
    fn from(step: DatatypeStep) -> StepOf {
        match step {
            DatatypeStep::Vector { count, length, stride } => StepOf::Vector("Create_hvector", (count, length, stride)),
            DatatypeStep::IndexedBlock { length, places } => {
                StepOf::IndexedBlock("Create_hindexed_block", (length, places))
            }
            DatatypeStep::Indexed { lengths, places } => StepOf::Indexed("Create_hindexed", (lengths, places)),
        }
    }
}

#[pyclass(frozen, name = "Transfer", module = "landbridge._core")]
struct PyTransfer(arrays::Transfer);

#[pymethods]
impl PyTransfer {
    #[new]
    fn new(
        source: &PyLayout,
        target: &PyLayout,
        from: Vec<PickOf>,
        to: Vec<PickOf>,
        order: Vec<usize>,
        shifts: Vec<u64>,
    ) -> PyResult<PyTransfer> {
        let mapping = mapping(from, to, order, shifts);
        let (source, target) = (source.0.clone(), target.0.clone());
        arrays::Transfer::new(source, target, &mapping).map(PyTransfer).map_err(invalid)
    }

    /// The messages that a process of the source sends: peers and numbers of elements.
    fn sends(&self, rank: u32) -> Vec<(u32, u64)> {
        self.0.sends(rank).iter().map(|message| (message.peer, message.elements())).collect()
    }

    /// The messages that a process of the target receives: peers and numbers of elements.
    fn receives(&self, rank: u32) -> Vec<(u32, u64)> {
        self.0.receives(rank).iter().map(|message| (message.peer, message.elements())).collect()
    }

    /// The step of each message that a process sends or receives, and the total number of steps.
    fn steps(&self, rank: u32, sends: bool) -> (Vec<u64>, u64) {
        let steps = arrays::Steps::new(&self.0);
        (self.messages(rank, sends).iter().map(|message| steps.of(rank, message)).collect(), steps.count())
    }

    /// For each of a process's messages, True if MPI moves it from array to array when both are dense. Both ends
    /// compute the same.
    fn straight(&self, rank: u32, sends: bool, element: usize, library: &str) -> Vec<bool> {
        let is_straight =
            |message: &arrays::TransferMessage| StridedElements::is_straight(&self.0, rank, message, element, library);
        self.messages(rank, sends).iter().map(is_straight).collect()
    }

    /// For each message that a process sends or receives, the place of its elements in an array of these strides (in
    /// bytes): an offset, a block's bytes, and the steps that build the datatype. None for a message that is better
    /// packed. `library`: the MPI library's version string.
    fn places(
        &self,
        rank: u32,
        sends: bool,
        strides: Vec<i64>,
        element: usize,
        library: &str,
    ) -> Vec<Option<(i64, u64, Vec<StepOf>)>> {
        let messages = self.messages(rank, sends);
        let place = |message: &arrays::TransferMessage| {
            let place = StridedElements::of(message, &strides, element, library)?;
            Some((place.offset, place.block, place.steps.into_iter().map(StepOf::from).collect()))
        };
        messages.iter().map(place).collect()
    }

    /// The packings of the messages that a process sends or receives, from or to an array of these strides (in bytes).
    fn packings(&self, rank: u32, sends: bool, strides: Vec<i64>, element: usize) -> PyResult<Vec<Packed>> {
        let messages = self.messages(rank, sends);
        let packed =
            |message: &arrays::TransferMessage| Some(Packed(Arc::new(Packing::new(message, &strides, element)?)));
        let packings: Option<Vec<Packed>> = messages.iter().map(packed).collect();
        packings.ok_or_else(|| PyMemoryError::new_err("a message has more bytes than memory can have"))
    }
}

impl PyTransfer {
    fn messages(&self, rank: u32, sends: bool) -> Vec<arrays::TransferMessage> {
        if sends { self.0.sends(rank) } else { self.0.receives(rank) }
    }
}

#[pyclass(frozen, module = "landbridge._core")]
#[derive(Clone)]
struct Packed(Arc<Packing>);

#[pymethods]
impl Packed {
    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Copies from the array at this address to the buffer at that one.
    fn pack(&self, py: Python<'_>, array: usize, buffer: usize) {
        // SAFETY: the package has compared shapes and strides of the array with the layout's, and made the buffer.
        py.detach(|| unsafe { self.0.pack(array as *const u8, buffer as *mut u8) });
    }

    /// Copies from the buffer to the array.
    fn unpack(&self, py: Python<'_>, buffer: usize, array: usize) {
        // SAFETY: as above.
        py.detach(|| unsafe { self.0.unpack(buffer as *const u8, array as *mut u8) });
    }
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::address::address_of;
    #[pymodule_export]
    use super::coupling::Coupled;
    #[pymodule_export]
    use super::directory::{Directory, PyPart};
    #[pymodule_export]
    use super::moving::{Moving, again, begin, complete, register, take};
    #[pymodule_export]
    use super::pieces::{Beside, Buffers, PyPieces};
    #[pymodule_export]
    use super::{Packed, PyLayout, PyTransfer};

    /// Default limit of the bytes of pieces in memory.
    #[pymodule_export]
    const BUDGET: usize = super::pieces::BUDGET;
    #[pymodule_export]
    const ADDRESS: usize = super::pieces::ADDRESS;
    #[pymodule_export]
    const WORTH: usize = super::pieces::WORTH;
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
