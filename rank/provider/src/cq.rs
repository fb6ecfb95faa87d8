//! `fid_cq`: a completion queue. Reading it drives the endpoints bound to it.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::border::{Behind, Object, behind, guard, hand_out, write_out, write_text};
use crate::abi::constants::{
    FI_ADDR_NOTAVAIL, FI_CLASS_CQ, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_TAGGED,
    FI_CQ_FORMAT_UNSPEC, FI_PEER, version,
};
use crate::abi::events::{fi_cq_attr, fi_cq_err_entry, fi_cq_err_entry_1_20, fi_cq_tagged_entry};
use crate::abi::objects::{fi_ops, fi_ops_cq, fid, fid_cq, fid_domain};
use crate::bound::Bound;
use crate::domain::Domain;
use crate::errno::{Code, EAGAIN, EAVAIL, EINVAL, ENOSYS, Errno};
use crate::wait_fd::WaitFd;
use crate::waitable::{WaitObject, Waitable, operations};

/// Maximum number of reads in a row that take queued completions without driving the endpoints.
const MOST_SKIPS: u32 = 8;
/// Longest time that a waiting reader keeps an endpoint to itself.
const SLICE: Duration = Duration::from_micros(500);
/// Maximum number of completions for which a new queue reserves room.
const MOST_RESERVED: usize = 1 << 16;

/// A completion as its reader sees it.
#[derive(Clone, Debug)]
pub(crate) struct CompletionEntry {
    /// The user's operation context (a pointer).
    pub context: usize,
    /// Completion flags.
    pub flags: u64,
    /// Bytes.
    pub len: usize,
    /// Start of a multi-receive's message (a pointer).
    pub buf: usize,
    /// Remote completion data.
    pub data: u64,
    /// The tag.
    pub tag: u64,
    /// The sender's number, or `FI_ADDR_NOTAVAIL`.
    pub source: u64,
    /// Set if the operation failed.
    pub error: Option<Box<Detail>>,
}

/// Details of a failed operation.
#[derive(Clone, Debug)]
pub(crate) struct Detail {
    /// The error.
    pub errno: Errno,
    /// Bytes that did not fit.
    pub overflow: usize,
    /// Description of the failure; empty if `errno` is enough.
    pub text: String,
}

/// A completion queue.
pub(crate) struct Cq {
    /// The endpoints that reading drives.
    pub bound: Bound,
    entry_size: usize,
    api: u32,
    queue: Mutex<CompletionQueue>,
    /// Number of entries, so that a reader of an empty queue needs no lock.
    count: AtomicUsize,
    signalled: AtomicBool,
    wait: WaitObject,
    _domain: Arc<Domain>,
}

#[derive(Default)]
struct CompletionQueue {
    entries: VecDeque<CompletionEntry>,
    skips: u32,
    /// The text of the error read last; its reader may still hold a pointer to it.
    last: Option<(c_int, CString)>,
}

impl Cq {
    fn queue(&self) -> MutexGuard<'_, CompletionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the queue, then updates `count`.
    fn change<R>(&self, change: impl FnOnce(&mut CompletionQueue) -> R) -> R {
        let mut queue = self.queue();
        let result = change(&mut queue);
        // Stored before the signal: a signalled reader prepares its wait, then checks this count.
        self.count.store(queue.entries.len(), Ordering::SeqCst);
        result
    }

    /// Adds a completion.
    pub(crate) fn push(&self, entry: CompletionEntry) {
        self.change(|queue| queue.entries.push_back(entry));
        self.wait.signal();
    }

    /// Wakes a thread that waits for this queue, because a wait has to be prepared again.
    pub(crate) fn wake(&self) {
        self.wait.signal();
    }

    /// The descriptor that a program waits on, if it has been opened.
    pub(crate) fn wait_fd(&self) -> Option<&WaitFd> {
        self.wait.get()
    }

    /// Passes up to `most` completions to `give`.
    ///
    /// # Errors
    /// `FI_EAVAIL`: the next one is an error. `FI_EAGAIN`: none is there.
    fn read(&self, most: usize, may_nap: bool, give: impl FnMut(usize, &CompletionEntry)) -> Result<usize, Errno> {
        let result = self.take(most, may_nap, give);
        // Another thread may have been woken for the remaining entries but lost its signal to this thread.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.wait.signal();
        }
        result
    }

    fn take(&self, most: usize, may_nap: bool, mut give: impl FnMut(usize, &CompletionEntry)) -> Result<usize, Errno> {
        if self.count.load(Ordering::Acquire) > 0
            && let Some(result) = self.change(|queue| {
                queue.skips += 1;
                (queue.skips <= MOST_SKIPS && !queue.entries.is_empty()).then(|| queue.take(most, &mut give))
            })
        {
            return result;
        }
        // A reader with completions to read must not nap.
        self.bound.poll(may_nap && self.count.load(Ordering::Acquire) == 0);
        if self.count.load(Ordering::Acquire) == 0 {
            return Err(EAGAIN);
        }
        self.change(|queue| {
            queue.skips = 0;
            queue.take(most, &mut give)
        })
    }

    /// As [`Cq::read`], but waits for up to `timeout` (`None`: no limit) or until signalled.
    fn wait(
        self: &Arc<Self>,
        most: usize,
        timeout: Option<Duration>,
        mut give: impl FnMut(usize, &CompletionEntry),
    ) -> Result<usize, Errno> {
        let start = Instant::now();
        loop {
            let result = self.read(most, false, &mut give);
            if result != Err(EAGAIN) || self.signalled.swap(false, Ordering::SeqCst) {
                return result;
            }
            let left = match timeout.map(|timeout| timeout.checked_sub(start.elapsed())) {
                None => Duration::MAX,
                Some(None | Some(Duration::ZERO)) => return result,
                Some(Some(left)) => left,
            };
            match self.wait.obtain() {
                Ok(wait) => {
                    if self.try_wait().is_ok() && !self.signalled.load(Ordering::SeqCst) {
                        wait.sleep(left);
                    }
                }
                Err(_) => self.bound.wait(left.min(SLICE)),
            }
        }
    }

    /// Takes the next completion if it is an error; its text stays until the next is taken.
    fn take_error<R>(&self, give: impl FnOnce(&CompletionEntry, &Detail, &CStr) -> R) -> Option<R> {
        self.change(|queue| {
            queue.entries.front().filter(|entry| entry.error.is_some())?;
            let entry = queue.entries.pop_front()?;
            let detail = entry.error.as_deref()?;
            let text = CString::new(detail.text.replace('\0', " ")).unwrap_or_default();
            let (_, text) = queue.last.insert((detail.errno.0, text));
            Some(give(&entry, detail, text))
        })
    }

    /// Describes an error number. For the number of the error read last, passes that error's text.
    fn explain<R>(&self, number: c_int, give: impl FnOnce(&CStr) -> R) -> R {
        match &self.queue().last {
            Some((last, text)) if *last == number => give(text),
            _ => give(meaning(number)),
        }
    }
}

impl CompletionQueue {
    fn take(&mut self, most: usize, give: &mut impl FnMut(usize, &CompletionEntry)) -> Result<usize, Errno> {
        let mut taken = 0;
        while taken < most {
            match self.entries.front() {
                Some(entry) if entry.error.is_none() => give(taken, entry),
                Some(_) if taken == 0 => return Err(EAVAIL),
                None if taken == 0 => return Err(EAGAIN),
                _ => break,
            }
            self.entries.pop_front();
            taken += 1;
        }
        Ok(taken)
    }
}

fn meaning(number: c_int) -> &'static CStr {
    use crate::errno as e;
    match Errno(number) {
        e::ETRUNC => c"the message was longer than the buffer",
        e::ECANCELED => c"cancelled",
        e::ENOMSG => c"no such message has arrived",
        e::ECONNRESET => c"the peer is gone or cannot be reached",
        e::ENOKEY => c"the peer has no region with this key",
        e::EACCES => c"the peer's region does not allow this access",
        e::EINVAL => c"outside the peer's region",
        e::EOPNOTSUPP => c"the peer cannot do this operation",
        _ => c"operation failed",
    }
}

/// A timeout in milliseconds; negative: none.
pub(crate) fn timeout(millis: c_int) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

impl Behind for Arc<Cq> {
    const CLASS: usize = FI_CLASS_CQ;
    type Fid = fid_cq;
}

impl Waitable for Arc<Cq> {
    fn bound(&self) -> &Bound {
        &self.bound
    }

    fn wait_object(&self) -> &WaitObject {
        &self.wait
    }

    fn has_news(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }
}

static FID_OPS: fi_ops = operations::<Arc<Cq>>();
static OPS: fi_ops_cq =
    fi_ops_cq { read, readfrom, readerr, sread, sreadfrom, signal, strerror, ..fi_ops_cq::REFUSING };

/// `fi_cq_open`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live domain.
        let domain: &Object<Arc<Domain>> = unsafe { behind(domain) }?;
        // SAFETY: the caller passes null or a valid structure.
        let attr = unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let entry_size = match attr.format {
            FI_CQ_FORMAT_CONTEXT => 8,
            FI_CQ_FORMAT_MSG => 24,
            FI_CQ_FORMAT_DATA => 40,
            FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_TAGGED => size_of::<fi_cq_tagged_entry>(),
            _ => return Err(EINVAL),
        };
        if attr.flags & FI_PEER != 0 {
            return Err(ENOSYS);
        }
        let wait = WaitObject::new(attr.wait_obj)?;
        let size = if attr.size == 0 { 1024 } else { attr.size.min(MOST_RESERVED) };
        let cq = Cq {
            bound: Bound::default(),
            entry_size,
            api: domain.inner.api,
            queue: Mutex::new(CompletionQueue { entries: VecDeque::with_capacity(size), ..CompletionQueue::default() }),
            count: AtomicUsize::new(0),
            signalled: AtomicBool::new(false),
            wait,
            _domain: domain.inner.clone(),
        };
        let fid = fid { fclass: FI_CLASS_CQ, context, ops: &FID_OPS };
        // SAFETY: the caller passes a place for the result.
        unsafe { write_out(out, hand_out(fid_cq { fid, ops: &OPS }, Arc::new(cq))) }
    })
    .code()
}

/// The reader's buffers for completions.
#[derive(Clone, Copy)]
struct ReaderBuffers {
    buffer: *mut c_void,
    sources: *mut u64,
    entry_size: usize,
}

impl ReaderBuffers {
    /// # Safety
    /// The buffer has more than `index` entries of `entry_size` bytes; `sources` is null or has that many numbers.
    unsafe fn put(self, index: usize, entry: &CompletionEntry) {
        let full = fi_cq_tagged_entry {
            op_context: entry.context as *mut c_void,
            flags: entry.flags,
            len: entry.len,
            buf: entry.buf as *mut c_void,
            data: entry.data,
            tag: entry.tag,
        };
        // Every format is the beginning of the longest one.
        // SAFETY: the caller's promise; `entry_size` is at most the size of `full`.
        unsafe {
            let to = self.buffer.cast::<u8>().add(index * self.entry_size);
            std::ptr::copy_nonoverlapping((&raw const full).cast(), to, self.entry_size);
            if !self.sources.is_null() {
                self.sources.add(index).write(entry.source);
            }
        }
    }
}

/// Implements all four read calls. `waiting` is the timeout of a call that waits.
///
/// # Safety
/// Arguments as libfabric's caller passes them to `fi_cq_sreadfrom`.
unsafe fn read_into(
    cq: *mut fid_cq,
    buffer: *mut c_void,
    most: usize,
    sources: *mut u64,
    waiting: Option<c_int>,
) -> isize {
    let result = guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let cq: &Object<Arc<Cq>> = unsafe { behind(cq) }?;
        let cq = &cq.inner;
        if buffer.is_null() && most > 0 {
            return Err(EINVAL);
        }
        let place = ReaderBuffers { buffer, sources, entry_size: cq.entry_size };
        // SAFETY: the caller passes room for `most` entries; `give` gets no more.
        let give = |index: usize, entry: &CompletionEntry| unsafe { place.put(index, entry) };
        match waiting {
            None => cq.read(most, true, give),
            Some(millis) => cq.wait(most, timeout(millis), give),
        }
    });
    match result {
        Ok(taken) => taken as isize,
        Err(errno) => Err(errno).code(),
    }
}

unsafe extern "C" fn read(cq: *mut fid_cq, buffer: *mut c_void, most: usize) -> isize {
    // SAFETY: the caller's arguments, passed on.
    unsafe { read_into(cq, buffer, most, std::ptr::null_mut(), None) }
}

unsafe extern "C" fn readfrom(cq: *mut fid_cq, buffer: *mut c_void, most: usize, sources: *mut u64) -> isize {
    // SAFETY: as above.
    unsafe { read_into(cq, buffer, most, sources, None) }
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buffer: *mut c_void,
    most: usize,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as above.
    unsafe { read_into(cq, buffer, most, std::ptr::null_mut(), Some(timeout)) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buffer: *mut c_void,
    most: usize,
    sources: *mut u64,
    _: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as above.
    unsafe { read_into(cq, buffer, most, sources, Some(timeout)) }
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, out: *mut fi_cq_err_entry, _: u64) -> isize {
    let result = guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let cq: &Object<Arc<Cq>> = unsafe { behind(cq) }?;
        let cq = &cq.inner;
        if out.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes a structure of its API version's size.
        cq.take_error(|entry, detail, text| unsafe { put_error(out, cq.api, entry, detail, text) }).ok_or(EAGAIN)
    });
    match result {
        Ok(()) => 1,
        Err(errno) => Err(errno).code(),
    }
}

/// # Safety
/// `out` is valid for the structure of that API version; since 1.5, its `err_data` and `err_data_size` are set.
unsafe fn put_error(out: *mut fi_cq_err_entry, api: u32, entry: &CompletionEntry, detail: &Detail, text: &CStr) {
    // SAFETY: these fields are there in all versions.
    unsafe {
        (*out).op_context = entry.context as *mut c_void;
        (*out).flags = entry.flags;
        (*out).len = entry.len;
        (*out).buf = entry.buf as *mut c_void;
        (*out).data = entry.data;
        (*out).tag = entry.tag;
        (*out).olen = detail.overflow;
        (*out).err = detail.errno.0;
        (*out).prov_errno = detail.errno.0;
    }
    let bytes = if text.is_empty() { &[] } else { text.to_bytes_with_nul() };
    // fi_cq(3): a caller without a buffer gets a pointer to ours, which stays valid until the next read of the queue.
    // SAFETY: `err_data` exists in all versions, the other fields in the versions that the conditions select.
    unsafe {
        if api < version(1, 5) {
            (*out).err_data = bytes.as_ptr().cast_mut().cast();
            return;
        }
        let room = (*out).err_data_size;
        if bytes.is_empty() {
            (*out).err_data_size = 0;
        } else if room == 0 {
            (*out).err_data = bytes.as_ptr().cast_mut().cast();
            (*out).err_data_size = bytes.len();
        } else if (*out).err_data.is_null() {
            (*out).err_data_size = 0;
        } else {
            write_text((*out).err_data.cast(), room, &text.to_string_lossy());
            (*out).err_data_size = bytes.len().min(room);
        }
        if api >= version(1, 20) {
            (*out.cast::<fi_cq_err_entry_1_20>()).src_addr = FI_ADDR_NOTAVAIL;
        }
    }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let cq: &Object<Arc<Cq>> = unsafe { behind(cq) }?;
        cq.inner.signalled.store(true, Ordering::SeqCst);
        cq.inner.wake();
        Ok(())
    })
    .code()
}

unsafe extern "C" fn strerror(
    cq: *mut fid_cq,
    number: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let cq: Result<&Object<Arc<Cq>>, Errno> = unsafe { behind(cq) };
        let give = |text: &CStr| {
            // SAFETY: the caller passes null or a buffer of that length.
            unsafe { write_text(buffer, length, &text.to_string_lossy()) };
            text.as_ptr()
        };
        match cq {
            Ok(cq) => cq.inner.explain(number, give),
            Err(_) => give(meaning(number)),
        }
    })
}

#[cfg(test)]
mod tests;
