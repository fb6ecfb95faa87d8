//! Reading a whole text file that somebody else may have written: it may be endless, or not text.

use std::fs::{File, OpenOptions};
use std::io::{self, Error, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Opens a file that the user names, for reading. A named pipe without a writer is an empty file, instead of a wait.
///
/// # Errors
/// The system's.
pub fn open_named(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    // Reads from a pipe that has a writer wait for it, as `<(command)` of a shell needs.
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// The text of an open file of at most `most` bytes. It may be a pipe.
///
/// # Errors
/// The system's; `FileTooLarge`; `InvalidData`, with the line that is not UTF-8.
pub fn text_of(file: File, most: u64) -> io::Result<String> {
    String::from_utf8(bytes_of(file, most)?).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Error::new(ErrorKind::InvalidData, format!("line {line} is not UTF-8"))
    })
}

/// The bytes of an open file of at most `most` bytes, in any encoding. It may be a pipe.
///
/// # Errors
/// The system's; `FileTooLarge`.
pub fn bytes_of(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_endless_or_no_text_is_refused() {
        let zeros = || File::open("/dev/zero").unwrap();
        assert_eq!(text_of(zeros(), 100).unwrap_err().to_string(), "it has more than 100 bytes");
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            text_of(File::open(&file).unwrap(), 8)
        };
        assert_eq!(text(b"12345678").unwrap(), "12345678");
        assert_eq!(text(b"a\nb\xe9\n").unwrap_err().to_string(), "line 2 is not UTF-8");
    }

    #[test]
    fn a_pipe_is_read_whole_and_never_waited_for() {
        use std::os::fd::AsRawFd;
        use std::process::Command;
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(text_of(open_named(&pipe).unwrap(), 8).unwrap(), "", "nobody writes to it");
        let (reader, writer) = std::io::pipe().unwrap();
        let read = std::path::PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
        let file = open_named(&read).unwrap();
        let mut writing = Command::new("sh").args(["-c", "sleep 0.05; printf late"]).stdout(writer).spawn().unwrap();
        assert_eq!(text_of(file, 8).unwrap(), "late", "a writer is waited for");
        writing.wait().unwrap();
    }
}
