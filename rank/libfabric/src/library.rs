//! Finds a libfabric that offers a provider.
//!
//! If the site names a path, only that file is tried. Otherwise the libfabric that MPI has already loaded comes first:
//! a call from inside its provider, ours, is safe, because its core holds no lock while it calls a provider. Then come
//! those on the library path and in the system's folders: an MPI library's own libfabric often has few providers, and
//! the site's has the right ones.
//!
//! A second libfabric in a process must not interfere with the first. It is loaded with `RTLD_LOCAL`, so that nothing
//! else finds its symbols, and `RTLD_DEEPBIND`, so that its own calls of `fi_freeinfo` and the like, which go through
//! the global scope, resolve to itself. It is never unloaded: providers leave threads and exit handlers behind.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::abi::info::{fi_fabric_attr, fi_info};
use crate::abi::objects::fid_fabric;
use crate::call::{Fault, function};
use crate::offer::{self, ProviderOffer};

/// The oldest version whose structures begin like ours.
const OLDEST: (u32, u32) = (1, 9);
const SONAME: &CStr = c"libfabric.so.1";
/// Library folders of common systems, tried after `LD_LIBRARY_PATH`.
const FOLDERS: [&str; 7] = [
    "/usr/local/lib64",
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/opt/amazon/efa/lib64",
];

type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;

/// A libfabric in this process.
#[derive(Clone)]
pub struct Libfabric {
    path: String,
    version: (u32, u32),
    pub(crate) getinfo: GetInfo,
    pub(crate) freeinfo: unsafe extern "C" fn(*mut fi_info),
    pub(crate) dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info,
    pub(crate) fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int,
    strerror: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl fmt::Debug for Libfabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}.{})", self.path, self.version.0, self.version.1)
    }
}

/// Reasons why no libfabric offers the provider.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FindError {
    /// No libfabric was found.
    #[error("there is no libfabric here: MPI has not loaded {}, and it is not in LD_LIBRARY_PATH or the system's \
             folders", SONAME.to_string_lossy())]
    None,
    /// None of the libraries offers the provider.
    #[error("no provider `{provider}` here: {seen}")]
    NotOffered {
        provider: String,
        /// Each library, with its providers or the reason why it cannot be used.
        seen: String,
    },
}

/// Reasons why a file cannot be used as a libfabric.
#[derive(Debug, Error)]
enum Unusable {
    /// The dynamic linker's message, which names the file.
    #[error("{0}")]
    NotLoaded(String),
    /// The dynamic linker gave no message.
    #[error("{path}: cannot be loaded", path = .0.display())]
    Mute(PathBuf),
    #[error("{library} has no {name}: it is not a libfabric")]
    NoFunction { library: String, name: String },
    #[error("{0} is too old: at least {major}.{minor} is needed", major = OLDEST.0, minor = OLDEST.1)]
    Old(String),
}

impl Libfabric {
    /// Returns the first libfabric that offers `provider`, and its offer. `named`: only this file is tried. `address`
    /// (an IP address of this node) decides between several networks of one provider.
    ///
    /// # Errors
    /// [`FindError`], with the providers that the libraries here do offer.
    pub fn offering(
        provider: &str,
        named: Option<&Path>,
        address: Option<std::net::IpAddr>,
    ) -> Result<(Libfabric, ProviderOffer), FindError> {
        let mut seen = Vec::new();
        for candidate in candidates(named) {
            let library = match Libfabric::open(&candidate) {
                Ok(Some(library)) => library,
                Ok(None) => continue,
                Err(unusable) => {
                    seen.push(unusable.to_string());
                    continue;
                }
            };
            match ProviderOffer::find(&library, provider, address) {
                Ok(offer) => return Ok((library, offer)),
                Err(fault) => {
                    let names = offer::names(&library);
                    let names = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
                    let why = if fault.code == libc::ENODATA { String::new() } else { format!(" ({fault})") };
                    seen.push(format!("{library:?} offers {names}{why}"));
                }
            }
        }
        match seen.is_empty() {
            true => Err(FindError::None),
            false => Err(FindError::NotOffered { provider: provider.to_owned(), seen: seen.join("; ") }),
        }
    }

    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// Opens a library. `None`: there is no such library.
    fn open(candidate: &Candidate) -> Result<Option<Libfabric>, Unusable> {
        let (name, flags) = match candidate {
            Candidate::Loaded => (SONAME.to_owned(), libc::RTLD_NOW | libc::RTLD_NOLOAD),
            Candidate::File(path) => {
                let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return Ok(None) };
                (name, libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND)
            }
        };
        // SAFETY: loading runs the library's initialisers, as its user wants; the name ends with a zero.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        if handle.is_null() {
            let Candidate::File(path) = candidate else { return Ok(None) };
            // SAFETY: returns the text of this thread's last failure, or null.
            let reason = unsafe { text(libc::dlerror()) };
            return Err(reason.map_or_else(|| Unusable::Mute(path.clone()), Unusable::NotLoaded));
        }
        let shown = candidate.to_string();
        // SAFETY: these are the types of libfabric's functions in every version of its ABI.
        let library = unsafe {
            let version = symbol::<unsafe extern "C" fn() -> u32>(handle, c"fi_version", &shown)?();
            let getinfo: GetInfo = symbol(handle, c"fi_getinfo", &shown)?;
            Libfabric {
                path: file_of(getinfo as *const c_void).unwrap_or(shown.clone()),
                version: (version >> 16, version & 0xFFFF),
                getinfo,
                freeinfo: symbol(handle, c"fi_freeinfo", &shown)?,
                dupinfo: symbol(handle, c"fi_dupinfo", &shown)?,
                fabric: symbol(handle, c"fi_fabric", &shown)?,
                strerror: symbol(handle, c"fi_strerror", &shown)?,
            }
        };
        if library.version < OLDEST {
            return Err(Unusable::Old(format!("{library:?}")));
        }
        Ok(Some(library))
    }

    /// The error of a call that returned `code`, a negative number.
    pub(crate) fn fault(&self, call: &'static str, code: impl Into<i64>) -> Fault {
        let code = i32::try_from(-code.into()).unwrap_or(libc::EIO);
        // SAFETY: returns a constant text for any number.
        let reason = unsafe { text((self.strerror)(code)) }.unwrap_or_else(|| "unknown error".into());
        Fault { call, code, reason }
    }

    /// The error of a call that this provider does not implement.
    pub(crate) fn missing(&self, call: &'static str) -> Fault {
        self.fault(call, -i64::from(libc::ENOSYS))
    }
}

enum Candidate {
    /// The libfabric that MPI has loaded.
    Loaded,
    File(PathBuf),
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Candidate::Loaded => f.write_str("the libfabric in use"),
            Candidate::File(path) => path.display().fmt(f),
        }
    }
}

fn candidates(named: Option<&Path>) -> Vec<Candidate> {
    if let Some(path) = named {
        return vec![Candidate::File(path.to_owned())];
    }
    let listed = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&listed).chain(FOLDERS.map(PathBuf::from));
    let files = folders.map(|folder| folder.join(OsStr::from_bytes(SONAME.to_bytes()))).filter(|path| path.is_file());
    let mut known = Vec::new();
    let fresh = files.filter(|path| {
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        let fresh = !known.contains(&real);
        known.push(real);
        fresh
    });
    std::iter::once(Candidate::Loaded).chain(fresh.map(Candidate::File)).collect()
}

/// Returns a function of a loaded library.
///
/// # Safety
/// `F` is the type of the function with this name.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr, library: &str) -> Result<F, Unusable> {
    // SAFETY: a handle from dlopen, and a name that ends with a zero.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    // SAFETY: the caller knows the type.
    let found = unsafe { function::<F>((&raw const address).cast()) };
    found.ok_or_else(|| Unusable::NoFunction { library: library.to_owned(), name: name.to_string_lossy().into_owned() })
}

/// Returns the file that contains an address.
fn file_of(address: *const c_void) -> Option<String> {
    // SAFETY: a structure of pointers; zeroes are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: writes `info` only if it returns nonzero; names of loaded files stay valid.
    unsafe { if libc::dladdr(address, &mut info) == 0 { None } else { text(info.dli_fname) } }
}

/// # Safety
/// `start` is null, or points to a zero-terminated text.
pub(crate) unsafe fn text(start: *const c_char) -> Option<String> {
    // SAFETY: not null; the caller's promise.
    (!start.is_null()).then(|| unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned())
}
