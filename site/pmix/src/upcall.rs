//! Upcalls of libpmix to its host, as values.
//!
//! The library calls on a thread of its own and must get its thread back at once. So each upcall is copied and passed
//! to the sink; slow answers are given later, from any thread, through [`Answer`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::OnceLock;

use crate::abi::{
    App, ERR_NOT_FOUND, ERR_NOT_SUPPORTED, ERROR, GROUP_CONSTRUCT, Info, InfoCallback, ModexCallback, Module,
    OPERATION_SUCCEEDED, OpCallback, Proc, RANK_WILDCARD, SUCCESS, SpawnCallback, Status, key, kind,
};
use crate::table::InfoTable;

/// The participants of a fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ranks {
    /// Every rank of the job.
    All,
    /// These ranks, in the order in which the library named them.
    Some(Vec<u32>),
}

/// An action or request of a rank of this node.
#[derive(Debug)]
pub enum Upcall {
    /// The rank has connected: it is in `MPI_Init`.
    Connected { rank: u32 },
    /// The rank is in `MPI_Finalize`.
    Finalised { rank: u32 },
    /// The rank called `MPI_Abort`.
    Aborted {
        rank: u32,
        /// The code passed to `MPI_Abort`.
        code: i32,
        /// Its message, possibly empty.
        message: String,
    },
    /// All of this node's ranks among `ranks` are in a fence. The answer is the concatenated data of all participants.
    Fence {
        /// The participants.
        ranks: Ranks,
        /// The data of this node's ranks.
        data: Vec<u8>,
        /// Takes the answer.
        answer: Answer,
    },
    /// All of this node's ranks among `ranks` construct or destruct a PMIx group. The answer is as for a fence, and for
    /// a constructed group also a number that is unique among the groups of the job.
    Group {
        /// The group's name, preceded by the operation (construct or destruct): together they distinguish this
        /// operation from others of the same ranks.
        name: String,
        /// The participants.
        ranks: Ranks,
        /// The data of this node's ranks.
        data: Vec<u8>,
        /// Takes the answer.
        answer: GroupAnswer,
    },
    /// A rank of this node requests the data that a rank of another node has published (*direct modex*).
    Modex {
        /// The rank whose data is requested.
        rank: u32,
        /// Takes the answer.
        answer: Answer,
    },
    /// The rank called `MPI_Comm_spawn`; the answer was that this is not supported.
    SpawnRefused {
        rank: u32,
        /// The requested program.
        program: String,
    },
    /// The rank published a name or looked one up, as in `MPI_Publish_name` or `MPI_Comm_accept`; the answer was that
    /// this is not supported.
    NamesRefused { rank: u32 },
}

/// The answer to a waiting rank. It must be given, or the rank waits until the job ends.
pub struct Answer {
    callback: ModexCallback,
    token: *mut c_void,
}

// SAFETY: only the library interprets the token, and the library lets its host answer on any thread: both callbacks
// that are called here only queue the answer for the library's own thread (`modex_cbfunc`, `dmdx_cbfunc`).
unsafe impl Send for Answer {}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

impl Answer {
    /// Sends the data, or with `None` the status "not found".
    pub fn give(self, data: Option<Vec<u8>>) {
        let status = if data.is_some() { SUCCESS } else { ERR_NOT_FOUND };
        let data = Box::new(data.unwrap_or_default());
        // An empty vector's pointer is not null, but the library checks for null.
        let bytes = if data.is_empty() { std::ptr::null() } else { data.as_ptr().cast() };
        let length = data.len();
        // SAFETY: the library calls `release` once it has read the bytes, and only then are they freed. The token is
        // its own and is used once, because `self` is consumed.
        unsafe { (self.callback)(status, bytes, length, self.token, Some(release), Box::into_raw(data).cast()) };
    }
}

/// The answer to ranks that construct or destruct a PMIx group.
pub struct GroupAnswer {
    callback: InfoCallback,
    token: *mut c_void,
    /// For a constructed group: all its processes.
    members: Option<Vec<Proc>>,
}

// SAFETY: as for `Answer`; the callback is `grpcbfunc`, which only queues the answer for the library's own thread.
unsafe impl Send for GroupAnswer {}

impl fmt::Debug for GroupAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupAnswer")
    }
}

impl GroupAnswer {
    /// Sends the data of all participants and the group's number.
    pub fn give(self, data: Vec<u8>, number: u32) {
        let mut table = Box::new(InfoTable::default());
        if let Some(members) = self.members {
            table.processes(key::GROUP_MEMBERSHIP, members);
            table.size(key::GROUP_CONTEXT_ID, number as usize);
            if !data.is_empty() {
                table.bytes(key::GROUP_ENDPT_DATA, &data);
            }
        }
        let (entries, count) = table.entries();
        // SAFETY: the library calls `release_table` once it has read the entries, and only then are they freed. The
        // token is its own and is used once, because `self` is consumed.
        unsafe {
            (self.callback)(SUCCESS, entries, count, self.token, Some(release_table), Box::into_raw(table).cast());
        }
    }

    /// Answers that the group cannot be constructed.
    pub fn refuse(self) {
        // SAFETY: the token is the library's own and is used once, because `self` is consumed.
        unsafe { (self.callback)(ERROR, std::ptr::null_mut(), 0, self.token, None, std::ptr::null_mut()) };
    }
}

/// Frees the entries of an answer.
unsafe extern "C" fn release_table(table: *mut c_void) {
    // SAFETY: `table` is the box that `GroupAnswer::give` released, and the library passes it here once.
    drop(unsafe { Box::from_raw(table.cast::<InfoTable>()) });
}

/// Frees an answer's data.
unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: `data` is the box that `Answer::give` released, and the library passes it here once.
    drop(unsafe { Box::from_raw(data.cast::<Vec<u8>>()) });
}

/// The receiver of upcalls, for the job with this namespace.
pub(crate) struct Sink {
    pub namespace: String,
    pub deliver: Box<dyn Fn(Upcall) + Send + Sync>,
}

/// Global, because the library has one host per process and its upcalls carry no pointer of ours.
pub(crate) static SINK: OnceLock<Sink> = OnceLock::new();

/// The functions for a major version of the library. Groups are supported only for version 5: version 4 leaves out the
/// members, which Open MPI 5 then misses, and version 6 requires the ranks' data in another form.
pub(crate) fn module(major: u32) -> Module {
    Module { group: MODULE.group.filter(|_| major == 5), ..MODULE }
}

/// The functions passed to the library. A panic in one of them ends the process, because none may unwind into C.
const MODULE: Module = Module {
    client_connected: None,
    client_finalized: Some(finalised),
    abort: Some(aborted),
    fence_nb: Some(fence),
    direct_modex: Some(modex),
    publish: Some(publish),
    lookup: Some(look_up),
    unpublish: Some(look_up),
    spawn: Some(spawn),
    connect_to_stdin: [None; 16],
    group: Some(group),
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

/// The rank of `process` in our job; `None` for a process of another job.
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

/// The ranks of these processes in our job; `None` if there are none, or one belongs to another job.
///
/// # Safety
/// `processes` points to `count` process identifiers.
unsafe fn ranks_of(processes: *const Proc, count: usize) -> Option<Ranks> {
    // SAFETY: the caller's promise.
    let ranks: Option<Vec<u32>> = (0..count).map(|at| unsafe { rank_of(processes.wrapping_add(at)) }).collect();
    let ranks = ranks.filter(|ranks| !ranks.is_empty())?;
    Some(if ranks.contains(&RANK_WILDCARD) { Ranks::All } else { Ranks::Some(ranks) })
}

/// # Safety
/// `data` is null or points to `length` bytes.
unsafe fn bytes_of(data: *const c_char, length: usize) -> Vec<u8> {
    if data.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }.to_vec()
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
    // Ends the whole job: MPI may end more than the named processes, and a job without some of its ranks is useless.
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
    // SAFETY: the library passes `count` identifiers, and `length` bytes, which it keeps and which are copied here.
    let (ranks, data) = unsafe { (ranks_of(processes, count), bytes_of(data, length)) };
    let Some(ranks) = ranks else { return ERR_NOT_SUPPORTED };
    deliver(Upcall::Fence { ranks, data, answer: Answer { callback, token } })
}

unsafe extern "C" fn group(
    operation: c_int,
    name: *mut c_char,
    processes: *const Proc,
    count: usize,
    infos: *const Info,
    info_count: usize,
    callback: Option<InfoCallback>,
    token: *mut c_void,
) -> Status {
    let Some(callback) = callback else { return ERROR };
    let made = operation == GROUP_CONSTRUCT;
    let mut data = Vec::new();
    let mut local = false;
    // SAFETY: the library passes a C string, `count` identifiers and `info_count` entries; an entry's kind identifies
    // the member of its union.
    let (name, ranks) = unsafe {
        for at in 0..info_count {
            let info = &*infos.add(at);
            let is = |key: &CStr| info.key.iter().zip(key.to_bytes_with_nul()).all(|(a, b)| *a as u8 == *b);
            local |= is(key::GROUP_LOCAL_ONLY);
            if is(key::GROUP_ENDPT_DATA) && info.value.kind == kind::BYTE_OBJECT {
                let bytes = info.value.data.bytes;
                data.extend(bytes_of(bytes.bytes, bytes.size));
            }
        }
        (text_of(name), ranks_of(processes, count))
    };
    let Some(ranks) = ranks else { return ERR_NOT_SUPPORTED };
    if local && !made {
        // All ranks of the group are on this node and have called. If the answer takes time, the library up to 5.0.11
        // asks a second time, with a tracker that the first answer frees (`pmix_server_grpdestruct`).
        return OPERATION_SUCCEEDED;
    }
    // `ranks_of` has checked all identifiers.
    // SAFETY: the library passes `count` identifiers.
    let members = made.then(|| unsafe { std::slice::from_raw_parts(processes, count) }.to_vec());
    let name = format!("{} {name}", if made { "make" } else { "end" });
    deliver(Upcall::Group { name, ranks, data, answer: GroupAnswer { callback, token, members } })
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

unsafe extern "C" fn publish(
    process: *const Proc,
    _infos: *const Info,
    _count: usize,
    _callback: Option<OpCallback>,
    _token: *mut c_void,
) -> Status {
    // SAFETY: the library passes a valid identifier.
    refuse_names(unsafe { rank_of(process) })
}

unsafe extern "C" fn look_up(
    process: *const Proc,
    _names: *mut *mut c_char,
    _infos: *const Info,
    _count: usize,
    _callback: Option<OpCallback>,
    _token: *mut c_void,
) -> Status {
    // SAFETY: the library passes a valid identifier.
    refuse_names(unsafe { rank_of(process) })
}

fn refuse_names(rank: Option<u32>) -> Status {
    if let Some(rank) = rank {
        deliver(Upcall::NamesRefused { rank });
    }
    ERR_NOT_SUPPORTED
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
    // SAFETY: the library passes a valid identifier and `count` programs whose names are C strings or null.
    let (rank, program) = unsafe {
        let first = if count == 0 { None } else { apps.as_ref() };
        (rank_of(process), first.map_or(String::new(), |app| text_of(app.command)))
    };
    if let Some(rank) = rank {
        deliver(Upcall::SpawnRefused { rank, program });
    }
    ERR_NOT_SUPPORTED
}
