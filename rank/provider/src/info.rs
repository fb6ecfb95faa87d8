//! `fi_getinfo`: describes our offer if it meets the caller's hints.
//!
//! There is one offer: a reliable datagram endpoint (`FI_EP_RDM`) that has every capability we have. Hints narrow it.
//! The tests list the hints of each MPI library.

mod offer;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use types::Address;

use crate::abi::border::{allocate, allocate_bytes, allocate_text, guard, text, write_out};
use crate::abi::constants::*;
use crate::abi::info::{fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr};
use crate::av::{self, Format};
use crate::domain::configuration;
use crate::errno::{Code, ENODATA, Errno};
use crate::log;
use endpoint::Config;
use offer::{Hints, Offer};

/// The one fabric.
pub(crate) const FABRIC_NAME: &CStr = c"landbridge";
/// Its one domain.
pub(crate) const DOMAIN_NAME: &CStr = c"landbridge0";
/// Maximum length of an injected message, in bytes. We announce less, see [`endpoint::EndpointLimits::inject`].
pub(crate) const INJECT_SIZE: usize = types::settings::MOST_INJECT as usize;
/// Maximum length of a message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1 << 40;
/// Queue depth that we announce. Our queues grow; a careful user relies on this depth.
pub(crate) const QUEUE_SIZE: usize = 1024;
/// Maximum number of pieces of a local buffer.
pub(crate) const IOV_LIMIT: usize = memory::buffer::MAX_PIECES;
/// Maximum number of pieces of a remote buffer.
pub(crate) const RMA_IOV_LIMIT: usize = 1;
/// Maximum length of an error's text, in bytes.
const MAX_ERROR_TEXT: usize = 1024;

/// Returns true if a name in hints is null or `expected`.
///
/// # Safety
/// `name` is null or a C string.
pub(crate) unsafe fn is_name(name: *const c_char, expected: &CStr) -> bool {
    // SAFETY: the caller's promise.
    name.is_null() || unsafe { CStr::from_ptr(name) } == expected
}

/// `fi_getinfo`.
///
/// # Safety
/// Called by libfabric's core with valid arguments.
pub(crate) unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    guard(|| {
        // SAFETY: the core passes a place for the result.
        unsafe { write_out(out, null_mut()) }?;
        // SAFETY: null or valid hints.
        let read = unsafe { hints.as_ref().map(|hints| read_hints(hints)) }.transpose();
        let api = (version >> 16, version & 0xFFFF);
        let refuse = |reason: &str| {
            log::note(format_args!("getinfo for API {}.{}: no: {reason}", api.0, api.1));
            ENODATA
        };
        let read = read.map_err(refuse)?;
        // SAFETY: null or C strings.
        let name = unsafe { (text(node), text(service)) };
        let (config, ..) = configuration()?;
        let named = named(&config, name)?;
        let ipv4_only = read.as_ref().is_some_and(|hints| hints.addr_format == FI_SOCKADDR_IN);
        let ipv6 = config.ipv6 || named.is_some_and(|address| address.socket.is_ipv6());
        // In a job, programs name no addresses themselves: they take the length of their own address. See `av::format`.
        if ipv4_only && ipv6 && config.job.is_none() {
            return Err(refuse("FI_SOCKADDR_IN for an IPv6 address"));
        }
        let offer = offer::negotiate(version, read.as_ref(), ipv6).map_err(refuse)?;
        // SAFETY: null or valid hints.
        let (source, destination) = addresses(&config, named, flags, unsafe { hints.as_ref() });
        log::note(format_args!("getinfo for API {}.{}: caps {:#x}", api.0, api.1, offer.caps));
        // SAFETY: as above.
        unsafe { write_out(out, build(version, &config, &offer, source, destination)?) }
    })
    .code()
}

/// Maximum length of an injected message, in bytes, for a program that asks for `wanted` bytes.
pub(crate) fn inject_size(config: &Config, wanted: usize) -> usize {
    (config.limits.inject as usize).max(wanted).min(INJECT_SIZE)
}

/// Resolves the address that the caller named, if any.
///
/// # Errors
/// `FI_ENODATA`: the name cannot be resolved.
fn named(config: &Config, name: (Option<&str>, Option<&str>)) -> Result<Option<Address>, Errno> {
    let (node, service) = match name {
        (None, None) => return Ok(None),
        (node, service) => (node, service.unwrap_or("")),
    };
    let own = config.listen.ip();
    let address = match node {
        Some(node) => av::named(node, service, own),
        None => av::named(&own.to_string(), service, own),
    };
    let unresolved = || {
        log::note(format_args!("getinfo: cannot resolve {}:{service}", node.unwrap_or_default()));
        ENODATA
    };
    address.ok_or_else(unresolved).map(Some)
}

/// Returns the address to listen on, and the peer that the caller named.
fn addresses(
    config: &Config,
    named: Option<Address>,
    flags: u64,
    hints: Option<&fi_info>,
) -> (Address, Option<Address>) {
    // Addresses in hints have the hints' own format, or else the format of our earlier answer.
    let format = hints.map_or(Format::default(), |hints| Format::of(hints.addr_format, config.ipv6));
    // SAFETY: hints are valid, and their addresses have the stated lengths.
    let hinted = |address: *const c_void, length: usize| unsafe { format.read(address, length) };
    let source = hints.and_then(|hints| hinted(hints.src_addr, hints.src_addrlen));
    let destination = hints.and_then(|hints| hinted(hints.dest_addr, hints.dest_addrlen));
    let own = Address::standalone(config.listen);
    match named {
        Some(named) if flags & FI_SOURCE != 0 => (named, destination),
        Some(named) => (source.unwrap_or(own), Some(named)),
        None => (source.unwrap_or(own), destination),
    }
}

/// Reads hints: only fields of the oldest layout.
///
/// # Safety
/// `info` is valid, and its attributes are null or valid.
unsafe fn read_hints(info: &fi_info) -> Result<Hints, &'static str> {
    let mut hints = Hints { caps: info.caps, addr_format: info.addr_format, ..Hints::default() };
    if !info.handle.is_null() {
        return Err("a handle");
    }
    // SAFETY: the caller's promise.
    let (tx, rx, ep) = unsafe { (info.tx_attr.as_ref(), info.rx_attr.as_ref(), info.ep_attr.as_ref()) };
    if let Some(tx) = tx {
        hints.tx_caps = tx.caps;
        hints.tx_op_flags = tx.op_flags;
        hints.msg_order |= tx.msg_order;
        hints.comp_order |= tx.comp_order;
        hints.inject_size = tx.inject_size;
        hints.queue_size = hints.queue_size.max(tx.size);
        hints.iov_limit = hints.iov_limit.max(tx.iov_limit);
        hints.rma_iov_limit = tx.rma_iov_limit;
        hints.tclass = tx.tclass;
    }
    if let Some(rx) = rx {
        hints.rx_caps = rx.caps;
        hints.rx_op_flags = rx.op_flags;
        hints.msg_order |= rx.msg_order;
        hints.comp_order |= rx.comp_order;
        hints.queue_size = hints.queue_size.max(rx.size);
        hints.iov_limit = hints.iov_limit.max(rx.iov_limit);
    }
    if let Some(ep) = ep {
        hints.ep_type = ep.r#type;
        hints.protocol = ep.protocol;
        hints.max_msg_size = ep.max_msg_size;
        hints.max_order_size = ep.max_order_raw_size.max(ep.max_order_waw_size);
        hints.max_order_war_size = ep.max_order_war_size;
        hints.mem_tag_format = ep.mem_tag_format;
        hints.contexts = ep.tx_ctx_cnt.max(ep.rx_ctx_cnt);
        hints.auth_key_size = ep.auth_key_size;
    }
    // SAFETY: the caller's promise.
    let (domain, fabric) = unsafe { (info.domain_attr.as_ref(), info.fabric_attr.as_ref()) };
    if let Some(domain) = domain {
        // SAFETY: names are null or C strings.
        if !unsafe { is_name(domain.name, DOMAIN_NAME) } {
            return Err("another domain's name");
        }
        hints.domain_caps = domain.caps;
        hints.threading = domain.threading;
        hints.control_progress = domain.control_progress;
        hints.data_progress = domain.data_progress;
        hints.av_type = domain.av_type;
        hints.mr_mode = domain.mr_mode;
        hints.mr_key_size = domain.mr_key_size;
        hints.cq_data_size = domain.cq_data_size;
        hints.mr_iov_limit = domain.mr_iov_limit;
    }
    if let Some(fabric) = fabric
        // SAFETY: as above.
        && !unsafe { is_name(fabric.name, FABRIC_NAME) }
    {
        return Err("another fabric's name");
    }
    Ok(hints)
}

/// Builds the reply; the core frees all of it.
fn build(
    version: u32,
    config: &Config,
    offer: &Offer,
    source: Address,
    destination: Option<Address>,
) -> Result<*mut fi_info, Errno> {
    // An early return leaks memory only when none is left, and then the process will not last.
    let info = allocate::<fi_info>()?;
    let (tx, rx) = (allocate::<fi_tx_attr>()?, allocate::<fi_rx_attr>()?);
    let (ep, domain, fabric) =
        (allocate::<fi_ep_attr>()?, allocate::<fi_domain_attr>()?, allocate::<fi_fabric_attr>()?);
    // SAFETY: just allocated, zeroed, which is a valid value of these plain structures.
    let (info_ref, tx_ref, rx_ref) = unsafe { (&mut *info, &mut *tx, &mut *rx) };
    // SAFETY: as above.
    let (ep_ref, domain_ref, fabric_ref) = unsafe { (&mut *ep, &mut *domain, &mut *fabric) };

    info_ref.caps = offer.caps;
    info_ref.addr_format = offer.addr_format.number();
    let source = offer.addr_format.write(source);
    info_ref.src_addr = allocate_bytes(&source)?;
    info_ref.src_addrlen = source.len();
    if let Some(destination) = destination {
        let destination = offer.addr_format.write(destination);
        info_ref.dest_addr = allocate_bytes(&destination)?;
        info_ref.dest_addrlen = destination.len();
    }
    (info_ref.tx_attr, info_ref.rx_attr, info_ref.ep_attr) = (tx, rx, ep);
    (info_ref.domain_attr, info_ref.fabric_attr) = (domain, fabric);

    tx_ref.caps = offer.caps & offer::TX_CAPS;
    tx_ref.op_flags = offer.tx_op_flags;
    tx_ref.msg_order = offer::MSG_ORDER;
    tx_ref.inject_size = inject_size(config, offer.inject_size);
    tx_ref.size = offer.queue_size;
    tx_ref.iov_limit = IOV_LIMIT;
    tx_ref.rma_iov_limit = if offer.caps & (FI_RMA | FI_ATOMIC) == 0 { 0 } else { RMA_IOV_LIMIT };
    tx_ref.tclass = offer.tclass;

    rx_ref.caps = offer.caps & offer::RX_CAPS;
    rx_ref.op_flags = offer.rx_op_flags;
    rx_ref.msg_order = offer::MSG_ORDER;
    rx_ref.size = offer.queue_size;
    rx_ref.iov_limit = IOV_LIMIT;

    ep_ref.r#type = FI_EP_RDM;
    ep_ref.protocol = LANDBRIDGE_PROTOCOL;
    ep_ref.protocol_version = 1;
    ep_ref.max_msg_size = MAX_MESSAGE;
    ep_ref.max_order_raw_size = MAX_MESSAGE;
    ep_ref.max_order_war_size = offer::MAX_ORDER_WAR;
    ep_ref.max_order_waw_size = MAX_MESSAGE;
    ep_ref.mem_tag_format = offer.mem_tag_format;
    ep_ref.tx_ctx_cnt = 1;
    ep_ref.rx_ctx_cnt = 1;

    domain_ref.name = allocate_text(DOMAIN_NAME)?;
    domain_ref.threading = offer.threading;
    domain_ref.control_progress = offer.control_progress;
    domain_ref.data_progress = offer.data_progress;
    domain_ref.resource_mgmt = FI_RM_ENABLED;
    domain_ref.av_type = offer.av_type;
    domain_ref.mr_mode = offer.mr_mode;
    domain_ref.mr_key_size = 8;
    domain_ref.cq_data_size = 8;
    (domain_ref.cq_cnt, domain_ref.ep_cnt, domain_ref.cntr_cnt) = (256, 256, 256);
    (domain_ref.tx_ctx_cnt, domain_ref.rx_ctx_cnt) = (256, 256);
    // One context each: this keeps MPI libraries off scalable endpoints, which we do not have.
    (domain_ref.max_ep_tx_ctx, domain_ref.max_ep_rx_ctx) = (1, 1);
    domain_ref.mr_iov_limit = 1;
    domain_ref.caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
    domain_ref.max_err_data = MAX_ERROR_TEXT;
    domain_ref.mr_cnt = 1 << 16;

    fabric_ref.name = allocate_text(FABRIC_NAME)?;
    fabric_ref.prov_version = crate::VERSION;
    fabric_ref.api_version = version;
    Ok(info)
}
