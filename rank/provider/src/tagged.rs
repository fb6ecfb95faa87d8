//! `fi_ops_tagged`: tagged messages.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use crate::abi::border::guard;
use crate::abi::constants::{FI_INJECT, FI_MULTI_RECV, FI_REMOTE_CQ_DATA};
use crate::abi::objects::{fi_ops_tagged, fid_ep};
use crate::abi::transfers::{fi_msg_tagged, iovec};
use crate::endpoint::endpoint_behind;
use crate::errno::{Code, EINVAL};
use crate::transfer::{self, Notify, Receiving, Sending, buffer, buffer_of};

pub(crate) static OPS: fi_ops_tagged = fi_ops_tagged {
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
    ..fi_ops_tagged::REFUSING
};

unsafe extern "C" fn recv(
    endpoint: *mut fid_ep,
    start: *mut c_void,
    length: usize,
    _: *mut c_void,
    from: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer that is ours until the completion,
        // fi_tagged(3).
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        // FI_MULTI_RECV among an endpoint's flags applies to its untagged receives only.
        let flags = endpoint.rx_flags.load(Ordering::Relaxed) & !FI_MULTI_RECV;
        transfer::receive(endpoint, buffer, 0, Receiving { from, tag: Some((tag, ignore)), flags, context })
    })
    .code()
}

unsafe extern "C" fn recvv(
    endpoint: *mut fid_ep,
    pieces: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `recv`, for each piece.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer_of(pieces, count)?) };
        let flags = endpoint.rx_flags.load(Ordering::Relaxed) & !FI_MULTI_RECV;
        transfer::receive(endpoint, buffer, 0, Receiving { from, tag: Some((tag, ignore)), flags, context })
    })
    .code()
}

unsafe extern "C" fn recvmsg(endpoint: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, message) = unsafe { (endpoint_behind(endpoint)?, message.as_ref().ok_or(EINVAL)?) };
        // SAFETY: as in `recv`, for each piece.
        let buffer = unsafe { buffer_of(message.msg_iov, message.iov_count) }?;
        let tag = Some((message.tag, message.ignore));
        let receiving = Receiving { from: message.addr, tag, flags, context: message.context };
        transfer::receive(endpoint, buffer, 0, receiving)
    })
    .code()
}

unsafe extern "C" fn send(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    _: *mut c_void,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer that stays as it is until the completion.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let flags = endpoint.send_flags();
        let notify = Notify::context(context);
        transfer::send(endpoint, buffer, Sending { to, tag: Some(tag), data: None, flags, notify })
    })
    .code()
}

unsafe extern "C" fn sendv(
    endpoint: *mut fid_ep,
    pieces: *const iovec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `send`, for each piece.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer_of(pieces, count)?) };
        let flags = endpoint.send_flags();
        let notify = Notify::context(context);
        transfer::send(endpoint, buffer, Sending { to, tag: Some(tag), data: None, flags, notify })
    })
    .code()
}

unsafe extern "C" fn sendmsg(endpoint: *mut fid_ep, message: *const fi_msg_tagged, flags: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, message) = unsafe { (endpoint_behind(endpoint)?, message.as_ref().ok_or(EINVAL)?) };
        // SAFETY: as in `send`, for each piece.
        let buffer = unsafe { buffer_of(message.msg_iov, message.iov_count) }?;
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let notify = Notify::context(message.context);
        transfer::send(endpoint, buffer, Sending { to: message.addr, tag: Some(message.tag), data, flags, notify })
    })
    .code()
}

unsafe extern "C" fn inject(endpoint: *mut fid_ep, start: *const c_void, length: usize, to: u64, tag: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a buffer, which we have copied or sent on return.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let sending = Sending { to, tag: Some(tag), data: None, flags: FI_INJECT, notify: Notify::Never };
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
    tag: u64,
    context: *mut c_void,
) -> isize {
    guard(|| {
        // SAFETY: as in `send`.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let flags = endpoint.send_flags();
        let notify = Notify::context(context);
        transfer::send(endpoint, buffer, Sending { to, tag: Some(tag), data: Some(data), flags, notify })
    })
    .code()
}

unsafe extern "C" fn injectdata(
    endpoint: *mut fid_ep,
    start: *const c_void,
    length: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    guard(|| {
        // SAFETY: as in `inject`.
        let (endpoint, buffer) = unsafe { (endpoint_behind(endpoint)?, buffer(start, length)?) };
        let sending = Sending { to, tag: Some(tag), data: Some(data), flags: FI_INJECT, notify: Notify::Never };
        transfer::send(endpoint, buffer, sending)
    })
    .code()
}
