//! The steps of a run that nothing may interrupt.
//!
//! Python runs signal handlers between any two operations of a program. One that raises an exception, as Ctrl-C does,
//! could come between the call that makes a request and the list that keeps it: the request's memory would be freed
//! while MPI writes to it. No Python code runs between the calls in here, except conversions, whose exceptions are kept
//! until the run is over.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::pieces::PyPieces;

/// The packed messages of a run in flight, in pieces.
#[pyclass(frozen, module = "landbridge._core")]
pub(crate) struct Moving {
    pieces: Py<PyPieces>,
    /// Methods of mpi4py: `Isend`, `Irecv`, `Request.Testsome`, `buffer.fromaddress`.
    send: Py<PyAny>,
    receive: Py<PyAny>,
    test: Py<PyAny>,
    from_address: Py<PyAny>,
    byte: Py<PyAny>,
    tag: i32,
    /// A request and a status for each slot.
    requests: Py<PyList>,
    statuses: Py<PyList>,
    convert: Option<Py<PyAny>>,
    /// Held by the thread that moves pieces.
    turn: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// For each slot: true if its piece is sent, and the rank at the other end.
    ends: Vec<(bool, u32)>,
    absent: Vec<u32>,
    /// The first exception of a conversion.
    failure: Option<PyErr>,
}

#[pymethods]
impl Moving {
    /// `mpi`: the module mpi4py.MPI. `convert` takes the address and the length of a piece, and returns its elements in
    /// the dtype of the receiving array, and their address; None: the dtypes are the same.
    #[new]
    #[pyo3(signature = (pieces, comm, mpi, tag, convert))]
    fn new(
        pieces: Bound<'_, PyPieces>,
        comm: &Bound<'_, PyAny>,
        mpi: &Bound<'_, PyAny>,
        tag: i32,
        convert: Option<Py<PyAny>>,
    ) -> PyResult<Moving> {
        let (py, slots) = (comm.py(), pieces.get().slots());
        let (null, status) = (mpi.getattr("REQUEST_NULL")?, mpi.getattr("Status")?);
        let statuses = (0..slots).map(|_| status.call0()).collect::<PyResult<Vec<_>>>()?;
        let request = mpi.getattr("Request")?;
        Ok(Moving {
            pieces: pieces.unbind(),
            send: comm.getattr("Isend")?.unbind(),
            receive: comm.getattr("Irecv")?.unbind(),
            test: request.getattr("Testsome")?.unbind(),
            from_address: mpi.getattr("buffer")?.getattr("fromaddress")?.unbind(),
            byte: mpi.getattr("BYTE")?.unbind(),
            tag,
            requests: PyList::new(py, vec![null; slots])?.unbind(),
            statuses: PyList::new(py, statuses)?.unbind(),
            convert,
            turn: Mutex::default(),
            state: Mutex::new(State { ends: vec![(true, 0); slots], ..State::default() }),
        })
    }

    /// Sends, receives and copies pieces until it would have to wait, or does nothing if another thread does. Returns
    /// True if any piece has moved.
    fn advance(&self, py: Python<'_>) -> PyResult<bool> {
        let turn = self.turn.try_lock();
        if matches!(turn, Err(TryLockError::WouldBlock)) {
            return Ok(false);
        }
        let (mut moved, pieces) = (false, self.pieces.get());
        while self.begin(py)? || self.end(py)? || pieces.copy_own(py) {
            moved = true;
        }
        Ok(moved)
    }

    /// The run goes on without the pieces that other ranks have not given back.
    fn expect_nothing_back(&self) {
        self.pieces.get().expect_nothing_back();
    }

    fn is_over(&self) -> bool {
        self.pieces.get().is_over()
    }

    /// True if each piece is in flight or over.
    fn is_begun(&self) -> bool {
        self.pieces.get().is_begun()
    }

    /// True if received elements have another type in transit than in the array.
    #[getter]
    fn converts(&self) -> bool {
        self.convert.is_some()
    }

    /// Ranks that have sent empty pieces, because they cannot take part.
    #[getter]
    fn absent(&self) -> Vec<u32> {
        self.lock().absent.clone()
    }

    /// The first exception of a conversion; None: all have succeeded.
    #[getter]
    fn failure(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let failure = self.lock().failure.as_ref().map(|error| error.clone_ref(py));
        failure.map(|error| error.into_value(py).into_any())
    }
}

impl Moving {
    fn begin(&self, py: Python<'_>) -> PyResult<bool> {
        let mut moved = false;
        while let Some((slot, sends, rank, at, length)) = self.pieces.get().begin(py) {
            self.lock().ends[slot] = (sends, rank);
            let place = self.from_address.call1(py, (at, length))?;
            let elements = PyList::new(py, [place.bind(py), self.byte.bind(py)])?;
            let call = if sends { &self.send } else { &self.receive };
            self.requests.bind(py).set_item(slot, call.call1(py, (elements, rank, self.tag))?)?;
            moved = true;
        }
        Ok(moved)
    }

    fn end(&self, py: Python<'_>) -> PyResult<bool> {
        let (pieces, statuses) = (self.pieces.get(), self.statuses.bind(py));
        let over: Option<Vec<usize>> = self.test.call1(py, (&self.requests, statuses))?.extract(py)?;
        let over = over.unwrap_or_default();
        for (at, slot) in over.iter().enumerate() {
            let (sends, rank) = self.lock().ends[*slot];
            let length = if sends { 0 } else { statuses.get_item(at)?.getattr("count")?.extract()? };
            if !sends && length == 0 {
                self.lock().absent.push(rank);
            }
            pieces.over(py, *slot, length);
        }
        while let Some((slot, at, length, came)) = self.convert.as_ref().and_then(|_| pieces.ripe()) {
            let converted = if came { self.converted(py, at, length) } else { None };
            pieces.unpack(py, slot, converted.as_ref().map_or(0, |(_, place)| *place));
        }
        Ok(!over.is_empty())
    }

    /// The converted elements of a piece and their address. Discards the elements after an exception.
    fn converted(&self, py: Python<'_>, at: usize, length: usize) -> Option<(Py<PyAny>, usize)> {
        let made = self.convert.as_ref()?.call1(py, (at, length)).and_then(|made| made.extract(py));
        match made {
            Ok(made) => Some(made),
            Err(error) => {
                self.lock().failure.get_or_insert(error);
                None
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes these calls, each of which begins a message and returns its request or returns None. Each call is removed from
/// `begins` when its request is in `requests`, so what an exception leaves can be begun later.
#[pyfunction]
pub(crate) fn begin(begins: &Bound<'_, PyList>, requests: &Bound<'_, PyList>) -> PyResult<()> {
    begins.reverse()?;
    let begun = (|| {
        while let Some(at) = begins.len().checked_sub(1) {
            let made = begins.get_item(at)?.call0()?;
            if !made.is_none() {
                requests.append(made)?;
            }
            begins.del_item(at)?;
        }
        Ok(())
    })();
    begins.reverse()?;
    begun
}

/// Calls `Testall` or `Waitall` of mpi4py. Returns True if all requests are over, and empties the list then: statuses
/// are valid once.
#[pyfunction]
pub(crate) fn complete(
    call: &Bound<'_, PyAny>,
    requests: &Bound<'_, PyList>,
    statuses: &Bound<'_, PyList>,
) -> PyResult<bool> {
    let over = requests.is_empty() || call.call1((requests, statuses))?.is_truthy()?;
    if over {
        requests.del_slice(0, requests.len())?;
    }
    Ok(over)
}

/// Adds a run to those with messages that have not begun, and counts it. `runs`: a list of one number, that of the last
/// run.
#[pyfunction]
pub(crate) fn register(opened: &Bound<'_, PyList>, runs: &Bound<'_, PyList>, run: &Bound<'_, PyAny>) -> PyResult<()> {
    opened.append(run)?;
    count(runs).map(drop)
}

/// Calls `receive` of mpi4py, appends what it returns to `received`, and counts it. `counts`: a list of one number.
#[pyfunction]
pub(crate) fn take(
    receive: &Bound<'_, PyAny>,
    arguments: &Bound<'_, PyTuple>,
    received: &Bound<'_, PyList>,
    counts: &Bound<'_, PyList>,
) -> PyResult<()> {
    received.append(receive.call1(arguments)?)?;
    count(counts).map(drop)
}

fn count(runs: &Bound<'_, PyList>) -> PyResult<u64> {
    let next = runs.get_item(0)?.extract::<u64>()? + 1;
    runs.set_item(0, next)?;
    Ok(next)
}

/// Counts a run, starts its persistent requests and waits for them. Returns the number of the run. `runs`: as for
/// [`register`]. `start`, `wait`: `Startall` and `Waitall` of mpi4py.
#[pyfunction]
pub(crate) fn again(
    runs: &Bound<'_, PyList>,
    start: &Bound<'_, PyAny>,
    wait: &Bound<'_, PyAny>,
    requests: &Bound<'_, PyList>,
    statuses: &Bound<'_, PyList>,
) -> PyResult<u64> {
    let number = count(runs)?;
    start.call1((requests,))?;
    wait.call1((requests, statuses))?;
    Ok(number)
}
