//! Reading a whole text file that somebody else may have written: it may be endless, or not text.

use std::fs::File;
use std::io::{self, Error, ErrorKind, Read};

/// The text of an open file of at most `most` bytes. It may be a pipe.
///
/// # Errors
/// The system's; `FileTooLarge`; `InvalidData`, with the line that is not UTF-8.
pub fn text_of(file: File, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Error::new(ErrorKind::InvalidData, format!("line {line} is not UTF-8"))
    })
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
}
