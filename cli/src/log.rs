//! Where a gateway's log goes: standard error, and nowhere while that takes nothing. A full disk is no reason to end.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lines that could not be written since the last one that was.
static LOST: AtomicU64 = AtomicU64::new(0);

/// A line of the log on its way.
pub(crate) struct Line;

impl Line {
    /// For the subscriber, which wants one for each line.
    pub(crate) fn new() -> Line {
        Line
    }
}

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write(&mut io::stderr(), line, &LOST);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a line, and before it how many were lost, or counts it as lost.
fn write(to: &mut impl Write, line: &[u8], lost: &AtomicU64) {
    let before = lost.load(Relaxed);
    let told = match before {
        0 => Ok(()),
        lost => to.write_all(format!("({lost} lines of this log could not be written)\n").as_bytes()),
    };
    match told.and_then(|()| to.write_all(line)) {
        Ok(()) => lost.store(0, Relaxed),
        Err(_) => lost.store(before + 1, Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many bytes.
    struct Disk(Vec<u8>, usize);

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0.len() + bytes.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_find_no_room_are_counted() {
        let (mut disk, lost) = (Disk(Vec::new(), 10), AtomicU64::new(0));
        (0..5).for_each(|_| write(&mut disk, b"a line\n", &lost));
        assert_eq!((disk.0.as_slice(), lost.load(Relaxed)), (b"a line\n".as_slice(), 4));
        disk.1 = 1000;
        write(&mut disk, b"another\n", &lost);
        let text = String::from_utf8_lossy(&disk.0);
        assert_eq!(text, "a line\n(4 lines of this log could not be written)\nanother\n");
        assert_eq!(lost.load(Relaxed), 0);
    }
}
