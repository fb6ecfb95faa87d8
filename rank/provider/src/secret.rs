//! The job's secret, which this process inherits in an open file.
//!
//! An environment variable is no place for it: child processes inherit it, crash reports print it, and some languages
//! copy it when they start (Python's `os.environ`), so unsetting it comes too late. A descriptor that is closed as soon
//! as the provider is loaded is inherited by no other process.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// What the agent calls the file. A descriptor may have been closed, and its number given to another file.
const TARGET: &str = "/memfd:landbridge (deleted)";
/// Bytes: a secret in hexadecimal digits.
const LENGTH: usize = 64;

static SECRET: OnceLock<Option<String>> = OnceLock::new();

/// Takes the secret out of its file, if there is one, and closes that. Later calls give what the first one found.
pub(crate) fn take() -> Option<String> {
    SECRET.get_or_init(|| std::env::var("LANDBRIDGE_SECRET_FD").ok().and_then(|text| from(&text).ok())).clone()
}

/// The secret in the descriptor of this number, which is closed.
fn from(number: &str) -> io::Result<String> {
    let number: i32 = number.parse().map_err(io::Error::other)?;
    if std::fs::read_link(format!("/proc/self/fd/{number}"))?.as_os_str() != TARGET {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the descriptor is open, and it is the agent's file: no code of this process has made one of this name,
    // and it was inherited for no other purpose than this call, which is made once (`SECRET`).
    let file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    let mut bytes = [0; LENGTH];
    // At an offset of its own: another process may have the same open file.
    file.read_exact_at(&mut bytes, 0)?;
    String::from_utf8(bytes.to_vec()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::{AsRawFd, IntoRawFd};

    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn a_secret_is_read_once_and_its_file_closed() {
        let mut file = File::from(memfd_create("landbridge", MemfdFlags::CLOEXEC).unwrap());
        let secret = "5a".repeat(32);
        file.write_all(secret.as_bytes()).unwrap();
        // Nobody but this test knows the number, so that nothing else is closed by it.
        let number = file.into_raw_fd().to_string();
        assert_eq!(from(&number).unwrap(), secret);
        assert!(from(&number).is_err(), "it is closed");
    }

    #[test]
    fn another_file_of_that_number_is_left_alone() {
        let file = tempfile::tempfile().unwrap();
        assert!(from(&file.as_raw_fd().to_string()).is_err());
        assert!(file.metadata().is_ok(), "still open");
        assert!(from("x").is_err() && from("-1").is_err());
    }
}
