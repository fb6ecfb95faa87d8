//! Open MPI: it sends all traffic through its OFI components, and its ranks start with libpmix.

use std::path::{Path, PathBuf};

use pmix::PmixError;
use pmix::library::SONAME;

use super::elf;
use super::error::MpiError;
use super::library::Library;
use super::provider::is_ours;
use super::shared_settings::insist;
use crate::environment::Environment;

pub(super) fn settings(environment: &mut Environment, library: Option<&Path>, crosses: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(prefix) = library.and_then(prefix) {
        environment.set_default("OPAL_PREFIX", prefix);
    }
    // Open MPI 4.1 looks for a PMIx server only under a launcher that it knows to have one; otherwise every rank would
    // become a job of its own. It recognises IBM's launcher by this variable; its value does not matter.
    environment.set_default("JSM_JSRUN_PORT", "0");
    if crosses {
        insist(environment, "OMPI_MCA_pml", "cm", &mut notes);
        insist(environment, "OMPI_MCA_mtl", "ofi", &mut notes);
    } else if is_ours(environment) {
        environment.set_default("OMPI_MCA_pml", "cm");
        environment.set_default("OMPI_MCA_mtl", "ofi");
    }
    if is_ours(environment) {
        // Without UCX's hardware, this component prints an error for every window before Open MPI takes another
        // component.
        environment.set_default("OMPI_MCA_osc", "^ucx");
    }
    let provider = environment.get("FI_PROVIDER").unwrap_or_default().to_owned();
    for name in ["OMPI_MCA_mtl_ofi_provider_include", "OMPI_MCA_btl_ofi_provider_include"] {
        if crosses {
            insist(environment, name, "landbridge", &mut notes);
        } else {
            environment.set_default(name, &provider);
        }
    }
    notes
}

/// Makes `MPI_Init` fail in a program whose MPI is unknown. Without a PMIx server, each rank of Open MPI would silently
/// become a job of its own. The name of a component that does not exist prevents this, and Open MPI prints it.
pub fn refuse_unnamed(environment: &mut Environment) {
    environment.set_default("OMPI_MCA_pml", "say_--mpi_openmpi");
}

/// Checks that ranks of this library can start with PMIx alone. Before 4.1, each would silently become a job of its
/// own.
///
/// # Errors
/// [`MpiError::TooOld`].
pub(super) fn check_age(library: &Path) -> Result<(), MpiError> {
    // Libtool's version of 4.0 is 40.20, of 4.1 40.30, of 5.0 40.40. PyPI's file has no such version.
    let real = std::fs::canonicalize(library).unwrap_or_else(|_| library.to_owned());
    let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = name.split(".so.").nth(1).and_then(|version| version.split('.').nth(1)?.parse::<u32>().ok());
    if number.is_some_and(|number| number < 30) { Err(MpiError::TooOld(real)) } else { Ok(()) }
}

/// Makes ranks of one node put their shared files into this folder, which is removed however the ranks end.
pub fn share_memory_in(environment: &mut Environment, folder: &Path) {
    for name in [
        "OMPI_MCA_btl_sm_backing_directory",
        "OMPI_MCA_btl_vader_backing_directory",
        "OMPI_MCA_osc_rdma_backing_directory",
        "OMPI_MCA_osc_sm_backing_directory",
        "OMPI_MCA_shmem_mmap_backing_file_base_dir",
    ] {
        environment.set(name, folder);
    }
}

/// The root of an installation that was moved after it was built, as Python packages are. Open MPI does not know this
/// root by itself.
fn prefix(library: &Path) -> Option<PathBuf> {
    let prefix = library.parent()?.parent()?;
    let moved = prefix.join("share/openmpi").is_dir() && !prefix.starts_with("/usr");
    moved.then(|| prefix.to_owned())
}

/// The libpmix for an Open MPI, the first of: the file that the node's `LANDBRIDGE_PMIX` names; the file that the
/// user's `LANDBRIDGE_PMIX` names; the libpmix that the library itself loads or has beside it; the system's.
///
/// # Errors
/// [`PmixError::Named`], [`PmixError::NotFound`].
pub fn find_pmix(library: &Library, environment: &Environment) -> Result<pmix::Library, PmixError> {
    const VARIABLE: &str = "LANDBRIDGE_PMIX";
    let named = std::env::var_os(VARIABLE).or_else(|| environment.get(VARIABLE).map(Into::into));
    let named = named.filter(|path| !path.is_empty()).map(PathBuf::from);
    let places = library.file.as_deref().map(|file| places(file, environment)).unwrap_or_default();
    pmix::Library::find(named.as_deref(), &places)
}

fn places(library: &Path, environment: &Environment) -> Vec<PathBuf> {
    let needed = elf::needed(library, environment).into_iter().flatten().filter(|needed| needed.name == SONAME);
    let beside =
        library.parent().into_iter().flat_map(|folder| ["", "openmpi", "pmix"].map(|inner| folder.join(inner)));
    let mut places: Vec<PathBuf> = needed.filter_map(|needed| needed.file).collect();
    places.extend(beside.map(|folder| folder.join(SONAME)));
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn the_users_choice_is_kept_inside_a_site() {
        let mut environment = Environment::default();
        environment.set("FI_PROVIDER", "tcp");
        environment.set("OMPI_MCA_pml", "ob1");
        assert_eq!(settings(&mut environment, None, false), Vec::<String>::new());
        assert_eq!(environment.get("OMPI_MCA_pml"), Some(OsStr::new("ob1")));
        assert_eq!(environment.get("OMPI_MCA_mtl_ofi_provider_include"), Some(OsStr::new("tcp")));
        environment.set("FI_PROVIDER", "landbridge");
        let notes = settings(&mut environment, None, true);
        assert_eq!(notes[0], "OMPI_MCA_pml=ob1 cannot work across sites; using OMPI_MCA_pml=cm");
        assert_eq!(environment.get("OMPI_MCA_mtl_ofi_provider_include"), Some(OsStr::new("landbridge")));
    }

    #[test]
    fn a_moved_installation_gets_its_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("lib/libmpi.so.40");
        let mut environment = Environment::default();
        settings(&mut environment, Some(&library), true);
        assert_eq!(environment.get("OPAL_PREFIX"), None);
        std::fs::create_dir_all(folder.path().join("share/openmpi")).unwrap();
        settings(&mut environment, Some(&library), true);
        assert_eq!(environment.get("OPAL_PREFIX"), Some(folder.path().as_os_str()));
        let beside = places(&library, &environment);
        assert!(beside.contains(&folder.path().join("lib/openmpi/libpmix.so.2")), "{beside:?}");
    }

    #[test]
    fn libraries_that_would_start_singletons_are_refused() {
        for (name, good) in [("libmpi.so.40.20.3", false), ("libmpi.so.40.30.4", true), ("libmpi.so.40", true)] {
            assert_eq!(check_age(Path::new("/nowhere").join(name).as_path()).is_ok(), good, "{name}");
        }
    }
}
