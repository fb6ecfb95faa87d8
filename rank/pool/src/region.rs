//! A region: its file, from creation to removal, and the seats and rings in it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fallocate, fstatvfs, ftruncate, openat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use types::JobId;

use crate::error::PoolError;
use crate::layout::{INSTANCES, LINE, MAX_RANKS, RegionLayout};
use crate::mapping::Mapping;
use crate::ring::{Consumer, Producer};
use crate::seat::{Seat, SeatAt, SeatState};

/// "LBPOOL" and a version number. A region of another version is refused.
const MAGIC: u64 = u64::from_le_bytes(*b"LBPOOL\0\x01");
/// Prefix of the file names of regions.
const PREFIX: &str = "landbridge-";
/// Bytes per write on a filesystem that cannot allocate.
const ZEROS: usize = 64 << 10;

/// Words of the header.
#[derive(Clone, Copy)]
enum Word {
    Magic,
    Job,
    First,
    Ranks,
    Ring,
}

/// The job and the ranks of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub job: JobId,
    /// The first rank with seats.
    pub first: u32,
    /// Number of ranks with seats, counted from `first`.
    pub ranks: u32,
}

/// An open region.
pub struct Region {
    file: File,
    path: PathBuf,
    shape: Shape,
    layout: RegionLayout,
    /// The part before the rings.
    fixed: Mapping,
}

impl Region {
    /// Creates an unnamed region in `folder`. It disappears with the last process that has it open, even if that
    /// process is killed. Others open it through its creator's `/proc/…/fd`.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn unnamed(folder: &Path, shape: Shape) -> Result<Region, PoolError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR);
        let error = |e| PoolError::Folder { folder: folder.to_owned(), source: io::Error::from(e) };
        Region::lay_out(File::from(file.map_err(error)?), folder.to_owned(), folder, shape)
    }

    /// Creates a region that processes on other nodes open by [`Region::name`]. Its creator removes it with
    /// [`Region::remove`].
    ///
    /// # Errors
    /// [`PoolError`]; no file is left behind then.
    pub fn named(folder: &Path, site: &str, shape: Shape) -> Result<Region, PoolError> {
        let path = Region::name(folder, site, shape.job);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file = match openat(CWD, &path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::EXIST) => return Err(PoolError::Leftover(path)),
            Err(e) => return Err(PoolError::Folder { folder: folder.to_owned(), source: e.into() }),
        };
        let made = Region::lay_out(file, path.clone(), folder, shape);
        if made.is_err() {
            Region::remove(&path);
        }
        made
    }

    /// Path of the region that [`Region::named`] creates.
    pub fn name(folder: &Path, site: &str, job: JobId) -> PathBuf {
        folder.join(format!("{PREFIX}{job}-{site}"))
    }

    /// True if a path looks like one from [`Region::name`].
    pub fn is_name(path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        path.is_absolute() && name.is_some_and(|name| name.starts_with(PREFIX))
    }

    /// Removes a named region. A region or folder that is already gone counts as success.
    pub fn remove(path: &Path) {
        let _ = rustix::fs::unlinkat(CWD, path, AtFlags::empty());
    }

    fn lay_out(file: File, path: PathBuf, folder: &Path, shape: Shape) -> Result<Region, PoolError> {
        let system = |what| {
            let path = path.clone();
            move |e: Errno| PoolError::System { path, what, source: e.into() }
        };
        let room = fstatvfs(&file).map_err(system("asking for its room"))?;
        // A tmpfs without a limit reports no blocks at all.
        let free = if room.f_blocks == 0 { u64::MAX } else { room.f_bavail.saturating_mul(room.f_frsize) };
        let ring = RegionLayout::ring_bytes(shape.ranks, free);
        let too_many = || PoolError::TooMany { path: path.clone(), ranks: shape.ranks, most: MAX_RANKS };
        let layout = RegionLayout::new(shape.ranks, ring).ok_or_else(too_many)?;
        // The minimum: every rank joins with one endpoint and communicates with one neighbour.
        let each = layout.row_bytes() + 2 * layout.ring();
        let needed = layout.seats_end() + u64::from(shape.ranks) * each;
        if needed > free {
            return Err(PoolError::Room { path, needed, free, others: others(folder) });
        }
        // The kernel would kill a process that exceeds the limit.
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| layout.total() > *limit) {
            return Err(PoolError::FileSize { path, needed: layout.total(), limit });
        }
        match ftruncate(&file, layout.total()) {
            Ok(()) => {}
            Err(Errno::FBIG) => return Err(too_many()),
            Err(e) => return Err(system("making it long enough")(e)),
        }
        allocate(&file, &path, 0, layout.seats_end())?;
        let fixed = map(&file, &path, 0, layout.fixed())?;
        let put = |word: Word, value: u64, order| fixed.word(word as u64 * 8).store(value, order);
        put(Word::Job, shape.job.0.into(), Ordering::Relaxed);
        put(Word::First, shape.first.into(), Ordering::Relaxed);
        put(Word::Ranks, shape.ranks.into(), Ordering::Relaxed);
        put(Word::Ring, ring, Ordering::Relaxed);
        put(Word::Magic, MAGIC, Ordering::Release);
        Ok(Region { file, path, shape, layout, fixed })
    }

    /// Opens the region of a job.
    ///
    /// # Errors
    /// [`PoolError`]: the region is missing, belongs to another job, or is damaged.
    pub fn open(path: &Path, job: JobId) -> Result<Region, PoolError> {
        let foreign = |problem: String| PoolError::Foreign { path: path.to_owned(), problem };
        let file = match openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => {
                return Err(foreign(absent(path).into()));
            }
            Err(e) => return Err(PoolError::System { path: path.to_owned(), what: "opening it", source: e.into() }),
        };
        let length = file.metadata().map_or(0, |found| found.len());
        if length < LINE {
            return Err(foreign(format!("has only {length} bytes: not a region, or not finished yet")));
        }
        let header = map(&file, path, 0, LINE)?;
        let get = |word: Word| header.word(word as u64 * 8).load(Ordering::Acquire);
        if get(Word::Magic) != MAGIC {
            return Err(foreign("is not a region of this version of Landbridge, or not finished yet".into()));
        }
        let number = |word: Word| u32::try_from(get(word));
        let (Ok(found), Ok(first), Ok(ranks)) = (number(Word::Job), number(Word::First), number(Word::Ranks)) else {
            return Err(foreign("its header is damaged".into()));
        };
        if found != job.0 {
            return Err(foreign(format!("belongs to job {}, not to {job}", JobId(found))));
        }
        let layout = RegionLayout::new(ranks, get(Word::Ring)).filter(|layout| layout.total() == length);
        let layout = layout.ok_or_else(|| foreign("its header is damaged".into()))?;
        let fixed = map(&file, path, 0, layout.fixed())?;
        Ok(Region { file, path: path.to_owned(), shape: Shape { job, first, ranks }, layout, fixed })
    }

    /// The open file. Other processes of this user can open it through `/proc`.
    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of the seat of a rank's endpoint; `None` if the region has no seat for it.
    pub fn place(&self, rank: u32, instance: u32) -> Option<u32> {
        let local = rank.checked_sub(self.shape.first).filter(|local| *local < self.shape.ranks)?;
        (instance < INSTANCES).then_some(local * INSTANCES + instance)
    }

    /// Rank and instance of a seat.
    pub fn owner(&self, place: u32) -> (u32, u32) {
        (self.shape.first + place / INSTANCES, place % INSTANCES)
    }

    fn seat_at(&self, place: u32) -> SeatAt<'_> {
        assert!(place < self.layout.seats(), "a place outside the region");
        SeatAt { fixed: &self.fixed, offset: self.layout.seat(place) }
    }

    /// Takes a seat. From then on others may write to us.
    ///
    /// # Errors
    /// [`PoolError::Taken`], [`PoolError::Room`].
    pub fn join(&self, place: u32, seat: &Seat) -> Result<(), PoolError> {
        let at = self.seat_at(place);
        if at.state() != SeatState::Empty {
            let (rank, instance) = self.owner(place);
            return Err(PoolError::Taken { path: self.path.clone(), rank, instance, pid: at.read().pid });
        }
        allocate(&self.file, &self.path, self.layout.row(place), self.layout.row_bytes())?;
        at.take(seat);
        Ok(())
    }

    /// Gives a seat back. Nobody can take it again.
    pub fn leave(&self, place: u32) {
        self.seat_at(place).leave();
    }

    /// State of a seat.
    pub fn state(&self, place: u32) -> SeatState {
        self.seat_at(place).state()
    }

    /// The endpoint that took this seat; `None` if nobody has.
    pub fn seat(&self, place: u32) -> Option<Seat> {
        let at = self.seat_at(place);
        (at.state() != SeatState::Empty).then(|| at.read())
    }

    /// Publishes the current nap of our own seat `place`, 0 if awake. Check all rings once more between this call and
    /// sleeping.
    pub fn set_nap(&self, place: u32, nap: u64) {
        self.seat_at(place).set_nap(nap);
    }

    /// Current nap of the reader at `place`, 0 if awake. A sleeping reader needs its doorbell, once per nap, to notice
    /// our records.
    pub fn nap(&self, place: u32) -> u64 {
        self.seat_at(place).nap()
    }

    /// The writing end of the ring between two seats. The ring's memory exists from now on.
    ///
    /// # Errors
    /// [`PoolError::Room`], [`PoolError::Mapping`].
    pub fn producer(&self, from: u32, to: u32) -> Result<Producer, PoolError> {
        let (offset, length) = (self.layout.ring_at(from, to), self.layout.ring());
        allocate(&self.file, &self.path, offset, length)?;
        Ok(Producer::new(map(&self.file, &self.path, offset, length)?, length))
    }

    /// Announces to the reader at `to` that we write to the ring between us. Call it after the first record.
    pub fn knock(&self, from: u32, to: u32) {
        self.fixed.word(self.layout.knock(to, from)).store(1, Ordering::Release);
    }

    /// The reading end of a ring whose writer has knocked.
    ///
    /// # Errors
    /// [`PoolError::Mapping`].
    pub fn consumer(&self, from: u32, to: u32) -> Result<Consumer, PoolError> {
        let length = self.layout.ring();
        Ok(Consumer::new(map(&self.file, &self.path, self.layout.ring_at(from, to), length)?, length))
    }

    /// Endpoints that have knocked at `to` and are not `known`.
    pub fn knocking(&self, to: u32, known: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
        let new = move |from: &u32| {
            self.fixed.word(self.layout.knock(to, *from)).load(Ordering::Acquire) != 0 && !known(*from)
        };
        (0..self.layout.seats()).filter(new)
    }
}

/// Allocates memory for a part of the file: access to a hole could kill the process.
fn allocate(file: &File, path: &Path, offset: u64, length: u64) -> Result<(), PoolError> {
    let result = match fallocate(file, FallocateFlags::empty(), offset, length) {
        // This filesystem cannot allocate; its files grow by writing.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(file, offset, length),
        other => other.map_err(io::Error::from),
    };
    let Err(source) = result else { return Ok(()) };
    let path = path.to_owned();
    if matches!(Errno::from_io_error(&source), Some(Errno::NOSPC | Errno::DQUOT)) {
        let free = fstatvfs(file).map_or(0, |room| room.f_bavail.saturating_mul(room.f_frsize));
        return Err(PoolError::Room { path, needed: length, free, others: String::new() });
    }
    Err(PoolError::System { path, what: "allocating memory", source })
}

fn write_zeros(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let zeros = vec![0; ZEROS.min(length as usize)];
    let mut done = 0;
    while done < length {
        let count = zeros.len().min((length - done) as usize);
        file.write_all_at(&zeros[..count], offset + done)?;
        done += count as u64;
    }
    Ok(())
}

fn map(file: &File, path: &Path, offset: u64, length: u64) -> Result<Mapping, PoolError> {
    Mapping::new(file, offset, length).map_err(|source| PoolError::Mapping { path: path.to_owned(), source })
}

/// Likely reason for a missing region, for an error message.
fn absent(path: &Path) -> &'static str {
    if path.starts_with("/proc") {
        "cannot be seen: if the program runs in a container with its own process ids, set `memory = \"off\"` for \
         the site"
    } else {
        "is not there: is this folder the same on all nodes of the site?"
    }
}

/// A list of other jobs' regions in a folder, for an error message.
fn others(folder: &Path) -> String {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    names.sort();
    match names.len() {
        0 => String::new(),
        count => {
            names.truncate(4);
            format!(" ({count} files of other jobs are in this folder: {})", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests;
