//! Writes files without leaving them in the page cache, which belongs to the running application.
//!
//! The method depends on the kernel and the file system, and is found by trying: `RWF_DONTCACHE`; else each part is
//! written back and dropped while the next one is written; else plain writes. `O_DIRECT` is tried for some parts as
//! well. It copies nothing but waits for the disk, so it is chosen if it needs less of a core and the disk is idle
//! enough.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use memory::pages::PAGE;
use rustix::fs::{Advice, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, Result};
use rustix::time::{ClockId, clock_gettime};

use crate::reader::DONTCACHE;
use crate::sys;

/// Shorter writes are plain: a disk request for each would cost more than their pages.
const SHORT: usize = 64 << 10;
/// Shorter writes never use `O_DIRECT`.
const LONG: usize = 256 << 10;
/// Bytes per direct write, so that the disk has few of our requests queued beside those of others.
const AT_ONCE: usize = 512 << 10;
/// Trials of each method.
const TRIES: u32 = 4;
/// Most processor time of direct writes, as a part of that of the other method, at which they are chosen.
const CHEAPER: f64 = 0.9;
/// Most time that direct writes wait for the disk, as a part of the whole time, at which they are chosen.
const WAITING: f64 = 0.5;

/// Method of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// With `RWF_DONTCACHE`.
    #[default]
    Uncached,
    /// With `sync_file_range`, then `POSIX_FADV_DONTNEED`.
    WrittenBack,
    /// Through the page cache.
    Cached,
    /// With `O_DIRECT`.
    Direct,
}

#[derive(Debug)]
pub(crate) struct Writer {
    /// The method for all parts that are not written directly.
    path: Path,
    direct: Direct,
    /// The part being written back: file number, offset and length.
    behind: Option<(u32, u64, u64)>,
}

/// Use of `O_DIRECT` for long parts.
#[derive(Debug)]
enum Direct {
    No,
    Yes,
    /// Not decided: trials alternate with the other method.
    Tried {
        since: Option<Instant>,
        directly: Cost,
        otherwise: Cost,
    },
}

/// Cost of some writes.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    writes: u32,
    bytes: u64,
    processor: Duration,
    took: Duration,
}

impl Cost {
    /// Processor seconds per byte.
    fn each(&self) -> f64 {
        self.processor.as_secs_f64() / self.bytes.max(1) as f64
    }
}

impl Default for Writer {
    fn default() -> Writer {
        let direct = Direct::Tried { since: None, directly: Cost::default(), otherwise: Cost::default() };
        Writer { path: Path::default(), direct, behind: None }
    }
}

impl Writer {
    #[cfg(test)]
    pub(crate) fn by(path: Path) -> Writer {
        match path {
            Path::Direct => Writer { path: Path::Uncached, direct: Direct::Yes, behind: None },
            path => Writer { path, direct: Direct::No, behind: None },
        }
    }

    pub(crate) fn path(&self) -> Path {
        if matches!(self.direct, Direct::Yes) { Path::Direct } else { self.path }
    }

    /// Writes all of `bytes` at `offset` of the file with this number.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn write(&mut self, file: BorrowedFd<'_>, number: u32, bytes: &[u8], offset: u64) -> Result<()> {
        // `O_DIRECT` takes whole pages at page offsets; the rest is written by the other method.
        let whole = bytes.len() - bytes.len() % PAGE;
        let fits = bytes.as_ptr().addr().is_multiple_of(PAGE) && offset.is_multiple_of(PAGE as u64) && whole >= LONG;
        let directly = fits && self.is_due_directly();
        let began = (fits && matches!(self.direct, Direct::Tried { .. })).then(|| (Instant::now(), processor_time()));
        let mut done = 0;
        if directly {
            match write_directly(file, &bytes[..whole], offset) {
                Ok(count) => done = count,
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.direct = Direct::No,
                Err(error) => return Err(error),
            }
        }
        if done < bytes.len() {
            self.write_otherwise(file, number, &bytes[done..], offset + done as u64)?;
        }
        if let Some((began, before)) = began {
            self.learn(directly, bytes.len() as u64, began, processor_time().saturating_sub(before));
        }
        Ok(())
    }

    fn is_due_directly(&self) -> bool {
        match &self.direct {
            Direct::No => false,
            Direct::Yes => true,
            Direct::Tried { directly, otherwise, .. } => directly.writes <= otherwise.writes,
        }
    }

    /// Records the cost of a write. After enough trials of both methods, chooses one.
    fn learn(&mut self, direct: bool, bytes: u64, began: Instant, processor: Duration) {
        let Direct::Tried { since, directly, otherwise } = &mut self.direct else { return };
        let since = *since.get_or_insert(began);
        let cost = if direct { &mut *directly } else { &mut *otherwise };
        cost.writes += 1;
        cost.bytes += bytes;
        cost.processor += processor;
        cost.took += began.elapsed();
        if directly.writes.min(otherwise.writes) >= TRIES {
            let waiting = 2.0 * directly.took.as_secs_f64() / since.elapsed().as_secs_f64().max(1e-9);
            let better = directly.each() <= CHEAPER * otherwise.each() && waiting <= WAITING;
            self.direct = if better { Direct::Yes } else { Direct::No };
        }
    }

    fn write_otherwise(&mut self, file: BorrowedFd<'_>, number: u32, bytes: &[u8], offset: u64) -> Result<()> {
        let length = bytes.len() as u64;
        let (mut rest, mut at) = (bytes, offset);
        while !rest.is_empty() {
            let uncached = self.path == Path::Uncached && bytes.len() >= SHORT;
            let written = match uncached {
                true => rustix::io::pwritev2(file, &[IoSlice::new(rest)], at, DONTCACHE),
                false => rustix::io::pwrite(file, rest, at),
            };
            match written {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(count) => {
                    rest = &rest[count..];
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) if uncached => self.path = Path::WrittenBack,
                Err(error) => return Err(error),
            }
        }
        if self.path == Path::WrittenBack && bytes.len() >= SHORT {
            match self.write_back(file, number, offset, length) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::SPIPE | Errno::OPNOTSUPP) => self.path = Path::Cached,
                done => return done,
            }
        }
        Ok(())
    }

    /// Starts writing this part to the disk. Waits for the previous part and drops its pages.
    fn write_back(&mut self, file: BorrowedFd<'_>, number: u32, offset: u64, length: u64) -> Result<()> {
        sys::write_back(file, offset, length, false)?;
        let behind = self.behind.replace((number, offset, length));
        if let Some((before, offset, length)) = behind
            && before == number
        {
            sys::write_back(file, offset, length, true)?;
            rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(length), Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Completes a file: drops the pages of its last part too.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn finish(&mut self, file: BorrowedFd<'_>, number: u32) -> Result<()> {
        match self.behind.take() {
            Some((before, offset, length)) if before == number => {
                sys::write_back(file, offset, length, true)?;
                rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(length), Advice::DontNeed)
            }
            _ => Ok(()),
        }
    }
}

/// Writes with `O_DIRECT`. Returns the number of bytes written, a multiple of the page size.
fn write_directly(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Result<usize> {
    let flags = fcntl_getfl(file)?;
    fcntl_setfl(file, flags | OFlags::DIRECT)?;
    let mut done = 0;
    let result = loop {
        let end = bytes.len().min(done + AT_ONCE);
        match rustix::io::pwrite(file, &bytes[done..end], offset + done as u64) {
            // The other method writes the rest, or reports the error.
            Ok(count) if count == 0 || !count.is_multiple_of(PAGE) => break Ok(done),
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) => break Err(error),
        }
        if done == bytes.len() {
            break Ok(done);
        }
    };
    fcntl_setfl(file, flags)?;
    result
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use memory::Pages;

    use super::*;

    fn noise(length: usize) -> Pages {
        let mut bytes = Pages::new(length);
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + (at >> 12)) as u8);
        bytes
    }

    #[test]
    fn each_path_writes_the_same() {
        for path in [Path::Uncached, Path::WrittenBack, Path::Cached, Path::Direct] {
            for (length, step) in [(300_000, 100_000), (3_000_001, 1 << 20), (3 << 20, 1_000_000)] {
                let file = tempfile::tempfile().unwrap();
                let (mut writer, bytes) = (Writer::by(path), noise(length));
                for at in (0..length).step_by(step) {
                    let end = length.min(at + step);
                    // Each part starts on a page of its own, as a block does.
                    let mut part = Pages::new(end - at);
                    part.copy_from_slice(&bytes[at..end]);
                    writer.write(file.as_fd(), 1, &part, at as u64).unwrap();
                }
                writer.finish(file.as_fd(), 1).unwrap();
                let mut read = vec![0; length];
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut read, 0).unwrap();
                assert!(read == bytes[..], "{path:?}, {length} in {step}");
            }
        }
    }

    #[test]
    fn one_way_is_chosen_after_both_were_tried() {
        let file = tempfile::tempfile().unwrap();
        let (mut writer, bytes) = (Writer::default(), noise(1 << 20));
        for number in 0..2 * u64::from(TRIES) {
            assert!(matches!(writer.direct, Direct::Tried { .. } | Direct::No), "{writer:?}");
            writer.write(file.as_fd(), 1, &bytes, number << 20).unwrap();
        }
        assert!(matches!(writer.direct, Direct::Yes | Direct::No), "{writer:?}");
    }

    #[test]
    fn the_cheaper_way_is_taken_if_it_need_not_wait() {
        let ms = Duration::from_millis;
        let chosen = |direct: u64, other: u64, waited: u64| {
            let cost = |processor, took| Cost { writes: TRIES, bytes: 100, processor: ms(processor), took: ms(took) };
            let since = Some(Instant::now() - ms(1000));
            let directly = Cost { writes: TRIES - 1, ..cost(direct, waited) };
            let tried = Direct::Tried { since, directly, otherwise: cost(other, 1) };
            let mut writer = Writer { direct: tried, ..Writer::default() };
            writer.learn(true, 0, Instant::now(), ms(0));
            writer.path()
        };
        assert_eq!(chosen(10, 20, 100), Path::Direct);
        assert_eq!(chosen(20, 20, 100), Path::Uncached);
        assert_eq!(chosen(10, 20, 400), Path::Uncached);
    }
}
