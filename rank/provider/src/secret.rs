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

/// Link target of the agent's file. It guards against a descriptor that has been closed and its number reused for
/// another file.
const TARGET: &str = "/memfd:landbridge (deleted)";
/// Length of a secret in hexadecimal digits.
const LENGTH: usize = 64;

static SECRET: OnceLock<Option<String>> = OnceLock::new();

/// Takes the secret out of its file, if there is one, and closes the file. Later calls return the first call's result.
pub(crate) fn take() -> Option<String> {
    SECRET.get_or_init(|| std::env::var("LANDBRIDGE_SECRET_FD").ok().and_then(|text| from(&text).ok())).clone()
}

/// Reads the secret from the descriptor with this number, then closes it.
fn from(number: &str) -> io::Result<String> {
    let number: i32 = number.parse().map_err(io::Error::other)?;
    if std::fs::read_link(format!("/proc/self/fd/{number}"))?.as_os_str() != TARGET {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: the descriptor is open, and it is the agent's file: no code of this process has made one of this name,
    // and it was inherited only for this call, which is made once (`SECRET`).
    let file = File::from(unsafe { OwnedFd::from_raw_fd(number) });
    let mut bytes = [0; LENGTH];
    // Reads at an explicit offset: another process may share the open file and its position.
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
        // Only this test knows the number, so nothing else closes the file.
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
