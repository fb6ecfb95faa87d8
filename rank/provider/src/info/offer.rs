//! Negotiation: compares hints with our capabilities. Pure.

use endpoint::operation::MAX_ATOMIC;

use crate::abi::constants::*;
use crate::av::Format;
use crate::info::{INJECT_SIZE, IOV_LIMIT, MAX_MESSAGE, QUEUE_SIZE, RMA_IOV_LIMIT};

/// Primary capabilities: with hints, only the named ones are granted.
const PRIMARY: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
/// Directions: all that the granted primary capabilities have, unless the hints name some.
const DIRECTIONS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Granted only if named.
const ON_REQUEST: u64 = FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE;
/// Always granted.
const ALWAYS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM;
const ALL: u64 = PRIMARY | DIRECTIONS | ON_REQUEST | ALWAYS;

/// Capabilities of the sending side.
pub(super) const TX_CAPS: u64 = PRIMARY | FI_SEND | FI_READ | FI_WRITE;
/// Capabilities of the receiving side.
pub(super) const RX_CAPS: u64 = PRIMARY | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | ON_REQUEST;

/// Each pair of endpoints has one sequence, and messages and operations take effect in that order. Two cases break it.
/// A message may wait for credit while later reads and writes pass it (no `RAS`, `WAS`). And the bytes of a read leave
/// the target when its socket takes them, maybe after a later write or message (no `WAR`, `SAR`; atomics are copied at
/// once).
pub(super) const MSG_ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_SAW
    | FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_WAW
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_ALL;
/// Longest operation for which a write stays behind an earlier read, in bytes: that of an atomic.
pub(super) const MAX_ORDER_WAR: usize = MAX_ATOMIC;

/// Hints; a zero means "anything".
#[derive(Debug, Default)]
pub(super) struct Hints {
    pub caps: u64,
    pub tx_caps: u64,
    pub rx_caps: u64,
    pub domain_caps: u64,
    pub addr_format: u32,
    pub tx_op_flags: u64,
    pub rx_op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub queue_size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
    pub ep_type: i32,
    pub protocol: u32,
    pub max_msg_size: usize,
    pub max_order_size: usize,
    pub max_order_war_size: usize,
    pub mem_tag_format: u64,
    pub contexts: usize,
    pub auth_key_size: usize,
    pub threading: i32,
    pub control_progress: i32,
    pub data_progress: i32,
    pub av_type: i32,
    pub mr_mode: i32,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub mr_iov_limit: usize,
}

/// The fields that differ between replies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub caps: u64,
    pub addr_format: Format,
    pub tx_op_flags: u64,
    pub rx_op_flags: u64,
    pub queue_size: usize,
    /// Smallest inject size that the program accepts.
    pub inject_size: usize,
    pub tclass: u32,
    pub mem_tag_format: u64,
    pub threading: i32,
    pub control_progress: i32,
    pub data_progress: i32,
    pub av_type: i32,
    pub mr_mode: i32,
}

fn unless_zero<T: Default + PartialEq>(hint: T, otherwise: T) -> T {
    if hint == T::default() { otherwise } else { hint }
}

/// The reply to hints, or to none. `ipv6`: true if addresses must have room for IPv6.
///
/// # Errors
/// The requested feature that we do not have.
pub(super) fn negotiate(api: u32, hints: Option<&Hints>, ipv6: bool) -> Result<Offer, &'static str> {
    let none = Hints::default();
    let hints = hints.unwrap_or(&none);
    check(hints)?;
    Ok(Offer {
        caps: capabilities(hints.caps),
        addr_format: Format::of(hints.addr_format, ipv6),
        tx_op_flags: hints.tx_op_flags,
        rx_op_flags: hints.rx_op_flags,
        queue_size: unless_zero(hints.queue_size, QUEUE_SIZE),
        inject_size: hints.inject_size,
        tclass: hints.tclass,
        // Any 64 bits can be a tag. The newer named formats are echoed; patterns get the widest one.
        mem_tag_format: match hints.mem_tag_format {
            format @ 1..FI_TAG_MAX_FORMAT => format,
            _ => FI_TAG_GENERIC,
        },
        // MPICH expects the model that it asked for; our endpoint satisfies all models.
        threading: unless_zero(hints.threading, FI_THREAD_SAFE),
        control_progress: unless_zero(hints.control_progress, FI_PROGRESS_MANUAL),
        data_progress: unless_zero(hints.data_progress, FI_PROGRESS_MANUAL),
        // A program that names no kind gets "either": with FI_AV_TABLE in the reply it would number addresses itself.
        av_type: hints.av_type,
        mr_mode: mr_mode(api, hints.mr_mode)?,
    })
}

fn capabilities(asked: u64) -> u64 {
    if asked == 0 {
        return ALL;
    }
    let directions = |primary: u64, directions: u64| {
        let named = asked & directions;
        if asked & primary == 0 { 0 } else { unless_zero(named, directions) }
    };
    asked
        | directions(FI_MSG | FI_TAGGED, FI_SEND | FI_RECV)
        | directions(FI_RMA | FI_ATOMIC, FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
        | ALWAYS
}

/// Before 1.5 an application named one of two modes. Since then it lists the modes that it can support, and we need
/// none of them.
fn mr_mode(api: u32, asked: i32) -> Result<i32, &'static str> {
    let old = FI_MR_BASIC | FI_MR_SCALABLE;
    match asked & old {
        0 if api < version(1, 5) => Ok(FI_MR_SCALABLE),
        0 => Ok(0),
        mode if mode == old => Err("two memory registration modes at once"),
        mode => Ok(mode),
    }
}

fn check(hints: &Hints) -> Result<(), &'static str> {
    let known_format = [FI_FORMAT_UNSPEC, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR_IP, FI_ADDR_STR];
    for (fits, reason) in [
        (hints.caps & !ALL == 0, "a capability we do not have"),
        (hints.tx_caps & !(TX_CAPS | ALWAYS) == 0, "a sending capability we do not have"),
        (hints.rx_caps & !(RX_CAPS | ALWAYS) == 0, "a receiving capability we do not have"),
        (hints.domain_caps & !ALWAYS == 0, "a capability of the domain that we do not have"),
        (
            known_format.contains(&hints.addr_format),
            "an address format other than FI_SOCKADDR_IN, FI_SOCKADDR_IN6 and FI_ADDR_STR",
        ),
        (matches!(hints.ep_type, FI_EP_UNSPEC | FI_EP_RDM), "an endpoint type other than FI_EP_RDM"),
        (matches!(hints.protocol, 0 | LANDBRIDGE_PROTOCOL), "another protocol"),
        (hints.msg_order & !MSG_ORDER == 0, "an order we do not keep"),
        (hints.comp_order == 0, "ordered completions"),
        (hints.inject_size <= INJECT_SIZE, "a larger inject_size"),
        (hints.iov_limit <= IOV_LIMIT, "a larger iov_limit"),
        (hints.rma_iov_limit <= RMA_IOV_LIMIT, "a larger rma_iov_limit"),
        (hints.queue_size <= 1 << 20, "longer queues"),
        (hints.max_msg_size <= MAX_MESSAGE, "a larger max_msg_size"),
        (hints.max_order_size <= MAX_MESSAGE, "a larger max_order_*_size"),
        (hints.max_order_war_size <= MAX_ORDER_WAR, "a larger max_order_war_size"),
        (hints.contexts <= 1, "several contexts per endpoint"),
        (hints.auth_key_size == 0, "authorisation keys"),
        (hints.mr_key_size <= 8, "a larger mr_key_size"),
        (hints.cq_data_size <= 8, "a larger cq_data_size"),
        (hints.mr_iov_limit <= 1, "a larger mr_iov_limit"),
    ] {
        if !fits {
            return Err(reason);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
