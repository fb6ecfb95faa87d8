//! Parts common to completion queues, counters and event queues: the wait object, and the rule that a queue or counter
//! does not close while an endpoint is bound to it.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

use crate::abi::border::{Behind, Object, behind, guard, take_back, write_out};
use crate::abi::constants::{FI_GETWAIT, FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD};
use crate::abi::objects::{fi_ops, fid};
use crate::bound::Bound;
use crate::errno::{Code, EAGAIN, EBUSY, EINVAL, EMFILE, ENOSYS, Errno};
use crate::wait_fd::WaitFd;

/// The wait object of a queue or counter: none, or a descriptor. With `FI_WAIT_UNSPEC` the descriptor opens when first
/// needed.
pub(crate) struct WaitObject {
    allowed: bool,
    fd: OnceLock<WaitFd>,
}

impl WaitObject {
    /// # Errors
    /// `FI_ENOSYS`: a kind that we do not support. `FI_EMFILE`: no descriptor is left.
    pub(crate) fn new(kind: c_int) -> Result<WaitObject, Errno> {
        let allowed = match kind {
            FI_WAIT_NONE | FI_WAIT_YIELD => false,
            FI_WAIT_UNSPEC | FI_WAIT_FD => true,
            _ => return Err(ENOSYS),
        };
        let object = WaitObject { allowed, fd: OnceLock::new() };
        if kind == FI_WAIT_FD {
            object.obtain()?;
        }
        Ok(object)
    }

    /// The descriptor, if it has been opened.
    pub(crate) fn get(&self) -> Option<&WaitFd> {
        self.fd.get()
    }

    /// The descriptor, opened if necessary.
    ///
    /// # Errors
    /// `FI_EINVAL`: the object has no descriptor. `FI_EMFILE`: the system has none left.
    pub(crate) fn obtain(&self) -> Result<&WaitFd, Errno> {
        if !self.allowed {
            return Err(EINVAL);
        }
        if let Some(fd) = self.fd.get() {
            return Ok(fd);
        }
        let fd = WaitFd::new().map_err(|_| EMFILE)?;
        Ok(self.fd.get_or_init(|| fd))
    }

    /// Makes the descriptor readable, if it has been opened.
    pub(crate) fn signal(&self) {
        if let Some(fd) = self.fd.get() {
            fd.signal();
        }
    }

    /// `fi_control`.
    ///
    /// # Errors
    /// `FI_ENOSYS`: an unknown command. `FI_EINVAL`: a null argument, or a request for a descriptor that the object
    /// lacks.
    ///
    /// # Safety
    /// `argument` is null or a place for the command's result, an `int` for either command.
    pub(crate) unsafe fn control(&self, command: c_int, argument: *mut c_void) -> Result<(), Errno> {
        let value = match command {
            FI_GETWAITOBJ if self.allowed => FI_WAIT_FD,
            FI_GETWAITOBJ => FI_WAIT_NONE,
            FI_GETWAIT => self.obtain()?.fd().as_raw_fd(),
            _ => return Err(ENOSYS),
        };
        // SAFETY: the caller's promise.
        unsafe { write_out(argument.cast::<c_int>(), value) }
    }
}

/// An object that endpoints are bound to.
pub(crate) trait Waitable: Behind {
    /// The endpoints.
    fn bound(&self) -> &Bound;
    /// The wait object of a waiting program.
    fn wait_object(&self) -> &WaitObject;
    /// Returns true if there is something to read that has not been reported yet.
    fn has_news(&self) -> bool;

    /// `fi_trywait`: drives the endpoints and prepares for a wait on the descriptor.
    ///
    /// # Errors
    /// `FI_EAGAIN`: there is something to read or to move; do that first. `FI_EINVAL`: the object has no descriptor.
    fn try_wait(&self) -> Result<(), Errno> {
        let wait = self.wait_object().obtain()?;
        prepare(wait, self.bound(), || self.has_news())
    }
}

/// Prepares for a wait on a descriptor. Entries added to the object from now on make it readable.
///
/// # Errors
/// `FI_EAGAIN`: there is something to read or to move.
fn prepare(wait: &WaitFd, bound: &Bound, has_news: impl Fn() -> bool) -> Result<(), Errno> {
    wait.begin();
    if has_news() {
        return Err(EAGAIN);
    }
    let due = bound.arm(wait, false).ok_or(EAGAIN)?;
    if has_news() {
        return Err(EAGAIN);
    }
    wait.set_timer(due);
    Ok(())
}

/// Operations of a waitable object's `fid`.
pub(crate) const fn operations<T: Waitable>() -> fi_ops {
    fi_ops { close: close::<T>, control: control::<T>, ..fi_ops::REFUSING }
}

unsafe extern "C" fn control<T: Waitable>(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let object: &Object<T> = unsafe { behind(fid) }?;
        // SAFETY: the caller passes a place for the command's result.
        unsafe { object.inner.wait_object().control(command, argument) }
    })
    .code()
}

unsafe extern "C" fn close<T: Waitable>(fid: *mut fid) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let object: &Object<T> = unsafe { behind(fid) }?;
        if !object.inner.bound().is_empty() {
            return Err(EBUSY);
        }
        // SAFETY: closing is the last use of an object.
        unsafe { take_back::<T>(fid) }.map(drop)
    })
    .code()
}
