//! A process of a coupling, for Python. All calls that may wait release the interpreter's lock, and end early if a
//! signal handler raises.

use std::path::PathBuf;
use std::time::Duration;

use couple::side::{JoinError, JoinRequest, NoCommand, Ranks, RanksError, Side};
use couple::{Arrived, CallError, ExchangeError, FetchId, Patience};
use pyo3::exceptions::{PyConnectionError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{PickOf, PyLayout, mapping};

/// The ranks of a side, which call the package's `_Ranks`.
struct RanksOf<'a> {
    ranks: &'a Py<PyAny>,
    rank: u32,
    /// The exception that one of its methods has raised.
    raised: Option<PyErr>,
}

impl RanksOf<'_> {
    fn call<T>(&mut self, work: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, RanksError> {
        Python::attach(|py| work(self.ranks.bind(py))).map_err(|error| {
            let text = error.to_string();
            self.raised = Some(error);
            RanksError(text)
        })
    }
}

impl Ranks for RanksOf<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn broadcast(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, RanksError> {
        self.call(|ranks| ranks.call_method1("broadcast", (PyBytes::new(ranks.py(), &bytes),))?.extract())
    }

    fn gather(&mut self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, RanksError> {
        self.call(|ranks| ranks.call_method1("gather", (PyBytes::new(ranks.py(), &own),))?.extract())
    }
}

/// A process of a coupling.
#[pyclass(frozen, module = "landbridge._core")]
pub(crate) struct Coupled(Side);

#[pymethods]
impl Coupled {
    /// Joins a coupling; collective over `ranks`. `command`: on the first rank, the command `landbridge`, or None and
    /// the reason why there is none.
    #[staticmethod]
    fn join(
        py: Python<'_>,
        ranks: Py<PyAny>,
        rank: u32,
        name: String,
        site: Option<String>,
        command: (Option<PathBuf>, String),
        limit: Option<f64>,
    ) -> PyResult<Coupled> {
        let limit = duration(limit)?;
        let request = JoinRequest { name, site, command: command.0.ok_or(NoCommand(command.1)) };
        let mut signal = None;
        let (joined, raised) = py.detach(|| {
            let mut of = RanksOf { ranks: &ranks, rank, raised: None };
            let mut stop = || is_stopped(&mut signal);
            let joined = Side::join(&mut of, &request, &mut Patience { limit, stop: &mut stop });
            (joined, of.raised)
        });
        match (joined, signal.or(raised)) {
            (Ok(side), _) => Ok(Coupled(side)),
            (Err(_), Some(error)) => Err(error),
            (Err(error @ JoinError::Slow { .. }), None) => Err(PyTimeoutError::new_err(error.to_string())),
            (Err(error), None) => Err(PyConnectionError::new_err(error.to_string())),
        }
    }

    /// Name of the other side, for messages.
    #[getter]
    fn other(&self) -> &str {
        &self.0.other
    }

    /// Exports a version; `address` and `strides` (in bytes): this process's part.
    #[allow(clippy::too_many_arguments)]
    fn export(
        &self,
        py: Python<'_>,
        name: &str,
        version: u64,
        layout: &PyLayout,
        dtype: String,
        element: usize,
        address: usize,
        strides: Vec<i64>,
    ) -> PyResult<()> {
        let variable = couple::Variable { dtype, element, layout: layout.0.clone() };
        // SAFETY: the package has compared the array's shape with the layout's, and holds the array.
        let export = || unsafe { self.0.coupling.export((name, version), variable, (address as *const u8, &strides)) };
        py.detach(export).map_err(raised)
    }

    /// Waits until `more` further bytes may be held for the other side.
    fn wait_for_room(&self, py: Python<'_>, more: usize, budget: usize, limit: Option<f64>) -> PyResult<()> {
        waiting(py, limit, |patience| self.0.coupling.wait_for_room(more, budget, patience))
    }

    /// Waits for a variable of the other side. Returns type and size of its elements, and its layout.
    fn variable(&self, py: Python<'_>, name: &str, limit: Option<f64>) -> PyResult<(String, usize, PyLayout)> {
        let found = waiting(py, limit, |patience| self.0.coupling.variable(name, patience))?;
        Ok((found.dtype, found.element, PyLayout(found.layout)))
    }

    /// Announces a fetch to the other side.
    fn wish(
        &self,
        name: &str,
        layout: &PyLayout,
        from: Vec<PickOf>,
        to: Vec<PickOf>,
        order: Vec<usize>,
        shifts: Vec<u64>,
    ) {
        self.0.coupling.wish(name, &layout.0, &mapping(from, to, order, shifts));
    }

    /// Begins to fetch into an array of these strides and this element size (in bytes). `next` returns its elements.
    #[allow(clippy::too_many_arguments)]
    fn fetch(
        &self,
        name: &str,
        version: u64,
        layout: &PyLayout,
        from: Vec<PickOf>,
        to: Vec<PickOf>,
        order: Vec<usize>,
        shifts: Vec<u64>,
        strides: Vec<i64>,
        element: usize,
    ) -> PyResult<Fetching> {
        let mapping = mapping(from, to, order, shifts);
        self.0.coupling.fetch(name, version, &layout.0, &mapping, (&strides, element)).map(Fetching).map_err(raised)
    }

    /// The next elements of a fetch; an empty list when all have been taken.
    fn next(&self, py: Python<'_>, fetching: &Fetching, limit: Option<f64>) -> PyResult<Vec<Elements>> {
        let arrived = waiting(py, limit, |patience| self.0.coupling.next(fetching.0, patience))?;
        Ok(arrived.into_iter().map(Elements).collect())
    }

    /// Copies elements of several messages to their places in the array at this address. Some may arrive again.
    fn unpack(&self, py: Python<'_>, elements: Vec<Py<Elements>>, array: usize) {
        let arrived = || elements.iter().map(|each| &each.get().0);
        // SAFETY: the package has compared shape and strides of the array with those that it began the fetch with.
        py.detach(|| unsafe { self.0.coupling.unpack(arrived(), array as *mut u8) });
    }

    /// Copies elements to the buffer at this address, in the order of their message. Returns False if they will arrive
    /// again.
    fn copy(&self, py: Python<'_>, elements: &Elements, buffer: usize) -> bool {
        if elements.0.bytes() == 0 {
            return true;
        }
        // SAFETY: the package has made the buffer, with as many bytes.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer as *mut u8, elements.0.bytes()) };
        py.detach(|| self.0.coupling.copy(&elements.0, buffer))
    }

    /// Waits until the other side has received all exported versions.
    fn finish(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<()> {
        waiting(py, limit, |patience| self.0.coupling.finish(patience))
    }

    /// Ends the coupling for this reason, because this rank leaves without the others.
    fn leave(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.0.coupling.leave(reason));
    }

    /// The reason, if a rank of this side has left without the others.
    fn left(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.0.coupling.left())
    }

    /// Ends this rank's part. On the first rank, this ends the coupling, for this reason.
    fn end(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.0.end(reason));
    }
}

#[pyclass(frozen, module = "landbridge._core")]
pub(crate) struct Fetching(FetchId);

/// Elements of one message.
#[pyclass(frozen, module = "landbridge._core")]
pub(crate) struct Elements(Arrived);

#[pymethods]
impl Elements {
    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Copies elements from the buffer at this address to their places in the array at `array`.
    fn unpack(&self, py: Python<'_>, buffer: usize, array: usize) {
        // SAFETY: the package has made the buffer, and compared the array with the one that it began the fetch for.
        py.detach(|| unsafe { self.0.unpack(buffer as *const u8, array as *mut u8) });
    }
}

/// Calls `work` without the interpreter's lock.
fn waiting<T: Send>(
    py: Python<'_>,
    limit: Option<f64>,
    work: impl FnOnce(&mut Patience<'_>) -> Result<T, CallError> + Send,
) -> PyResult<T> {
    let limit = duration(limit)?;
    let mut signal = None;
    let result = py.detach(|| work(&mut Patience { limit, stop: &mut || is_stopped(&mut signal) }));
    match signal {
        Some(error) => Err(error),
        None => result.map_err(raised),
    }
}

fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let seconds = seconds.map(Duration::try_from_secs_f64).transpose();
    seconds.map_err(|error| PyValueError::new_err(format!("timeout: {error}")))
}

/// Returns true if a signal handler has raised an exception, and keeps the exception.
fn is_stopped(signal: &mut Option<PyErr>) -> bool {
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => false,
        Err(error) => {
            *signal = Some(error);
            true
        }
    }
}

fn raised(error: CallError) -> PyErr {
    match &error {
        CallError::Slow { .. } => PyTimeoutError::new_err(error.to_string()),
        CallError::Exchange(ExchangeError::Over(_) | ExchangeError::Refused { .. }) => {
            PyConnectionError::new_err(error.to_string())
        }
        _ => PyValueError::new_err(error.to_string()),
    }
}
