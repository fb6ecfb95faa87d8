//! The runtime of work with connections.

use tokio::runtime::{Builder, Runtime};

use crate::error::{Context, Result, refuse};

/// Minimum limit of open files for work with connections.
const FILES: u64 = 32;

/// A runtime on this thread only. Its tasks end with it.
///
/// # Errors
/// The limit of open files is too low, or the system refuses.
pub fn runtime() -> Result<Runtime> {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if files < FILES {
        refuse!("this program may open {files} files at once and needs {FILES}: raise the limit (`ulimit -n`)");
    }
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context("cannot open the queue of events that this program waits with")
}
