//! MPI libraries: recognising the one that a program uses, and making each of them use our provider. A program may also
//! use libfabric without an MPI.

mod elf;
mod installed;
pub mod intel;
pub mod layer;
pub mod mpich;
pub mod openmpi;
mod provider;
mod recognise;

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

pub use installed::{Installed, Libfabric, installed};
pub use openmpi::find_pmix;
pub use provider::{PROVIDER_FILE, find_provider, use_fabric};
pub use recognise::recognise;

use crate::environment::Environment;
use crate::message::{Family, MpiChoice};

/// Reasons why a program's MPI cannot be set up. The messages include advice.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MpiError {
    /// The program's MPI could not be determined.
    #[error(
        "cannot tell which MPI {program} uses: {problem}. Name it: --mpi mpich, --mpi intel or --mpi openmpi; or --mpi none if it uses libfabric without an MPI"
    )]
    Unsure {
        /// The program.
        program: String,
        /// The examined files and the finding.
        problem: String,
    },
    /// The program loads another MPI than the user named.
    #[error("--mpi {wish}, but {program} loads {}, which is {found}'s: put the library that you mean into LD_LIBRARY_PATH, or leave --mpi out", .file.display())]
    Other {
        /// The user's choice.
        wish: Family,
        /// The program.
        program: String,
        /// The MPI that the program loads.
        found: Family,
        /// The file of that MPI.
        file: PathBuf,
    },
    /// An Open MPI that cannot be started.
    #[error("{} is Open MPI before 4.1, which cannot start under Landbridge: use 4.1 or 5", .0.display())]
    TooOld(PathBuf),
    /// `LANDBRIDGE_COLLECTIVES` has an unknown value.
    #[error("LANDBRIDGE_COLLECTIVES={0}: give `auto`, `exact` or `native`")]
    Collectives(String),
    /// `LANDBRIDGE_TREES` names no algorithm.
    #[error("LANDBRIDGE_TREES: {0}")]
    Trees(#[from] plan::UnknownAlgorithm),
    /// The layer to preload is missing.
    #[error("{} is not there: install it beside {PROVIDER_FILE}, with which it comes, or run with --collectives native", .0.display())]
    NoLayer(PathBuf),
    /// The dynamic linker cannot preload the layer.
    #[error("{} cannot be preloaded, because its path has a space or a colon: install Landbridge elsewhere, or run with --collectives native", .0.display())]
    LayerPath(PathBuf),
    /// The provider is missing.
    #[error("{PROVIDER_FILE} is not at {}: install it beside the landbridge command or in ../lib/landbridge from there, or say where it is with LANDBRIDGE_PROVIDER", .0.display())]
    NoProvider(PathBuf),
}

/// A program's MPI library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Which MPI it is.
    pub family: Family,
    /// The library's file, if it was found.
    pub file: Option<PathBuf>,
    /// True if its folder must be added to LD_LIBRARY_PATH for the dynamic linker to find it.
    pub beside: bool,
    /// True if the program itself is linked to it, so no other MPI can replace it.
    pub linked: bool,
}

/// The MPI of a program: the one that the user named, or else the one recognised in the program. `None`: no MPI was
/// recognised.
///
/// # Errors
/// [`MpiError::Unsure`], [`MpiError::TooOld`].
pub fn library(choice: MpiChoice, program: &Path, environment: &Environment) -> Result<Option<Library>, MpiError> {
    let seen = recognise(program, environment);
    let library = match choice {
        MpiChoice::Auto => seen?,
        MpiChoice::Libfabric => None,
        // The program is examined anyway: the file shows where the library's other parts are.
        MpiChoice::Named(family) => {
            match seen {
                // The ranks would start, but not find each other.
                Ok(Some(Library { family: found, file: Some(file), linked: true, .. })) if found != family => {
                    return Err(MpiError::Other { wish: family, program: program.display().to_string(), found, file });
                }
                Ok(Some(library)) if library.family == family => Some(library),
                _ => Some(Library { family, file: None, beside: false, linked: false }),
            }
        }
    };
    if let Some(Library { family: Family::OpenMpi, file: Some(file), .. }) = &library {
        openmpi::check_age(file)?;
    }
    Ok(library)
}

/// Sets the variables with which `library` uses the provider at `provider`. Returns notes about changed settings of the
/// user. `crosses`: true if the job has ranks at several sites.
pub fn settings(library: &Library, environment: &mut Environment, provider: &Path, crosses: bool) -> Vec<String> {
    let mut notes = provider::settings(environment, provider, crosses);
    if let Some(folder) = library.file.as_deref().filter(|_| library.beside).and_then(Path::parent) {
        environment.prepend("LD_LIBRARY_PATH", folder.as_os_str());
    }
    match library.family {
        Family::Mpich => notes.extend(mpich::settings(environment)),
        Family::Intel => notes.extend(intel::settings(environment, library.file.as_deref(), crosses)),
        Family::OpenMpi => notes.extend(openmpi::settings(environment, library.file.as_deref(), crosses)),
    }
    notes
}

/// True if a program without a recognised MPI uses libfabric itself: the user chose that, or the program is linked to
/// libfabric.
pub fn uses_libfabric(choice: MpiChoice, program: &Path, environment: &Environment) -> bool {
    match choice {
        MpiChoice::Libfabric => true,
        MpiChoice::Auto => elf::needed(program, environment)
            .is_some_and(|needed| needed.iter().any(|library| library.name.starts_with("libfabric.so"))),
        MpiChoice::Named(_) => false,
    }
}

/// Makes a program without an MPI use the provider at `provider`. Returns notes like [`settings`].
pub fn libfabric_settings(environment: &mut Environment, provider: &Path, crosses: bool) -> Vec<String> {
    provider::settings(environment, provider, crosses)
}

/// Sets the variables that `family` needs on a node with more ranks than cores.
pub fn share_cores(family: Family, environment: &mut Environment) {
    match family {
        Family::Intel => intel::share_cores(environment),
        Family::Mpich | Family::OpenMpi => (),
    }
}

/// Most ranks per core before Open MPI's waiting ranks must poll less often.
const CROWDED: u32 = 4;
/// Timer slack with more ranks per core.
const SLACK: Duration = Duration::from_millis(1);

/// The timer slack of ranks when `crowd` of them share a core. `None`: the system's default.
///
/// While Open MPI's ranks wait for each other in `MPI_Init` and `MPI_Finalize`, each polls 10,000 times a second
/// (`OMPI_LAZY_WAIT_FOR_COMPLETION`: one poll, then `usleep(100)`). No provider is loaded yet that could sleep longer.
/// With 64 of them on two cores, Linux 6.18 hardly ever runs processes that sleep less often, such as the launcher that
/// they wait for: starts took 3 to 51 s. With a thousand polls a second, no start took more than 4 s.
pub fn timer_slack(family: Family, crowd: u32) -> Option<Duration> {
    (family == Family::OpenMpi && crowd > CROWDED).then_some(SLACK)
}

/// The operations of `family` that wait in the MPI library's own shared memory when other ranks run on the node, as a
/// value of the provider's `LANDBRIDGE_MPI_SHM`.
pub fn own_memory(family: Family, environment: &Environment) -> Option<&'static str> {
    match family {
        Family::Mpich => mpich::has_own_memory(environment).then_some("messages"),
        // Its collectives use shared memory even with I_MPI_FABRICS=ofi.
        Family::Intel => Some("messages"),
        // It passes all messages to the provider.
        Family::OpenMpi => Some("windows"),
    }
}

/// Sets a variable to the only value that works. Adds a note if this replaces another value of the user.
fn insist(environment: &mut Environment, name: &str, value: &str, notes: &mut Vec<String>) {
    if let Some(old) = environment.get(name).filter(|old| *old != value) {
        notes.push(format!("{name}={} cannot work across sites; using {name}={value}", old.display()));
    }
    environment.set(name, value);
}

/// Switches off the confirmation of sends. MPICH and its derivatives open their endpoints for confirmed delivery,
/// because their one-sided operations need it; every send would then cost a confirmation that it does not need.
fn do_not_confirm_sends(environment: &mut Environment) {
    environment.set_default("LANDBRIDGE_CONFIRM_SENDS", "no");
}

#[cfg(test)]
mod tests;
