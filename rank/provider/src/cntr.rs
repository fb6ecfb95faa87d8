//! `fid_cntr`: counts completions without identifying them. Reading it drives the endpoints bound to it.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::abi::border::{Behind, Object, behind, guard, hand_out, write_out};
use crate::abi::constants::{FI_CLASS_CNTR, FI_CNTR_EVENTS_BYTES, FI_CNTR_EVENTS_COMP};
use crate::abi::events::fi_cntr_attr;
use crate::abi::objects::{fi_ops, fi_ops_cntr, fid, fid_cntr, fid_domain};
use crate::bound::Bound;
use crate::cq::timeout;
use crate::domain::Domain;
use crate::errno::{Code, EAVAIL, EINVAL, ETIMEDOUT, Errno};
use crate::wait_fd::WaitFd;
use crate::waitable::{WaitObject, Waitable, operations};

/// Longest time that a waiting reader keeps an endpoint to itself.
const SLICE: Duration = Duration::from_micros(500);

/// A counter.
pub(crate) struct Cntr {
    /// The endpoints that reading drives.
    pub bound: Bound,
    counts_bytes: bool,
    value: AtomicU64,
    errors: AtomicU64,
    /// Sum of both at the user's last look.
    seen: AtomicU64,
    wait: WaitObject,
    _domain: Arc<Domain>,
}

impl Cntr {
    /// Counts a completed operation of `bytes` bytes.
    pub(crate) fn completed(&self, bytes: u64) {
        self.value.fetch_add(if self.counts_bytes { bytes } else { 1 }, Ordering::SeqCst);
        self.wait.signal();
    }

    /// Counts a failed operation.
    pub(crate) fn failed(&self) {
        self.errors.fetch_add(1, Ordering::SeqCst);
        self.wait.signal();
    }

    /// Wakes a thread that waits for this counter, because a wait has to be prepared again.
    pub(crate) fn wake(&self) {
        self.wait.signal();
    }

    /// The descriptor that a program waits on, if it has been opened.
    pub(crate) fn wait_fd(&self) -> Option<&WaitFd> {
        self.wait.get()
    }

    /// Drives the endpoints; returns the value and the number of errors.
    fn look(&self) -> (u64, u64) {
        self.bound.poll(false);
        let (value, errors) = (self.value.load(Ordering::SeqCst), self.errors.load(Ordering::SeqCst));
        self.seen.store(value.wrapping_add(errors), Ordering::SeqCst);
        (value, errors)
    }

    fn read(&self) -> u64 {
        self.look().0
    }

    /// Waits until the value is at least `threshold`.
    ///
    /// # Errors
    /// `FI_ETIMEDOUT`. `FI_EAVAIL`: an operation failed meanwhile, fi_cntr(3).
    fn wait(self: &Arc<Self>, threshold: u64, timeout: Option<Duration>) -> Result<(), Errno> {
        let start = Instant::now();
        let before = self.errors.load(Ordering::SeqCst);
        loop {
            let (value, errors) = self.look();
            if value >= threshold {
                return Ok(());
            }
            if errors != before {
                return Err(EAVAIL);
            }
            let left = match timeout.map(|timeout| timeout.checked_sub(start.elapsed())) {
                None => Duration::MAX,
                Some(None | Some(Duration::ZERO)) => return Err(ETIMEDOUT),
                Some(Some(left)) => left,
            };
            match self.wait.get() {
                Some(wait) => {
                    if self.try_wait().is_ok() {
                        wait.sleep(left);
                    }
                }
                None => self.bound.wait(left.min(SLICE)),
            }
        }
    }
}

impl Behind for Arc<Cntr> {
    const CLASS: usize = FI_CLASS_CNTR;
    type Fid = fid_cntr;
}

impl Waitable for Arc<Cntr> {
    fn bound(&self) -> &Bound {
        &self.bound
    }

    fn wait_object(&self) -> &WaitObject {
        &self.wait
    }

    fn has_news(&self) -> bool {
        let now = self.value.load(Ordering::SeqCst).wrapping_add(self.errors.load(Ordering::SeqCst));
        now != self.seen.load(Ordering::SeqCst)
    }
}

static FID_OPS: fi_ops = operations::<Arc<Cntr>>();
static OPS: fi_ops_cntr = fi_ops_cntr { read, readerr, add, set, wait, adderr, seterr, ..fi_ops_cntr::REFUSING };

/// `fi_cntr_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live domain.
        let domain: &Object<Arc<Domain>> = unsafe { behind(domain) }?;
        // SAFETY: the caller passes null or a valid structure.
        let (events, wait_obj, flags) =
            unsafe { attr.as_ref() }.map_or((FI_CNTR_EVENTS_COMP, 0, 0), |a| (a.events, a.wait_obj, a.flags));
        if flags != 0 || !matches!(events, FI_CNTR_EVENTS_COMP | FI_CNTR_EVENTS_BYTES) {
            return Err(EINVAL);
        }
        let cntr = Cntr {
            bound: Bound::default(),
            counts_bytes: events == FI_CNTR_EVENTS_BYTES,
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            wait: WaitObject::new(wait_obj)?,
            _domain: domain.inner.clone(),
        };
        let fid = fid { fclass: FI_CLASS_CNTR, context, ops: &FID_OPS };
        // SAFETY: the caller passes a place for the result.
        unsafe { write_out(out, hand_out(fid_cntr { fid, ops: &OPS }, Arc::new(cntr))) }
    })
    .code()
}

/// # Safety
/// As [`behind`].
unsafe fn with<R>(cntr: *mut fid_cntr, work: impl FnOnce(&Arc<Cntr>) -> R) -> Result<R, Errno> {
    guard(|| {
        // SAFETY: the caller's promise.
        let object: &Object<Arc<Cntr>> = unsafe { behind(cntr) }?;
        Ok(work(&object.inner))
    })
}

/// Implements `fi_cntr_add`, `fi_cntr_set` and their error variants.
///
/// # Safety
/// As [`behind`].
unsafe fn change(cntr: *mut fid_cntr, change: impl FnOnce(&Cntr)) -> c_int {
    let changed = |cntr: &Arc<Cntr>| {
        change(cntr);
        cntr.wake();
    };
    // SAFETY: the caller's promise.
    unsafe { with(cntr, changed) }.code()
}

unsafe extern "C" fn read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: libfabric's caller promises a live object.
    unsafe { with(cntr, |cntr| cntr.read()) }.unwrap_or(0)
}

unsafe extern "C" fn readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: as above.
    unsafe { with(cntr, |cntr| cntr.look().1) }.unwrap_or(0)
}

unsafe extern "C" fn add(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: as above.
    unsafe { change(cntr, |cntr| _ = cntr.value.fetch_add(value, Ordering::SeqCst)) }
}

unsafe extern "C" fn set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: as above.
    unsafe { change(cntr, |cntr| cntr.value.store(value, Ordering::SeqCst)) }
}

unsafe extern "C" fn adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: as above.
    unsafe { change(cntr, |cntr| _ = cntr.errors.fetch_add(value, Ordering::SeqCst)) }
}

unsafe extern "C" fn seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: as above.
    unsafe { change(cntr, |cntr| cntr.errors.store(value, Ordering::SeqCst)) }
}

unsafe extern "C" fn wait(cntr: *mut fid_cntr, threshold: u64, millis: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { with(cntr, |cntr| cntr.wait(threshold, timeout(millis))) }.and_then(|result| result).code()
}
