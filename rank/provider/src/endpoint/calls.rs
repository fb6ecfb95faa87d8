//! The C calls on an endpoint other than transfers.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use endpoint::operation::MAX_ATOMIC;

use super::Endpoint;
use crate::abi::border::{Behind, Object, behind, guard, hand_out, take_back, write_out};
use crate::abi::constants::*;
use crate::abi::info::fi_info;
use crate::abi::objects::{fi_ops, fi_ops_cm, fi_ops_collective, fi_ops_ep, fid, fid_domain, fid_ep};
use crate::av::{Av, give_address};
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::domain::Domain;
use crate::errno::{Code, EBADFLAGS, EINVAL, ENOENT, ENOPROTOOPT, ENOSYS, ETOOSMALL, Errno};
use crate::info::{INJECT_SIZE, MAX_MESSAGE, QUEUE_SIZE, inject_size};
use crate::{atomic, msg, rma, tagged};

impl Behind for Arc<Endpoint> {
    const CLASS: usize = FI_CLASS_EP;
    type Fid = fid_ep;
}

static FID_OPS: fi_ops = fi_ops { close, bind, control, ..fi_ops::REFUSING };
static OPS: fi_ops_ep =
    fi_ops_ep { cancel, getopt, setopt, rx_size_left: size_left, tx_size_left: size_left, ..fi_ops_ep::REFUSING };
static CM: fi_ops_cm = fi_ops_cm { setname, getname, ..fi_ops_cm::REFUSING };
static COLLECTIVE: fi_ops_collective = fi_ops_collective::REFUSING;

/// The endpoint behind a pointer from C.
///
/// # Errors
/// `FI_EINVAL`.
///
/// # Safety
/// As [`behind`].
pub(crate) unsafe fn endpoint_behind<'a>(pointer: *const fid_ep) -> Result<&'a Arc<Endpoint>, Errno> {
    // SAFETY: the caller's promise.
    let object: &Object<Arc<Endpoint>> = unsafe { behind(pointer) }?;
    Ok(&object.inner)
}

/// `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live domain.
        let domain: &Object<Arc<Domain>> = unsafe { behind(domain) }?;
        // SAFETY: the caller passes an fi_info that our getinfo (or a copy of its reply) describes.
        let info = unsafe { info.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: its attributes are null or valid.
        let (tx, rx, ep) = unsafe { (info.tx_attr.as_ref(), info.rx_attr.as_ref(), info.ep_attr.as_ref()) };
        if ep.is_some_and(|ep| !matches!(ep.r#type, FI_EP_UNSPEC | FI_EP_RDM)) {
            return Err(EINVAL);
        }
        let source = match (info.src_addr.is_null(), info.src_addrlen) {
            (true, _) | (_, 0) => None,
            (false, length) => {
                // SAFETY: an address has its stated length.
                let address = unsafe { domain.inner.format.read(info.src_addr, length) }.ok_or(EINVAL)?;
                Some(address.socket)
            }
        };
        let op_flags = (tx.map_or(0, |tx| tx.op_flags), rx.map_or(0, |rx| rx.op_flags));
        let inject_size = inject_size(&domain.inner.config, tx.map_or(0, |tx| tx.inject_size));
        let endpoint = Endpoint::new(domain.inner.clone(), info.caps, op_flags, inject_size, source);
        let fid = fid { fclass: FI_CLASS_EP, context, ops: &FID_OPS };
        let fid = fid_ep {
            fid,
            ops: &OPS,
            cm: &CM,
            msg: &msg::OPS,
            rma: &rma::OPS,
            tagged: &tagged::OPS,
            atomic: &atomic::OPS,
            collective: &COLLECTIVE,
        };
        // SAFETY: the caller passes a place for the result.
        unsafe { write_out(out, hand_out(fid, Arc::new(endpoint))) }
    })
    .code()
}

/// `fi_endpoint2`.
pub(crate) unsafe extern "C" fn open2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return Err(ENOSYS).code();
    }
    // SAFETY: the caller's arguments, passed on.
    unsafe { open(domain, info, out, context) }
}

unsafe extern "C" fn bind(endpoint: *mut fid, other: *mut fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let endpoint = unsafe { endpoint_behind(endpoint.cast()) }?;
        // SAFETY: the caller passes null or another one.
        let class = unsafe { other.as_ref() }.ok_or(EINVAL)?.fclass;
        match class {
            FI_CLASS_AV => {
                // SAFETY: its class was checked above.
                let av: &Object<Arc<Av>> = unsafe { behind(other) }?;
                endpoint.bind_av(&av.inner)
            }
            FI_CLASS_CQ => {
                // SAFETY: its class was checked above.
                let cq: &Object<Arc<Cq>> = unsafe { behind(other) }?;
                let (send, recv) = (flags & FI_SEND != 0, flags & FI_RECV != 0);
                if flags & !(FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 || !(send || recv) {
                    return Err(EBADFLAGS);
                }
                endpoint.bind_cq(&cq.inner, send, recv, flags & FI_SELECTIVE_COMPLETION != 0)
            }
            FI_CLASS_CNTR => {
                // SAFETY: its class was checked above.
                let cntr: &Object<Arc<Cntr>> = unsafe { behind(other) }?;
                let kinds = [FI_SEND, FI_RECV, FI_READ, FI_WRITE];
                // Peers' reads and writes are counted only with FI_RMA_EVENT, fi_endpoint(3), which we do not offer.
                // But libfabric's own providers let a counter be bound to everything at once, and programs rely on it.
                let known = kinds.iter().fold(FI_REMOTE_READ | FI_REMOTE_WRITE, |all, kind| all | kind);
                if flags == 0 || flags & !known != 0 {
                    return Err(EBADFLAGS);
                }
                endpoint.bind_cntr(&cntr.inner, kinds.map(|kind| flags & kind != 0));
                Ok(())
            }
            // We report nothing through event queues.
            FI_CLASS_EQ => Ok(()),
            _ => Err(EINVAL),
        }
    })
    .code()
}

unsafe extern "C" fn control(endpoint: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let endpoint = unsafe { endpoint_behind(endpoint.cast()) }?;
        // SAFETY: for these commands, the caller passes a place with flags.
        let flags = || unsafe { argument.cast::<u64>().as_mut() }.ok_or(EINVAL);
        // FI_TRANSMIT (= FI_SEND) or FI_RECV among the flags names the direction.
        let side = |flags: u64| match (flags & FI_SEND != 0, flags & FI_RECV != 0) {
            (true, false) => Ok(&endpoint.tx_flags),
            (false, true) => Ok(&endpoint.rx_flags),
            _ => Err(EINVAL),
        };
        match command {
            FI_ENABLE => endpoint.enable(),
            FI_GETOPSFLAG => {
                let flags = flags()?;
                *flags = side(*flags)?.load(Ordering::Relaxed);
                Ok(())
            }
            FI_SETOPSFLAG => {
                let flags = *flags()?;
                side(flags)?.store(flags & !(FI_SEND | FI_RECV), Ordering::Relaxed);
                Ok(())
            }
            _ => Err(ENOSYS),
        }
    })
    .code()
}

unsafe extern "C" fn close(endpoint: *mut fid) -> c_int {
    guard(|| {
        // SAFETY: closing is the last use of an object, libfabric's caller promises.
        let object = unsafe { take_back::<Arc<Endpoint>>(endpoint) }?;
        object.inner.close();
        Ok(())
    })
    .code()
}

unsafe extern "C" fn getname(endpoint: *mut fid, buffer: *mut c_void, length: *mut usize) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let endpoint = unsafe { endpoint_behind(endpoint.cast()) }?;
        // SAFETY: the caller passes a buffer of the length it gives.
        unsafe { give_address(endpoint.address()?, endpoint.domain.format, buffer, length) }
    })
    .code()
}

unsafe extern "C" fn setname(endpoint: *mut fid, address: *mut c_void, length: usize) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let endpoint = unsafe { endpoint_behind(endpoint.cast()) }?;
        // SAFETY: the caller passes null or an address of that length.
        let address = unsafe { endpoint.domain.format.read(address, length) }.ok_or(EINVAL)?;
        endpoint.set_source(address.socket)
    })
    .code()
}

unsafe extern "C" fn cancel(endpoint: *mut fid, context: *mut c_void) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let endpoint = unsafe { endpoint_behind(endpoint.cast()) }?;
        if endpoint.cancel(context as usize)? { Ok(()) } else { Err(ENOENT) }
    })
    .code()
}

/// Queues grow as needed, so the answer is always the announced size.
unsafe extern "C" fn size_left(_: *mut fid_ep) -> isize {
    QUEUE_SIZE as isize
}

/// Options with a constant value of type `size_t`.
fn size_option(name: c_int) -> Option<usize> {
    Some(match name {
        FI_OPT_CM_DATA_SIZE => 0,
        FI_OPT_TX_SIZE | FI_OPT_RX_SIZE => QUEUE_SIZE,
        FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_TAGGED_SIZE | FI_OPT_MAX_RMA_SIZE => MAX_MESSAGE,
        FI_OPT_MAX_ATOMIC_SIZE => MAX_ATOMIC,
        FI_OPT_INJECT_MSG_SIZE | FI_OPT_INJECT_TAGGED_SIZE | FI_OPT_INJECT_RMA_SIZE => INJECT_SIZE,
        FI_OPT_INJECT_ATOMIC_SIZE => MAX_ATOMIC.min(INJECT_SIZE),
        _ => return None,
    })
}

unsafe extern "C" fn getopt(
    endpoint: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let endpoint = unsafe { endpoint_behind(endpoint.cast()) }?;
        let answer = match (level, name) {
            (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) => endpoint.min_multi_recv.load(Ordering::Relaxed),
            (FI_OPT_ENDPOINT, name) => size_option(name).ok_or(ENOPROTOOPT)?,
            _ => return Err(ENOPROTOOPT),
        };
        // SAFETY: the caller passes places for the value and its length.
        let room = *unsafe { length.as_ref() }.ok_or(EINVAL)?;
        if room < size_of::<usize>() {
            return Err(ETOOSMALL);
        }
        // SAFETY: as above; the value has room for a size.
        unsafe { write_out(value.cast::<usize>(), answer).and_then(|()| write_out(length, size_of::<usize>())) }
    })
    .code()
}

unsafe extern "C" fn setopt(
    endpoint: *mut fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let endpoint = unsafe { endpoint_behind(endpoint.cast()) }?;
        if level != FI_OPT_ENDPOINT || value.is_null() {
            return Err(if value.is_null() { EINVAL } else { ENOPROTOOPT });
        }
        match name {
            FI_OPT_MIN_MULTI_RECV if length == size_of::<usize>() => {
                // SAFETY: the caller passes a value of that length.
                let least = unsafe { value.cast::<usize>().read_unaligned() };
                endpoint.min_multi_recv.store(least, Ordering::Relaxed);
                Ok(())
            }
            FI_OPT_MIN_MULTI_RECV => Err(EINVAL),
            // We call no CUDA and have no shared memory of our own, so we comply with either value.
            FI_OPT_CUDA_API_PERMITTED | FI_OPT_SHARED_MEMORY_PERMITTED => Ok(()),
            _ => Err(ENOPROTOOPT),
        }
    })
    .code()
}
