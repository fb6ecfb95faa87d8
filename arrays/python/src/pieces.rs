//! Packed messages of a run, in pieces.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use couple::beside;
pub(crate) use couple::pieces::BUDGET;
use couple::pieces::{self, MessageFlow};
use pyo3::prelude::*;

use crate::Packed;

pub(crate) use couple::beside::{ADDRESS, WORTH};

/// Memory that ranks of a node lend each other, for one communicator.
#[pyclass(frozen, module = "landbridge._core")]
#[derive(Default)]
pub(crate) struct Beside(Arc<beside::Beside>);

#[pymethods]
impl Beside {
    #[new]
    fn new() -> Beside {
        Beside::default()
    }

    /// The address by which other ranks open this rank's slots, of fixed length; zeros: there is no memory to lend.
    fn address(&self) -> Vec<u8> {
        let mut address = self.0.address();
        address.resize(beside::ADDRESS, 0);
        address
    }

    /// Opens the other rank's slots. Returns True if this rank can read them.
    fn open(&self, rank: u32, address: Vec<u8>) -> bool {
        self.0.open(rank, &address)
    }

    /// Records that the other rank can read this rank's slots.
    fn allow(&self, rank: u32) {
        self.0.allow(rank);
    }
}

#[pyclass(frozen, module = "landbridge._core")]
pub(crate) struct Buffers(Arc<pieces::Buffers>);

#[pymethods]
impl Buffers {
    #[new]
    fn new(beside: &Beside) -> Buffers {
        Buffers(Arc::new(pieces::Buffers::new(beside.0.clone())))
    }
}

/// A message: the rank at the other end, and its packing.
type FlowOf = (u32, Py<Packed>);

#[pyclass(frozen, name = "Pieces", module = "landbridge._core")]
pub(crate) struct PyPieces {
    pieces: Mutex<pieces::Pieces>,
    /// True if received elements have another type in transit than in the array.
    converts: bool,
}

#[pymethods]
impl PyPieces {
    /// `arrays`: addresses of the array and of the receiving array; None: this process sends empty messages, or
    /// discards received elements. `elements`: bytes of an element in transit, and in the receiving array. `budget`
    /// None: all pieces are begun at once.
    #[new]
    #[pyo3(signature = (arrays, sends, receives, own, elements, converts, hold, budget, buffers))]
    #[expect(clippy::too_many_arguments, reason = "the package's own code alone calls it")]
    fn new(
        arrays: (Option<usize>, Option<usize>),
        sends: Vec<FlowOf>,
        receives: Vec<FlowOf>,
        own: Option<(Py<Packed>, Py<Packed>)>,
        elements: (usize, usize),
        converts: bool,
        hold: bool,
        budget: Option<usize>,
        buffers: &Buffers,
    ) -> PyPieces {
        let packing = |packed: &Py<Packed>| packed.get().0.clone();
        let (wire, local) = elements;
        let flows = |flows: Vec<FlowOf>, elements: (usize, usize), converts: bool| -> Vec<MessageFlow> {
            let flow = |(rank, packed): FlowOf| MessageFlow { rank, packing: packing(&packed), elements, converts };
            flows.into_iter().map(flow).collect()
        };
        let flows = (flows(sends, (wire, wire), false), flows(receives, (local, wire), converts));
        let own = own.map(|(from, to)| (packing(&from), packing(&to)));
        let arrays = (arrays.0.map(|at| at as *const u8), arrays.1.map(|at| at as *mut u8));
        // SAFETY: the package has compared shapes and strides of the arrays with the layouts', keeps the arrays alive,
        // and passes the pieces to MPI.
        let pieces = unsafe { pieces::Pieces::new(arrays, flows, own, hold, budget, buffers.0.clone()) };
        PyPieces { pieces: Mutex::new(pieces), converts }
    }
}

impl PyPieces {
    pub(crate) fn slots(&self) -> usize {
        self.lock().slots()
    }

    /// The next piece to be sent or received: its slot, True if it is sent, its rank, address and bytes.
    pub(crate) fn begin(&self, py: Python<'_>) -> Option<(usize, bool, u32, usize, usize)> {
        py.detach(|| {
            let next = self.lock().begin()?;
            Some((next.slot, next.sends, next.rank, next.at as usize, next.bytes))
        })
    }

    /// Ends the piece in this slot, which has this many bytes. Unpacks the arrived pieces, unless they are to be
    /// converted.
    pub(crate) fn over(&self, py: Python<'_>, slot: usize, bytes: usize) {
        py.detach(|| {
            let mut pieces = self.lock();
            pieces.over(slot, bytes);
            if !self.converts {
                pieces.unpack_ripe();
            }
        });
    }

    /// The next piece to be converted: its slot, address and bytes, and False if its message was empty.
    pub(crate) fn ripe(&self) -> Option<(usize, usize, usize, bool)> {
        self.lock().ripe().map(|ripe| (ripe.slot, ripe.at as usize, ripe.bytes, ripe.came))
    }

    /// Copies converted elements to their places; 0: they are discarded.
    pub(crate) fn unpack(&self, py: Python<'_>, slot: usize, converted: usize) {
        // SAFETY: the package has converted as many elements as the piece has.
        py.detach(|| unsafe { self.lock().unpack(slot, converted as *const u8) });
    }

    pub(crate) fn copy_own(&self, py: Python<'_>) -> bool {
        py.detach(|| self.lock().copy_own())
    }

    pub(crate) fn expect_nothing_back(&self) {
        self.lock().expect_nothing_back();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().is_over()
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.lock().is_begun()
    }

    fn lock(&self) -> MutexGuard<'_, pieces::Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
