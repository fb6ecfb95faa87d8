//! `fi_ops_msg`: untagged messages.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::abi::border::{array, guard};
use crate::abi::constants::{FI_INJECT, FI_REMOTE_CQ_DATA};
use crate::abi::objects::{fi_ops_msg, fid_ep};
use crate::abi::transfers::{fi_msg, iovec};
use crate::endpoint::endpoint_behind;
use crate::errno::{Code, EINVAL};
use crate::transfer::{self, Notify, Receiving, Sending, buffer, buffer_of};

pub(crate) static OPS: fi_ops_msg =
    fi_ops_msg { recv, recvv, recvmsg, send, sendv, sendmsg, inject, senddata, injectdata, ..fi_ops_msg::REFUSING };

unsafe extern "C" fn recv(
    endpoint: *mut fid_ep,
    start: *mut c_void,
    length: usize,
    _: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer that is ours until the completion,
        // fi_msg(3).
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let flags = endpoint.rx_flags.load(Ordering::Relaxed);
        transfer::receive(endpoint, buffer, start as usize, Receiving { from, tag: None, flags, context })
    })
    .code()
}

unsafe extern "C" fn recvv(
    endpoint: *mut fid_ep,
    pieces: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `recv`, for each piece.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer_of(pieces, count)?) };
        // SAFETY: as above.
        let start = unsafe { array(pieces, count) }?.first().map_or(0, |piece| piece.iov_base as usize);
        let flags = endpoint.rx_flags.load(Ordering::Relaxed);
        transfer::receive(endpoint, buffer, start, Receiving { from, tag: None, flags, context })
    })
    .code()
}

unsafe extern "C" fn recvmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, message) = unsafe { (endpoint_behind(endpoint)?, message.as_ref().ok_or(EINVAL)?) };
        // SAFETY: as in `recv`, for each piece.
        let buffer = unsafe { buffer_of(message.msg_iov, message.iov_count) }?;
        // SAFETY: as above.
        let pieces = unsafe { array(message.msg_iov, message.iov_count) }?;
        let start = pieces.first().map_or(0, |piece| piece.iov_base as usize);
        let receiving = Receiving { from: message.addr, tag: None, flags, context: message.context };
        transfer::receive(endpoint, buffer, start, receiving)
    })
    .code()
}

unsafe extern "C" fn send(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    _: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer that stays as it is until the completion.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let flags = endpoint.send_flags();
        let notify = Notify::context(context);
        transfer::send(endpoint, buffer, Sending { to, tag: None, data: None, flags, notify })
    })
    .code()
}

unsafe extern "C" fn sendv(
    endpoint: *mut fid_ep,
    pieces: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `send`, for each piece.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer_of(pieces, count)?) };
        let flags = endpoint.send_flags();
        let notify = Notify::context(context);
        transfer::send(endpoint, buffer, Sending { to, tag: None, data: None, flags, notify })
    })
    .code()
}

unsafe extern "C" fn sendmsg(endpoint: *mut fid_ep, message: *const fi_msg, flags: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, message) = unsafe { (endpoint_behind(endpoint)?, message.as_ref().ok_or(EINVAL)?) };
        // SAFETY: as in `send`, for each piece.
        let buffer = unsafe { buffer_of(message.msg_iov, message.iov_count) }?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let notify = Notify::context(message.context);
        transfer::send(endpoint, buffer, Sending { to: message.addr, tag: None, data, flags, notify })
    })
    .code()
}

unsafe extern "C" fn inject(endpoint: *mut fid_ep, start: *const c_void, length: usize, to: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer, which we have copied or sent on return.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let sending = Sending { to, tag: None, data: None, flags: FI_INJECT, notify: Notify::Never };
        transfer::send(endpoint, buffer, sending)
    })
    .code()
}

unsafe extern "C" fn senddata(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `send`.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let flags = endpoint.send_flags();
        let notify = Notify::context(context);
        transfer::send(endpoint, buffer, Sending { to, tag: None, data: Some(data), flags, notify })
    })
    .code()
}

unsafe extern "C" fn injectdata(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    data: u64,
    to: u64,
) -> isize {
    guard(|| {
        // SAFETY: as in `inject`.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let sending = Sending { to, tag: None, data: Some(data), flags: FI_INJECT, notify: Notify::Never };
        transfer::send(endpoint, buffer, sending)
    })
    .code()
}
