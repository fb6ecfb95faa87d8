//! The layer: a library that ranks of a job of several sites preload. It hands collective operations to the provider.
//!
//! If only some ranks of a communicator used it, the ranks would wait for each other forever. So each node reports the
//! coverage that its MPI library allows, and the launcher sends all nodes the coverage that every node allows.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use goblin::elf::Elf;
use serde::{Deserialize, Serialize};
use types::settings::Collectives;

use super::error::MpiError;
use super::library::Library;
use crate::environment::Environment;

/// Chooses the collective operations of the layer: `native` (none), `exact` (reductions stay with the MPI library) or
/// `auto`.
pub const VARIABLE: &str = types::settings::COLLECTIVES;
/// Names the algorithm that builds a broadcast's tree of sites, instead of the best trees.
pub const TREES_VARIABLE: &str = "LANDBRIDGE_TREES";
/// File names of the layers, which are in the folder of the provider.
pub const LAYER_FILE: &str = "liblandbridge-layer.so";
pub const LARGE_LAYER_FILE: &str = "liblandbridge-layer-large.so";
/// Names the layer that must be loaded, for a rank's provider.
const LOADED: &str = "LANDBRIDGE_LAYER";
const PRELOAD: &str = "LD_PRELOAD";

/// A function that every MPI library defines.
const OF_ANY_LIBRARY: &str = "PMPI_Init";
/// The names that a layer defines, and that the MPI library must define too, begin with this.
const PROFILING: &str = "PMPI_";

/// The collective operations of the layer, from fewest to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Coverage {
    /// None: the MPI library runs all of them.
    #[default]
    Native,
    /// Those that have counts of type `int`.
    Plain,
    /// Those that have large counts (MPI-4's names that end in `_c`) as well.
    Large,
}

impl Coverage {
    fn file(self) -> Option<&'static str> {
        match self {
            Coverage::Native => None,
            Coverage::Plain => Some(LAYER_FILE),
            Coverage::Large => Some(LARGE_LAYER_FILE),
        }
    }
}

/// The coverage that ranks with this MPI library can use. `crosses`: true if the job has ranks at several sites.
///
/// # Errors
/// [`MpiError::Collectives`], [`MpiError::Trees`], [`MpiError::NoLayer`], [`MpiError::LayerPath`].
pub fn coverage(
    library: &Library,
    environment: &Environment,
    provider: &Path,
    crosses: bool,
) -> Result<Coverage, MpiError> {
    let chosen = environment.get(VARIABLE).unwrap_or_default().to_string_lossy();
    match types::settings::collectives(&chosen)? {
        Collectives::Native => return Ok(Coverage::Native),
        Collectives::Auto | Collectives::Exact => {}
    }
    if let Some(name) = environment.get(TREES_VARIABLE).filter(|name| !name.is_empty()) {
        plan::Algorithm::by_name(&name.to_string_lossy())?;
    }
    let Some(file) = library.file.as_deref().filter(|_| crosses) else { return Ok(Coverage::Native) };
    let defined = functions(file);
    if !defined.contains(OF_ANY_LIBRARY) {
        return Ok(Coverage::Native);
    }
    for coverage in [Coverage::Large, Coverage::Plain] {
        let layer = coverage.file().map(|name| beside(provider, name)).unwrap_or_default();
        let covered = functions(&layer);
        if covered.is_empty() {
            return Err(MpiError::NoLayer(layer));
        }
        // The dynamic linker splits the list at both characters.
        if layer.to_string_lossy().contains([' ', ':']) {
            return Err(MpiError::LayerPath(layer));
        }
        if covered.is_subset(&defined) {
            return Ok(coverage);
        }
    }
    Ok(Coverage::Native)
}

/// The MPI functions that a library file defines, by their profiling names; none if it is not a library.
fn functions(file: &Path) -> HashSet<String> {
    let Ok(bytes) = std::fs::read(file) else { return HashSet::new() };
    let Ok(elf) = Elf::parse(&bytes) else { return HashSet::new() };
    let defined = elf.dynsyms.iter().filter(|symbol| !symbol.is_import());
    let names = defined.filter_map(|symbol| elf.dynstrtab.get_at(symbol.st_name));
    names.filter(|name| name.starts_with(PROFILING)).map(str::to_owned).collect()
}

/// Makes ranks preload the layer. The user's own preloads come first: the program then calls a profiling tool's
/// `MPI_Bcast`, and the tool calls the layer's `PMPI_Bcast`.
pub fn preload(coverage: Coverage, environment: &mut Environment, provider: &Path) {
    let Some(name) = coverage.file() else { return };
    let mut list = environment.get(PRELOAD).unwrap_or_default().to_owned();
    if !list.is_empty() {
        list.push(":");
    }
    list.push(beside(provider, name));
    environment.set(PRELOAD, list);
    environment.set(LOADED, name);
}

fn beside(provider: &Path, name: &str) -> PathBuf {
    // The layer is beside the real file: a link may be in another folder.
    let provider = std::fs::canonicalize(provider).unwrap_or_else(|_| provider.to_owned());
    provider.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Family;
    use std::ffi::OsStr;

    fn library(file: &str) -> Library {
        Library { family: Family::Mpich, file: Some(file.into()), beside: false, linked: true }
    }

    #[test]
    fn only_an_mpi_library_is_covered() {
        let environment = Environment::default();
        let provider = Path::new("/nowhere/liblandbridge-fi.so");
        let own = std::env::current_exe().unwrap();
        for file in ["/etc/passwd", "/nowhere/libmpi.so.12", own.to_str().unwrap()] {
            assert_eq!(coverage(&library(file), &environment, provider, true), Ok(Coverage::Native), "{file}");
        }
    }

    #[test]
    fn the_users_wish_is_checked() {
        let provider = Path::new("/nowhere/liblandbridge-fi.so");
        let with = |value: &str| {
            let mut environment = Environment::default();
            environment.set(VARIABLE, value);
            coverage(&library("/etc/passwd"), &environment, provider, true)
        };
        assert_eq!(
            [with("native"), with("auto"), with("exact"), with("")],
            [Ok(Coverage::Native), Ok(Coverage::Native), Ok(Coverage::Native), Ok(Coverage::Native)]
        );
        let error = with("mine").unwrap_err().to_string();
        assert!(error.contains("LANDBRIDGE_COLLECTIVES=mine: give `auto`, `exact`"), "{error}");
        let mut environment = Environment::default();
        environment.set(TREES_VARIABLE, "oak");
        let error = coverage(&library("/etc/passwd"), &environment, provider, true).unwrap_err().to_string();
        assert!(error.contains("LANDBRIDGE_TREES: no algorithm is named `oak`; there are flat, "), "{error}");
    }

    #[test]
    fn the_users_own_tool_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let folder = std::fs::canonicalize(folder.path()).unwrap();
        let provider = folder.join("liblandbridge-fi.so");
        let mut environment = Environment::default();
        preload(Coverage::Native, &mut environment, &provider);
        assert_eq!(environment.get("LD_PRELOAD"), None);
        environment.set("LD_PRELOAD", "libtool.so");
        preload(Coverage::Large, &mut environment, &provider);
        let wanted = format!("libtool.so:{}/liblandbridge-layer-large.so", folder.display());
        assert_eq!(environment.get("LD_PRELOAD"), Some(OsStr::new(&wanted)));
        assert_eq!(environment.get("LANDBRIDGE_LAYER"), Some(OsStr::new("liblandbridge-layer-large.so")));
    }

    #[test]
    fn all_nodes_use_what_each_of_them_can() {
        assert_eq!([Coverage::Large, Coverage::Plain].into_iter().min(), Some(Coverage::Plain));
        assert_eq!([Coverage::Plain, Coverage::Native].into_iter().min(), Some(Coverage::Native));
    }
}
