//! The items to push to sites: files, folders with everything in them, and links; and their target paths.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use crate::error::SetupError;
use crate::message::{Item, ItemKind};

/// The mode bits that are kept.
const MODE: u32 = 0o7777;

#[derive(Clone, Debug, Default)]
pub struct Parcel {
    /// The local path of each item, and the item to make there. A folder comes before its contents.
    pub(crate) items: Vec<(PathBuf, Item)>,
}

impl Parcel {
    /// Reads everything at these paths. A link among `paths` stands for its target; links inside a folder stay links.
    ///
    /// # Errors
    /// A path does not exist, cannot be read, or is neither a file, a folder nor a link.
    pub fn read(paths: &[PathBuf], home: Option<&Path>) -> Result<Parcel, SetupError> {
        let homes: Vec<PathBuf> =
            home.into_iter().flat_map(|home| [Some(home.to_owned()), home.canonicalize().ok()]).flatten().collect();
        let mut parcel = Parcel::default();
        for path in paths {
            let path = lexical(&std::path::absolute(path).map_err(|source| file(path, source))?);
            let found = std::fs::metadata(&path).map_err(|source| file(&path, source))?;
            parcel.take(&path, &found, &homes)?;
        }
        Ok(parcel)
    }

    /// The total length of all files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|(_, item)| if let ItemKind::File { length, .. } = item.kind { length } else { 0 }).sum()
    }

    fn take(&mut self, path: &Path, found: &Metadata, homes: &[PathBuf]) -> Result<(), SetupError> {
        let mode = found.permissions().mode() & MODE;
        let kind = if found.is_dir() {
            ItemKind::Folder { mode }
        } else if found.is_file() {
            ItemKind::File { mode, length: found.len() }
        } else if found.is_symlink() {
            let target = std::fs::read_link(path).map_err(|source| file(path, source))?;
            let (target, below_home) = below(&target, homes);
            ItemKind::Link { target: target.to_vec(), below_home }
        } else {
            return Err(SetupError::Request(format!(
                "{}: neither a file nor a folder nor a link, so it cannot be copied to a site: name what is beside it instead",
                path.display()
            )));
        };
        let is_folder = matches!(kind, ItemKind::Folder { .. });
        let (there, below_home) = below(path, homes);
        self.items.push((path.to_owned(), Item { path: there.to_vec(), below_home, kind }));
        if is_folder {
            let wrong = |source| file(path, source);
            let mut entries = std::fs::read_dir(path).map_err(wrong)?.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let path = entry.path();
                let found = entry.metadata().map_err(|source| file(&path, source))?;
                self.take(&path, &found, homes)?;
            }
        }
        Ok(())
    }
}

/// Returns the path relative to the home directory and `true`, or the path as it is and `false`.
fn below<'a>(path: &'a Path, homes: &[PathBuf]) -> (&'a [u8], bool) {
    match homes.iter().find_map(|home| path.strip_prefix(home).ok()) {
        Some(below) => (below.as_os_str().as_bytes(), true),
        None => (path.as_os_str().as_bytes(), false),
    }
}

/// The path with `..` resolved, without following links.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

fn file(path: &Path, source: std::io::Error) -> SetupError {
    SetupError::File { path: path.to_owned(), source }
}

/// The path of an item on this machine.
pub(crate) fn place(home: &Path, path: &[u8], below_home: bool) -> PathBuf {
    let path = Path::new(OsStr::from_bytes(path));
    if below_home { home.join(path) } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_home_here_is_below_home_there() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        std::fs::create_dir_all(at("venv/bin")).unwrap();
        std::fs::write(at("venv/bin/tool"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(at("venv/bin/tool"), std::fs::Permissions::from_mode(0o751)).unwrap();
        std::os::unix::fs::symlink("tool", at("venv/bin/same")).unwrap();
        std::os::unix::fs::symlink(at("venv"), at("venv/own")).unwrap();
        std::os::unix::fs::symlink("/bin/sh", at("venv/bin/sh")).unwrap();
        let parcel = Parcel::read(&[at("other/../venv")], Some(home.path())).unwrap();
        let told: Vec<_> = parcel
            .items
            .iter()
            .map(|(_, item)| (String::from_utf8_lossy(&item.path).into_owned(), item.below_home, item.kind.clone()))
            .collect();
        let folder = ItemKind::Folder { mode: std::fs::metadata(at("venv")).unwrap().permissions().mode() & MODE };
        let link = |target: &str, below_home| ItemKind::Link { target: target.into(), below_home };
        let expected = [
            ("venv", folder.clone()),
            ("venv/bin", folder),
            ("venv/bin/same", link("tool", false)),
            ("venv/bin/sh", link("/bin/sh", false)),
            ("venv/bin/tool", ItemKind::File { mode: 0o751, length: 10 }),
            ("venv/own", link("venv", true)),
        ];
        assert_eq!(told, expected.map(|(path, kind)| (path.to_owned(), true, kind)));
        assert_eq!(parcel.bytes(), 10);
        // A link given by the user stands for its target.
        let parcel = Parcel::read(&[at("venv/bin/same")], None).unwrap();
        assert!(matches!(parcel.items[0].1, Item { below_home: false, kind: ItemKind::File { .. }, .. }));
        assert!(Parcel::read(&[at("nowhere")], None).unwrap_err().to_string().contains("nowhere"));
        assert!(Parcel::read(&["/dev/null".into()], None).unwrap_err().to_string().contains("/dev/null"));
    }
}
