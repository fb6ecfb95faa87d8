//! The shared libraries that an ELF file needs, and the places where the dynamic linker would find them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use goblin::elf::Elf;

use crate::environment::Environment;

/// Most files examined for one program.
const MAX_FILES: usize = 500;

/// A library that some file of a program needs.
pub(super) struct Needed {
    /// Its name in the ELF file, such as `libmpi.so.12`.
    pub name: String,
    /// The library's path, if it was found.
    pub file: Option<PathBuf>,
    /// True if it is only in the `lib` folder beside the program's own folder, where the dynamic linker does not look.
    pub beside: bool,
}

/// All libraries that `program` needs, directly or indirectly. `None`: it is not an ELF file.
pub(super) fn needed(program: &Path, environment: &Environment) -> Option<Vec<Needed>> {
    let mut found: Vec<Needed> = Vec::new();
    let mut seen = HashSet::new();
    let mut queue = vec![program.to_owned()];
    let mut elf = false;
    let beside = program.parent().and_then(Path::parent).map(|prefix| prefix.join("lib")).unwrap_or_default();
    while let Some(file) = queue.pop() {
        let Some(Direct { names, before, after }) = direct(&file) else { continue };
        elf = true;
        let inherited = environment.get("LD_LIBRARY_PATH").map(std::env::split_paths).into_iter().flatten();
        let places: Vec<PathBuf> = before.into_iter().chain(inherited).chain(after).chain(system_folders()).collect();
        for name in names {
            if seen.len() < MAX_FILES && seen.insert(name.clone()) {
                let path = places.iter().map(|place| place.join(&name)).find(|path| path.is_file());
                let near = Some(beside.join(&name)).filter(|near| path.is_none() && near.is_file());
                let (file, beside) = (path.or_else(|| near.clone()), near.is_some());
                queue.extend(file.clone());
                found.push(Needed { name, file, beside });
            }
        }
    }
    elf.then_some(found)
}

/// The names that a file needs, and the folders that it lists. Its RPATH is searched before `LD_LIBRARY_PATH`, its
/// RUNPATH after it; an RPATH beside a RUNPATH is ignored; see ld.so(8).
struct Direct {
    names: Vec<String>,
    before: Vec<PathBuf>,
    after: Vec<PathBuf>,
}

fn direct(file: &Path) -> Option<Direct> {
    let bytes = std::fs::read(file).ok()?;
    let elf = Elf::parse(&bytes).ok()?;
    let real = std::fs::canonicalize(file).ok()?;
    let origin = real.parent()?.to_string_lossy().into_owned();
    let folders = |lists: &[&str]| {
        let folders = lists.iter().flat_map(|list| list.split(':'));
        folders.map(|f| PathBuf::from(f.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin))).collect()
    };
    let names = elf.libraries.iter().map(|name| (*name).to_owned()).collect();
    let before = if elf.runpaths.is_empty() { folders(&elf.rpaths) } else { Vec::new() };
    Some(Direct { names, before, after: folders(&elf.runpaths) })
}

pub(super) fn system_folders() -> Vec<PathBuf> {
    let multiarch = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut folders: Vec<PathBuf> = Vec::new();
    folders.extend(["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"].map(PathBuf::from));
    folders.extend(["/lib", "/usr/lib", "/usr/local/lib"].map(|lib| Path::new(lib).join(&multiarch)));
    let configured = std::fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten().flatten();
    for file in configured {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        folders.extend(text.lines().map(str::trim).filter(|line| line.starts_with('/')).map(PathBuf::from));
    }
    folders
}
