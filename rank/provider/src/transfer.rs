//! Code common to tagged and untagged messages, RMA and atomics: buffers, flags, and the beginning of operations.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use endpoint::operation::{CompleteWhen, Match, PeekThen, RecvOp, SendOp};
use memory::Buffer;

use crate::abi::border::array;
use crate::abi::constants::{
    FI_ADDR_UNSPEC, FI_CLAIM, FI_COMMIT_COMPLETE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_DIRECTED_RECV, FI_DISCARD,
    FI_FENCE, FI_INJECT, FI_MATCH_COMPLETE, FI_MULTI_RECV, FI_PEEK, FI_TRIGGER,
};
use crate::abi::transfers::iovec;
use crate::endpoint::{Endpoint, Wanted};
use crate::errno::{EBADFLAGS, EINVAL, EMSGSIZE, Errno, of_not_begun};

/// One piece of user memory.
///
/// # Errors
/// `FI_EINVAL`: null with a length, or an impossible length.
///
/// # Safety
/// The memory is valid until the operation completes, as the caller of fi_msg(3) promises; only receives and reads
/// write it.
pub(crate) unsafe fn buffer(start: *const c_void, length: usize) -> Result<Buffer, Errno> {
    if start.is_null() && length > 0 {
        return Err(EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { Buffer::from_raw([(start.cast_mut().cast(), length)]) }.ok_or(EINVAL)
}

/// Several pieces of user memory.
///
/// # Errors
/// `FI_EINVAL`: null with a length, more pieces than the `iov_limit` we announce, or an impossible length.
///
/// # Safety
/// As [`buffer`], for each piece; `pieces` is null or has `count` elements.
pub(crate) unsafe fn buffer_of(pieces: *const iovec, count: usize) -> Result<Buffer, Errno> {
    // SAFETY: the caller's promise.
    let pieces = unsafe { array(pieces, count) }?;
    if pieces.iter().any(|piece| piece.iov_base.is_null() && piece.iov_len > 0) {
        return Err(EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { Buffer::from_raw(pieces.iter().map(|piece| (piece.iov_base.cast(), piece.iov_len))) }.ok_or(EINVAL)
}

/// Kind of completion report that an operation's caller wants.
#[derive(Clone, Copy)]
pub(crate) enum Notify {
    /// This context comes back with the completion.
    Context(usize),
    /// No report, unless it fails: the `inject` calls.
    Never,
}

impl Notify {
    /// For a call with a context.
    pub(crate) fn context(context: *mut c_void) -> Notify {
        Notify::Context(context as usize)
    }

    /// Returns true if success is to be reported. `selective`: only with `FI_COMPLETION`.
    pub(crate) fn entry(self, selective: bool, flags: u64) -> bool {
        match self {
            Notify::Never => false,
            Notify::Context(_) => !selective || flags & FI_COMPLETION != 0,
        }
    }

    /// The context.
    pub(crate) fn value(self) -> usize {
        match self {
            Notify::Never => 0,
            Notify::Context(context) => context,
        }
    }
}

/// Refuses flags for features that we never offered: ignoring them would break the caller's assumptions.
///
/// # Errors
/// `FI_EBADFLAGS`.
pub(crate) fn check_transmit_flags(flags: u64) -> Result<(), Errno> {
    if flags & (FI_FENCE | FI_TRIGGER | FI_COMMIT_COMPLETE) == 0 { Ok(()) } else { Err(EBADFLAGS) }
}

/// Checks the length of an injected message, whose buffer the caller may reuse at once.
///
/// # Errors
/// `FI_EMSGSIZE`.
pub(crate) fn check_inject(endpoint: &Endpoint, length: usize) -> Result<(), Errno> {
    if length <= endpoint.inject_size { Ok(()) } else { Err(EMSGSIZE) }
}

/// A message to send.
pub(crate) struct Sending {
    /// The receiver's number in the address vector.
    pub to: u64,
    /// `None`: untagged.
    pub tag: Option<u64>,
    /// Remote completion data.
    pub data: Option<u64>,
    /// Operation flags.
    pub flags: u64,
    /// Kind of completion report.
    pub notify: Notify,
}

/// Sends a message.
///
/// # Errors
/// `FI_EAGAIN`, `FI_EINVAL`, `FI_EMSGSIZE`, `FI_EBADFLAGS`, `FI_EOPBADSTATE`.
pub(crate) fn send(endpoint: &Endpoint, buffer: Buffer, sending: Sending) -> Result<(), Errno> {
    let Sending { to, tag, data, flags, notify } = sending;
    check_transmit_flags(flags)?;
    let inject = flags & FI_INJECT != 0;
    if inject {
        check_inject(endpoint, buffer.len())?;
    }
    // FI_INJECT_COMPLETE and FI_TRANSMIT_COMPLETE mean that all bytes have left: then the user may reuse the buffer.
    let (complete, buffer) = match (flags & (FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE) != 0, inject) {
        (true, true) => (CompleteWhen::Delivered, buffer.into_owned()),
        (true, false) => (CompleteWhen::Delivered, buffer),
        (false, true) => (CompleteWhen::Buffered, buffer),
        (false, false) => (CompleteWhen::Sent, buffer),
    };
    endpoint.begin(|active| {
        let to = active.peer(to)?;
        let wanted = Wanted { entry: notify.entry(active.tx_selective, flags), ..Wanted::default() };
        let user = wanted.with(notify.value());
        active.transport.send(SendOp { to, tag, data, buffer, complete, user }).map_err(of_not_begun)
    })
}

/// A receive or peek.
pub(crate) struct Receiving {
    /// The sender's number in the address vector, or `FI_ADDR_UNSPEC` for any sender.
    pub from: u64,
    /// `None`: untagged; else the tag and a mask of the bits to ignore.
    pub tag: Option<(u64, u64)>,
    /// Operation flags.
    pub flags: u64,
    /// The operation's context.
    pub context: *mut c_void,
}

/// Receives, peeks, claims or discards a message, or posts a buffer for several messages.
///
/// # Errors
/// `FI_EAGAIN`, `FI_EINVAL`, `FI_ENOENT` (nothing claimed under this context), `FI_EOPBADSTATE`.
pub(crate) fn receive(endpoint: &Endpoint, buffer: Buffer, start: usize, receiving: Receiving) -> Result<(), Errno> {
    let Receiving { from, tag, flags, context } = receiving;
    let has = |flag| flags & flag != 0;
    let context = context as usize;
    let multi = has(FI_MULTI_RECV);
    if (multi && (tag.is_some() || has(FI_PEEK | FI_CLAIM))) || (has(FI_DISCARD) && !has(FI_PEEK | FI_CLAIM)) {
        return Err(EBADFLAGS);
    }
    endpoint.begin(|active| {
        let entry = Notify::Context(context).entry(active.rx_selective, flags);
        let wanted = Wanted { entry, ..Wanted::default() };
        if has(FI_CLAIM) && !has(FI_PEEK) {
            let result = if has(FI_DISCARD) {
                active.transport.discard_claimed(wanted.with(context))
            } else {
                active.transport.receive_claimed(buffer, wanted.with(context))
            };
            return result.map_err(of_not_begun);
        }
        let from = match from {
            FI_ADDR_UNSPEC => None,
            _ if endpoint.caps & FI_DIRECTED_RECV == 0 => None,
            number => Some(active.peer(number)?),
        };
        let (bits, ignore) = tag.unwrap_or_default();
        let matching = Match { from, tagged: tag.is_some(), tag: bits, ignore };
        if has(FI_PEEK) {
            let then = match (has(FI_CLAIM), has(FI_DISCARD)) {
                (true, true) => return Err(EBADFLAGS),
                (true, false) => PeekThen::Claim,
                (false, true) => PeekThen::Discard,
                (false, false) => PeekThen::Leave,
            };
            // Messages that have reached our sockets count as arrived, and a loop of peeks must drive the endpoint.
            active.moved = active.transport.progress();
            let wanted = Wanted { entry: true, peek: true, ..wanted };
            active.transport.peek(matching, then, wanted.with(context));
            return Ok(());
        }
        let least = multi.then(|| endpoint.min_multi_recv.load(Ordering::Relaxed));
        let index = multi.then(|| active.multi.add(start));
        let user = Wanted { multi: index, ..wanted }.with(context);
        let result = active.transport.receive(RecvOp { matching, buffer, multi: least, user });
        if let (Err(_), Some(index)) = (&result, index) {
            active.multi.remove(index);
        }
        result.map_err(of_not_begun)
    })
}
