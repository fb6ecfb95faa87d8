//! `fid_ep`: an endpoint, its bindings, and the routing of its completions to queues and counters.
//!
//! Each endpoint has one lock. Its holder either begins an operation or drives the endpoint, and then passes all
//! completions on to their queues and counters.

mod binding;
mod calls;
mod driving;
mod route;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use endpoint::PeerId;
use types::Address;

use crate::abi::constants::{FI_ADDR_NOTAVAIL, FI_DELIVERY_COMPLETE};
use crate::av::Av;
use crate::bound::Driven;
use crate::cntr::Cntr;
use crate::collectives_door::missing_layer;
use crate::domain::Domain;
use crate::errno::{EADDRNOTAVAIL, EINVAL, ENETUNREACH, EOPBADSTATE, Errno};
use crate::log;
use crate::progress::{Awaited, Idle, Use};

use binding::CompletionBinding;
pub(crate) use calls::{endpoint_behind, open, open2};
pub(crate) use route::Wanted;

/// Default of `FI_OPT_MIN_MULTI_RECV`: a multi-receive's buffer with less room left takes no more messages.
const MIN_MULTI_RECV: usize = 64;

/// Numbers the endpoints of this process. Peers distinguish them by this number, so no number is used twice.
static NEXT_INSTANCE: AtomicU32 = AtomicU32::new(0);

/// An endpoint.
pub(crate) struct Endpoint {
    /// Negotiated capabilities.
    pub caps: u64,
    /// The longest message that may be injected, in bytes.
    pub inject_size: usize,
    /// `op_flags` of sends, writes, reads and atomics.
    pub tx_flags: AtomicU64,
    /// `op_flags` of receives.
    pub rx_flags: AtomicU64,
    /// `FI_OPT_MIN_MULTI_RECV`.
    pub min_multi_recv: AtomicUsize,
    domain: Arc<Domain>,
    state: Mutex<EndpointState>,
    /// Number of threads that wait for `state`; a thread that drives the endpoint gives way to them.
    waiting: AtomicU32,
}

/// State behind an endpoint's lock.
pub(crate) struct EndpointState {
    stage: Stage,
    av: Option<Arc<Av>>,
    known: Known,
    tx: CompletionBinding,
    rx: CompletionBinding,
    counters: Counters,
    multi: route::MultiBuffers,
    used: Use,
    /// True if a peek has just found nothing.
    missed: bool,
    /// Time at which memory was first found exhausted.
    exhausted: Option<Instant>,
    idle: Idle,
    prepared: Prepared,
}

/// State of a prepared wait on a descriptor.
#[derive(Clone, Copy, Default)]
struct Prepared {
    /// True while neighbours ring our doorbell; when this ends, waiting threads must be woken.
    armed: bool,
    /// Start of the time in which nothing has moved.
    quiet_since: Option<Instant>,
    /// Longest time until a waiting thread looks again.
    due: Duration,
}

/// A thread that waits for an endpoint looks again after a quarter of the time in which nothing has moved, within these
/// limits. With data in flight it looks at least every `SOON`, because retransmissions are due by time.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
const SOON: Duration = Duration::from_millis(20);

#[expect(clippy::large_enum_variant, reason = "there is one per endpoint, behind an Arc")]
enum Stage {
    /// Not enabled yet; holds the address to listen on, if the user gave one.
    Configured(Option<SocketAddr>),
    /// Enabled: carries messages.
    Open(endpoint::Endpoint),
    Closed,
}

/// Bound counters, by kind of operation.
#[derive(Default)]
struct Counters {
    send: Option<Arc<Cntr>>,
    recv: Option<Arc<Cntr>>,
    read: Option<Arc<Cntr>>,
    write: Option<Arc<Cntr>>,
}

impl Counters {
    fn all(&self) -> impl Iterator<Item = &Arc<Cntr>> {
        [&self.send, &self.recv, &self.read, &self.write].into_iter().flatten()
    }
}

/// Cache of lookups in the address vector; invalid once an address has been removed.
#[derive(Default)]
struct Known {
    removals: u64,
    peers: Vec<Option<PeerId>>,
    numbers: Vec<u64>,
}

impl Known {
    fn refresh(&mut self, av: &Av) {
        let removals = av.removals();
        if removals != self.removals {
            *self = Known { removals, ..Known::default() };
        }
    }
}

/// A locked, open endpoint, on which operations begin.
pub(crate) struct Active<'a> {
    /// The transport.
    pub transport: &'a mut endpoint::Endpoint,
    /// Buffers of multi-receives.
    pub multi: &'a mut route::MultiBuffers,
    /// If true, transmit operations report success only on request.
    pub tx_selective: bool,
    /// If true, receives report success only on request.
    pub rx_selective: bool,
    /// True if data has moved meanwhile.
    pub moved: bool,
    known: &'a mut Known,
    av: &'a Av,
}

impl Active<'_> {
    /// The peer with this number in the address vector.
    ///
    /// # Errors
    /// `FI_EINVAL`: no such number.
    pub(crate) fn peer(&mut self, number: u64) -> Result<PeerId, Errno> {
        self.known.refresh(self.av);
        let index = usize::try_from(number).map_err(|_| EINVAL)?;
        if let Some(Some(peer)) = self.known.peers.get(index) {
            return Ok(*peer);
        }
        let address = self.av.address(number).ok_or(EINVAL)?;
        let peer = self.transport.peer(address);
        if self.known.peers.len() <= index {
            self.known.peers.resize(index + 1, None);
        }
        self.known.peers[index] = Some(peer);
        Ok(peer)
    }
}

impl Endpoint {
    /// Creates an endpoint that is not enabled yet. `source`: the address to listen on, if the user gave one.
    fn new(
        domain: Arc<Domain>,
        caps: u64,
        op_flags: (u64, u64),
        inject_size: usize,
        source: Option<SocketAddr>,
    ) -> Endpoint {
        let state = EndpointState {
            stage: Stage::Configured(source),
            av: None,
            known: Known::default(),
            tx: CompletionBinding::default(),
            rx: CompletionBinding::default(),
            counters: Counters::default(),
            multi: route::MultiBuffers::default(),
            used: Use::default(),
            missed: false,
            exhausted: None,
            idle: Idle::new(domain.waiting),
            prepared: Prepared::default(),
        };
        Endpoint {
            caps,
            inject_size,
            tx_flags: AtomicU64::new(op_flags.0),
            rx_flags: AtomicU64::new(op_flags.1),
            min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
            domain,
            state: Mutex::new(state),
            waiting: AtomicU32::new(0),
        }
    }

    /// Default flags of a send.
    pub(crate) fn send_flags(&self) -> u64 {
        let flags = self.tx_flags.load(Ordering::Relaxed);
        if self.domain.confirms_sends { flags } else { flags & !FI_DELIVERY_COMPLETE }
    }

    fn lock(&self) -> MutexGuard<'_, EndpointState> {
        if let Ok(state) = self.state.try_lock() {
            return state;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Begins an operation, and passes on all completions up to now.
    ///
    /// # Errors
    /// The error of `work`; `FI_EOPBADSTATE`: not enabled.
    pub(crate) fn begin(&self, work: impl FnOnce(&mut Active<'_>) -> Result<(), Errno>) -> Result<(), Errno> {
        let mut state = self.lock();
        let state = &mut *state;
        let (Stage::Open(transport), Some(av)) = (&mut state.stage, &state.av) else { return Err(EOPBADSTATE) };
        let mut active = Active {
            transport,
            multi: &mut state.multi,
            tx_selective: state.tx.selective,
            rx_selective: state.rx.selective,
            moved: false,
            known: &mut state.known,
            av,
        };
        let result = work(&mut active);
        let moved = active.moved;
        let carried = state.used.is_counted() || transport.traffic() != endpoint::Traffic::default();
        state.missed = false;
        state.pass_on(self.caps);
        // A program that peeks in a loop is waiting: `MPI_Probe` does this, and so do mpi4py's receives.
        if state.missed && !moved {
            self.maybe_pause(state, |_| Awaited::Arrival);
        } else {
            state.idle.busy(Instant::now);
            if carried {
                state.used.moved();
            }
            state.prepared.quiet_since = None;
            if let Stage::Open(transport) = &state.stage
                && state.prepared.armed
                && state.prepared.due > SOON
                && !transport.is_idle()
            {
                self.end_waits(state);
            }
        }
        result
    }

    /// Calls `work` with the transport, and passes on all completions up to now. Returns false if the endpoint is not
    /// open.
    pub(crate) fn with(&self, work: &mut dyn FnMut(&mut endpoint::Endpoint)) -> bool {
        let mut state = self.lock();
        let Stage::Open(transport) = &mut state.stage else { return false };
        work(transport);
        state.pass_on(self.caps);
        true
    }

    /// Sleeps until something arrives or the time is over. Holds the endpoint's lock meanwhile.
    fn sleep(&self, state: &mut EndpointState, time: Duration) {
        state.sleep(time, self.caps);
        self.end_waits(state);
    }

    /// Cancels a posted receive. Returns true if there was one.
    fn cancel(&self, context: usize) -> Result<bool, Errno> {
        let mut found = false;
        self.begin(|active| {
            found = active.transport.cancel(context);
            Ok(())
        })?;
        Ok(found)
    }

    /// Opens the transport if it is not open.
    fn open(&self, state: &mut EndpointState) -> Result<(), Errno> {
        state.open(&self.domain)?;
        // Threads that are already waiting do not watch its descriptors yet.
        state.prepared.armed = true;
        self.end_waits(state);
        Ok(())
    }

    /// Returns its address. The address is final only once the endpoint is open, so this opens it.
    fn address(&self) -> Result<Address, Errno> {
        let mut state = self.lock();
        self.open(&mut state)?;
        match &state.stage {
            Stage::Open(transport) => Ok(transport.address()),
            _ => Err(EOPBADSTATE),
        }
    }

    fn set_source(&self, source: SocketAddr) -> Result<(), Errno> {
        match &mut self.lock().stage {
            Stage::Configured(place) => {
                *place = Some(source);
                Ok(())
            }
            _ => Err(EOPBADSTATE),
        }
    }

    /// Flushes the queue, and releases queues and counters.
    fn close(self: &Arc<Self>) {
        let driven: Arc<dyn Driven> = self.clone();
        if let Some(driver) = &self.domain.driver {
            driver.remove(&driven);
        }
        let mut state = self.lock();
        if let Stage::Open(mut transport) = std::mem::replace(&mut state.stage, Stage::Closed) {
            let cqs = [&state.tx.cq, &state.rx.cq].into_iter().flatten().filter_map(|cq| cq.wait_fd());
            let counters = state.counters.all().filter_map(|cntr| cntr.wait_fd());
            let driver = self.domain.driver.as_ref().map(|driver| driver.wait());
            cqs.chain(counters).chain(driver).for_each(|wait| wait.unwatch(transport.wait_fds()));
            transport.close();
            state.used.end();
            if let Some(links) = transport.links() {
                log::note(format_args!("links between the job's sites, version {}: {links}", links.version()));
            }
            let endpoint::Traffic { memory, site, gateway } = transport.traffic();
            log::note(format_args!(
                "endpoint {:?} closed; sent through memory {} items of {} bytes, over the site's network {} of {}, \
                 by gateways {} of {}",
                transport.address(),
                memory.items,
                memory.bytes,
                site.items,
                site.bytes,
                gateway.items,
                gateway.bytes
            ));
        }
        let (tx, rx) = (std::mem::take(&mut state.tx), std::mem::take(&mut state.rx));
        let Counters { send, recv, read, write } = std::mem::take(&mut state.counters);
        state.av = None;
        drop(state);
        [tx.cq, rx.cq].iter().flatten().for_each(|cq| cq.bound.remove(&driven));
        [send, recv, read, write].iter().flatten().for_each(|cntr| cntr.bound.remove(&driven));
    }
}

impl EndpointState {
    fn open(&mut self, domain: &Domain) -> Result<(), Errno> {
        let source = match &self.stage {
            Stage::Open(_) => return Ok(()),
            Stage::Closed => return Err(EOPBADSTATE),
            Stage::Configured(source) => *source,
        };
        if let Some(problem) = missing_layer() {
            log::fatal(format_args!("{problem}"));
            return Err(EOPBADSTATE);
        }
        let mut config = domain.config.clone();
        // In a job, the agent sets the listen address; `fi_getinfo` reported the same address.
        if let (Some(source), None) = (source, &config.job) {
            config.listen = source;
        }
        let instance = NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed);
        match endpoint::Endpoint::open(config, instance, domain.regions.clone()) {
            Ok(transport) => {
                let fabric = transport.fabric().map(|fabric| format!(", fabric {fabric}")).unwrap_or_default();
                log::note(format_args!("endpoint {:?} opened{fabric}", transport.address()));
                if let Some(note) = transport.note() {
                    log::warn(format_args!("{note}"));
                }
                self.stage = Stage::Open(transport);
                Ok(())
            }
            Err(error) => {
                log::fatal(format_args!("cannot open an endpoint: {error}"));
                match error {
                    endpoint::OpenError::Listen { .. } => Err(EADDRNOTAVAIL),
                    _ => Err(ENETUNREACH),
                }
            }
        }
    }

    fn sleep(&mut self, time: Duration, caps: u64) {
        let Stage::Open(transport) = &mut self.stage else { return };
        if transport.wait(time) {
            self.used.moved();
            self.idle.busy(Instant::now);
            self.prepared.quiet_since = None;
        }
        self.pass_on(caps);
    }

    /// The number of a peer in the address vector.
    fn number(known: &mut Known, av: Option<&Av>, transport: &endpoint::Endpoint, peer: PeerId) -> u64 {
        let Some(av) = av else { return FI_ADDR_NOTAVAIL };
        known.refresh(av);
        let index = peer.0 as usize;
        if let Some(&number) = known.numbers.get(index)
            && number != FI_ADDR_NOTAVAIL
        {
            return number;
        }
        let number = transport.peer_address(peer).and_then(|address| av.number(address)).unwrap_or(FI_ADDR_NOTAVAIL);
        if known.numbers.len() <= index {
            known.numbers.resize(index + 1, FI_ADDR_NOTAVAIL);
        }
        known.numbers[index] = number;
        number
    }
}

/// Users may call from any thread (`FI_THREAD_SAFE`).
const fn assert_thread_safe<T: Send + Sync>() {}
const _: () = assert_thread_safe::<Endpoint>();
