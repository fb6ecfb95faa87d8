//! What libpmix asks of its host, as values.
//!
//! The library calls on a thread of its own and must get its thread back at once, so each upcall is copied and handed to the
//! sink; what needs time is answered later, from any thread, by [`Answer`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::abi::{
    App, ERR_NOT_FOUND, ERR_NOT_SUPPORTED, ERROR, Info, ModexCallback, Module, OPERATION_SUCCEEDED, OpCallback, Proc,
    RANK_WILDCARD, SUCCESS, SpawnCallback, Status,
};

/// Who takes part in a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Every rank of the job.
    All,
    /// These, in the order in which they were named.
    Some(Vec<u32>),
}

/// Something that a rank of this node did or wants.
#[derive(Debug)]
pub enum Upcall {
    /// It has connected: it is in `MPI_Init`.
    Connected {
        /// Who.
        rank: u32,
    },
    /// It is in `MPI_Finalize`.
    Finalised {
        /// Who.
        rank: u32,
    },
    /// It called `MPI_Abort`.
    Aborted {
        /// Who.
        rank: u32,
        /// The code it gave.
        code: i32,
        /// Its message, possibly empty.
        message: String,
    },
    /// All of this node's ranks among `ranks` are in a fence. The answer is everybody's data, one after the other.
    Fence {
        /// Who takes part.
        ranks: Ranks,
        /// What this node's ranks contribute.
        data: Vec<u8>,
        /// Where the answer goes.
        answer: Answer,
    },
    /// A rank of this node wants what a rank of another node has published (*direct modex*).
    Modex {
        /// Whose data.
        rank: u32,
        /// Where the answer goes.
        answer: Answer,
    },
    /// It called `MPI_Comm_spawn`, and was told that this is not supported.
    SpawnRefused {
        /// Who.
        rank: u32,
        /// The program it wanted.
        program: String,
    },
}

/// The way back to a rank that waits. Must be given, or the rank waits as long as the job lives.
pub struct Answer {
    callback: ModexCallback,
    token: *mut c_void,
}

// SAFETY: the token means something to the library only, and the library lets its host answer on any thread: both callbacks
// that end up here only queue the answer for the library's own thread (`modex_cbfunc`, `dmdx_cbfunc`).
unsafe impl Send for Answer {}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

impl Answer {
    /// Gives the data, or (`None`) says that there is none.
    pub fn give(self, data: Option<Vec<u8>>) {
        let status = if data.is_some() { SUCCESS } else { ERR_NOT_FOUND };
        let data = Box::new(data.unwrap_or_default());
        let (bytes, length) = (data.as_ptr().cast(), data.len());
        // SAFETY: the library calls `release` once it has read the bytes, and only then are they freed. The token is its own
        // and is used once, because `self` is consumed.
        unsafe { (self.callback)(status, bytes, length, self.token, Some(release), Box::into_raw(data).cast()) };
    }
}

/// Frees an answer's data.
unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: `data` is the box that `Answer::give` let go of, and the library hands it over once.
    drop(unsafe { Box::from_raw(data.cast::<Vec<u8>>()) });
}

/// Where upcalls go, for the job of this name.
pub(crate) struct Sink {
    pub namespace: String,
    pub deliver: Box<dyn Fn(Upcall) + Send + Sync>,
}

/// The library has one host per process, and its upcalls carry no pointer of ours.
pub(crate) static SINK: OnceLock<Sink> = OnceLock::new();

/// The functions that the library is given. A panic in one of them ends the process: none may unwind into C.
pub(crate) const MODULE: Module = Module {
    client_connected: None,
    client_finalized: Some(finalised),
    abort: Some(aborted),
    fence_nb: Some(fence),
    direct_modex: Some(modex),
    publish_lookup_unpublish: [None; 3],
    spawn: Some(spawn),
    connect_to_stdin: [None; 16],
    group: None,
    fabric: None,
    client_connected2: Some(connected),
    later: [None; 36],
};

fn deliver(upcall: Upcall) -> Status {
    match SINK.get() {
        Some(sink) => {
            (sink.deliver)(upcall);
            SUCCESS
        }
        None => ERROR,
    }
}

/// The rank that `process` is in our job; `None` for a process of another.
///
/// # Safety
/// `process` is null or points to a process identifier.
unsafe fn rank_of(process: *const Proc) -> Option<u32> {
    // SAFETY: the caller's promise.
    let process = unsafe { process.as_ref() }?;
    let name: Vec<u8> = process.namespace.iter().take_while(|c| **c != 0).map(|c| *c as u8).collect();
    let ours = SINK.get().is_some_and(|sink| sink.namespace.as_bytes() == name);
    ours.then_some(process.rank)
}

/// # Safety
/// `text` is null or a C string.
unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

unsafe extern "C" fn connected(
    process: *const Proc,
    _object: *mut c_void,
    _infos: *mut Info,
    _count: usize,
    _callback: Option<OpCallback>,
    _token: *mut c_void,
) -> Status {
    // SAFETY: the library passes a valid identifier.
    let Some(rank) = (unsafe { rank_of(process) }) else { return ERR_NOT_SUPPORTED };
    deliver(Upcall::Connected { rank });
    OPERATION_SUCCEEDED
}

unsafe extern "C" fn finalised(
    process: *const Proc,
    _object: *mut c_void,
    _callback: Option<OpCallback>,
    _token: *mut c_void,
) -> Status {
    // SAFETY: the library passes a valid identifier.
    let Some(rank) = (unsafe { rank_of(process) }) else { return ERR_NOT_SUPPORTED };
    deliver(Upcall::Finalised { rank });
    OPERATION_SUCCEEDED
}

unsafe extern "C" fn aborted(
    process: *const Proc,
    _object: *mut c_void,
    status: c_int,
    message: *const c_char,
    _processes: *mut Proc,
    _count: usize,
    _callback: Option<OpCallback>,
    _token: *mut c_void,
) -> Status {
    // SAFETY: the library passes a valid identifier, and a C string or null.
    let (rank, message) = unsafe { (rank_of(process), text_of(message)) };
    let Some(rank) = rank else { return ERR_NOT_SUPPORTED };
    // MPI may end more than the processes named, and a job without some of its ranks is of no use.
    deliver(Upcall::Aborted { rank, code: status, message });
    OPERATION_SUCCEEDED
}

unsafe extern "C" fn fence(
    processes: *const Proc,
    count: usize,
    _infos: *const Info,
    _info_count: usize,
    data: *mut c_char,
    length: usize,
    callback: Option<ModexCallback>,
    token: *mut c_void,
) -> Status {
    let Some(callback) = callback else { return ERROR };
    // SAFETY: the library passes `count` identifiers.
    let ranks: Option<Vec<u32>> = (0..count).map(|at| unsafe { rank_of(processes.wrapping_add(at)) }).collect();
    let Some(ranks) = ranks.filter(|ranks| !ranks.is_empty()) else { return ERR_NOT_SUPPORTED };
    let ranks = if ranks.contains(&RANK_WILDCARD) { Ranks::All } else { Ranks::Some(ranks) };
    let data = if data.is_null() {
        Vec::new()
    } else {
        // SAFETY: the library passes `length` bytes, which stay its own and are copied here.
        unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }.to_vec()
    };
    deliver(Upcall::Fence { ranks, data, answer: Answer { callback, token } })
}

unsafe extern "C" fn modex(
    process: *const Proc,
    _infos: *const Info,
    _count: usize,
    callback: Option<ModexCallback>,
    token: *mut c_void,
) -> Status {
    // SAFETY: the library passes a valid identifier.
    match (unsafe { rank_of(process) }, callback) {
        (Some(rank), Some(callback)) if rank != RANK_WILDCARD => {
            deliver(Upcall::Modex { rank, answer: Answer { callback, token } })
        }
        _ => ERR_NOT_FOUND,
    }
}

unsafe extern "C" fn spawn(
    process: *const Proc,
    _infos: *const Info,
    _info_count: usize,
    apps: *const App,
    count: usize,
    _callback: Option<SpawnCallback>,
    _token: *mut c_void,
) -> Status {
    // SAFETY: the library passes a valid identifier and `count` programs with a C string or null for a name.
    let (rank, program) = unsafe {
        let first = if count == 0 { None } else { apps.as_ref() };
        (rank_of(process), first.map_or(String::new(), |app| text_of(app.command)))
    };
    if let Some(rank) = rank {
        deliver(Upcall::SpawnRefused { rank, program });
    }
    ERR_NOT_SUPPORTED
}
