//! The programs to copy to a site: the command, the provider and the layers, as the files of one release.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use job::environment::Environment;
use job::mpi::layer::{LARGE_LAYER_FILE, LAYER_FILE};
use job::mpi::{PROVIDER_FILE, find_provider};
use sha2::{Digest, Sha256};

use crate::error::SetupError;
use crate::sums::{Sums, hex};

pub const COMMAND_FILE: &str = "landbridge";

/// The files of one release for one architecture.
#[derive(Clone, Debug)]
pub struct Release {
    /// Version and a fingerprint of the files: a site may hold several releases side by side.
    pub id: String,
    /// The architecture that it runs on, as `uname -m` prints it.
    pub architecture: String,
    /// The files. The command is last: if it exists, the release is complete.
    pub files: Vec<File>,
}

/// A file of a release.
#[derive(Clone, Debug)]
pub struct File {
    pub name: &'static str,
    /// The local path.
    pub path: PathBuf,
    /// SHA-256 of its content, in hexadecimal digits.
    pub sum: String,
    /// Its content, compressed. `None`: this machine has no gzip.
    packed: OnceLock<Option<Vec<u8>>>,
}

impl File {
    pub(crate) fn new(name: &'static str, path: &Path, sum: String) -> File {
        File { name, path: path.to_owned(), sum, packed: OnceLock::new() }
    }

    /// Reads its content.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn bytes(&self) -> Result<Vec<u8>, SetupError> {
        std::fs::read(&self.path).map_err(|source| SetupError::File { path: self.path.clone(), source })
    }

    /// Its content, compressed with gzip once for all sites. `None`: this machine has no gzip.
    pub fn packed(&self) -> Option<&[u8]> {
        self.packed.get_or_init(|| gzip(&self.path)).as_deref()
    }
}

fn gzip(path: &Path) -> Option<Vec<u8>> {
    let file = std::fs::File::open(path).ok()?;
    let mut command = Command::new("gzip");
    command.args(["-c", "-1"]).stdin(file).stderr(Stdio::null());
    command.output().ok().filter(|output| output.status.success()).map(|output| output.stdout)
}

impl Release {
    /// Reads the release that this program belongs to, or the one in `folder`.
    ///
    /// # Errors
    /// A file is missing or is not a program.
    pub fn read(folder: Option<&Path>) -> Result<Release, SetupError> {
        let (command, provider) = match folder {
            Some(folder) => (folder.join(COMMAND_FILE), folder.join(PROVIDER_FILE)),
            None => {
                let command = std::env::current_exe()
                    .map_err(|source| SetupError::File { path: PathBuf::from("/proc/self/exe"), source })?;
                (command, find_provider(&Environment::default()))
            }
        };
        Release::of(&provider, &command)
    }

    fn of(provider: &Path, command: &Path) -> Result<Release, SetupError> {
        let (mut digest, mut sums) = (Sha256::new(), Sums::of_user());
        let (mut files, mut architectures) = (Vec::new(), Vec::new());
        let layers = [LAYER_FILE, LARGE_LAYER_FILE].map(|name| (name, provider.with_file_name(name)));
        let layers = layers.iter().map(|(name, path)| (*name, path.as_path()));
        for (name, path) in layers.chain([(PROVIDER_FILE, provider), (COMMAND_FILE, command)]) {
            let wrong = |source| SetupError::File { path: path.to_owned(), source };
            if !path.exists() {
                let all = format!("{COMMAND_FILE}, {PROVIDER_FILE}, {LAYER_FILE} and {LARGE_LAYER_FILE}");
                return Err(SetupError::Request(format!(
                    "{}: there is no such file: Landbridge is four files, {all}; copy all of them into one folder, or the \
                     libraries into ../lib/landbridge beside it",
                    path.display()
                )));
            }
            let sum = sums.of(path).map_err(wrong)?;
            digest.update(sum.as_bytes());
            architectures.push(architecture(path).map_err(wrong)?);
            files.push(File::new(name, path, sum));
        }
        let same = architectures.iter().all(|other| *other == architectures[0]);
        let Some(architecture) = architectures[0].filter(|_| same) else {
            let (provider, command) = (provider.display(), command.display());
            let text = format!("{provider}, the layers beside it, and {command} are not programs for one machine");
            return Err(SetupError::Request(text));
        };
        let id = format!("{}-{}", env!("CARGO_PKG_VERSION"), &hex(&digest.finalize())[..12]);
        Ok(Release { id, architecture: architecture.to_owned(), files })
    }
}

/// The architecture that a program is for, as `uname -m` prints it. ELF's `e_machine` is little-endian on all of these.
fn architecture(path: &Path) -> std::io::Result<Option<&'static str>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(20).read_to_end(&mut bytes)?;
    let Some(machine) = bytes.get(18..20).filter(|_| bytes.starts_with(b"\x7fELF")) else { return Ok(None) };
    Ok(match u16::from_le_bytes([machine[0], machine[1]]) {
        62 => Some("x86_64"),
        183 => Some("aarch64"),
        243 => Some("riscv64"),
        21 => Some("ppc64le"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(machine: u16, rest: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x7fELF".to_vec();
        bytes.resize(18, 0);
        bytes.extend_from_slice(&machine.to_le_bytes());
        bytes.extend_from_slice(rest);
        bytes
    }

    #[test]
    fn a_release_is_known_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        [LAYER_FILE, LARGE_LAYER_FILE].iter().for_each(|name| write(name, &elf(183, b"l")));
        write(PROVIDER_FILE, &elf(183, b"p"));
        write(COMMAND_FILE, &elf(183, b"c"));
        let one = Release::read(Some(folder.path())).unwrap();
        assert_eq!((one.architecture.as_str(), one.files[1].name), ("aarch64", LARGE_LAYER_FILE));
        assert_eq!(one.files.last().unwrap().name, COMMAND_FILE);
        assert_eq!(Release::read(Some(folder.path())).unwrap().id, one.id);
        write(PROVIDER_FILE, &elf(183, b"q"));
        assert_ne!(Release::read(Some(folder.path())).unwrap().id, one.id);
        write(PROVIDER_FILE, &elf(62, b"p"));
        assert!(Release::read(Some(folder.path())).unwrap_err().to_string().contains("not programs for one machine"));
        write(COMMAND_FILE, b"#!/bin/sh");
        assert!(Release::read(Some(folder.path())).is_err());
        write(COMMAND_FILE, &elf(62, b"c"));
        assert!(Release::read(Some(folder.path())).is_err(), "the layers are for another machine");
        std::fs::remove_file(folder.path().join(LAYER_FILE)).unwrap();
        assert!(Release::read(Some(folder.path())).unwrap_err().to_string().contains(LAYER_FILE));
        write(LAYER_FILE, &elf(62, b"l"));
        std::fs::remove_file(folder.path().join(PROVIDER_FILE)).unwrap();
        assert!(Release::read(Some(folder.path())).unwrap_err().to_string().contains(PROVIDER_FILE));
    }
}
