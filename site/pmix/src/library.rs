//! The choice of a libpmix, and its functions.

use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Handle, RTLD_GLOBAL, RTLD_NOW};

use crate::abi::Functions;
use crate::error::{LoadError, PmixError};

/// The name under which every libpmix of the supported versions is installed.
pub const SONAME: &str = "libpmix.so.2";

/// First and last major version whose interface [`crate::abi`] describes.
const MAJORS: std::ops::RangeInclusive<u32> = 4..=6;

/// A loaded libpmix.
#[derive(Debug)]
pub struct Library {
    version: String,
    pub(crate) major: u32,
    path: PathBuf,
    pub(crate) functions: Functions,
    /// Never unloaded: the library's threads and exit handlers run its code until the process ends.
    _handle: ManuallyDrop<Handle>,
}

impl Library {
    /// Loads `named`, if given; otherwise the first usable one of `places`; if none is usable, the one that the dynamic
    /// linker finds.
    ///
    /// # Errors
    /// [`PmixError::Named`], or [`PmixError::NotFound`] with every place tried.
    pub fn find(named: Option<&Path>, places: &[PathBuf]) -> Result<Library, PmixError> {
        if let Some(path) = named {
            return Library::load(path).map_err(|problem| PmixError::Named { path: path.to_owned(), problem });
        }
        let mut tried = Vec::new();
        let there = places.iter().filter(|place| place.is_file()).map(PathBuf::as_path);
        for place in there.chain([Path::new(SONAME)]) {
            match Library::load(place) {
                Ok(library) => return Ok(library),
                Err(problem) if place == Path::new(SONAME) => tried.push(format!("the system's {SONAME} ({problem})")),
                Err(problem) => tried.push(format!("{} ({problem})", place.display())),
            }
        }
        Err(PmixError::NotFound { tried: tried.join(", ") })
    }

    /// The version, such as `5.0.11`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The file, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn load(path: &Path) -> Result<Library, LoadError> {
        // SAFETY: this runs the initialisers of libpmix and of its dependencies (libevent, hwloc), which may be loaded
        // into any process; the site's administrator or user names the file, as for every MPI library.
        let handle = unsafe { Handle::open(Some(path), RTLD_NOW | RTLD_GLOBAL) };
        let handle = handle.map_err(|error| reason(&error))?;
        // SAFETY: `const char *PMIx_Get_version(void)` in every version; the text is static.
        let banner = unsafe {
            let version = symbol::<unsafe extern "C" fn() -> *const c_char>(&handle, c"PMIx_Get_version")?;
            CStr::from_ptr(version()).to_string_lossy().into_owned()
        };
        let version = version_in(&banner).ok_or_else(|| LoadError::Banner(banner.clone()))?;
        let major = major(&version).filter(|major| MAJORS.contains(major));
        let major = major.ok_or_else(|| LoadError::Version(version.clone()))?;
        // SAFETY: the version is a supported one, and the functions have these types in all supported versions.
        let functions = unsafe {
            Functions {
                error_string: symbol(&handle, c"PMIx_Error_string")?,
                server_init: symbol(&handle, c"PMIx_server_init")?,
                server_finalize: symbol(&handle, c"PMIx_server_finalize")?,
                register_nspace: symbol(&handle, c"PMIx_server_register_nspace")?,
                register_client: symbol(&handle, c"PMIx_server_register_client")?,
                setup_fork: symbol(&handle, c"PMIx_server_setup_fork")?,
                dmodex_request: symbol(&handle, c"PMIx_server_dmodex_request")?,
            }
        };
        Ok(Library { version, major, path: path.to_owned(), functions, _handle: ManuallyDrop::new(handle) })
    }
}

/// # Safety
/// `F` is the type of the function of this name.
unsafe fn symbol<F: Copy>(handle: &Handle, name: &CStr) -> Result<F, LoadError> {
    // SAFETY: the caller knows the type; the handle stays open as long as the pointer is used, see `Library`.
    let found = unsafe { handle.get::<F>(name.to_bytes_with_nul()) };
    found.map(|function| *function).map_err(|_| LoadError::Function(name.to_string_lossy().into_owned()))
}

/// The dynamic linker's message, without the leading file name.
fn reason(error: &libloading::Error) -> LoadError {
    let text = error.to_string();
    LoadError::Linker(match text.split_once(": ") {
        Some((_, rest)) if !rest.is_empty() => rest.to_owned(),
        _ => text,
    })
}

/// The first `a.b…` of a banner such as `OpenPMIx 4.2.2 (PMIx Standard: 4.1, …)`.
fn version_in(banner: &str) -> Option<String> {
    let word =
        banner.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))?;
    Some(word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned())
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_banners() {
        for (banner, version, major) in [
            ("OpenPMIx 5.0.11rc1 (PMIx Standard: 5.1, Stable ABI: 5.0, Provisional ABI: 5.0)", "5.0.11rc1", 5),
            ("OpenPMIx 4.2.2, repo rev: v4.2.2 (PMIx Standard: 4.1)", "4.2.2", 4),
            ("PMIx 3.2.3", "3.2.3", 3),
            ("OpenPMIx 7.0.0", "7.0.0", 7),
        ] {
            assert_eq!(version_in(banner).as_deref(), Some(version));
            assert_eq!(super::major(version), Some(major), "{version}");
        }
        assert_eq!(version_in("no number"), None);
    }

    #[test]
    fn every_place_tried_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let text = folder.path().join(SONAME);
        std::fs::write(&text, "not a library").unwrap();
        let error = Library::find(Some(&text), &[]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("LANDBRIDGE_PMIX={}: ", text.display())), "{error}");
        let foreign = folder.path().join("libm.so.6");
        std::os::unix::fs::symlink("/lib/x86_64-linux-gnu/libm.so.6", &foreign).unwrap();
        if foreign.is_file() {
            let error = Library::find(Some(&foreign), &[]).unwrap_err().to_string();
            assert!(error.contains("no function PMIx_Get_version"), "{error}");
        }
        // If the system has a libpmix, it is found after the bad place.
        match Library::find(None, std::slice::from_ref(&text)) {
            Ok(library) => assert!(MAJORS.contains(&library.major)),
            Err(error) => assert!(error.to_string().contains(&text.display().to_string()), "{error}"),
        }
    }
}
