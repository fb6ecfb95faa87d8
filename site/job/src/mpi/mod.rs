//! MPI libraries: recognising the one that a program uses, and making each of them use our provider. A program may also
//! use libfabric without an MPI.

mod elf;
mod error;
mod installed;
pub mod intel;
pub mod layer;
mod library;
pub mod mpich;
pub mod openmpi;
mod provider;
mod recognise;
mod shared_settings;

use std::path::Path;
use std::time::Duration;

pub use error::MpiError;
pub use installed::{Installed, Libfabric, installed};
pub use library::Library;
pub use openmpi::find_pmix;
pub use provider::{PROVIDER_FILE, find_provider, use_fabric};
pub use recognise::recognise;

use crate::environment::Environment;
use crate::message::{Family, MpiChoice};

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

#[cfg(test)]
mod tests;
