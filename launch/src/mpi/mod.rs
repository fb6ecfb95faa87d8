//! MPI libraries: which one a program uses, and how each is made to use our provider. A program may also use libfabric without
//! any MPI.

mod elf;
pub mod intel;
pub mod mpich;
pub mod openmpi;
mod provider;
mod recognise;

use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

pub use openmpi::find_pmix;
pub use provider::{PROVIDER_FILE, find_provider, use_fabric};
pub use recognise::recognise;

use crate::environment::Environment;
use crate::message::{Family, MpiChoice};

/// Why a program's MPI cannot be set up. Says what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MpiError {
    /// It was not possible to say which MPI it is.
    #[error(
        "cannot tell which MPI {program} uses: {problem}. Name it: --mpi mpich, --mpi intel or --mpi openmpi; or --mpi none if it uses libfabric without an MPI"
    )]
    Unsure {
        /// The program.
        program: String,
        /// What was looked at and what was found there.
        problem: String,
    },
    /// The program loads another than the user said.
    #[error("--mpi {wish}, but {program} loads {}, which is {found}'s: put the library that you mean into LD_LIBRARY_PATH, or leave --mpi out", .file.display())]
    Other {
        /// What the user said.
        wish: Family,
        /// The program.
        program: String,
        /// What it is.
        found: Family,
        /// Its file.
        file: PathBuf,
    },
    /// An Open MPI that cannot be started.
    #[error("{} is Open MPI before 4.1, which cannot start under Landbridge: use 4.1 or 5", .0.display())]
    TooOld(PathBuf),
    /// No provider.
    #[error("{PROVIDER_FILE} is not at {}: install it beside the landbridge command or in ../lib/landbridge from there, or say where it is with LANDBRIDGE_PROVIDER", .0.display())]
    NoProvider(PathBuf),
}

/// A program's MPI library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// Which.
    pub family: Family,
    /// Its file, when it was found.
    pub file: Option<PathBuf>,
    /// Whether the dynamic linker must be told where it is.
    pub beside: bool,
    /// Whether the program itself is linked to it: no other can come instead.
    pub linked: bool,
}

/// Finds out which MPI a program uses: as the user says, or by looking. `None`: none was recognised.
///
/// # Errors
/// [`MpiError::Unsure`], [`MpiError::TooOld`].
pub fn library(choice: MpiChoice, program: &Path, environment: &Environment) -> Result<Option<Library>, MpiError> {
    let seen = recognise(program, environment);
    let library = match choice {
        MpiChoice::Auto => seen?,
        MpiChoice::Libfabric => None,
        // The file still tells where the library's other parts are.
        MpiChoice::Named(family) => {
            match seen {
                // Its ranks would start, and not find each other.
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

/// Sets what `library` needs to use the provider at `provider`. Gives notes for the user about settings of theirs that
/// could not stay. `crosses` says that the job has ranks at several sites.
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

/// Whether a program in which no MPI was recognised uses libfabric itself: because the user says so, or because it is linked to
/// libfabric.
pub fn uses_libfabric(choice: MpiChoice, program: &Path, environment: &Environment) -> bool {
    match choice {
        MpiChoice::Libfabric => true,
        MpiChoice::Auto => elf::needed(program, environment)
            .is_some_and(|needed| needed.iter().any(|library| library.name.starts_with("libfabric.so"))),
        MpiChoice::Named(_) => false,
    }
}

/// Makes a program without an MPI use the provider at `provider`. The notes are as for [`settings`].
pub fn libfabric_settings(environment: &mut Environment, provider: &Path, crosses: bool) -> Vec<String> {
    provider::settings(environment, provider, crosses)
}

/// Sets what `family` needs to know on a node with more ranks than cores.
pub fn share_cores(family: Family, environment: &mut Environment) {
    match family {
        Family::Intel => intel::share_cores(environment),
        Family::Mpich | Family::OpenMpi => (),
    }
}

/// From more ranks to a core than this on, Open MPI's wait with fewer looks.
const CROWDED: u32 = 4;
/// How late their timers may be then.
const SLACK: Duration = Duration::from_millis(1);

/// How late the timers of ranks may be, of which so many share a core; `None`: as the system has it.
///
/// While Open MPI's ranks wait for each other in `MPI_Init` and `MPI_Finalize` they look 10,000 times a second each
/// (`OMPI_LAZY_WAIT_FOR_COMPLETION`: a look, `usleep(100)`), before any provider is there that could nap. 64 of them on two cores
/// keep Linux 6.18 from ever running a process that sleeps less often, such as the launcher that they wait for: starts took 3 to
/// 51 s. A thousand looks a second leave room, and no start took more than 4 s.
pub fn timer_slack(family: Family, crowd: u32) -> Option<Duration> {
    (family == Family::OpenMpi && crowd > CROWDED).then_some(SLACK)
}

/// What ranks of `family` wait for in shared memory of its own when there are others beside them on their node, as the provider's
/// `LANDBRIDGE_MPI_SHM` has it.
pub fn own_memory(family: Family, environment: &Environment) -> Option<&'static str> {
    match family {
        Family::Mpich => mpich::has_own_memory(environment).then_some("messages"),
        // Its collectives use it also with I_MPI_FABRICS=ofi.
        Family::Intel => Some("messages"),
        // It gives all messages to the provider.
        Family::OpenMpi => Some("windows"),
    }
}

/// Sets a variable that only one value works for; says so if the user had another.
fn insist(environment: &mut Environment, name: &str, value: &str, notes: &mut Vec<String>) {
    if let Some(old) = environment.get(name).filter(|old| *old != value) {
        notes.push(format!("{name}={} cannot work across sites; using {name}={value}", old.display()));
    }
    environment.set(name, value);
}

/// MPICH and its kin open their endpoints for confirmed delivery because their one-sided operations need it, and would then pay
/// a message of confirmation for each send, which they do not need.
fn confirm_no_sends(environment: &mut Environment) {
    environment.set_default("LANDBRIDGE_CONFIRM_SENDS", "no");
}

#[cfg(test)]
mod tests;
