//! Log messages of the provider.
//!
//! libfabric's own log is a symbol that we would have to import, and the symbols of a libfabric inside an MPI library's
//! wheel are not visible to us. So messages go to the file that `LANDBRIDGE_LOG_FILE` names, if any: appended, one line
//! each, with the process id. Standard output and error belong to the user's program. Only messages about the end of
//! the program (an endpoint that cannot open, an internal error) also go to standard error, as one line, because MPI
//! libraries then print no more than a number.

use std::fmt::{Arguments, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::{Once, OnceLock};

/// Writes a message to `LANDBRIDGE_LOG_FILE`. Costs nothing without it.
pub(crate) fn note(message: Arguments<'_>) {
    static FILE: OnceLock<Option<File>> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let path = std::env::var_os("LANDBRIDGE_LOG_FILE").filter(|path| !path.is_empty())?;
        match OpenOptions::new().create(true).append(true).open(&path) {
            Ok(file) => Some(file),
            Err(error) => {
                say(format_args!("LANDBRIDGE_LOG_FILE={}: {error}", path.display()));
                None
            }
        }
    });
    if let Some(mut file) = file.as_ref() {
        // One write, so that lines of several processes stay whole. A full disk must not stop a program.
        let _ = file.write_all(line(message).as_bytes());
    }
}

/// Writes the reason why the program is about to fail to the log and to standard error.
pub(crate) fn fatal(message: Arguments<'_>) {
    note(message);
    say(message);
}

/// Writes a warning to the log, and to standard error once per node; the program goes on.
pub(crate) fn warn(message: Arguments<'_>) {
    static SAID: Once = Once::new();
    note(message);
    if std::env::var_os("LANDBRIDGE_LOCAL_RANK").is_none_or(|rank| rank == "0") {
        SAID.call_once(|| say(message));
    }
}

fn say(message: Arguments<'_>) {
    // Not through `std::io`: its locks and buffers belong to the Rust standard library of a program we are loaded into.
    // A closed standard error is no reason to fail.
    let _ = rustix::io::write(rustix::stdio::stderr(), line(message).as_bytes());
}

fn line(message: Arguments<'_>) -> String {
    let mut line = String::new();
    let _ = writeln!(line, "landbridge [{}]: {message}", std::process::id());
    line
}
