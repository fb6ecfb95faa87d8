//! SHA-256 of files. Sums of large files are remembered, so that an unchanged file is not read again.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::here::folders::{self, Folders};

/// Smaller files are hashed each time: that costs no more than looking up their sums.
const WORTH: u64 = 1 << 20;
/// A file that changed more recently than this may change again within one tick of the file system's clock.
const SETTLED: Duration = Duration::from_secs(2);
/// Largest number of remembered files.
const MOST: usize = 256;
const PIECE: usize = 64 << 10;

/// Sums of files, by path, size, inode and times of change. They are kept in a file in the user's account.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    kept_in: Option<PathBuf>,
    /// Most recently used last.
    known: Vec<KnownSum>,
    changed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct KnownSum {
    sum: String,
    stamp: String,
    path: PathBuf,
}

impl Sums {
    /// The sums stored in this account. An account without a home directory stores none.
    pub(crate) fn of_user() -> Sums {
        Folders::of_user().map_or_else(|_| Sums::default(), |folders| Sums::kept_in(folders.sums()))
    }

    fn kept_in(file: PathBuf) -> Sums {
        let text = folders::read(&file).ok().flatten().unwrap_or_default();
        let known = text.lines().filter_map(KnownSum::read).collect();
        Sums { kept_in: Some(file), known, changed: false }
    }

    /// The sum of a file, in hexadecimal digits.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn of(&mut self, path: &Path) -> io::Result<String> {
        let found = std::fs::metadata(path)?;
        let stamp = stamp(&found);
        if let Some(at) = self.known.iter().position(|known| known.path == path) {
            let known = self.known.remove(at);
            if known.stamp == stamp {
                self.known.push(known.clone());
                return Ok(known.sum);
            }
        }
        let sum = sum_of(path)?;
        if found.len() >= WORTH && is_settled(&found) && path.to_str().is_some_and(|text| !text.contains('\n')) {
            self.known.push(KnownSum { sum: sum.clone(), stamp, path: path.to_owned() });
            self.changed = true;
        }
        Ok(sum)
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        let Some(file) = self.kept_in.as_ref().filter(|_| self.changed) else { return };
        let first = self.known.len().saturating_sub(MOST);
        let text: String = self.known[first..].iter().map(KnownSum::line).collect();
        // A sum that is not kept is computed again next time.
        let _ = folders::write(file, &text);
    }
}

impl KnownSum {
    fn read(line: &str) -> Option<KnownSum> {
        let mut words = line.splitn(3, ' ');
        let (sum, stamp, path) = (words.next()?, words.next()?, words.next()?);
        Some(KnownSum { sum: sum.to_owned(), stamp: stamp.to_owned(), path: path.into() })
    }

    fn line(&self) -> String {
        format!("{} {} {}\n", self.sum, self.stamp, self.path.display())
    }
}

/// A text that changes with every write to the file and every replacement of it.
pub(crate) fn stamp(found: &Metadata) -> String {
    let (modified, changed) = ((found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec()));
    format!("{}.{}.{}.{}.{}.{}.{}", found.dev(), found.ino(), found.len(), modified.0, modified.1, changed.0, changed.1)
}

fn is_settled(found: &Metadata) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let last = found.mtime().max(found.ctime());
    u64::try_from(last).is_ok_and(|last| last + SETTLED.as_secs() <= now)
}

fn sum_of(path: &Path) -> io::Result<String> {
    let (mut file, mut digest, mut piece) = (File::open(path)?, Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex(&digest.finalize())),
            count => digest.update(&piece[..count]),
        }
    }
}

/// The bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_file_is_hashed_again_only_if_it_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (large, small) = (folder.path().join("large one"), folder.path().join("small"));
        std::fs::write(&large, vec![1; WORTH as usize]).unwrap();
        std::fs::write(&small, "x").unwrap();
        let kept = folder.path().join("state/sums");
        let own = sum_of(&large).unwrap();
        assert_eq!(Sums::kept_in(kept.clone()).of(&large).unwrap(), own);
        assert!(!kept.exists(), "it may still change within the same tick");
        std::thread::sleep(SETTLED + Duration::from_secs(1));
        {
            let mut sums = Sums::kept_in(kept.clone());
            assert_eq!(sums.of(&large).unwrap(), own);
            sums.of(&small).unwrap();
        }
        let text = std::fs::read_to_string(&kept).unwrap();
        assert!(text.lines().count() == 1 && text.starts_with(&own), "{text}");
        // A made-up sum shows that the file is not read.
        std::fs::write(&kept, text.replace(&own, "made-up")).unwrap();
        assert_eq!(Sums::kept_in(kept.clone()).of(&large).unwrap(), "made-up");
        std::fs::write(&large, vec![2; WORTH as usize]).unwrap();
        assert_eq!(Sums::kept_in(kept.clone()).of(&large).unwrap(), sum_of(&large).unwrap());
        std::fs::write(&kept, "nonsense\n\n").unwrap();
        assert_eq!(Sums::kept_in(kept).of(&large).unwrap(), sum_of(&large).unwrap());
        assert!(Sums::default().of(&folder.path().join("nowhere")).is_err());
    }
}
