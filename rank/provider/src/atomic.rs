//! `fi_ops_atomic`: atomic operations on peers' registered memory.
//!
//! [`memory::atomic`] knows which operations exist on which datatypes. The call itself copies the operands.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use endpoint::operation::{AtomicOp, MAX_ATOMIC};
use memory::Buffer;
use memory::atomic::{self, Form};
use wire::message::AtomicForm;

use crate::abi::border::{array, behind, guard, write_out};
use crate::abi::constants::{FI_ATOMIC, FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC, FI_INJECT};
use crate::abi::events::fi_atomic_attr;
use crate::abi::objects::{fi_ops_atomic, fid_domain, fid_ep};
use crate::abi::transfers::{fi_ioc, fi_msg_atomic, fi_rma_ioc};
use crate::domain::Domain;
use crate::endpoint::{Endpoint, Wanted, endpoint_behind};
use crate::errno::{Code, EBADFLAGS, EINVAL, EMSGSIZE, EOPNOTSUPP, Errno, of_not_begun};
use crate::rma::RemoteMemory;
use crate::transfer::{Notify, buffer, check_transmit_flags};

pub(crate) static OPS: fi_ops_atomic = fi_ops_atomic {
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
    ..fi_ops_atomic::REFUSING
};

/// An operation on a datatype that exists in the given form.
#[derive(Clone, Copy)]
struct AtomicAction {
    datatype: u8,
    operation: u8,
    form: Form,
    /// Bytes per element.
    size: usize,
}

impl AtomicAction {
    fn new(datatype: c_int, operation: c_int, form: Form) -> Result<AtomicAction, Errno> {
        let code = |code: c_int| u8::try_from(code).map_err(|_| EOPNOTSUPP);
        let (datatype, operation) = (code(datatype)?, code(operation)?);
        match atomic::size(datatype) {
            Some(size) if atomic::supported(datatype, operation, form) => {
                Ok(AtomicAction { datatype, operation, form, size })
            }
            _ => Err(EOPNOTSUPP),
        }
    }

    /// Maximum number of elements in one call.
    fn most(self) -> usize {
        let operands = if self.form == Form::Compare { 2 } else { 1 };
        MAX_ATOMIC / self.size / operands
    }

    fn needs_operand(self) -> bool {
        self.operation != atomic::op::READ
    }
}

/// Arguments of one call.
struct AtomicRequest<'a> {
    operands: &'a [fi_ioc],
    compares: &'a [fi_ioc],
    results: &'a [fi_ioc],
    target: RemoteMemory,
    /// Number of elements at the target.
    count: usize,
    flags: u64,
    notify: Notify,
}

/// # Safety
/// The pieces' memory is valid as the caller of fi_atomic(3) promises: results until the completion, the rest now.
unsafe fn begin(endpoint: &Endpoint, action: AtomicAction, request: AtomicRequest<'_>) -> Result<(), Errno> {
    let AtomicRequest { operands, compares, results, target, count, flags, notify } = request;
    check_transmit_flags(flags)?;
    if count == 0 {
        return Err(EINVAL);
    }
    if count > action.most() {
        return Err(EMSGSIZE);
    }
    let mut bytes = Vec::with_capacity(2 * count * action.size);
    if action.needs_operand() {
        // SAFETY: the caller's promise.
        unsafe { gather(operands, count, action.size, &mut bytes) }?;
    }
    if action.form == Form::Compare {
        // SAFETY: the caller's promise.
        unsafe { gather(compares, count, action.size, &mut bytes) }?;
    }
    let (result, form) = match action.form {
        Form::Write => (Buffer::empty(), AtomicForm::Write),
        // SAFETY: the caller's promise.
        Form::Fetch => (unsafe { scatter(results, count, action.size) }?, AtomicForm::Fetch),
        // SAFETY: the caller's promise.
        Form::Compare => (unsafe { scatter(results, count, action.size) }?, AtomicForm::Compare),
    };
    endpoint.begin(|active| {
        let wanted = Wanted {
            entry: notify.entry(active.tx_selective, flags),
            fetch: action.form != Form::Write,
            ..Wanted::default()
        };
        let op = AtomicOp {
            to: active.peer(target.peer)?,
            key: target.key,
            address: target.address,
            datatype: action.datatype,
            operation: action.operation,
            form,
            count: count as u32,
            operands: bytes,
            result,
            user: wanted.with(notify.value()),
        };
        active.transport.atomic(op).map_err(of_not_begun)
    })
}

/// Appends the elements of all pieces to `out`.
///
/// # Safety
/// The pieces' memory is valid for reading.
unsafe fn gather(pieces: &[fi_ioc], count: usize, size: usize, out: &mut Vec<u8>) -> Result<(), Errno> {
    check_count(pieces, count)?;
    for piece in pieces {
        // SAFETY: the caller's promise; `check_count` bounds the length.
        out.extend_from_slice(unsafe { array(piece.addr.cast::<u8>(), piece.count * size) }?);
    }
    Ok(())
}

/// Makes a buffer for old values from the pieces.
///
/// # Safety
/// The pieces' memory is valid for writing until the operation completes.
unsafe fn scatter(pieces: &[fi_ioc], count: usize, size: usize) -> Result<Buffer, Errno> {
    check_count(pieces, count)?;
    if let [piece] = pieces {
        // SAFETY: the caller's promise.
        return unsafe { buffer(piece.addr, piece.count * size) };
    }
    if pieces.iter().any(|piece| piece.addr.is_null()) {
        return Err(EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { Buffer::from_raw(pieces.iter().map(|piece| (piece.addr.cast(), piece.count * size))) }.ok_or(EINVAL)
}

fn check_count(pieces: &[fi_ioc], count: usize) -> Result<(), Errno> {
    let total = pieces.iter().try_fold(0usize, |total, piece| total.checked_add(piece.count));
    if total == Some(count) { Ok(()) } else { Err(EINVAL) }
}

fn piece(start: *const c_void, count: usize) -> [fi_ioc; 1] {
    [fi_ioc { addr: start.cast_mut(), count }]
}

/// Splits a message into its pieces, and the one target that our `rma_iov_limit` allows.
///
/// # Safety
/// The message is null or valid, as libfabric's caller promises.
unsafe fn parts<'a>(
    message: *const fi_msg_atomic,
) -> Result<(&'a fi_msg_atomic, &'a [fi_ioc], RemoteMemory, usize), Errno> {
    // SAFETY: the caller's promise.
    let message = unsafe { message.as_ref() }.ok_or(EINVAL)?;
    // SAFETY: as above.
    let (local, remote): (_, &[fi_rma_ioc]) =
        unsafe { (array(message.msg_iov, message.iov_count)?, array(message.rma_iov, message.rma_iov_count)?) };
    let [remote] = remote else { return Err(EINVAL) };
    Ok((message, local, RemoteMemory { peer: message.addr, key: remote.key, address: remote.addr }, remote.count))
}

unsafe extern "C" fn write(
    endpoint: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let action = AtomicAction::new(datatype, operation, Form::Write)?;
        // SAFETY: libfabric's caller promises a live endpoint.
        let endpoint = unsafe { endpoint_behind(endpoint) }?;
        let request = AtomicRequest {
            operands: &piece(operand, count),
            compares: &[],
            results: &[],
            target: RemoteMemory { peer, key, address },
            count,
            flags: endpoint.tx_flags.load(Ordering::Relaxed),
            notify: Notify::context(context),
        };
        // SAFETY: the caller passes valid operands.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

unsafe extern "C" fn writev(
    endpoint: *mut fid_ep,
    operands: *const fi_ioc,
    _: *mut *mut c_void,
    pieces: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let action = AtomicAction::new(datatype, operation, Form::Write)?;
        // SAFETY: libfabric's caller promises a live endpoint and `pieces` pieces.
        let (endpoint, operands) = unsafe { (endpoint_behind(endpoint)?, array(operands, pieces)?) };
        let request = AtomicRequest {
            operands,
            compares: &[],
            results: &[],
            target: RemoteMemory { peer, key, address },
            count: total(operands)?,
            flags: endpoint.tx_flags.load(Ordering::Relaxed),
            notify: Notify::context(context),
        };
        // SAFETY: the caller passes valid operands.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

fn total(pieces: &[fi_ioc]) -> Result<usize, Errno> {
    pieces.iter().try_fold(0usize, |total, piece| total.checked_add(piece.count)).ok_or(EINVAL)
}

unsafe extern "C" fn writemsg(endpoint: *mut fid_ep, message: *const fi_msg_atomic, flags: u64) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, (message, operands, target, count)) = unsafe { (endpoint_behind(endpoint)?, parts(message)?) };
        let action = AtomicAction::new(message.datatype, message.op, Form::Write)?;
        let notify = Notify::context(message.context);
        let request = AtomicRequest { operands, compares: &[], results: &[], target, count, flags, notify };
        // SAFETY: the caller passes valid operands.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

unsafe extern "C" fn inject(
    endpoint: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
) -> isize {
    guard(|| {
        let action = AtomicAction::new(datatype, operation, Form::Write)?;
        // SAFETY: libfabric's caller promises a live endpoint.
        let endpoint = unsafe { endpoint_behind(endpoint) }?;
        let request = AtomicRequest {
            operands: &piece(operand, count),
            compares: &[],
            results: &[],
            target: RemoteMemory { peer, key, address },
            count,
            flags: FI_INJECT,
            notify: Notify::Never,
        };
        // SAFETY: the caller passes valid operands.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

unsafe extern "C" fn readwrite(
    endpoint: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let action = AtomicAction::new(datatype, operation, Form::Fetch)?;
        // SAFETY: libfabric's caller promises a live endpoint.
        let endpoint = unsafe { endpoint_behind(endpoint) }?;
        let request = AtomicRequest {
            operands: &piece(operand, count),
            compares: &[],
            results: &piece(result, count),
            target: RemoteMemory { peer, key, address },
            count,
            flags: endpoint.tx_flags.load(Ordering::Relaxed),
            notify: Notify::context(context),
        };
        // SAFETY: the caller passes valid operands and results.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

unsafe extern "C" fn readwritev(
    endpoint: *mut fid_ep,
    operands: *const fi_ioc,
    _: *mut *mut c_void,
    pieces: usize,
    results: *mut fi_ioc,
    _: *mut *mut c_void,
    result_pieces: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let action = AtomicAction::new(datatype, operation, Form::Fetch)?;
        // SAFETY: libfabric's caller promises a live endpoint and that many pieces.
        let (endpoint, operands, results) =
            unsafe { (endpoint_behind(endpoint)?, array(operands, pieces)?, array(results, result_pieces)?) };
        let request = AtomicRequest {
            operands,
            compares: &[],
            results,
            target: RemoteMemory { peer, key, address },
            count: total(results)?,
            flags: endpoint.tx_flags.load(Ordering::Relaxed),
            notify: Notify::context(context),
        };
        // SAFETY: the caller passes valid operands and results.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

unsafe extern "C" fn readwritemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    results: *mut fi_ioc,
    _: *mut *mut c_void,
    result_pieces: usize,
    flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, (message, operands, target, count)) = unsafe { (endpoint_behind(endpoint)?, parts(message)?) };
        // SAFETY: the caller passes that many pieces.
        let results = unsafe { array(results, result_pieces) }?;
        let action = AtomicAction::new(message.datatype, message.op, Form::Fetch)?;
        let notify = Notify::context(message.context);
        let request = AtomicRequest { operands, compares: &[], results, target, count, flags, notify };
        // SAFETY: the caller passes valid operands and results.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

unsafe extern "C" fn compwrite(
    endpoint: *mut fid_ep,
    operand: *const c_void,
    count: usize,
    _: *mut c_void,
    compare: *const c_void,
    _: *mut c_void,
    result: *mut c_void,
    _: *mut c_void,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let action = AtomicAction::new(datatype, operation, Form::Compare)?;
        // SAFETY: libfabric's caller promises a live endpoint.
        let endpoint = unsafe { endpoint_behind(endpoint) }?;
        let request = AtomicRequest {
            operands: &piece(operand, count),
            compares: &piece(compare, count),
            results: &piece(result, count),
            target: RemoteMemory { peer, key, address },
            count,
            flags: endpoint.tx_flags.load(Ordering::Relaxed),
            notify: Notify::context(context),
        };
        // SAFETY: the caller passes valid operands and results.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

unsafe extern "C" fn compwritev(
    endpoint: *mut fid_ep,
    operands: *const fi_ioc,
    _: *mut *mut c_void,
    pieces: usize,
    compares: *const fi_ioc,
    _: *mut *mut c_void,
    compare_pieces: usize,
    results: *mut fi_ioc,
    _: *mut *mut c_void,
    result_pieces: usize,
    peer: u64,
    address: u64,
    key: u64,
    datatype: c_int,
    operation: c_int,
    context: *mut c_void,
) -> isize {
    guard(|| {
        let action = AtomicAction::new(datatype, operation, Form::Compare)?;
        // SAFETY: libfabric's caller promises a live endpoint and that many pieces.
        let (endpoint, operands) = unsafe { (endpoint_behind(endpoint)?, array(operands, pieces)?) };
        // SAFETY: as above.
        let (compares, results) = unsafe { (array(compares, compare_pieces)?, array(results, result_pieces)?) };
        let request = AtomicRequest {
            operands,
            compares,
            results,
            target: RemoteMemory { peer, key, address },
            count: total(operands)?,
            flags: endpoint.tx_flags.load(Ordering::Relaxed),
            notify: Notify::context(context),
        };
        // SAFETY: the caller passes valid operands and results.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

unsafe extern "C" fn compwritemsg(
    endpoint: *mut fid_ep,
    message: *const fi_msg_atomic,
    compares: *const fi_ioc,
    _: *mut *mut c_void,
    compare_pieces: usize,
    results: *mut fi_ioc,
    _: *mut *mut c_void,
    result_pieces: usize,
    flags: u64,
) -> isize {
    guard(|| {
        // SAFETY: libfabric's caller promises a live endpoint and a valid message.
        let (endpoint, (message, operands, target, count)) = unsafe { (endpoint_behind(endpoint)?, parts(message)?) };
        // SAFETY: the caller passes that many pieces.
        let (compares, results) = unsafe { (array(compares, compare_pieces)?, array(results, result_pieces)?) };
        let action = AtomicAction::new(message.datatype, message.op, Form::Compare)?;
        let notify = Notify::context(message.context);
        let request = AtomicRequest { operands, compares, results, target, count, flags, notify };
        // SAFETY: the caller passes valid operands and results.
        unsafe { begin(endpoint, action, request) }
    })
    .code()
}

/// # Safety
/// `count` is null or valid for writing.
unsafe fn valid(datatype: c_int, operation: c_int, form: Form, count: *mut usize) -> c_int {
    // SAFETY: the caller's promise.
    guard(|| unsafe { write_out(count, AtomicAction::new(datatype, operation, form)?.most()) }).code()
}

unsafe extern "C" fn writevalid(_: *mut fid_ep, datatype: c_int, operation: c_int, count: *mut usize) -> c_int {
    // SAFETY: libfabric's caller passes a place for the count.
    unsafe { valid(datatype, operation, Form::Write, count) }
}

unsafe extern "C" fn readwritevalid(_: *mut fid_ep, datatype: c_int, operation: c_int, count: *mut usize) -> c_int {
    // SAFETY: as above.
    unsafe { valid(datatype, operation, Form::Fetch, count) }
}

unsafe extern "C" fn compwritevalid(_: *mut fid_ep, datatype: c_int, operation: c_int, count: *mut usize) -> c_int {
    // SAFETY: as above.
    unsafe { valid(datatype, operation, Form::Compare, count) }
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: c_int,
    operation: c_int,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live domain.
        let _ = unsafe { behind::<std::sync::Arc<Domain>, _>(domain) }?;
        let form = match flags & !FI_ATOMIC {
            0 => Form::Write,
            FI_FETCH_ATOMIC => Form::Fetch,
            FI_COMPARE_ATOMIC => Form::Compare,
            _ => return Err(EBADFLAGS),
        };
        let action = AtomicAction::new(datatype, operation, form)?;
        // SAFETY: the caller passes a place for the answer.
        unsafe { write_out(attr, fi_atomic_attr { count: action.most(), size: action.size }) }
    })
    .code()
}

#[cfg(test)]
mod tests;
