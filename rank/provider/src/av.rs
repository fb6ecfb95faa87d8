//! `fid_av`: maps small numbers to addresses.
//!
//! Both kinds, `FI_AV_TABLE` and `FI_AV_MAP`, number addresses from 0 and reuse the numbers of removed ones. An address
//! may be inserted several times: matching by sender compares addresses, not numbers, and a sender is reported by the
//! lowest number of its address.

mod format;
mod text;

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use types::Address;
use types::id::{is_link_local, plain};

pub(crate) use format::Format;

use crate::abi::border::{self, Behind, Object, array, behind, guard, hand_out, take_back, write_out, write_text};
use crate::abi::constants::{
    FI_ADDR_NOTAVAIL, FI_AV_TABLE, FI_AV_UNSPEC, FI_AV_USER_ID, FI_CLASS_AV, FI_EVENT, FI_PEER, FI_READ, FI_SYNC_ERR,
};
use crate::abi::events::fi_av_attr;
use crate::abi::objects::{fi_ops, fi_ops_av, fid, fid_av, fid_domain};
use crate::domain::Domain;
use crate::errno::{Code, EADDRNOTAVAIL, EBADFLAGS, EBUSY, EINVAL, ENOSYS, ETOOSMALL, Errno};

/// An address vector.
pub(crate) struct Av {
    table: Mutex<AddressTable>,
    /// Number of removals; each one invalidates caches of the table.
    removals: AtomicU64,
    domain: Arc<Domain>,
}

#[derive(Default)]
struct AddressTable {
    slots: Vec<Option<Address>>,
    /// Free slots below the end, ready for reuse.
    free: Vec<usize>,
    /// The slots of each address ([`Address::key`]), ascending.
    numbers: HashMap<Address, Vec<usize>>,
}

impl AddressTable {
    fn insert(&mut self, address: Address) -> u64 {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[slot] = Some(address);
        let numbers = self.numbers.entry(address.key()).or_default();
        let place = numbers.partition_point(|&number| number < slot);
        numbers.insert(place, slot);
        slot as u64
    }

    fn remove(&mut self, number: u64) -> bool {
        let slot = usize::try_from(number).ok();
        let Some((slot, address)) = slot.and_then(|slot| Some((slot, self.slots.get_mut(slot)?.take()?))) else {
            return false;
        };
        let key = address.key();
        if let Some(numbers) = self.numbers.get_mut(&key) {
            numbers.retain(|&known| known != slot);
            if numbers.is_empty() {
                self.numbers.remove(&key);
            }
        }
        self.free.push(slot);
        true
    }
}

impl Av {
    fn new(domain: Arc<Domain>) -> Av {
        Av { table: Mutex::default(), removals: AtomicU64::new(0), domain }
    }

    fn table(&self) -> MutexGuard<'_, AddressTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A count that changes when an address is removed.
    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// The address under a number.
    pub(crate) fn address(&self, number: u64) -> Option<Address> {
        *self.table().slots.get(usize::try_from(number).ok()?)?
    }

    /// The number of an address, the lowest if it has several.
    pub(crate) fn number(&self, address: Address) -> Option<u64> {
        self.table().numbers.get(&address.key()).map(|numbers| numbers[0] as u64)
    }

    /// Inserts addresses; `None` stands for an invalid one. Calls `report` with each address's index, number and
    /// result. Returns the number of inserted addresses.
    fn insert(
        &self,
        addresses: impl Iterator<Item = Option<Address>>,
        mut report: impl FnMut(usize, u64, Result<(), Errno>),
    ) -> c_int {
        let mut table = self.table();
        let mut inserted = 0;
        for (index, address) in addresses.enumerate() {
            match address {
                Some(address) => {
                    report(index, table.insert(address), Ok(()));
                    inserted += 1;
                }
                None => report(index, FI_ADDR_NOTAVAIL, Err(EINVAL)),
            }
        }
        inserted
    }

    /// Removes the addresses with these numbers.
    ///
    /// # Errors
    /// `FI_EINVAL`: at least one number does not exist; the others are removed.
    fn remove(&self, numbers: &[u64]) -> Result<(), Errno> {
        let mut table = self.table();
        let removed = numbers.iter().filter(|&&number| table.remove(number)).count();
        self.removals.fetch_add(1, Ordering::Release);
        if removed == numbers.len() { Ok(()) } else { Err(EINVAL) }
    }
}

/// Resolves a name and a service (a port number). Prefers an address of `own`'s family.
fn resolve(node: &str, service: &str, own: IpAddr) -> Option<SocketAddr> {
    let port = match service {
        "" => 0,
        number => number.parse::<u16>().ok()?,
    };
    // A bracketed address, as in `[::1]:80`.
    let node = node.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(node);
    let all = (node, port).to_socket_addrs().ok()?.map(plain).filter(|address| !is_link_local(address.ip()));
    // The first address of `own`'s family, or else the first of all.
    all.min_by_key(|address| address.is_ipv4() != own.is_ipv4())
}

/// Resolves a name and a service. The name may also be an address as text, which needs no service. If the name has
/// several addresses, prefers `own`'s family.
pub(crate) fn named(node: &str, service: &str, own: IpAddr) -> Option<Address> {
    if text::is_text(node) { text::read(node) } else { resolve(node, service, own).map(Address::standalone) }
}

/// The `index`-th name of a symmetric range: `node7` and 2 give `node9`. The number of digits is kept; an IP address
/// counts up too.
fn symmetric(name: &str, index: usize) -> Option<String> {
    if text::is_text(name) {
        return (index == 0).then(|| name.to_owned());
    }
    if let Ok(ip) = name.parse::<std::net::Ipv4Addr>() {
        return Some(std::net::Ipv4Addr::from(u32::from(ip).checked_add(u32::try_from(index).ok()?)?).to_string());
    }
    if let Ok(ip) = name.parse::<std::net::Ipv6Addr>() {
        return Some(std::net::Ipv6Addr::from(u128::from(ip).checked_add(index as u128)?).to_string());
    }
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &name[stem.len()..];
    if digits.is_empty() {
        return (index == 0).then(|| name.to_owned());
    }
    let number = digits.parse::<usize>().ok()?.checked_add(index)?;
    Some(format!("{stem}{number:0width$}", width = digits.len()))
}

impl Behind for Arc<Av> {
    const CLASS: usize = FI_CLASS_AV;
    type Fid = fid_av;
}

static FID_OPS: fi_ops = fi_ops { close, ..fi_ops::REFUSING };
static OPS: fi_ops_av = fi_ops_av { insert, insertsvc, insertsym, remove, lookup, straddr, ..fi_ops_av::REFUSING };

/// `fi_av_open`. Shared, asynchronous and user-numbered vectors are refused: we advertise none of them.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live domain.
        let domain: &Object<Arc<Domain>> = unsafe { behind(domain) }?;
        // SAFETY: the caller passes null or a valid structure.
        if let Some(attr) = unsafe { attr.as_mut() } {
            if attr.flags & (FI_EVENT | FI_READ | FI_PEER | FI_AV_USER_ID) != 0
                || !attr.name.is_null()
                || attr.rx_ctx_bits != 0
            {
                return Err(ENOSYS);
            }
            if attr.r#type == FI_AV_UNSPEC {
                attr.r#type = FI_AV_TABLE;
            }
        }
        let fid = fid { fclass: FI_CLASS_AV, context, ops: &FID_OPS };
        // SAFETY: the caller passes a place for the result.
        unsafe { write_out(out, hand_out(fid_av { fid, ops: &OPS }, Arc::new(Av::new(domain.inner.clone())))) }
    })
    .code()
}

/// Output arrays of an insertion: numbers, if wanted, and errors, if the caller passes `FI_SYNC_ERR` and an array.
struct Report {
    numbers: *mut u64,
    errors: *mut c_int,
}

impl Report {
    fn new(numbers: *mut u64, flags: u64, context: *mut c_void) -> Result<Report, Errno> {
        if flags & FI_AV_USER_ID != 0 {
            return Err(EBADFLAGS);
        }
        let errors = if flags & FI_SYNC_ERR != 0 { context.cast() } else { std::ptr::null_mut() };
        Ok(Report { numbers, errors })
    }

    /// # Safety
    /// The arrays given to `new` are null or have more than `index` elements.
    unsafe fn set(&self, index: usize, number: u64, result: Result<(), Errno>) {
        if !self.numbers.is_null() {
            // SAFETY: the caller's promise.
            unsafe { self.numbers.add(index).write(number) };
        }
        if !self.errors.is_null() {
            // SAFETY: the caller's promise.
            unsafe { self.errors.add(index).write(result.err().map_or(0, |errno| errno.0)) };
        }
    }
}

/// Converts to a count or a negated error number.
fn count(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| -errno.0)
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    total: usize,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    count(guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let av: &Object<Arc<Av>> = unsafe { behind(av) }?;
        // SAFETY: the caller passes `total` addresses of the domain's format.
        let addresses = unsafe { av.inner.domain.format.read_all(addresses, total) }?;
        let report = Report::new(numbers, flags, context)?;
        // SAFETY: fi_av(3): the output arrays have `total` elements.
        let set = |index, number, result| unsafe { report.set(index, number, result) };
        Ok(av.inner.insert(addresses.into_iter(), set))
    }))
}

unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, passed on: one node with one service.
    unsafe { insertsym(av, node, 1, service, 1, numbers, flags, context) }
}

unsafe extern "C" fn insertsym(
    av: *mut fid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    count(guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let av: &Object<Arc<Av>> = unsafe { behind(av) }?;
        // SAFETY: the caller passes C strings.
        let (node, service) = unsafe { (border::text(node).ok_or(EINVAL)?, border::text(service)) };
        // An address as text is complete; a name needs a service.
        let service = if text::is_text(node) { "" } else { service.ok_or(EINVAL)? };
        let report = Report::new(numbers, flags, context)?;
        let pairs = (0..nodes).flat_map(|n| (0..services).map(move |s| (n, s)));
        let (own, format) = (av.inner.domain.config.listen.ip(), av.inner.domain.format);
        // The 16-byte format has no room for an IPv6 address.
        let fits = |address: &Address| format != Format::Ipv4 || address.socket.is_ipv4();
        let addresses = pairs.map(|(n, s)| named(&symmetric(node, n)?, &symmetric(service, s)?, own).filter(fits));
        // SAFETY: fi_av(3): the output arrays have an element per node and service.
        let set = |index, number, result: Result<(), Errno>| unsafe {
            report.set(index, number, result.map_err(|_| EADDRNOTAVAIL));
        };
        Ok(av.inner.insert(addresses, set))
    }))
}

unsafe extern "C" fn remove(av: *mut fid_av, numbers: *mut u64, total: usize, _: u64) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let av: &Object<Arc<Av>> = unsafe { behind(av) }?;
        // SAFETY: the caller passes `total` numbers.
        av.inner.remove(unsafe { array(numbers, total) }?)
    })
    .code()
}

/// Copies an address to a buffer of `*length` bytes, cut to fit, and sets `*length` to the address's full length in
/// bytes.
///
/// # Errors
/// `FI_ETOOSMALL`: it was cut. `FI_EINVAL`: null.
///
/// # Safety
/// `length` is null or valid; `buffer` is null or has `*length` bytes.
pub(crate) unsafe fn give_address(
    address: Address,
    format: Format,
    buffer: *mut c_void,
    length: *mut usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let room = *unsafe { length.as_ref() }.ok_or(EINVAL)?;
    let bytes = format.write(address);
    let fitting = room.min(bytes.len());
    if fitting > 0 && buffer.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: `fitting` is no more than the buffer has, and our bytes are our own.
    unsafe {
        if fitting > 0 {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), fitting);
        }
        length.write(bytes.len());
    }
    if fitting < bytes.len() { Err(ETOOSMALL) } else { Ok(()) }
}

unsafe extern "C" fn lookup(av: *mut fid_av, number: u64, buffer: *mut c_void, length: *mut usize) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let av: &Object<Arc<Av>> = unsafe { behind(av) }?;
        let address = av.inner.address(number).ok_or(EINVAL)?;
        // SAFETY: the caller passes a buffer of the length it gives. fi_av(3): a short buffer is no error.
        match unsafe { give_address(address, av.inner.domain.format, buffer, length) } {
            Err(ETOOSMALL) => Ok(()),
            result => result,
        }
    })
    .code()
}

unsafe extern "C" fn straddr(
    av: *mut fid_av,
    address: *const c_void,
    buffer: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    guard(|| {
        if address.is_null() || length.is_null() {
            return std::ptr::null();
        }
        // SAFETY: libfabric's caller promises a live object.
        let av: Result<&Object<Arc<Av>>, Errno> = unsafe { behind(av) };
        let Ok(av) = av else { return std::ptr::null() };
        // SAFETY: the caller passes an address of the domain's format.
        let text = unsafe { av.inner.domain.format.describe(address) };
        // SAFETY: the caller passes a buffer of the length it gives.
        unsafe {
            write_text(buffer, length.read(), &text);
            length.write(text.len() + 1);
        }
        buffer.cast_const()
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let object: &Object<Arc<Av>> = unsafe { behind(fid) }?;
        if Arc::strong_count(&object.inner) > 1 {
            return Err(EBUSY);
        }
        // SAFETY: closing is the last use of an object.
        unsafe { take_back::<Arc<Av>>(fid) }.map(drop)
    })
    .code()
}

#[cfg(test)]
mod tests;
