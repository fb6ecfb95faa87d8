//! Finds the loaded MPI library and the provider.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// The MPI library of this process.
pub(crate) struct Library {
    /// Handle from dlopen.
    pub handle: usize,
    /// Address that it is loaded at.
    base: usize,
    /// True if it has the ABI of MPI-5.
    pub standard: bool,
}

/// Finds the library once, when the first covered function is called: MPI is loaded by then.
pub(crate) struct Lazy(OnceLock<Option<Library>>);

pub(crate) static LIBRARY: Lazy = Lazy(OnceLock::new());

impl Lazy {
    pub(crate) fn get(&self) -> Option<&Library> {
        self.0.get_or_init(find).as_ref()
    }
}

/// The provider's file name, in the folder of this library.
const PROVIDER: &str = "liblandbridge-fi.so";

/// The provider, if this process has loaded it from the folder of this library.
pub(crate) fn provider() -> Option<*mut c_void> {
    let own = place(std::ptr::from_ref(&crate::landbridge_layer).cast())?;
    let own = Path::new(std::ffi::OsStr::from_bytes(own.file.to_bytes()));
    open(&CString::new(own.with_file_name(PROVIDER).as_os_str().as_bytes()).ok()?)
}

/// Returns true if an address is in the MPI library, or if that cannot be determined.
pub(crate) fn is_mpi(address: *const c_void) -> bool {
    match (place(address), LIBRARY.get()) {
        (Some(place), Some(library)) => place.base == library.base,
        _ => true,
    }
}

struct LoadedObject {
    file: &'static CStr,
    base: usize,
}

/// The loaded file that contains an address.
fn place(address: *const c_void) -> Option<LoadedObject> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and fills `info`, for which all zeroes is a value.
    let info = unsafe {
        if libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        info.assume_init()
    };
    // SAFETY: the linker's own text, which lives as long as the library is loaded.
    let file = (!info.dli_fname.is_null()).then(|| unsafe { CStr::from_ptr(info.dli_fname) })?;
    Some(LoadedObject { file, base: info.dli_fbase as usize })
}

/// Returns a handle of a library that is already loaded.
fn open(file: &CStr) -> Option<*mut c_void> {
    // SAFETY: nothing new is loaded, so no code of the library runs.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    (!handle.is_null()).then_some(handle)
}

fn find() -> Option<Library> {
    let mut file: Option<CString> = None;
    // SAFETY: `note` gets `file`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut file).cast()) };
    let file = file?;
    let handle = open(&file)?;
    // SAFETY: a handle from dlopen, and a name that ends with a zero.
    let known = unsafe { libc::dlsym(handle, c"PMPI_Initialized".as_ptr()) };
    let standard = is_standard(&file);
    Some(Library { handle: handle as usize, base: place(known)?.base, standard })
}

/// Records the name of the first MPI library, and stops there.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _size: usize, file: *mut c_void) -> c_int {
    // SAFETY: the linker passes a valid description, and `find` a place for the name.
    let (name, file) = unsafe { ((*info).dlpi_name, &mut *file.cast::<Option<CString>>()) };
    if name.is_null() {
        return 0;
    }
    // SAFETY: the linker's text.
    let name = unsafe { CStr::from_ptr(name) };
    if !is_mpi_name(base_name(name)) {
        return 0;
    }
    *file = Some(name.to_owned());
    1
}

fn base_name(file: &CStr) -> &[u8] {
    file.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

fn is_standard(file: &CStr) -> bool {
    base_name(file).starts_with(b"libmpi_abi")
}

/// Wheels rename libraries: `libmpi-1f2e3d4c.so.12`.
fn is_mpi_name(name: &[u8]) -> bool {
    let start = ["libmpi.so", "libmpi-", "libmpich.so", "libmpich-", "libmpi_abi.so", "libmpi_abi-"];
    start.iter().any(|start| name.starts_with(start.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mpi_libraries_are_known_by_their_names() {
        for (file, mpi, standard) in [
            (c"/usr/lib/libmpi.so.12", true, false),
            (c"/x/libmpi-1f2e3d4c.so.40.30.1", true, false),
            (c"libmpi_abi.so.1", true, true),
            (c"/usr/lib/libmpifort.so.12", false, false),
            (c"/usr/lib/libmpi_mpifh.so.40", false, false),
            (c"/usr/lib/libmpicxx.so.12", false, false),
            (c"", false, false),
        ] {
            assert_eq!((is_mpi_name(base_name(file)), is_standard(file)), (mpi, standard), "{file:?}");
        }
    }
}
