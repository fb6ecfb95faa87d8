//! `fid_fabric`: opens domains and event queues.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::border::{Behind, Object, array, behind, guard, hand_out, take_back, write_out};
use crate::abi::constants::{FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_CLASS_FABRIC};
use crate::abi::info::{fi_fabric_attr, fi_info};
use crate::abi::objects::{fi_ops, fi_ops_fabric, fid, fid_domain, fid_fabric};
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::eq::Eq;
use crate::errno::{Code, EBUSY, EINVAL, ENODATA, Errno};
use crate::waitable::Waitable;
use crate::{domain, eq, info};

/// Parent of domains and event queues: it closes after them.
#[derive(Default)]
pub(crate) struct Fabric;

impl Behind for Arc<Fabric> {
    const CLASS: usize = FI_CLASS_FABRIC;
    type Fid = fid_fabric;
}

static FID_OPS: fi_ops = fi_ops { close, ..fi_ops::REFUSING };
static OPS: fi_ops_fabric = fi_ops_fabric { domain, domain2, eq_open: eq::open, trywait, ..fi_ops_fabric::REFUSING };

/// The fabric behind a pointer from C, and the API version of its user.
///
/// # Errors
/// `FI_EINVAL`.
///
/// # Safety
/// As [`behind`].
pub(crate) unsafe fn fabric_behind<'a>(pointer: *mut fid_fabric) -> Result<(&'a Arc<Fabric>, u32), Errno> {
    // SAFETY: the caller's promise.
    let object: &Object<Arc<Fabric>> = unsafe { behind(pointer) }?;
    Ok((&object.inner, object.fid.api_version))
}

/// `fi_fabric`.
///
/// # Safety
/// Called by libfabric's core with valid arguments.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the core passes null or a valid structure.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: names are null or C strings.
        if !unsafe { info::is_name(attr.name, info::FABRIC_NAME) } {
            return Err(ENODATA);
        }
        let fid = fid { fclass: FI_CLASS_FABRIC, context, ops: &FID_OPS };
        let fid = fid_fabric { fid, ops: &OPS, api_version: attr.api_version };
        // SAFETY: the core passes a place for the result.
        unsafe { write_out(out, hand_out(fid, Arc::new(Fabric))) }
    })
    .code()
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let object: &Object<Arc<Fabric>> = unsafe { behind(fid) }?;
        if Arc::strong_count(&object.inner) > 1 {
            return Err(EBUSY);
        }
        // SAFETY: closing is the last use of an object.
        unsafe { take_back::<Arc<Fabric>>(fid) }.map(drop)
    })
    .code()
}

unsafe extern "C" fn domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's caller promises valid arguments, passed on.
    guard(|| unsafe { domain::open(fabric, info, out, context) }).code()
}

unsafe extern "C" fn domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // The only flag, FI_PEER, asks for peer objects.
    if flags != 0 {
        return Err(crate::errno::ENOSYS).code();
    }
    // SAFETY: as above.
    guard(|| unsafe { domain::open(fabric, info, out, context) }).code()
}

/// `fi_trywait`: checks that the caller may wait on the descriptors of all these objects.
unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    guard(|| {
        let count = usize::try_from(count).map_err(|_| EINVAL)?;
        // SAFETY: libfabric's caller promises `count` pointers to live objects.
        for fid in unsafe { array(fids.cast_const(), count) }? {
            // SAFETY: as above.
            unsafe { try_wait(*fid) }?;
        }
        Ok(())
    })
    .code()
}

/// # Safety
/// `fid` is null or a live object.
unsafe fn try_wait(fid: *mut fid) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    match unsafe { fid.as_ref() }.ok_or(EINVAL)?.fclass {
        // SAFETY: as above; its class shows its type.
        FI_CLASS_CQ => unsafe { behind::<Arc<Cq>, _>(fid) }?.inner.try_wait(),
        // SAFETY: as above.
        FI_CLASS_CNTR => unsafe { behind::<Arc<Cntr>, _>(fid) }?.inner.try_wait(),
        // SAFETY: as above.
        FI_CLASS_EQ => unsafe { behind::<Eq, _>(fid) }?.inner.try_wait(),
        _ => Err(EINVAL),
    }
}
