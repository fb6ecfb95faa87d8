//! A process of a coupling, for Python. All calls that may wait let other Python threads run, and end early if a signal
//! handler raises.

use std::net::{SocketAddrV4, TcpListener};
use std::sync::Mutex;
use std::time::Duration;

use couple::{Arrived, CallError, Coupling, ExchangeError, FetchId, Patience, Place};
use endpoint::JobConfig;
use endpoint::config::Gateway;
use pyo3::exceptions::{PyConnectionError, PyOSError, PyRuntimeError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use types::Rank;
use types::sites::Keys;

use crate::{Layout, PickOf, mapping};

/// A port that a process listens on before there is a coupling, because the others must be told of it.
#[pyclass(frozen, module = "landbridge._core")]
pub(crate) struct Listener {
    listener: Mutex<Option<TcpListener>>,
    address: String,
}

#[pymethods]
impl Listener {
    /// Any port of this address.
    #[new]
    fn new(address: &str) -> PyResult<Listener> {
        let failed = |e: std::io::Error| PyOSError::new_err(format!("cannot listen on {address}: {e}"));
        let listener = TcpListener::bind((address, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?.to_string();
        Ok(Listener { listener: Mutex::new(Some(listener)), address })
    }

    #[getter]
    fn address(&self) -> &str {
        &self.address
    }
}

/// What a process is told of its coupling.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PlaceOf {
    job: String,
    secret: String,
    roster: String,
    window: u32,
    process: u32,
    /// Ranks of the processes of this side, of the other.
    ranks: [Vec<u32>; 2],
    /// Where they listen.
    addresses: [Vec<String>; 2],
    site: String,
    /// Names and addresses of the site's gateways.
    gateways: Vec<(String, String)>,
    keys: Vec<String>,
}

impl PlaceOf {
    fn place(self) -> Result<Place, String> {
        let text = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let socket = |address: &str| address.parse::<SocketAddrV4>().map_err(|e| text(address, &e));
        let rank = self.ranks[0].get(self.process as usize).copied().ok_or("this process has no rank")?;
        let site = self.site;
        let gateways = self
            .gateways
            .iter()
            .map(|(name, address)| Ok(Gateway { site: site.clone(), name: name.clone(), address: socket(address)? }));
        let gateways = gateways.collect::<Result<Vec<_>, String>>()?;
        let key = |key: &String| key.parse().map_err(|e| text("a key", &e));
        let keys = self.keys.iter().map(key).collect::<Result<Vec<_>, String>>()?;
        let encrypted = keys.first().map(|current| Keys { current: *current, next: keys.get(1).copied() });
        let job = JobConfig {
            id: self.job.parse().map_err(|e| text("the job", &e))?,
            secret: self.secret.parse().map_err(|e| text("the secret", &e))?,
            roster: self.roster.parse().map_err(|e| text("the roster", &e))?,
            rank: Rank(rank),
            gateways,
            window: self.window,
            memory: Vec::new(),
            encrypted,
        };
        let side = |ranks: &[u32], addresses: &[String]| {
            if ranks.len() != addresses.len() {
                return Err(format!("{} processes, but {} addresses", ranks.len(), addresses.len()));
            }
            ranks.iter().zip(addresses).map(|(rank, address)| Ok((Rank(*rank), socket(address)?))).collect()
        };
        let sides = [side(&self.ranks[0], &self.addresses[0])?, side(&self.ranks[1], &self.addresses[1])?];
        Ok(Place { job, process: self.process, sides })
    }
}

/// A process of a coupling.
#[pyclass(frozen, module = "landbridge._core")]
pub(crate) struct Coupled(Coupling);

#[pymethods]
impl Coupled {
    #[new]
    fn new(py: Python<'_>, listener: &Listener, place: PlaceOf) -> PyResult<Coupled> {
        let place = place.place().map_err(PyRuntimeError::new_err)?;
        let taken = listener.listener.lock().ok().and_then(|mut listener| listener.take());
        let taken = taken.ok_or_else(|| PyRuntimeError::new_err("this listener is used already"))?;
        let opened = py.detach(|| Coupling::open(taken, place));
        opened.map(Coupled).map_err(|e| PyConnectionError::new_err(e.to_string()))
    }

    /// Exports a version; `address` and `strides` (in bytes): this process's part.
    #[allow(clippy::too_many_arguments)]
    fn export(
        &self,
        py: Python<'_>,
        name: &str,
        version: u64,
        layout: &Layout,
        dtype: String,
        element: usize,
        address: usize,
        strides: Vec<i64>,
    ) -> PyResult<()> {
        let variable = couple::Variable { dtype, element, layout: layout.0.clone() };
        // SAFETY: the package has compared the array's shape with the layout's, and holds the array.
        let export = || unsafe { self.0.export((name, version), variable, (address as *const u8, &strides)) };
        py.detach(export).map_err(raised)
    }

    /// Waits until this many more bytes may be held for the other side.
    fn wait_for_room(&self, py: Python<'_>, more: usize, budget: usize, limit: Option<f64>) -> PyResult<()> {
        waiting(py, limit, |patience| self.0.wait_for_room(more, budget, patience))
    }

    /// Type and size of an element, and layout of a variable of the other side, once it exports it.
    fn variable(&self, py: Python<'_>, name: &str, limit: Option<f64>) -> PyResult<(String, usize, Layout)> {
        let found = waiting(py, limit, |patience| self.0.variable(name, patience))?;
        Ok((found.dtype, found.element, Layout(found.layout)))
    }

    /// Tells the other side what is about to be fetched.
    fn wish(
        &self,
        name: &str,
        layout: &Layout,
        from: Vec<PickOf>,
        to: Vec<PickOf>,
        order: Vec<usize>,
        shifts: Vec<u64>,
    ) {
        self.0.wish(name, &layout.0, &mapping(from, to, order, shifts));
    }

    /// Begins to fetch into an array of these strides and elements, in bytes. Its messages are taken by `next`.
    #[allow(clippy::too_many_arguments)]
    fn fetch(
        &self,
        name: &str,
        version: u64,
        layout: &Layout,
        from: Vec<PickOf>,
        to: Vec<PickOf>,
        order: Vec<usize>,
        shifts: Vec<u64>,
        strides: Vec<i64>,
        element: usize,
    ) -> PyResult<Fetching> {
        let mapping = mapping(from, to, order, shifts);
        self.0.fetch(name, version, &layout.0, &mapping, (&strides, element)).map(Fetching).map_err(raised)
    }

    /// The next messages of a fetch; none: all have been taken.
    fn next(&self, py: Python<'_>, fetching: &Fetching, limit: Option<f64>) -> PyResult<Vec<Elements>> {
        let arrived = waiting(py, limit, |patience| self.0.next(fetching.0, patience))?;
        Ok(arrived.into_iter().map(Elements).collect())
    }

    /// Copies elements to where they belong in the array at this address. False: they will come again.
    fn unpack(&self, py: Python<'_>, elements: &Elements, array: usize) -> PyResult<bool> {
        // SAFETY: the package has compared shape and strides of the array with those that it began the fetch with.
        py.detach(|| unsafe { self.0.unpack(&elements.0, array as *mut u8) }).map_err(raised)
    }

    /// Copies elements to the buffer at this address, in the order of their message. False: they will come again.
    fn copy(&self, py: Python<'_>, elements: &Elements, buffer: usize) -> PyResult<bool> {
        if elements.0.bytes() == 0 {
            return Ok(true);
        }
        // SAFETY: the package has made the buffer, of as many bytes.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer as *mut u8, elements.0.bytes()) };
        py.detach(|| self.0.copy(&elements.0, buffer)).map_err(raised)
    }

    /// Waits until the other side has everything.
    fn finish(&self, py: Python<'_>, limit: Option<f64>) -> PyResult<()> {
        waiting(py, limit, |patience| self.0.finish(patience))
    }

    /// Ends the coupling for this reason.
    fn fail(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.0.fail(reason));
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
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

    /// Copies elements from the buffer at this address to the array at that one.
    fn unpack(&self, py: Python<'_>, buffer: usize, array: usize) {
        // SAFETY: the package has made the buffer, and compared the array with that which it began the fetch for.
        py.detach(|| unsafe { self.0.unpack(buffer as *const u8, array as *mut u8) });
    }
}

/// Calls `work` without the interpreter's lock.
fn waiting<T: Send>(
    py: Python<'_>,
    limit: Option<f64>,
    work: impl FnOnce(&mut Patience<'_>) -> Result<T, CallError> + Send,
) -> PyResult<T> {
    let limit = match limit.map(Duration::try_from_secs_f64) {
        None => None,
        Some(Ok(limit)) => Some(limit),
        Some(Err(error)) => return Err(PyValueError::new_err(format!("timeout: {error}"))),
    };
    let mut signal = None;
    let result = py.detach(|| {
        let mut stop = || match Python::attach(|py| py.check_signals()) {
            Ok(()) => false,
            Err(error) => {
                signal = Some(error);
                true
            }
        };
        work(&mut Patience { limit, stop: &mut stop })
    });
    match signal {
        Some(error) => Err(error),
        None => result.map_err(raised),
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
