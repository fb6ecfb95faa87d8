//! A rank's part in a coupling: `lb_side`, and its fetches: `lb_side_fetch`.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use couple::side::{Alone, JoinError, JoinRequest, NoCommand, Ranks, RanksError, Side};
use couple::{CallError, ExchangeError, FetchId, Patience, Variable};
use plan::redistribution::{Description, Layout, Mapping, Transfer};

use crate::dtype::Dtype;
use crate::error::{Code, Problem, at_border};
use crate::layout::LayoutOf;
use crate::overlap::check_apart;
use crate::pointers::{free, given, hand_out, put, slice, text};
use crate::transfer::{SelectOf, hash, mapping};

/// `lb_ranks`.
#[repr(C)]
pub(crate) struct RanksOf {
    rank: i32,
    size: i32,
    context: *mut c_void,
    broadcast: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, i64) -> c_int>,
    gather: Option<unsafe extern "C" fn(*mut c_void, *const c_void, i64, *mut c_void) -> c_int>,
}

/// `lb_side`.
pub(crate) struct SideOf {
    side: Side,
    other: CString,
    rank: u32,
    size: u32,
}

/// `lb_side_fetch`.
pub(crate) struct Fetch {
    name: String,
    version: u64,
    layout: Layout,
    mapping: Mapping,
    strides: Vec<i64>,
    dtype: Dtype,
    into: *mut c_void,
    id: Option<FetchId>,
    has_arrived: bool,
}

impl RanksOf {
    fn bytes(&mut self, bytes: &mut [u8]) -> Result<(), RanksError> {
        let call = self.broadcast.ok_or_else(|| RanksError("ranks: broadcast is NULL".to_owned()))?;
        // SAFETY: the caller's function; the buffer has as many bytes as the argument states.
        let code = unsafe { call(self.context, bytes.as_mut_ptr().cast(), bytes.len() as i64) };
        checked(code)
    }

    fn all(&mut self, own: &[u8]) -> Result<Vec<u8>, RanksError> {
        let call = self.gather.ok_or_else(|| RanksError("ranks: gather is NULL".to_owned()))?;
        let mut all = vec![0; own.len() * self.size as usize];
        // SAFETY: the caller's function; `own` has as many bytes as the argument states, and `all` has room for as many
        // from each rank.
        let code = unsafe { call(self.context, own.as_ptr().cast(), own.len() as i64, all.as_mut_ptr().cast()) };
        checked(code)?;
        Ok(all)
    }
}

fn checked(code: c_int) -> Result<(), RanksError> {
    match code {
        0 => Ok(()),
        _ => Err(RanksError(format!("the ranks of this side cannot reach each other: code {code}"))),
    }
}

/// Each operation exchanges the lengths first, then the bytes.
impl Ranks for RanksOf {
    fn rank(&self) -> u32 {
        self.rank as u32
    }

    fn broadcast(&mut self, mut bytes: Vec<u8>) -> Result<Vec<u8>, RanksError> {
        let mut length = (bytes.len() as u64).to_ne_bytes();
        self.bytes(&mut length)?;
        bytes.resize(u64::from_ne_bytes(length) as usize, 0);
        self.bytes(&mut bytes)?;
        Ok(bytes)
    }

    fn gather(&mut self, mut own: Vec<u8>) -> Result<Vec<Vec<u8>>, RanksError> {
        let lengths = self.all(&(own.len() as u64).to_ne_bytes())?;
        let lengths: Vec<usize> =
            lengths.chunks_exact(8).map(|length| length.try_into().map_or(0, u64::from_ne_bytes) as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        own.resize(longest, 0);
        let all = self.all(&own)?;
        Ok(lengths.iter().enumerate().map(|(at, length)| all[at * longest..][..*length].to_vec()).collect())
    }
}

/// The path of the command `landbridge`: beside this library, or in the PATH.
fn command() -> Result<PathBuf, NoCommand> {
    let own = library();
    let beside = own.as_deref().and_then(Path::parent).into_iter();
    let beside = beside.flat_map(|folder| [folder.join("landbridge"), folder.join("../bin/landbridge")]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = beside.chain(std::env::split_paths(&path).map(|folder| folder.join("landbridge")));
    all.find(|file| file.is_file()).ok_or_else(|| {
        let folder =
            own.as_deref().and_then(Path::parent).map_or("nowhere".into(), |folder| folder.display().to_string());
        NoCommand(format!("there is no command landbridge in PATH, and none beside liblandbridge.so, in {folder}"))
    })
}

/// The path of this library's file.
fn library() -> Option<PathBuf> {
    // SAFETY: all zeros are a valid value of this type.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the arguments are the address of a function of this library and room for the answer.
    if unsafe { libc::dladdr(lb_side_join as *const c_void, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the dynamic linker's text, which lasts as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// Calls `work` with a time limit of this many seconds; negative: no limit.
fn patient<T>(timeout: f64, work: impl FnOnce(&mut Patience<'_>) -> Result<T, Problem>) -> Result<T, Problem> {
    let limit = match timeout < 0.0 {
        true => None,
        false => {
            let invalid = |e| Problem::invalid(format_args!("timeout is {timeout}: {e}"));
            Some(Duration::try_from_secs_f64(timeout).map_err(invalid)?)
        }
    };
    work(&mut Patience { limit, stop: &mut || false })
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Problem {
        let code = match &error {
            CallError::Slow { .. } => Code::Timeout,
            CallError::Exchange(ExchangeError::Over(_) | ExchangeError::Refused { .. }) => Code::Over,
            _ => Code::Invalid,
        };
        Problem { code, text: error.to_string() }
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_join(
    ranks: *const RanksOf,
    name: *const c_char,
    site: *const c_char,
    timeout: f64,
    made: *mut *mut SideOf,
) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let (ranks, name, site) = unsafe {
            let site = if site.is_null() { None } else { Some(text(site, "site")?.to_owned()) };
            (ranks.as_ref(), text(name, "name")?.to_owned(), site)
        };
        let (rank, size) = ranks.map_or((0, 1), |ranks| (ranks.rank, ranks.size));
        if !(0..size).contains(&rank) {
            return Err(Problem::invalid(format_args!("ranks: rank is {rank}, of {size}")));
        }
        let request = JoinRequest { name, site, command: command() };
        let mut of = ranks.map(|ranks| RanksOf { ..*ranks });
        let mut alone = Alone;
        let of: &mut dyn Ranks = of.as_mut().map_or(&mut alone, |ranks| ranks);
        let side = patient(timeout, |patience| {
            Side::join(of, &request, patience).map_err(|error| {
                let code = if matches!(error, JoinError::Slow { .. }) { Code::Timeout } else { Code::Over };
                Problem { code, text: error.to_string() }
            })
        })?;
        let other = CString::new(side.other.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, SideOf { side, other, rank: rank as u32, size: size as u32 }, "side") }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_other(side: *const SideOf) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { side.as_ref() }.map_or(c"".as_ptr(), |side| side.other.as_ptr())
}

impl SideOf {
    /// Returns true if this rank is a process of the layout.
    fn has_part(&self, layout: &Layout) -> Result<bool, Problem> {
        let (processes, size) = (layout.processes(), self.size);
        if processes > size {
            let text = format_args!("the layout is for {processes} processes, but this side has {size} ranks");
            return Err(Problem::invalid(text));
        }
        Ok(self.rank < processes)
    }

    /// Checks that an array's address is null if this rank has no part of the layout, and not null if it has a part
    /// with elements. Returns true if it has a part.
    fn check(&self, name: &str, layout: &Layout, array: *const c_void) -> Result<bool, Problem> {
        let has_part = self.has_part(layout)?;
        if !has_part && !array.is_null() {
            let text = format_args!("{name} is given, but this rank is no process of the layout: it must be NULL");
            return Err(Problem::invalid(text));
        }
        if has_part && array.is_null() && !layout.local_shape(self.rank).contains(&0) {
            let text = format_args!("{name} is NULL, but this rank is process {} of the layout", self.rank);
            return Err(Problem::invalid(text));
        }
        Ok(has_part)
    }

    /// # Safety
    /// `strides` is null, or points to one stride for each axis.
    unsafe fn strides(&self, layout: &Layout, strides: *const i64, element: usize) -> Result<Vec<i64>, Problem> {
        match (self.has_part(layout)?, strides.is_null()) {
            (false, _) => Ok(vec![0; layout.axes()]),
            (true, true) => Ok(layout.strides(self.rank, element)),
            // SAFETY: the caller's promise.
            (true, false) => Ok(unsafe { slice(strides, layout.axes(), "strides") }?.to_vec()),
        }
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_room(
    side: *const SideOf,
    layout: *const LayoutOf,
    dtype: *const c_char,
    a: *const c_void,
    budget: i64,
    timeout: f64,
) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let (side, layout, dtype) =
            unsafe { (given(side, "side")?, LayoutOf::known(layout, "layout")?, Dtype::read(text(dtype, "dtype")?)?) };
        let elements = match side.check("a", layout, a)? {
            true => layout.local_shape(side.rank).iter().product::<u64>(),
            false => 0,
        };
        let bytes = usize::try_from(elements).unwrap_or(usize::MAX).saturating_mul(dtype.size);
        let budget = usize::try_from(budget).unwrap_or(usize::MAX);
        patient(timeout, |patience| Ok(side.side.coupling.wait_for_room(bytes, budget, patience)?))
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_export(
    side: *const SideOf,
    name: *const c_char,
    version: u64,
    layout: *const LayoutOf,
    dtype: *const c_char,
    a: *const c_void,
    strides: *const i64,
) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let (side, name, layout) = (given(side, "side")?, text(name, "name")?, LayoutOf::known(layout, "layout")?);
            let dtype = Dtype::read(text(dtype, "dtype")?)?;
            side.check("a", layout, a)?;
            let strides = side.strides(layout, strides, dtype.size)?;
            let variable = Variable { dtype: dtype.described(), element: dtype.size, layout: layout.clone() };
            Ok(side.side.coupling.export((name, version), variable, (a.cast(), &strides))?)
        }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_variable(
    side: *const SideOf,
    name: *const c_char,
    timeout: f64,
    dtype: *mut c_char,
    length: i64,
    made: *mut *mut LayoutOf,
) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let (side, name) = unsafe { (given(side, "side")?, text(name, "name")?) };
        let found = patient(timeout, |patience| Ok(side.side.coupling.variable(name, patience)?))?;
        let shown = found.dtype.trim_matches('\'').as_bytes();
        if shown.len() as i64 >= length {
            return Err(Problem::invalid(format_args!("dtype has no room for {}", found.dtype)));
        }
        for (at, byte) in shown.iter().chain(&[0]).enumerate() {
            // SAFETY: the caller's promise: there is room for `length`.
            unsafe { put(dtype.wrapping_add(at), *byte as c_char, "dtype") }?;
        }
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, LayoutOf::Known(found.layout), "layout") }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_fetch_create(
    side: *const SideOf,
    name: *const c_char,
    version: u64,
    layout: *const LayoutOf,
    dtype: *const c_char,
    select: *const SelectOf,
    into: *mut c_void,
    strides: *const i64,
    timeout: f64,
    made: *mut *mut Fetch,
) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let (side, name, layout, dtype, select) = unsafe {
            let dtype = Dtype::read(text(dtype, "dtype")?)?;
            (given(side, "side")?, text(name, "name")?, LayoutOf::known(layout, "layout")?, dtype, select.as_ref())
        };
        let coupling = &side.side.coupling;
        let has_part = side.check("into", layout, into)?;
        if select.is_none() {
            // Most likely both arrays have the same shape. This early wish lets the other side pack the variable for
            // this fetch when it exports it.
            // SAFETY: no pointers are passed.
            coupling.wish(name, layout, &unsafe { mapping(None, layout, layout) }?);
        }
        let found = patient(timeout, |patience| Ok(coupling.variable(name, patience)?))?;
        if found.dtype != dtype.described() {
            let text =
                format_args!("{name} has dtype {}, not '{}': C fetches what was exported", found.dtype, dtype.text);
            return Err(Problem::invalid(text));
        }
        // SAFETY: the caller's promise.
        let (mapping, strides) =
            unsafe { (mapping(select, &found.layout, layout)?, side.strides(layout, strides, dtype.size)?) };
        if has_part {
            check_apart(&layout.local_shape(side.rank), &strides, dtype.size)?;
        }
        Transfer::new(found.layout, layout.clone(), &mapping).map_err(Problem::invalid)?;
        let fetch = Fetch {
            name: name.to_owned(),
            version,
            layout: layout.clone(),
            mapping,
            strides,
            dtype,
            into,
            id: None,
            has_arrived: false,
        };
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, fetch, "fetch") }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_fetch_hash(fetch: *const Fetch) -> u64 {
    // SAFETY: the caller's promise.
    let Some(fetch) = (unsafe { fetch.as_ref() }) else { return 0 };
    hash(&(&fetch.name, fetch.version, Description::of(&fetch.layout), &fetch.mapping, &fetch.dtype.text))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_export_hash(
    name: *const c_char,
    version: u64,
    layout: *const LayoutOf,
    dtype: *const c_char,
) -> u64 {
    // SAFETY: the caller's promise.
    let read = || unsafe {
        let dtype = Dtype::read(text(dtype, "dtype")?)?;
        Ok::<_, Problem>((
            text(name, "name")?,
            version,
            Description::of(LayoutOf::known(layout, "layout")?),
            dtype.text,
        ))
    };
    read().map_or(0, |all| hash(&all))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_fetch_begin(side: *const SideOf, fetch: *mut Fetch) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let (side, fetch) = unsafe { (given(side, "side")?, fetch.as_mut()) };
        let fetch = fetch.ok_or_else(|| Problem::invalid("fetch is NULL"))?;
        let local = (fetch.strides.as_slice(), fetch.dtype.size);
        let id = side.side.coupling.fetch(&fetch.name, fetch.version, &fetch.layout, &fetch.mapping, local)?;
        fetch.id = Some(id);
        Ok(())
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_fetch_take(side: *const SideOf, fetch: *mut Fetch, timeout: f64) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let (side, fetch) = unsafe { (given(side, "side")?, fetch.as_mut()) };
        let fetch = fetch.ok_or_else(|| Problem::invalid("fetch is NULL"))?;
        let id = fetch.id.ok_or_else(|| Problem::invalid("this fetch was not begun"))?;
        patient(timeout, |patience| {
            while !fetch.has_arrived {
                let arrived = side.side.coupling.next(id, patience)?;
                fetch.has_arrived = arrived.is_empty();
                // SAFETY: the caller's promise: the array is the one that the fetch was created for.
                unsafe { side.side.coupling.unpack(arrived.iter(), fetch.into.cast()) };
            }
            Ok(())
        })
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_fetch_free(fetch: *mut *mut Fetch) {
    // SAFETY: the caller's promise.
    unsafe { free(fetch) }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_finish(side: *const SideOf, timeout: f64) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let side = unsafe { given(side, "side") }?;
        patient(timeout, |patience| Ok(side.side.coupling.finish(patience)?))
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_side_end(side: *mut *mut SideOf, reason: *const c_char, failed: i32) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(of) = side.as_ref().and_then(|side| side.as_ref()) {
            let reason = text(reason, "reason").unwrap_or("it is done");
            if failed != 0 {
                of.side.coupling.leave(reason);
            }
            of.side.end(reason);
        }
        free(side);
    }
}

/// Sleeps for this many microseconds, or lets other threads run: for `landbridge_mpi.h`, where a waiting MPI library
/// would occupy the core.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn lb_nap(microseconds: i64) {
    match u64::try_from(microseconds) {
        Ok(microseconds @ 1..) => std::thread::sleep(Duration::from_micros(microseconds)),
        _ => std::thread::yield_now(),
    }
}
