//! A process of a coupling: its variables ([`Exchange`]) over an endpoint in the coupling's job.
//!
//! A thread moves bytes while the program computes; it sleeps on the endpoint's descriptors. A call of the program
//! moves bytes as well, and then waits for the thread.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use endpoint::{Config, Endpoint, JobConfig, OpenError, PeerId};
use memory::Regions;
use plan::redistribution::{Layout, Mapping, MemoryOrder};
use pool::HostId;
use rustix::event::{EventfdFlags, eventfd};
use thiserror::Error;
use types::id::plain;
use types::{Address, Identity, Instance, Rank, Slot};

use crate::call::{CallError, Patience, SETTLE};
use crate::exchange::{
    Arrived, Content, ElementSource, Exchange, ExchangeError, FetchId, Memory, Party, Variable, fresh,
};
use crate::helper::HelperEnd;
use crate::pack::Packing;
use crate::sealed;
use shared::SharedCoupling;
use state::{CouplingState, POSTED, named};

mod shared;
mod state;

/// A process's place in a coupling.
#[derive(Clone, Debug)]
pub struct CouplingMembership {
    pub job: JobConfig,
    /// This process's number on its side.
    pub process: u32,
    /// Ranks in the job and addresses: first of the processes of this side, then of the other.
    pub sides: [Vec<(Rank, SocketAddr)>; 2],
}

/// Reasons why a process could not take part.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CoupleError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("rank {0} is not in the coupling's job")]
    Rank(u32),
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// See the module docs. Dropping it ends this process's part in the coupling.
pub struct Coupling {
    /// This process's number on its side.
    process: u32,
    shared: Arc<SharedCoupling>,
    /// `None`: closed.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Coupling {
    /// Opens the process's endpoint on `listener`, whose address the other processes have.
    ///
    /// # Errors
    /// [`CoupleError`].
    pub fn open(listener: TcpListener, place: CouplingMembership) -> Result<Coupling, CoupleError> {
        let CouplingMembership { job, process, sides } = place;
        let listen = listener.local_addr()?;
        let (mut addresses, mut sites, mut names) = (Vec::new(), [Vec::new(), Vec::new()], HashMap::new());
        for (own, side) in [true, false].into_iter().zip(&sides) {
            for (process, (rank, socket)) in (0..).zip(side) {
                let place = job.roster.place(*rank).ok_or(CoupleError::Rank(rank.0))?;
                let slot = Slot::rank(*rank, Instance(0)).ok_or(CoupleError::Rank(rank.0))?;
                sites[usize::from(!own)].push(place.site);
                let identity = Identity { site: place.site, slot };
                let site = job.roster.site(place.site).map_or("", |site| &site.name);
                let party = named(Some(Party { own, process }));
                names.insert(identity, format!("{party}, on node {} of site {site}", place.node_name));
                addresses
                    .push((Party { own, process }, Address { socket: plain(*socket), job: job.id.tag(), identity }));
            }
        }
        let config = Config { job: Some(job), ..Config::standalone(listen) };
        let mut endpoint = Endpoint::open_on(listener, config, 0, Arc::new(Regions::default()))?;
        let peers: HashMap<Party, PeerId> =
            addresses.into_iter().map(|(party, address)| (party, endpoint.peer(address))).collect();
        let parties = peers.iter().map(|(party, peer)| (*peer, *party)).collect();
        pool::allow_reading();
        let first_mark = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), process);
        let memory = Memory { host: HostId::own().0, pid: std::process::id(), first_mark };
        let mut state = CouplingState {
            exchange: Exchange::new(process, sites, memory),
            endpoint,
            peers,
            parties,
            names,
            waiting: VecDeque::new(),
            arriving: HashMap::new(),
            in_flight: 0,
            lost: None,
        };
        (0..POSTED).for_each(|_| state.await_message());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(std::io::Error::from)?;
        let mut sleeps_on = vec![wake.try_clone()?];
        for fd in state.endpoint.wait_fds() {
            sleeps_on.push(fd.try_clone_to_owned()?);
        }
        let ended = AtomicBool::new(false);
        let (state, watcher) = (Mutex::new(state), Mutex::new(None));
        let shared = Arc::new(SharedCoupling { state, changed: Condvar::new(), wake, ended, watcher });
        let of_thread = shared.clone();
        let builder = std::thread::Builder::new().name("landbridge".into());
        let thread = builder.spawn(move || of_thread.run(&sleeps_on))?;
        Ok(Coupling { process, shared, thread: Mutex::new(Some(thread)) })
    }

    /// Waits until at most `budget` bytes would be held for the other side after adding `more`, or until none are held.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait_for_room(&self, more: usize, budget: usize, patience: &mut Patience<'_>) -> Result<(), CallError> {
        let what = || "waiting until the other side has fetched what is held for it".to_owned();
        self.shared.until(patience, what, |state| {
            state.exchange.check()?;
            let held = state.exchange.held();
            Ok((held == 0 || held.saturating_add(more) <= budget).then_some(()))
        })
    }

    /// Exports a version of a variable: copies this process's part from `array`. Does not wait. If the coupling has
    /// ended, the next call returns the error.
    ///
    /// # Errors
    /// [`CallError`]; nothing is exported then.
    ///
    /// # Safety
    /// `array` is the address of local index 0 along every axis, and the process's whole part of the layout can be read
    /// from there.
    pub unsafe fn export(
        &self,
        (name, version): (&str, u64),
        variable: Variable,
        (array, strides): (*const u8, &[i64]),
    ) -> Result<(), CallError> {
        let (own, layout) = (self.process, &variable.layout);
        let mut state = self.shared.lock();
        if state.exchange.is_too_late(name, version) {
            return Ok(());
        }
        let packings = state.exchange.packings(name, strides);
        let mut buffers: Vec<Vec<u8>> = match &packings {
            Some((_, packings)) => {
                packings.iter().map(|(_, packing)| state.exchange.buffer(packing.bytes() + sealed::SEAL)).collect()
            }
            None => Vec::new(),
        };
        // Other calls and the thread may go on during the copy.
        drop(state);
        let content = match packings {
            Some((wish, packings)) => {
                let pairs = packings.iter().map(|(_, packing)| packing).zip(&mut buffers);
                // SAFETY: the caller's promise; all elements of the messages are in the part.
                unsafe { sealed::pack(pairs, array) };
                Content::Messages { wish, messages: packings.iter().map(|(to, _)| *to).zip(buffers).collect() }
            }
            None => {
                let shape = if own < layout.processes() { layout.local_shape(own) } else { vec![0; layout.axes()] };
                let whole = Packing::of_array(&in_order(layout, &shape), &in_order(layout, strides), variable.element);
                let whole = match own < layout.processes() {
                    true => whole,
                    false => Packing::of_array(&[0], &[0], variable.element),
                };
                let whole = whole.ok_or_else(|| ExchangeError::Memory { name: name.to_owned() })?;
                let mut part = fresh(whole.bytes());
                // SAFETY: the caller's promise; the buffer has as many bytes.
                unsafe { whole.pack(array, part.as_mut_ptr()) };
                Content::Part(part)
            }
        };
        let mut state = self.shared.lock();
        state.exchange.export(name, version, variable, content)?;
        self.shared.step(state);
        Ok(())
    }

    /// Waits until the other side has exported a variable, and returns it.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn variable(&self, name: &str, patience: &mut Patience<'_>) -> Result<Variable, CallError> {
        self.shared.until(
            patience,
            || format!("waiting until the other side exports {name}"),
            |state| {
                if let Some(variable) = state.exchange.variable(name) {
                    return Ok(Some(variable.clone()));
                }
                state.exchange.check()?;
                Ok(None)
            },
        )
    }

    /// Announces a fetch to the other side, before the variable is known.
    pub fn wish(&self, name: &str, layout: &Layout, mapping: &Mapping) {
        let mut state = self.shared.lock();
        state.exchange.wish(name, layout, mapping);
        self.shared.step(state);
    }

    /// Begins to fetch a version of a known variable into a local array of these strides and this element size (in
    /// bytes).
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn fetch(
        &self,
        name: &str,
        version: u64,
        layout: &Layout,
        mapping: &Mapping,
        local: (&[i64], usize),
    ) -> Result<FetchId, CallError> {
        let mut state = self.shared.lock();
        state.measure();
        let id = state.exchange.fetch(name, version, layout, mapping, local)?;
        self.shared.step(state);
        Ok(id)
    }

    /// Waits for the next elements of a fetch; empty when all have been taken.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn next(&self, id: FetchId, patience: &mut Patience<'_>) -> Result<Vec<Arrived>, CallError> {
        let waits = patience.limit != Some(Duration::ZERO);
        self.shared.lock().exchange.waits(id, waits);
        let next = self.shared.until(
            patience,
            || "waiting for the elements that are fetched".to_owned(),
            |state| {
                let (arrived, done) = state.exchange.take(id)?;
                Ok((done || !arrived.is_empty()).then_some(arrived))
            },
        );
        if next.is_err() {
            self.shared.lock().exchange.waits(id, false);
        }
        next
    }

    /// Copies arrived elements to their places in the array that their fetch was begun for. Elements that cannot be
    /// read from another process's memory are sent instead, and will arrive again.
    ///
    /// # Safety
    /// The array at `array` has the strides and elements that the fetch was begun with, and can be written.
    pub unsafe fn unpack<'a>(&self, arrived: impl Iterator<Item = &'a Arrived>, array: *mut u8) {
        let (mut beside, mut messages) = (Vec::new(), Vec::new());
        for each in arrived {
            match &each.source {
                // SAFETY: the caller's promise.
                ElementSource::Here(bytes) => unsafe { each.unpack(bytes.as_ptr(), array) },
                ElementSource::Beside { pid, address, mark } => {
                    beside.push((each, *mark));
                    messages.push((each.packing(), sealed::reader(*pid, *address)));
                }
            }
        }
        // SAFETY: the caller's promise.
        let found = unsafe { sealed::unpack_from(messages, array) };
        for ((each, mark), found) in beside.into_iter().zip(found) {
            self.taken(each, found.is_ok_and(|found| found == mark));
        }
    }

    /// Copies arrived elements to a buffer of [`Arrived::bytes`] bytes, as they were exported. Returns false if they
    /// must be sent instead; they will arrive again. [`Arrived::unpack`] copies them from the buffer to the array.
    pub fn copy(&self, arrived: &Arrived, buffer: &mut [u8]) -> bool {
        match &arrived.source {
            ElementSource::Here(bytes) => {
                buffer.copy_from_slice(sealed::elements(bytes));
                true
            }
            ElementSource::Beside { pid, address, mark } => {
                let read = sealed::copy_from(&mut *sealed::reader(*pid, *address), buffer);
                let read = read.is_ok_and(|found| found == *mark);
                self.taken(arrived, read);
                read
            }
        }
    }

    /// Reports the result of reading another process's memory. Reading fails if it is not allowed or the process is
    /// gone. If the process is gone, sending fails as well, and that loss is detected.
    fn taken(&self, arrived: &Arrived, read: bool) {
        let mut state = self.shared.lock();
        match read {
            true => state.exchange.taken(arrived),
            false => state.exchange.unreadable(arrived),
        }
        self.shared.step(state);
    }

    /// Waits until everything exported has been fetched and has arrived.
    ///
    /// # Errors
    /// [`CallError`], which names a version that was not fetched.
    pub fn finish(&self, patience: &mut Patience<'_>) -> Result<(), CallError> {
        let mut over = None;
        self.shared.until(
            patience,
            || "waiting until the other side has fetched everything".to_owned(),
            |state| {
                let unfetched = state.exchange.unfetched();
                // A side that has left passes nothing on.
                let passes = state.exchange.is_passing() && state.exchange.check().is_ok();
                if unfetched.is_empty() && state.in_flight == 0 && !passes && !state.exchange.lends() {
                    return Ok(Some(()));
                }
                match (state.exchange.check(), unfetched.first()) {
                    (Ok(()), _) => Ok(None),
                    (Err(error), Some((name, version))) => {
                        let (name, version, reason) = (name.clone(), *version, format!("never fetched: {error}"));
                        Err(ExchangeError::Refused { name, version, reason })
                    }
                    // Gateways may report that the other side has left before its last messages arrive.
                    (Err(_), None) if over.get_or_insert_with(Instant::now).elapsed() < SETTLE => Ok(None),
                    (Err(error), None) => Err(error),
                }
            },
        )
    }

    /// Ends the coupling for this reason and notifies the other processes, because this process leaves without the
    /// others of its side.
    pub fn leave(&self, reason: &str) {
        self.shared.end(|exchange| exchange.leave(reason.to_owned(), None));
    }

    /// The reason, if a process of this side has left without the others.
    pub fn left(&self) -> Option<String> {
        self.shared.lock().exchange.left().map(str::to_owned)
    }

    /// Returns a function that ends the coupling when its helper has ended; it may outlive this value.
    pub(crate) fn failing(&self) -> impl Fn(&HelperEnd) + Send + use<> {
        let shared = self.shared.clone();
        move |over| shared.fail(over)
    }

    /// Calls `watcher` with the reason once the exchange has ended; at once if it has.
    pub(crate) fn watch(&self, watcher: impl FnOnce(&str) + Send + 'static) {
        *self.shared.watcher.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(watcher));
        self.shared.wake();
    }

    /// Closes the endpoint: flushes the queue, for at most the time that an endpoint lingers.
    pub fn close(&self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
            let mut state = self.shared.lock();
            state.step();
            state.endpoint.close();
        }
    }
}

impl Drop for Coupling {
    fn drop(&mut self) {
        self.close();
    }
}

/// The values of the axes, from the slowest axis in memory to the fastest.
fn in_order<T: Copy>(layout: &Layout, axes: &[T]) -> Vec<T> {
    match layout.order() {
        MemoryOrder::C => axes.to_vec(),
        MemoryOrder::Fortran => axes.iter().rev().copied().collect(),
    }
}
