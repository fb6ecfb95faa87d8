//! `fid_mr`: memory that peers may read, write and update.
//!
//! Local buffers need no registration. Peers access memory by a key of the user's choice and an offset, or, if the
//! negotiated `mr_mode` requires it, by a key of ours and a virtual address.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use memory::{Access, Regions};

use crate::abi::border::{Behind, Object, array, behind, guard, hand_out, take_back, write_out};
use crate::abi::constants::{FI_CLASS_EP, FI_CLASS_MR, FI_ENABLE, FI_REFRESH, FI_REMOTE_READ, FI_REMOTE_WRITE};
use crate::abi::events::fi_mr_attr;
use crate::abi::objects::{fi_ops, fi_ops_mr, fid, fid_mr};
use crate::abi::transfers::iovec;
use crate::domain::Domain;
use crate::errno::{self, Code, EINVAL, ENOSYS, Errno};

/// One registration. It may outlive its domain: if the program has not freed a window, `MPI_Finalize` of Intel MPI and
/// MPICH closes the domain before the registration, and fails if the domain refuses to close.
pub(crate) struct Mr {
    regions: Arc<Regions>,
    key: u64,
}

impl Behind for Mr {
    const CLASS: usize = FI_CLASS_MR;
    type Fid = fid_mr;
}

static FID_OPS: fi_ops = fi_ops { close, bind, control, ..fi_ops::REFUSING };
pub(crate) static OPS: fi_ops_mr = fi_ops_mr { reg, regv, regattr, ..fi_ops_mr::REFUSING };

/// The requested registration; the same for all three calls.
struct RegistrationRequest {
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
}

/// # Safety
/// The arguments are as libfabric's caller passes them; the memory of `pieces` stays valid until the registration
/// closes.
unsafe fn register(
    domain: *mut fid,
    pieces: &[iovec],
    request: RegistrationRequest,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: libfabric's caller promises a live domain.
    let domain: &Object<Arc<Domain>> = unsafe { behind(domain) }?;
    let domain = &domain.inner;
    let [piece] = pieces else { return Err(EINVAL) };
    // fi_mr(3): the offset is reserved. We support none of the flags.
    if request.offset != 0 || out.is_null() {
        return Err(EINVAL);
    }
    if request.flags != 0 {
        return Err(errno::EBADFLAGS);
    }
    let origin = if domain.virtual_addresses { piece.iov_base as u64 } else { 0 };
    let key = (!domain.provider_keys).then_some(request.key);
    let access = Access {
        remote_read: request.access & FI_REMOTE_READ != 0,
        remote_write: request.access & FI_REMOTE_WRITE != 0,
    };
    // SAFETY: the caller's promise.
    let key = unsafe { domain.regions.register(piece.iov_base.cast(), piece.iov_len, origin, access, key) }
        .map_err(errno::of_region)?;
    let fid = fid { fclass: FI_CLASS_MR, context, ops: &FID_OPS };
    let object = hand_out(fid_mr { fid, mem_desc: null_mut(), key }, Mr { regions: domain.regions.clone(), key });
    // SAFETY: not null, checked above.
    unsafe { write_out(out, object) }
}

unsafe extern "C" fn reg(
    domain: *mut fid,
    buffer: *const c_void,
    length: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let piece = iovec { iov_base: buffer.cast_mut(), iov_len: length };
    // SAFETY: libfabric's caller promises it, fi_mr(3).
    guard(|| unsafe { register(domain, &[piece], RegistrationRequest { access, offset, key, flags }, out, context) })
        .code()
}

unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises `count` vectors.
        let pieces = unsafe { array(iov, count) }?;
        // SAFETY: libfabric's caller promises it, fi_mr(3).
        unsafe { register(domain, pieces, RegistrationRequest { access, offset, key, flags }, out, context) }
    })
    .code()
}

unsafe extern "C" fn regattr(domain: *mut fid, attr: *const fi_mr_attr, flags: u64, out: *mut *mut fid_mr) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises null or a valid structure.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: and `iov_count` valid vectors.
        let pieces = unsafe { array(attr.mr_iov, attr.iov_count) }?;
        let request = RegistrationRequest { access: attr.access, offset: attr.offset, key: attr.requested_key, flags };
        // `iface` names the kind of memory, but only when FI_HMEM was negotiated, which we never do.
        // SAFETY: libfabric's caller promises it, fi_mr(3).
        unsafe { register(domain, pieces, request, out, attr.context) }
    })
    .code()
}

/// Regions belong to the domain, so binding one to an endpoint changes nothing.
unsafe extern "C" fn bind(mr: *mut fid, other: *mut fid, _: u64) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let _: &Object<Mr> = unsafe { behind(mr) }?;
        // SAFETY: the caller passes null or another one.
        match unsafe { other.as_ref() }.map(|other| other.fclass) {
            Some(FI_CLASS_EP) => Ok(()),
            Some(_) => Err(ENOSYS),
            None => Err(EINVAL),
        }
    })
    .code()
}

unsafe extern "C" fn control(_: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    // Regions are enabled as soon as they are registered, and each access looks up the memory.
    if matches!(command, FI_ENABLE | FI_REFRESH) { 0 } else { Err(ENOSYS).code() }
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard(|| {
        // SAFETY: closing is the last use of an object, libfabric's caller promises.
        let object = unsafe { take_back::<Mr>(fid) }?;
        object.inner.regions.remove(object.inner.key);
        Ok(())
    })
    .code()
}
