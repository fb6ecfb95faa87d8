//! Queries a provider's offer: `fi_getinfo` as a consumer inside a provider must call it.
//!
//! `FI_PROVIDER=landbridge` makes MPI use our provider, and hides all others from every caller of `fi_getinfo`, us
//! included. We cannot change the variable while threads run, nor add a second provider to it: MPICH takes the first
//! that fits, which is never ours. So we use libfabric's own mechanism for providers that are layered over others:
//!
//! - Before the program starts, the variable is set to [`mpis_choice`], such as `landbridge,verbs;landbridge`. A
//!   layered name makes libfabric load the provider below, `verbs`, but the answer to MPI has only whole matches:
//!   `landbridge`.
//! - We call `fi_getinfo` with the flag `OFI_GETINFO_INTERNAL`, whose answer is not filtered by the variable.
//!
//! The flag is not in libfabric's manual pages; tested with 1.17, 2.4 and 2.5. A libfabric that does not know it offers
//! nothing, which we report.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::abi::constants::*;
use crate::abi::info::{fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info};
use crate::call::Fault;
use crate::library::{Libfabric, text};

/// The API version that this code is written for.
pub(crate) const API: u32 = version(1, 9);
const INTERNAL: u64 = 1 << 58;
const HIDDEN: u64 = 1 << 60;

/// The value of `FI_PROVIDER` that makes MPI use our provider and leaves `fabric` to us.
pub fn mpis_choice(fabric: &str) -> String {
    let core = fabric.split(';').next().unwrap_or(fabric);
    format!("landbridge,{core};landbridge")
}

/// A provider's offer: a reliable datagram endpoint that keeps messages in order and queues messages that do not fit.
#[derive(Debug)]
pub struct ProviderOffer {
    library: Libfabric,
    info: *mut fi_info,
}

// SAFETY: the structures belong to the offer alone; nothing in libfabric ties them to a thread.
unsafe impl Send for ProviderOffer {}

impl ProviderOffer {
    /// The best offer of a provider: prefers, among several networks, the one that has `address`, then the provider
    /// itself over one layered over it (`verbs` before `verbs;ofi_rxm`).
    pub(crate) fn find(library: &Libfabric, provider: &str, address: Option<IpAddr>) -> Result<ProviderOffer, Fault> {
        let all = List::get(library, Some(provider))?;
        let rank = |info: &fi_info| {
            // SAFETY: an answer of libfabric, whose attributes are not null (`List::iter`).
            let name = unsafe { provider_of(info) }.unwrap_or_default();
            let exact = name == provider || (provider.contains(';') && name.starts_with(provider));
            let ours = name.split(';').any(|part| part == "landbridge");
            let matching = name == provider || name.split(';').next() == Some(provider);
            let near = address.is_some() && source_of(info) == address;
            (!ours && (matching || exact)).then_some((near, exact))
        };
        let best = all.iter().filter_map(|info| rank(info).map(|rank| (rank, info)));
        // The first of equals wins: libfabric lists the faster networks first.
        let best = best.reduce(|best, other| if other.0 > best.0 { other } else { best });
        let Some((_, info)) = best else { return Err(library.fault("fi_getinfo", -i64::from(libc::ENODATA))) };
        // SAFETY: copies one entry of the list.
        let info = unsafe { (library.dupinfo)(info) };
        if info.is_null() {
            return Err(library.fault("fi_dupinfo", -i64::from(libc::ENOMEM)));
        }
        Ok(ProviderOffer { library: library.clone(), info })
    }

    /// The provider's full name, such as `verbs;ofi_rxm`.
    pub fn provider(&self) -> String {
        // SAFETY: an answer of libfabric.
        unsafe { provider_of(&*self.info) }.unwrap_or_default()
    }

    pub(crate) fn info(&self) -> *mut fi_info {
        self.info
    }

    /// The parts of the answer.
    pub(crate) fn parts(&self) -> (&fi_info, &fi_ep_attr, &fi_domain_attr) {
        // SAFETY: `find` chose an entry whose attributes are not null (`List::iter`); they live as long as the entry.
        unsafe { (&*self.info, &*(*self.info).ep_attr, &*(*self.info).domain_attr) }
    }

    pub(crate) fn fabric_attr(&self) -> *mut fi_fabric_attr {
        // SAFETY: as above.
        unsafe { (*self.info).fabric_attr }
    }
}

impl Drop for ProviderOffer {
    fn drop(&mut self) {
        // SAFETY: made by this library, and freed once.
        unsafe { (self.library.freeinfo)(self.info) };
    }
}

/// Names of the providers that this library offers on this machine, for messages.
pub(crate) fn names(library: &Libfabric) -> Vec<String> {
    let Ok(list) = List::get(library, None) else { return Vec::new() };
    // SAFETY: answers of libfabric.
    let names = list.iter().filter_map(|info| unsafe { provider_of(info) });
    let mut names: Vec<String> = names.filter(|name| name != "landbridge").collect();
    names.sort();
    names.dedup();
    names
}

/// A list returned by `fi_getinfo`.
struct List<'a> {
    library: &'a Libfabric,
    first: *mut fi_info,
}

impl List<'_> {
    fn get<'a>(library: &'a Libfabric, provider: Option<&str>) -> Result<List<'a>, Fault> {
        // SAFETY: with null it allocates an empty structure.
        let hints = unsafe { (library.dupinfo)(std::ptr::null()) };
        if hints.is_null() {
            return Err(library.fault("fi_allocinfo", -i64::from(libc::ENOMEM)));
        }
        let mut first = std::ptr::null_mut();
        // SAFETY: `fi_dupinfo` allocates the structure with its attributes, in this library's layout, which begins like
        // ours. `fi_freeinfo` frees the name, so `strdup` allocates it.
        let code = unsafe {
            let info = &mut *hints;
            info.caps = FI_MSG;
            info.mode = FI_CONTEXT | FI_CONTEXT2;
            (*info.ep_attr).r#type = FI_EP_RDM;
            (*info.tx_attr).msg_order = FI_ORDER_SAS;
            (*info.rx_attr).msg_order = FI_ORDER_SAS;
            let domain = &mut *info.domain_attr;
            domain.threading = FI_THREAD_DOMAIN;
            (domain.control_progress, domain.data_progress) = (FI_PROGRESS_MANUAL, FI_PROGRESS_MANUAL);
            domain.resource_mgmt = FI_RM_ENABLED;
            domain.av_type = FI_AV_TABLE;
            domain.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
            if let Some(name) = provider.and_then(|name| std::ffi::CString::new(name).ok()) {
                (*info.fabric_attr).prov_name = libc::strdup(name.as_ptr());
            }
            let code = (library.getinfo)(API, std::ptr::null(), std::ptr::null(), INTERNAL | HIDDEN, hints, &mut first);
            (library.freeinfo)(hints);
            code
        };
        match code {
            0 => Ok(List { library, first }),
            code => Err(library.fault("fi_getinfo", code)),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &fi_info> {
        // SAFETY: libfabric ends its lists with null, and a list lives until it is freed.
        let first = unsafe { self.first.as_ref() };
        // SAFETY: as above.
        let all = std::iter::successors(first, |info| unsafe { info.next.as_ref() });
        all.filter(|info| {
            !info.ep_attr.is_null()
                && !info.domain_attr.is_null()
                && !info.fabric_attr.is_null()
                && !info.tx_attr.is_null()
                && !info.rx_attr.is_null()
        })
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: made by this library, and freed once.
        unsafe { (self.library.freeinfo)(self.first) };
    }
}

/// # Safety
/// `info` is an answer of libfabric.
unsafe fn provider_of(info: &fi_info) -> Option<String> {
    // SAFETY: the caller's promise: null, or a structure whose name is null or a text.
    unsafe { info.fabric_attr.as_ref().and_then(|attr| text(attr.prov_name)) }
}

/// IP address of an offer's network, if it has one.
fn source_of(info: &fi_info) -> Option<IpAddr> {
    let format = info.addr_format;
    if info.src_addr.is_null() || !matches!(format, FI_SOCKADDR | FI_SOCKADDR_IN | FI_SOCKADDR_IN6) {
        return None;
    }
    // SAFETY: the answer has `src_addrlen` bytes at this address.
    let bytes = unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) };
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    match family {
        // In a `sockaddr_in` the address is in the second four bytes.
        libc::AF_INET => Some(Ipv4Addr::from(*bytes.get(4..)?.first_chunk::<4>()?).into()),
        // In a `sockaddr_in6` it comes after the flow label.
        libc::AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(*bytes.get(8..)?.first_chunk::<16>()?)).to_canonical()),
        _ => None,
    }
}
