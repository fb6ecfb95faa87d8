//! The MPI libraries that programs of this environment could load, and the libfabric of each.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::elf;
use super::recognise::family_of_file;
use crate::environment::Environment;
use crate::message::Family;

/// Most libraries that are examined.
const MOST: usize = 40;
/// Every libfabric contains this variable's name, so a library that contains it has a libfabric inside.
const MARK: &[u8] = b"FI_PROVIDER_PATH";

/// An MPI library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The library's file, with symbolic links resolved.
    pub file: PathBuf,
    /// Which MPI it is.
    pub family: Family,
    /// The libfabric through which it reaches a network.
    pub libfabric: Libfabric,
}

/// The libfabric of an MPI library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Libfabric {
    /// The dynamic linker loads this file.
    Loaded(PathBuf),
    /// The dynamic linker would look for this name, but not find it.
    Missing(String),
    /// It is linked into the MPI library itself.
    Inside,
    /// None was found. Open MPI and Intel MPI may load one later, as a plugin.
    Unseen,
}

/// The MPI libraries beside the commands on `PATH`, on `LD_LIBRARY_PATH`, and in the system's folders.
pub fn installed(environment: &Environment) -> Vec<Installed> {
    let paths = |name: &str| environment.get(name).map(std::env::split_paths).into_iter().flatten();
    let beside = paths("PATH").filter_map(|folder| Some(folder.parent()?.join("lib")));
    let folders = beside.chain(paths("LD_LIBRARY_PATH")).chain(elf::system_folders());
    let named = folders.flat_map(|folder| ["libmpi.so.12", "libmpi.so.40", "libmpich.so.12"].map(|n| folder.join(n)));
    let files: BTreeSet<PathBuf> = named.filter_map(|file| std::fs::canonicalize(file).ok()).take(MOST).collect();
    files.into_iter().filter_map(|file| inspect(file, environment)).collect()
}

fn inspect(file: PathBuf, environment: &Environment) -> Option<Installed> {
    let family = family_of_file(&file)?;
    let needed = elf::needed(&file, environment).unwrap_or_default();
    let has_mark = |file: &Path| std::fs::read(file).is_ok_and(|bytes| memchr::memmem::find(&bytes, MARK).is_some());
    // The copy in a Python wheel has another name, such as libfabric-1f2e3d4c.so.1.
    let own = needed.iter().find(|library| library.name.starts_with("libfabric"));
    let libfabric = match own {
        Some(library) => match &library.file {
            Some(file) => Libfabric::Loaded(file.clone()),
            None => Libfabric::Missing(library.name.clone()),
        },
        None if has_mark(&file) => Libfabric::Inside,
        None => Libfabric::Unseen,
    };
    Some(Installed { file, family, libfabric })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_mpi_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("libmpi.so.12");
        let mut environment = Environment::default();
        environment.set("LD_LIBRARY_PATH", folder.path());
        let here = |found: Vec<Installed>| found.into_iter().find(|found| found.file.starts_with(folder.path()));
        std::fs::write(&library, "nothing").unwrap();
        assert_eq!(here(installed(&environment)), None);
        std::fs::write(&library, "MPICH Version: 5 … FI_PROVIDER_PATH").unwrap();
        let found = here(installed(&environment)).unwrap();
        assert_eq!((found.family, found.libfabric), (Family::Mpich, Libfabric::Inside));
    }
}
