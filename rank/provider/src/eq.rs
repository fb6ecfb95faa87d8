//! `fid_eq`: an event queue. None of our operations reports events there, so it holds only events that its users write.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::abi::border::{Behind, Object, array, behind, guard, hand_out, take_back, write_out, write_text};
use crate::abi::constants::{FI_CLASS_EQ, FI_PEEK, FI_WAIT_UNSPEC};
use crate::abi::events::{fi_eq_attr, fi_eq_err_entry};
use crate::abi::objects::{fi_ops, fi_ops_eq, fid, fid_eq, fid_fabric};
use crate::cq::timeout;
use crate::errno::{Code, EAGAIN, EINVAL, ETOOSMALL, Errno};
use crate::fabric_object::{Fabric, fabric_behind};
use crate::waitable::WaitObject;

/// Polling interval of a waiting reader whose queue has no descriptor.
const SLICE: Duration = Duration::from_millis(1);

/// An event queue.
pub(crate) struct Eq {
    events: Mutex<VecDeque<(u32, Vec<u8>)>>,
    wait: WaitObject,
    _fabric: Arc<Fabric>,
}

impl Eq {
    fn events(&self) -> MutexGuard<'_, VecDeque<(u32, Vec<u8>)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event, removed unless `peek`.
    ///
    /// # Errors
    /// `FI_EAGAIN`: there is none. `FI_ETOOSMALL`: it is longer than `room`, and stays.
    fn read(&self, room: usize, peek: bool) -> Result<(u32, Vec<u8>), Errno> {
        let mut events = self.events();
        match events.front() {
            None => Err(EAGAIN),
            Some((_, bytes)) if bytes.len() > room => Err(ETOOSMALL),
            Some(event) if peek => Ok(event.clone()),
            Some(_) => events.pop_front().ok_or(EAGAIN),
        }
    }

    fn push(&self, kind: u32, bytes: Vec<u8>) {
        self.events().push_back((kind, bytes));
        self.wait.signal();
    }

    /// `fi_trywait`: events written from now on make the descriptor readable.
    ///
    /// # Errors
    /// `FI_EAGAIN`: there is an event. `FI_EINVAL`: the queue has no descriptor.
    pub(crate) fn try_wait(&self) -> Result<(), Errno> {
        self.wait.obtain()?.begin();
        if self.events().is_empty() { Ok(()) } else { Err(EAGAIN) }
    }

    /// Sleeps until an event may be there, at most for `time`.
    fn sleep(&self, time: Duration) {
        match self.wait.obtain() {
            Ok(wait) => {
                if self.try_wait().is_ok() {
                    wait.sleep(time);
                }
            }
            Err(_) => std::thread::sleep(time.min(SLICE)),
        }
    }
}

impl Behind for Eq {
    const CLASS: usize = FI_CLASS_EQ;
    type Fid = fid_eq;
}

static FID_OPS: fi_ops = fi_ops { close, control, ..fi_ops::REFUSING };
static OPS: fi_ops_eq = fi_ops_eq { read, readerr, write, sread, strerror, ..fi_ops_eq::REFUSING };

/// `fi_eq_open`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live fabric.
        let (fabric, _) = unsafe { fabric_behind(fabric) }?;
        // SAFETY: the caller passes null or a valid structure.
        let kind = unsafe { attr.as_ref() }.map_or(FI_WAIT_UNSPEC, |attr| attr.wait_obj);
        let wait = WaitObject::new(kind)?;
        let fid = fid { fclass: FI_CLASS_EQ, context, ops: &FID_OPS };
        let eq = Eq { events: Mutex::default(), wait, _fabric: fabric.clone() };
        // SAFETY: the caller passes a place for the result.
        unsafe { write_out(out, hand_out(fid_eq { fid, ops: &OPS }, eq)) }
    })
    .code()
}

unsafe extern "C" fn read(eq: *mut fid_eq, event: *mut u32, buffer: *mut c_void, length: usize, flags: u64) -> isize {
    // SAFETY: reading is `sread` with a timeout of zero.
    unsafe { sread(eq, event, buffer, length, 0, flags) }
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    millis: c_int,
    flags: u64,
) -> isize {
    let result = guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let eq: &Object<Eq> = unsafe { behind(eq) }?;
        if buffer.is_null() || event.is_null() {
            return Err(EINVAL);
        }
        let (start, timeout) = (Instant::now(), timeout(millis));
        let (kind, bytes) = loop {
            match eq.inner.read(length, flags & FI_PEEK != 0) {
                Err(EAGAIN) => match timeout.map(|timeout| timeout.saturating_sub(start.elapsed())) {
                    Some(Duration::ZERO) => return Err(EAGAIN),
                    left => eq.inner.sleep(left.unwrap_or(Duration::MAX)),
                },
                result => break result?,
            }
        };
        // SAFETY: the caller passes places for the kind and `length` bytes; the event has no more.
        unsafe {
            event.write(kind);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), bytes.len());
        }
        Ok(bytes.len() as isize)
    });
    result.unwrap_or_else(|errno| Err(errno).code())
}

unsafe extern "C" fn write(eq: *mut fid_eq, event: u32, buffer: *const c_void, length: usize, flags: u64) -> isize {
    let result = guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let eq: &Object<Eq> = unsafe { behind(eq) }?;
        if flags != 0 {
            return Err(EINVAL);
        }
        // SAFETY: the caller passes `length` bytes.
        let bytes = unsafe { array(buffer.cast::<u8>(), length) }?;
        eq.inner.push(event, bytes.to_vec());
        Ok(length as isize)
    });
    result.unwrap_or_else(|errno| Err(errno).code())
}

/// We report no errors through event queues.
unsafe extern "C" fn readerr(_: *mut fid_eq, _: *mut fi_eq_err_entry, _: u64) -> isize {
    Err(EAGAIN).code()
}

unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    number: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    guard(|| {
        // SAFETY: libfabric's caller passes null or a buffer of that length.
        unsafe { write_text(buffer, length, &format!("error {number}")) };
        c"event failed".as_ptr()
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: libfabric's caller promises a live object.
        let eq: &Object<Eq> = unsafe { behind(fid) }?;
        // SAFETY: the caller passes a place for the command's result.
        unsafe { eq.inner.wait.control(command, argument) }
    })
    .code()
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: closing is the last use of an object, libfabric's caller promises.
    guard(|| unsafe { take_back::<Eq>(fid) }.map(drop)).code()
}
