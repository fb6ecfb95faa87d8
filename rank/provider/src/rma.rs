//! `fi_ops_rma`: reads from and writes into peers' registered memory.
//!
//! A write completes when its bytes are in the peer's memory, at any requested completion level: MPI libraries rely on
//! this, by completions or counters, when they close an epoch, also for injected writes.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use endpoint::operation::{CompleteWhen, ReadOp, WriteOp};
use memory::Buffer;

use crate::abi::border::guard;
use crate::abi::constants::{FI_INJECT, FI_REMOTE_CQ_DATA};
use crate::abi::objects::{fi_ops_rma, fid_ep};
use crate::abi::transfers::{fi_msg_rma, fi_rma_iov, iovec};
use crate::endpoint::{Endpoint, Wanted, endpoint_behind};
use crate::errno::{Code, EINVAL, Errno, of_not_begun};
use crate::transfer::{Notify, buffer, buffer_of, check_inject, check_transmit_flags};

pub(crate) static OPS: fi_ops_rma =
    fi_ops_rma { read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata, ..fi_ops_rma::REFUSING };

/// Remote memory of an operation.
pub(crate) struct RemoteMemory {
    /// The peer's number in the address vector.
    pub peer: u64,
    /// The region's key.
    pub key: u64,
    /// Offset, or virtual address if that was negotiated.
    pub address: u64,
}

fn start_read(
    endpoint: &Endpoint,
    buffer: Buffer,
    target: RemoteMemory,
    flags: u64,
    notify: Notify,
) -> Result<(), Errno> {
    check_transmit_flags(flags)?;
    endpoint.begin(|active| {
        let from = active.peer(target.peer)?;
        let wanted = Wanted { entry: notify.entry(active.tx_selective, flags), ..Wanted::default() };
        let user = wanted.with(notify.value());
        let op = ReadOp { from, key: target.key, address: target.address, buffer, user };
        active.transport.read(op).map_err(of_not_begun)
    })
}

fn start_write(
    endpoint: &Endpoint,
    buffer: Buffer,
    data: Option<u64>,
    target: RemoteMemory,
    flags: u64,
    notify: Notify,
) -> Result<(), Errno> {
    check_transmit_flags(flags)?;
    let inject = flags & FI_INJECT != 0;
    if inject {
        check_inject(endpoint, buffer.len())?;
    }
    let buffer = if inject { buffer.into_owned() } else { buffer };
    endpoint.begin(|active| {
        let to = active.peer(target.peer)?;
        let wanted = Wanted { entry: notify.entry(active.tx_selective, flags), ..Wanted::default() };
        let user = wanted.with(notify.value());
        let complete = CompleteWhen::Delivered;
        let op = WriteOp { to, key: target.key, address: target.address, buffer, data, complete, user };
        active.transport.write(op).map_err(of_not_begun)
    })
}

/// Returns the one remote piece that our `rma_iov_limit` allows; it must be as long as all local ones together.
///
/// # Safety
/// `message` is valid, as libfabric's caller promises.
unsafe fn target(message: &fi_msg_rma, length: usize) -> Result<RemoteMemory, Errno> {
    // SAFETY: the caller's promise.
    let remote: &[fi_rma_iov] = unsafe { crate::abi::border::array(message.rma_iov, message.rma_iov_count) }?;
    match remote {
        [piece] if piece.len == length => Ok(RemoteMemory { peer: message.addr, key: piece.key, address: piece.addr }),
        _ => Err(EINVAL),
    }
}

unsafe extern "C" fn read(
    endpoint: *mut fid_ep,
    start: *mut c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer that is ours until the completion,
        // fi_rma(3).
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let flags = endpoint.tx_flags.load(Ordering::Relaxed);
        start_read(endpoint, buffer, RemoteMemory { peer, key, address }, flags, Notify::context(context))
    })
    .code()
}

unsafe extern "C" fn readv(
    endpoint: *mut fid_ep,
    pieces: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `read`, for each piece.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer_of(pieces, count)?) };
        let flags = endpoint.tx_flags.load(Ordering::Relaxed);
        start_read(endpoint, buffer, RemoteMemory { peer, key, address }, flags, Notify::context(context))
    })
    .code()
}

unsafe extern "C" fn readmsg(endpoint: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, message) = unsafe { (endpoint_behind(endpoint)?, message.as_ref().ok_or(EINVAL)?) };
        // SAFETY: as in `read`, for each piece.
        let buffer = unsafe { buffer_of(message.msg_iov, message.iov_count) }?;
        // SAFETY: valid, as above.
        let target = unsafe { target(message, buffer.len()) }?;
        start_read(endpoint, buffer, target, flags, Notify::context(message.context))
    })
    .code()
}

unsafe extern "C" fn write(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer that stays as it is until the completion.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let flags = endpoint.tx_flags.load(Ordering::Relaxed);
        start_write(endpoint, buffer, None, RemoteMemory { peer, key, address }, flags, Notify::context(context))
    })
    .code()
}

unsafe extern "C" fn writev(
    endpoint: *mut fid_ep,
    pieces: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `write`, for each piece.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer_of(pieces, count)?) };
        let flags = endpoint.tx_flags.load(Ordering::Relaxed);
        start_write(endpoint, buffer, None, RemoteMemory { peer, key, address }, flags, Notify::context(context))
    })
    .code()
}

unsafe extern "C" fn writemsg(endpoint: *mut fid_ep, message: *const fi_msg_rma, flags: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, message) = unsafe { (endpoint_behind(endpoint)?, message.as_ref().ok_or(EINVAL)?) };
        // SAFETY: as in `write`, for each piece.
        let buffer = unsafe { buffer_of(message.msg_iov, message.iov_count) }?;
        // SAFETY: valid, as above.
        let target = unsafe { target(message, buffer.len()) }?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        start_write(endpoint, buffer, data, target, flags, Notify::context(message.context))
    })
    .code()
}

unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    peer: u64,
    address: u64,
    key: u64,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer, which we have copied on return.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        start_write(endpoint, buffer, None, RemoteMemory { peer, key, address }, FI_INJECT, Notify::Never)
    })
    .code()
}

unsafe extern "C" fn writedata(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    peer: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `write`.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let flags = endpoint.tx_flags.load(Ordering::Relaxed);
        start_write(endpoint, buffer, Some(data), RemoteMemory { peer, key, address }, flags, Notify::context(context))
    })
    .code()
}

unsafe extern "C" fn injectdata(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    data: u64,
    peer: u64,
    address: u64,
    key: u64,
) -> isize {
    guard(|| {
        // SAFETY: as in `inject`.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        start_write(endpoint, buffer, Some(data), RemoteMemory { peer, key, address }, FI_INJECT, Notify::Never)
    })
    .code()
}
