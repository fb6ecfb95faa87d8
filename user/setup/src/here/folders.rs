//! The files of Landbridge in a user's account, and atomic writes, so that no file is ever half written.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use folder::{Folder, Fresh, Named, open_named, text_of};
use rustix::fs::Mode;

use super::error::HereError;
use crate::release::COMMAND_FILE;

/// The folders of one account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    /// The sites file and the keys: `~/.config/landbridge`.
    pub configuration: PathBuf,
    /// The notes and logs of gateways: `~/.local/state/landbridge`.
    pub state: PathBuf,
}

const SITES_FILE: &str = "sites.toml";
/// Largest size of a file that is read whole, in bytes. A sites file with 10,000 named nodes has less than one million.
pub const MOST_TEXT: u64 = 16 << 20;

impl Folders {
    /// The folders of the current user, by the XDG base directory specification.
    ///
    /// # Errors
    /// There is no home directory.
    pub fn of_user() -> Result<Folders, HereError> {
        let place = |variable: &str, below: &str| {
            let named = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
            named.or_else(|| std::env::home_dir().map(|home| home.join(below))).map(|path| path.join("landbridge"))
        };
        Ok(Folders {
            configuration: place("XDG_CONFIG_HOME", ".config").ok_or(HereError::NoHome)?,
            state: place("XDG_STATE_HOME", ".local/state").ok_or(HereError::NoHome)?,
        })
    }

    pub fn sites_file(&self) -> PathBuf {
        self.configuration.join(SITES_FILE)
    }

    pub fn key(&self, site: &str) -> PathBuf {
        self.configuration.join(key_name(site))
    }

    /// The key with which a site's gateways log in at other sites, and its public half.
    pub(crate) fn trunk_key(&self, site: &str) -> [PathBuf; 2] {
        let private = starters::tunnel::key_file(&self.configuration, site);
        let mut public = private.clone().into_os_string();
        public.push(".pub");
        [private, public.into()]
    }

    /// Names of the sites whose keys are here.
    pub(crate) fn keys(&self) -> Result<Vec<String>, HereError> {
        let entries = match std::fs::read_dir(&self.configuration) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(HereError::file(&self.configuration)(e)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter_map(|name| Some(name.strip_suffix(".key")?.to_owned())).collect();
        names.sort();
        Ok(names)
    }

    /// The note of the background gateway, which the gateway locks while it runs.
    pub(crate) fn state_file(&self, site: &str) -> PathBuf {
        self.state.join(format!("{site}.gateway"))
    }

    /// The gateway's log, and the one before it.
    pub(crate) fn logs(&self, site: &str) -> [PathBuf; 2] {
        [self.state.join(format!("{site}.log")), self.state.join(format!("{site}.log.old"))]
    }

    /// The remembered sums of large files.
    pub(crate) fn sums(&self) -> PathBuf {
        self.state.join("sums")
    }

    /// The text of the sites file, or `None` if it does not exist.
    pub(crate) fn read_sites(&self) -> Result<Option<String>, HereError> {
        read_sites(&self.sites_file())
    }

    /// Replaces the sites file, or removes it. Keeps the previous one beside it: a user may have edited it here.
    pub(crate) fn write_sites(&self, text: Option<&str>) -> Result<(), HereError> {
        let before = self.read_sites()?;
        if let Some(before) = before.as_deref().filter(|before| Some(*before) != text) {
            write(&self.sites_file_before(), before)?;
        }
        match text {
            Some(text) if before.as_deref() == Some(text) => Ok(()),
            Some(text) => write(&self.sites_file(), text),
            None => self.remove(&self.sites_file()),
        }
    }

    /// The sites file before the last change.
    pub(crate) fn sites_file_before(&self) -> PathBuf {
        self.configuration.join("sites.toml.old")
    }

    /// Removes a file if it exists.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), HereError> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(HereError::file(path)(e)),
            _ => Ok(()),
        }
    }
}

/// The name of a site's key file, which is beside the sites file.
pub(crate) fn key_name(site: &str) -> String {
    format!("{site}.key")
}

/// Reads a file, or returns `None` if it does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, HereError> {
    let text = File::open(path).and_then(|file| text_of(file, MOST_TEXT));
    if_there(text).map_err(HereError::file(path))
}

/// Reads a sites file, or returns `None` if it does not exist.
///
/// # Errors
/// The file cannot be read; or everybody can write to it, although it decides which programs run as this user.
pub fn read_sites(path: &Path) -> Result<Option<String>, HereError> {
    let text = open_named(path).and_then(|file| {
        let about = file.metadata()?;
        if about.is_file() && about.permissions().mode() & 0o002 != 0 {
            let problem = format!(
                "everybody can write to it, and it decides which programs run as you: `chmod o-w {}`",
                types::shell::path(path)
            );
            return Err(Error::new(ErrorKind::PermissionDenied, problem));
        }
        text_of(file, MOST_TEXT)
    });
    if_there(text).map_err(HereError::file(path))
}

fn if_there(text: std::io::Result<String>) -> std::io::Result<Option<String>> {
    match text {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        text => text.map(Some),
    }
}

/// Replaces a file atomically: a reader sees the old text or the new, even after a crash.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), HereError> {
    Written::new(path, text)?.place()
}

/// The new text of a file, on the disk beside it. Dropping it before it is placed removes it.
pub(crate) struct Written<'a> {
    path: &'a Path,
    name: Vec<u8>,
    fresh: Fresh,
}

impl<'a> Written<'a> {
    pub(crate) fn new(path: &'a Path, text: &str) -> Result<Written<'a>, HereError> {
        let write = || -> std::io::Result<Written<'a>> {
            // A symbolic link is kept: users keep such files in repositories of their own.
            let named = Named::resolve_or_make(path, Mode::from_raw_mode(0o700))?;
            let process = std::process::id().to_string();
            let mut fresh = Fresh::make(&named.folder, &[b".", &named.name[..], b".", process.as_bytes()].concat())?;
            fresh.file.write_all(text.as_bytes())?;
            fresh.file.sync_all()?;
            Ok(Written { path, name: named.name, fresh })
        };
        write().map_err(HereError::file(path))
    }

    /// Replaces the file.
    pub(crate) fn place(self) -> Result<(), HereError> {
        self.fresh.place(&self.name).map_err(HereError::file(self.path))
    }
}

/// Makes a folder that only this user can access, unless it exists.
///
/// # Errors
/// The system's error, or others can write to the folder.
pub(crate) fn make(folder: &Path) -> Result<(), HereError> {
    Folder::make_private(folder).map_err(HereError::file(folder))?;
    Ok(())
}

/// Removes every release below `base`, and `base` if it is then empty. A folder without our command stays.
pub(crate) fn remove_releases(base: &Path) -> Result<(), HereError> {
    let Ok(entries) = std::fs::read_dir(base) else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.path().join(COMMAND_FILE).is_file() {
            std::fs::remove_dir_all(entry.path()).map_err(HereError::file(&entry.path()))?;
        }
    }
    let _ = std::fs::remove_dir(base);
    Ok(())
}

/// Removes unused releases for this kind of machine beside this program's own, except the newest: another machine of
/// this account may be about to use that one. `in_use`: the folders of the releases in use, this program's own last.
pub(crate) fn remove_old_releases(in_use: &[PathBuf]) -> Result<(), HereError> {
    let Some((own, base)) = in_use.last().and_then(|own| Some((own, own.parent()?))) else { return Ok(()) };
    // A folder of programs that is not below a folder of releases has no other releases beside it.
    let name = own.file_name().unwrap_or_default().to_string_lossy();
    if !is_release_name(&name) {
        return Ok(());
    }
    let kind = machine_of(own);
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let mut old: Vec<_> = entries
        .filter(|entry| is_release_name(&entry.file_name().to_string_lossy()) && !in_use.contains(&entry.path()))
        .filter(|entry| machine_of(&entry.path()) == kind)
        .filter_map(|entry| Some((entry.path().join(COMMAND_FILE).metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    old.sort();
    old.pop();
    old.iter().try_for_each(|(_, path)| std::fs::remove_dir_all(path).map_err(HereError::file(path)))
}

/// True if a folder's name has the form of a release's: `VERSION-SUM`.
fn is_release_name(name: &str) -> bool {
    let is_version = |text: &str| text.split('.').count() == 3 && text.starts_with(|c: char| c.is_ascii_digit());
    name.rsplit_once('-').is_some_and(|(version, sum)| {
        is_version(version) && !sum.is_empty() && sum.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// The kind of machine that a release is for, from its ELF header.
fn machine_of(release: &Path) -> Option<[u8; 20]> {
    let mut header = [0; 20];
    File::open(release.join(COMMAND_FILE)).ok()?.read_exact(&mut header).ok().map(|()| header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_is_replaced_whole_and_private() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Folders { configuration: folder.path().join("deep/er"), state: folder.path().join("state") };
        assert_eq!(folders.read_sites().unwrap(), None);
        assert!(folders.keys().unwrap().is_empty());
        for text in ["one", "two"] {
            folders.write_sites(Some(text)).unwrap();
            assert_eq!(folders.read_sites().unwrap().as_deref(), Some(text));
        }
        assert_eq!(std::fs::metadata(folders.sites_file()).unwrap().mode() & 0o777, 0o600);
        std::fs::write(folders.key("lyon"), "").unwrap();
        assert_eq!(folders.keys().unwrap(), ["lyon"]);
        assert_eq!(read(&folders.sites_file_before()).unwrap().as_deref(), Some("one"));
        assert_eq!(std::fs::read_dir(&folders.configuration).unwrap().count(), 3, "nothing beside them");
        folders.write_sites(None).unwrap();
        folders.write_sites(None).unwrap();
        std::fs::write(folders.sites_file(), "x").unwrap();
        std::fs::set_permissions(folders.sites_file(), PermissionsExt::from_mode(0o666)).unwrap();
        let error = folders.read_sites().unwrap_err().to_string();
        assert!(error.contains("everybody can write to it") && error.contains("`chmod o-w /"), "{error}");
        let error = write(Path::new("/proc/no/sites.toml"), "x").unwrap_err().to_string();
        assert!(error.contains("/proc/no"), "{error}");
    }

    #[test]
    fn old_releases_go_and_what_is_in_use_stays() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        for (name, age, machine) in [
            ("0.1.0-aa", 50, b'x'),
            ("0.2.0-bb", 40, b'x'),
            ("0.3.0-cc", 30, b'x'),
            ("0.4.0-dd", 20, b'x'),
            ("0.4.0-ee", 90, b'y'),
            ("1.0.0-ff", 10, b'x'),
            ("mine", 99, b'x'),
        ] {
            std::fs::create_dir_all(base.join(name)).unwrap();
            let file = File::create(base.join(name).join(COMMAND_FILE)).unwrap();
            (&file).write_all(&[machine; 64]).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        }
        remove_old_releases(&[base.join("0.2.0-bb"), base.join("1.0.0-ff")]).unwrap();
        let mut left: Vec<_> = std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["0.2.0-bb", "0.4.0-dd", "0.4.0-ee", "1.0.0-ff", "mine"]);
        remove_old_releases(&[base.join("mine")]).unwrap();
        assert_eq!(std::fs::read_dir(&base).unwrap().count(), 5);
    }

    #[test]
    fn only_releases_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        for (name, file) in [("1.0-a", COMMAND_FILE), ("mine", "thesis.tex")] {
            std::fs::create_dir_all(base.join(name)).unwrap();
            std::fs::write(base.join(name).join(file), "").unwrap();
        }
        remove_releases(&base).unwrap();
        assert!(!base.join("1.0-a").exists() && base.join("mine/thesis.tex").exists());
        remove_releases(&folder.path().join("missing")).unwrap();
    }
}
