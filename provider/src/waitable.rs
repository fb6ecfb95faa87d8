//! What completion queues and counters do alike: neither has a wait object, neither closes while an endpoint is bound to it.

use std::ffi::{c_int, c_void};

use crate::abi::border::{Behind, Object, behind, guard, take_back, write_out};
use crate::abi::constants::{FI_GETWAITOBJ, FI_WAIT_NONE};
use crate::abi::objects::{fi_ops, fid};
use crate::bound::Bound;
use crate::errno::{Code, EBUSY, ENOSYS};

/// An object that endpoints are bound to.
pub(crate) trait Waitable: Behind {
    /// The endpoints.
    fn bound(&self) -> &Bound;
}

/// The operations of such an object's `fid`.
pub(crate) const fn operations<T: Waitable>() -> fi_ops {
    fi_ops { close: close::<T>, control: control::<T>, ..fi_ops::REFUSING }
}

unsafe extern "C" fn control<T: Waitable>(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let _: &Object<T> = unsafe { behind(fid) }?;
        match command {
            // SAFETY: and, for this command, a place for the kind of wait object.
            FI_GETWAITOBJ => unsafe { write_out(argument.cast::<c_int>(), FI_WAIT_NONE) },
            _ => Err(ENOSYS),
        }
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
