//! Errors on a site's machine.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use client::ClientError;
use client::key::KeyError;
use launcher::SessionError;
use thiserror::Error;
use types::sites::SitesError;

/// Reasons for a failure on the machine where this runs. The message is shown to the user, on the user's machine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HereError {
    // To be solved by the owner of the account.
    /// The account has no home directory.
    #[error("no home directory: set HOME")]
    NoHome,
    /// A file or a folder of the account cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// This account has no sites file.
    #[error("no sites file {path}", path = .0.display())]
    NoSitesFile(PathBuf),
    /// The sites file makes no sense.
    #[error(transparent)]
    Sites(#[from] SitesError),
    /// The site's key cannot be read or made.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The key for trunks through ssh cannot be made.
    #[error("ssh-keygen: {0}: trunks through ssh need a key of their own")]
    Keygen(io::Error),
    /// The key that another site sent is not a public key, or the target is not an address.
    #[error("site {of}: `{key}` for `{to}` is not a valid public key and address")]
    NoPublicKey {
        of: String,
        /// The invalid key.
        key: String,
        /// The invalid address.
        to: String,
    },
    // To be solved by the user who typed the command.
    /// Another program uses the requested port.
    #[error("port {port} cannot be had: {source}; `ss -ltnp` there shows who has it; choose another with --port")]
    PortTaken {
        port: u16,
        /// The system's error.
        source: io::Error,
    },
    /// Other programs use all ports that were tried.
    #[error("no port from {first} to {last} is free: choose one with --port")]
    NoPort {
        /// The first port that was tried.
        first: u16,
        /// The last port that was tried.
        last: u16,
    },
    /// A gateway must be restarted but has open jobs.
    #[error("its gateway must be restarted ({why}), but {jobs} job(s) are open there: try again when they have ended")]
    RestartWithJobs {
        /// The reason.
        why: String,
        /// Number of open jobs.
        jobs: u32,
    },
    /// A gateway is not stopped because it has open jobs.
    #[error("{jobs} job(s) are open at its gateway: try again when they have ended, or use --force")]
    StopWithJobs {
        /// Number of open jobs.
        jobs: u32,
    },
    /// The gateway runs on another machine that shares this home directory.
    #[error(
        "its gateway runs on {there}, and this is {here}: give the address of {there} itself, not one that means several machines"
    )]
    OtherHost {
        /// The gateway's machine.
        there: String,
        /// This machine.
        here: String,
    },
    /// The site already has a background gateway.
    #[error("the gateway of site {site} runs already: {path}", path = path.display())]
    RunsAlready {
        site: String,
        /// The file that the running gateway has locked.
        path: PathBuf,
    },
    // To be solved by the operator of the gateway.
    /// The gateway ended right after it was started.
    #[error("its gateway ended at once ({status}): {log}")]
    Ended {
        /// The exit status.
        status: ExitStatus,
        /// The end of its log.
        log: String,
    },
    /// The gateway was started but does not listen.
    #[error("its gateway does not listen after {seconds} s: {log}")]
    Deaf {
        /// The time limit, in seconds.
        seconds: u64,
        /// The end of its log.
        log: String,
    },
    /// The gateway was started but does not admit this site's user.
    #[error("{source}; its log: {log}")]
    Unreached {
        /// The error from connecting to it.
        source: Box<SessionError>,
        /// The end of its log.
        log: String,
    },
    /// The gateway cannot be ended.
    #[error("its gateway, process {0}, does not end")]
    Survives(i32),
    /// Nothing on this machine can restart the gateway automatically.
    #[error("this machine cannot be made to start its gateway again by itself: {0}")]
    Keep(String),
    /// A gateway's note names no process.
    #[error("its note names no process")]
    Note,
    /// The gateway cannot be reached.
    #[error(transparent)]
    Session(Box<SessionError>),
    /// The gateway does not answer.
    #[error(transparent)]
    Client(Box<ClientError>),
    // To be solved by the person who installed Landbridge here.
    /// The running program's own file cannot be found, so it cannot be started again.
    #[error("cannot find the landbridge command itself: {0}")]
    Command(io::Error),
    /// The gateway's program cannot be started.
    #[error("cannot start {program}: {source}", program = program.display())]
    Start {
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A job's program cannot be started.
    #[error("cannot start the job: {0}")]
    StartJob(io::Error),
    /// Waiting for a job to end failed.
    #[error("cannot wait for the end of the job: {0}")]
    AwaitJob(io::Error),
    /// The connection broke, or was idle for too long, in the middle of a file's content.
    #[error("the connection broke while a file was sent")]
    Cut,
    /// A folder is in the way of a file or a link.
    #[error("{path} is a folder there: move it away, or push to another name", path = .0.display())]
    IsFolder(PathBuf),
    /// Another push is writing the same file.
    #[error("{path} is being written by another push: try again when that has ended", path = .0.display())]
    OtherPush(PathBuf),
    /// The disk is full or the quota is used up.
    #[error("{path}: {source}: make room there (`quota` and `df` show what is used)", path = path.display())]
    NoRoom {
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file's content did not arrive as it was sent.
    #[error("{path} did not arrive whole: did it change while it was sent? Push it again", path = .0.display())]
    NotWhole(PathBuf),
    /// A request arrived in an order in which no release sends it.
    #[error("a job is the last request")]
    OutOfTurn,
}

impl From<SessionError> for HereError {
    fn from(error: SessionError) -> HereError {
        HereError::Session(Box::new(error))
    }
}

impl From<ClientError> for HereError {
    fn from(error: ClientError) -> HereError {
        HereError::Client(Box::new(error))
    }
}

impl HereError {
    /// For `map_err`: names the affected file or folder.
    pub(crate) fn file(path: &Path) -> impl Fn(io::Error) -> HereError + '_ {
        move |source| HereError::File { path: path.to_owned(), source }
    }
}
