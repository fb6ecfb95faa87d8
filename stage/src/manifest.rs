//! The manifest of a transfer: every file, folder and link with its metadata.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use types::untrusted::printable;

/// The contents of a source at one moment. A folder precedes its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub entries: Vec<Entry>,
}

/// Names and values of extended attributes, including access control lists.
pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// A file, a folder or a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Path below the root, as raw bytes; empty: the root itself.
    pub path: Vec<u8>,
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    pub attributes: Attributes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    Folder,
    File {
        stamp: Stamp,
        /// Offsets and lengths of the data, ascending. The rest are holes.
        data: Vec<(u64, u64)>,
    },
    /// A symbolic link and its target.
    Link(Vec<u8>),
    /// A hard link: the number of the file's first entry.
    Same(u32),
}

/// Detects changes of a listed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub inode: u64,
    /// Size in bytes, including holes.
    pub size: u64,
    /// Time of the last change of the contents, in nanoseconds since 1970.
    pub modified: i128,
    /// Time of the last change of contents or metadata, in nanoseconds since 1970.
    pub changed: i128,
    /// Normally 0. For a file that is open for writing on a file system in memory, the other fields may not show a
    /// change; then it is the number of this attempt, because data from an earlier attempt may be out of date.
    pub attempt: u64,
}

/// Joins `path` to `root`. An empty path is the root itself and gets no trailing slash.
pub(crate) fn below(root: &Path, path: &[u8]) -> PathBuf {
    match path.is_empty() {
        true => root.to_owned(),
        false => root.join(OsStr::from_bytes(path)),
    }
}

impl Entry {
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// The entry's path below `root`.
    pub fn below(&self, root: &Path) -> PathBuf {
        below(root, &self.path)
    }

    /// Size in bytes; 0 for folders and links.
    pub fn size(&self) -> u64 {
        match &self.kind {
            EntryKind::File { stamp, .. } => stamp.size,
            _ => 0,
        }
    }
}

impl Manifest {
    /// Bytes of data, without holes. Saturates: an untrusted manifest may state any lengths.
    pub fn bytes(&self) -> u64 {
        self.entries.iter().flat_map(Entry::data).fold(0, |all, (_, length)| all.saturating_add(length))
    }

    pub fn files(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File { .. })).count()
    }

    /// Finds a fault in an untrusted manifest: a path that leaves the root, a folder after its contents, data beyond
    /// the end of a file, a hard link to an entry that is not a file.
    pub fn fault(&self) -> Option<String> {
        let mut folders = std::collections::HashSet::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let shown = || printable(&entry.path().to_string_lossy());
            let parts = || entry.path.split(|byte| *byte == b'/');
            if at == 0 && !entry.path.is_empty() {
                return Some(format!("its first entry is {} instead of the root", shown()));
            }
            if at > 0 {
                if entry.path.contains(&0) || parts().any(|part| matches!(part, b"" | b"." | b"..")) {
                    return Some(format!("the path {} leaves the root", shown()));
                }
                let parent = entry.path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |at| &entry.path[..at]);
                if !folders.contains(parent) {
                    return Some(format!("{} precedes its folder", shown()));
                }
            }
            match &entry.kind {
                EntryKind::Folder => {
                    if !folders.insert(&entry.path[..]) {
                        return Some(format!("{} is there twice", shown()));
                    }
                }
                EntryKind::File { stamp, data } => {
                    let mut end = 0u64;
                    for (offset, length) in data {
                        let next = offset.checked_add(*length).filter(|_| *offset >= end && *length > 0);
                        match next {
                            Some(next) if next <= stamp.size => end = next,
                            _ => return Some(format!("{}: data at {offset} of {} bytes", shown(), stamp.size)),
                        }
                    }
                }
                EntryKind::Link(_) => {}
                EntryKind::Same(first) => {
                    let first = self.entries[..at].get(*first as usize);
                    if !first.is_some_and(|first| matches!(first.kind, EntryKind::File { .. })) {
                        return Some(format!("{} is another name of no file", shown()));
                    }
                }
            }
        }
        self.entries.is_empty().then(|| "it is empty".to_owned())
    }
}

impl Entry {
    /// Offsets and lengths of the data.
    pub fn data(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let data = match &self.kind {
            EntryKind::File { data, .. } => &data[..],
            _ => &[],
        };
        data.iter().copied()
    }
}
