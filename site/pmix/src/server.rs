//! The PMIx server of this process.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::abi::{MAX_NAMESPACE, OPERATION_SUCCEEDED, Proc, SUCCESS, Status, key};
use crate::table::{InfoTable, c_text, copy_text};
use crate::upcall::{SINK, Sink, module};
use crate::{Library, PmixError, Upcall};

/// Time limit for a registration with the library.
const PATIENCE: Duration = Duration::from_secs(5);

/// Options of a server.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The job's name among all jobs that this machine's processes can see.
    pub namespace: &'a str,
    /// This node's name in the job's [`JobDescription::nodes`].
    pub host: &'a str,
    /// A folder for the library's files.
    pub folder: &'a Path,
}

/// A node and its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRanks {
    /// Its name, different from all others of the job.
    pub name: String,
    pub ranks: Range<u32>,
}

/// Description of a job for its ranks.
#[derive(Clone, Copy, Debug)]
pub struct JobDescription<'a> {
    /// All nodes, in the order of their ranks.
    pub nodes: &'a [NodeRanks],
    /// The ranks of each program, in order; together, all ranks of the job. `MPI_APPNUM` is an index into this slice.
    pub programs: &'a [Range<u32>],
    /// Index of this node in `nodes`.
    pub here: usize,
    /// A folder for the files of this node's ranks. In it each rank has a folder named after its number.
    pub folder: &'a Path,
}

/// The server; there is one per process. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    library: Library,
    namespace: CString,
}

impl Server {
    /// Starts the server. The library calls `deliver` on its own thread; it must not block.
    ///
    /// # Errors
    /// [`PmixError`].
    pub fn start(
        library: Library,
        options: Options<'_>,
        deliver: impl Fn(Upcall) + Send + Sync + 'static,
    ) -> Result<Server, PmixError> {
        if options.namespace.len() > MAX_NAMESPACE {
            let problem = "a namespace has at most 255 bytes";
            return Err(PmixError::Text { value: options.namespace.to_owned(), problem });
        }
        let namespace = c_text(options.namespace)?;
        let sink = Sink { namespace: options.namespace.to_owned(), deliver: Box::new(deliver) };
        SINK.set(sink).map_err(|_| PmixError::Second)?;
        let mut table = InfoTable::default();
        let folder = path_text(options.folder)?;
        table.text(key::SERVER_TMPDIR, folder)?;
        table.text(key::SYSTEM_TMPDIR, folder)?;
        table.text(key::SERVER_NSPACE, &format!("{}-server", options.namespace))?;
        table.rank(key::SERVER_RANK, 0);
        table.text(key::HOSTNAME, options.host)?;
        // Only the job's own ranks may use this server.
        table.flag(key::SERVER_TOOL_SUPPORT, false);
        table.flag(key::IOF_LOCAL_OUTPUT, false);
        let mut module = module(library.major);
        let (entries, count) = table.entries();
        // SAFETY: module and entries are valid during the call, which copies what it keeps.
        let status = unsafe { (library.functions.server_init)(&raw mut module, entries, count) };
        let server = Server { library, namespace };
        match status {
            SUCCESS => Ok(server),
            status => {
                let error = server.failed("PMIx_server_init", status);
                // A server that was not started must not be finalised.
                std::mem::forget(server);
                Err(error)
            }
        }
    }

    /// The library's version.
    pub fn version(&self) -> &str {
        self.library.version()
    }

    /// Registers the job with the library. Must be called before [`Server::admit`].
    ///
    /// # Errors
    /// [`PmixError`].
    pub fn register(&self, job: JobDescription<'_>) -> Result<(), PmixError> {
        let local = job.nodes.get(job.here).map_or(0..0, |node| node.ranks.clone());
        let (entries, count) = {
            // If the library never calls back, it may still read the table, so the table is leaked. That is a few
            // kilobytes per rank, once per process.
            let mut table = describe(job)?;
            table.text(key::JOBID, &self.namespace.to_string_lossy())?;
            let table = Box::leak(Box::new(table));
            table.entries()
        };
        let function = self.library.functions.register_nspace;
        let (namespace, ranks) = (self.namespace.as_ptr(), local.len() as c_int);
        self.complete("PMIx_server_register_nspace", |token| {
            // SAFETY: name and entries are valid for as long as the library may read them (see above).
            unsafe { function(namespace, ranks, entries, count, Some(registered), token) }
        })
    }

    /// Lets a rank of this node connect; returns the environment variables that the rank needs to do so.
    ///
    /// # Errors
    /// [`PmixError`].
    pub fn admit(&self, rank: u32) -> Result<Vec<(OsString, OsString)>, PmixError> {
        let process = Box::leak(Box::new(self.process(rank)));
        let process: *const Proc = process;
        let function = self.library.functions.register_client;
        self.complete("PMIx_server_register_client", |token| {
            // SAFETY: the identifier is leaked (260 bytes a rank), so the library may read it at any time; getuid and
            // getgid always succeed.
            unsafe { function(process, libc::getuid(), libc::getgid(), std::ptr::null_mut(), Some(registered), token) }
        })?;
        let mut variables: *mut *mut c_char = std::ptr::null_mut();
        // SAFETY: the identifier is valid; the library makes `variables` a null-terminated array that belongs to the
        // caller.
        let status = unsafe { (self.library.functions.setup_fork)(process, &raw mut variables) };
        // SAFETY: see above.
        let variables = unsafe { take_variables(variables) };
        if status == SUCCESS { Ok(variables) } else { Err(self.failed("PMIx_server_setup_fork", status)) }
    }

    /// Requests the data that a rank of this node has published, for a rank of another node. `answer` receives the data
    /// when it is available, or `None`.
    ///
    /// # Errors
    /// [`PmixError`]; `answer` is then not called.
    pub fn published(&self, rank: u32, answer: impl FnOnce(Option<Vec<u8>>) + Send + 'static) -> Result<(), PmixError> {
        let process = Box::leak(Box::new(self.process(rank)));
        let answer: Box<PublishedAnswer> = Box::new(Box::new(answer));
        let token = Box::into_raw(answer);
        // SAFETY: the identifier is leaked; `published` takes the token back, once.
        let status = unsafe { (self.library.functions.dmodex_request)(process, Some(published), token.cast()) };
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the library refused, so it will not call `published` with the token.
        drop(unsafe { Box::from_raw(token) });
        Err(self.failed("PMIx_server_dmodex_request", status))
    }

    fn process(&self, rank: u32) -> Proc {
        let mut process = Proc { namespace: [0; MAX_NAMESPACE + 1], rank };
        copy_text(&mut process.namespace, &self.namespace);
        process
    }

    /// Calls a function that answers through [`registered`], and waits for the answer.
    fn complete(&self, call: &'static str, function: impl FnOnce(*mut c_void) -> Status) -> Result<(), PmixError> {
        let (sender, receiver) = channel::<Status>();
        let token: *mut Sender<Status> = Box::into_raw(Box::new(sender));
        let status = function(token.cast());
        if status != SUCCESS {
            // SAFETY: without success there is no callback, so the token is still ours.
            drop(unsafe { Box::from_raw(token) });
            return if status == OPERATION_SUCCEEDED { Ok(()) } else { Err(self.failed(call, status)) };
        }
        match receiver.recv_timeout(PATIENCE) {
            Ok(SUCCESS) => Ok(()),
            Ok(status) => Err(self.failed(call, status)),
            // The token stays with the library, which may still call back.
            Err(_) => Err(PmixError::Silent { version: self.version().to_owned(), call, seconds: PATIENCE.as_secs() }),
        }
    }

    fn failed(&self, call: &'static str, status: Status) -> PmixError {
        // SAFETY: the function returns a static text for every number.
        let text = unsafe { CStr::from_ptr((self.library.functions.error_string)(status)) };
        let status = format!("{} ({status})", text.to_string_lossy());
        PmixError::Call { version: self.version().to_owned(), call, status }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: the server was started and is finalised once.
        unsafe { (self.library.functions.server_finalize)() };
    }
}

/// The table of all keys that Open MPI's ranks request about a job.
fn describe(job: JobDescription<'_>) -> Result<InfoTable, PmixError> {
    let mut table = InfoTable::default();
    let size: u32 = job.nodes.iter().map(|node| node.ranks.len() as u32).sum();
    let local = job.nodes.get(job.here).map_or(0..0, |node| node.ranks.clone());
    for name in [key::JOB_SIZE, key::UNIV_SIZE, key::MAX_PROCS] {
        table.number(name, size);
    }
    for name in [key::LOCAL_SIZE, key::NODE_SIZE] {
        table.number(name, local.len() as u32);
    }
    table.number(key::JOB_NUM_APPS, job.programs.len().max(1) as u32);
    for (number, ranks) in job.programs.iter().enumerate().filter(|_| job.programs.len() > 1) {
        let mut one = InfoTable::default();
        one.number(key::APPNUM, number as u32);
        one.number(key::APP_SIZE, ranks.len() as u32);
        one.rank(key::APP_LEADER, ranks.start);
        table.table(key::APP_INFO_ARRAY, one);
    }
    table.number(key::NUM_NODES, job.nodes.len() as u32);
    // Plain lists: all versions accept them, while their compressed forms differ.
    let names: Vec<&str> = job.nodes.iter().map(|node| node.name.as_str()).collect();
    table.text(key::NODE_MAP, &names.join(","))?;
    let lists: Vec<String> = job.nodes.iter().map(|node| list(&node.ranks)).collect();
    table.text(key::PROC_MAP, &lists.join(";"))?;
    table.text(key::LOCAL_PEERS, &list(&local))?;
    let folder = path_text(job.folder)?;
    table.text(key::TMPDIR, folder)?;
    table.text(key::NSDIR, folder)?;
    // The code that creates the folders also removes them.
    table.flag(key::TDIR_RMCLEAN, true);
    for (at, node) in job.nodes.iter().enumerate() {
        for (local, rank) in node.ranks.clone().enumerate() {
            let mut one = InfoTable::default();
            one.rank(key::RANK, rank);
            one.rank(key::GLOBAL_RANK, rank);
            one.short(key::LOCAL_RANK, local as u16);
            one.short(key::NODE_RANK, local as u16);
            one.number(key::NODEID, at as u32);
            let program = job.programs.iter().position(|ranks| ranks.contains(&rank)).unwrap_or(0);
            one.number(key::APPNUM, program as u32);
            one.text(key::HOSTNAME, &node.name)?;
            if at == job.here {
                one.text(key::PROCDIR, path_text(&job.folder.join(rank.to_string()))?)?;
            }
            table.table(key::PROC_DATA, one);
        }
    }
    Ok(table)
}

fn list(ranks: &Range<u32>) -> String {
    ranks.clone().map(|rank| rank.to_string()).collect::<Vec<_>>().join(",")
}

fn path_text(path: &Path) -> Result<&str, PmixError> {
    let text = |problem| PmixError::Text { value: path.display().to_string(), problem };
    path.to_str().ok_or_else(|| text("it is not UTF-8"))
}

/// Reads and frees an environment that the library allocated.
///
/// # Safety
/// `variables` is null, or a null-terminated array of C strings, all from malloc, which nobody else uses.
unsafe fn take_variables(variables: *mut *mut c_char) -> Vec<(OsString, OsString)> {
    let mut taken = Vec::new();
    if variables.is_null() {
        return taken;
    }
    // SAFETY: the caller's promise; the loop ends at the null.
    unsafe {
        let mut at = variables;
        while !(*at).is_null() {
            let bytes = CStr::from_ptr(*at).to_bytes();
            if let Some(equals) = bytes.iter().position(|byte| *byte == b'=') {
                let (name, value) = (OsStr::from_bytes(&bytes[..equals]), OsStr::from_bytes(&bytes[equals + 1..]));
                taken.push((name.to_owned(), value.to_owned()));
            }
            libc::free((*at).cast());
            at = at.add(1);
        }
        libc::free(variables.cast());
    }
    taken
}

/// Callback at the end of a registration.
unsafe extern "C" fn registered(status: Status, token: *mut c_void) {
    // SAFETY: the token is the sender that `Server::complete` let go of, and comes back once.
    let sender = unsafe { Box::from_raw(token.cast::<Sender<Status>>()) };
    // After the timeout nothing receives the status.
    let _ = sender.send(status);
}

type PublishedAnswer = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

/// Callback with the data that a rank of this node has published, for another node.
unsafe extern "C" fn published(status: Status, data: *mut c_char, length: usize, token: *mut c_void) {
    // SAFETY: the token is the answer that `Server::published` let go of, and comes back once.
    let answer = unsafe { Box::from_raw(token.cast::<PublishedAnswer>()) };
    let data = (status == SUCCESS).then(|| match data.is_null() {
        true => Vec::new(),
        // SAFETY: the library passes `length` bytes and frees them after this call.
        false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), length) }.to_vec(),
    });
    answer(data);
}
