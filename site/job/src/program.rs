//! Finds the user's program on a node as a shell would.

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use thiserror::Error;
use types::{UntrustedText, shell};

use crate::environment::Environment;

/// The name of this command. As a program without a slash, it stands for the agent's own file.
pub const OWN: &str = "landbridge";

/// The command of a rank that moves files (a mover).
pub const MOVER: [&str; 2] = [OWN, "mover"];

/// Reasons why a program cannot run on this node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// It was not found.
    #[error("program {program} not found (looked in {places}): put it there on this node too, or give another path")]
    Missing {
        /// The program as the user wrote it.
        program: String,
        /// The places where the agent looked for it.
        places: String,
    },
    /// The file exists but cannot be run.
    #[error("program {path} is {problem}")]
    NotExecutable {
        /// The path.
        path: String,
        /// The reason.
        problem: &'static str,
    },
    /// The working directory does not exist.
    #[error("working directory {0} does not exist here: make it, or start from a directory that every node has")]
    Directory(String),
    /// The working directory is a file or the like.
    #[error("working directory {0} is no directory here: name another with --wdir")]
    NoDirectory(String),
    /// The program's name is empty.
    #[error("the name of the program is empty: give its path, or its name in PATH")]
    Nameless,
}

/// The path of `program`, relative to `directory` or in the `PATH` of `environment`.
///
/// # Errors
/// [`ProgramError`], which names the searched places.
pub fn find(program: &Path, directory: &Path, environment: &Environment) -> Result<PathBuf, ProgramError> {
    if program.as_os_str().is_empty() {
        return Err(ProgramError::Nameless);
    }
    if !directory.is_dir() {
        let shown = directory.display().to_string();
        return Err(match directory.exists() {
            true => ProgramError::NoDirectory(shown),
            false => ProgramError::Directory(shown),
        });
    }
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        let path = directory.join(program);
        return match problem(&path) {
            None => Ok(path),
            Some("missing") => {
                let places = if program.is_absolute() { path.parent().unwrap_or(Path::new("/")) } else { directory };
                Err(missing(program, places.display().to_string()))
            }
            Some(problem) => Err(ProgramError::NotExecutable { path: path.display().to_string(), problem }),
        };
    }
    // Movers must be this command itself: their versions at both ends must be the versions of the agents.
    if program == Path::new(OWN)
        && let Ok(own) = std::env::current_exe()
        && problem(&own).is_none()
    {
        return Ok(own);
    }
    let path = environment.get("PATH").unwrap_or_default();
    let mut unfit = None;
    for place in std::env::split_paths(path) {
        let candidate = directory.join(place).join(program);
        match problem(&candidate) {
            None => return Ok(candidate),
            Some("missing") => {}
            Some(problem) => {
                unfit = unfit.or(Some(ProgramError::NotExecutable { path: candidate.display().to_string(), problem }));
            }
        }
    }
    Err(unfit.unwrap_or_else(|| missing(program, format!("PATH={}", path.display()))))
}

/// The reason why the system does not start an existing script: the interpreter in its first line is missing.
pub fn bad_interpreter(path: &Path, error: &io::Error) -> Option<String> {
    let mut line = Vec::new();
    let file = std::fs::File::open(path).ok().filter(|_| error.kind() == io::ErrorKind::NotFound)?;
    file.take(LONGEST_LINE).read_to_end(&mut line).ok()?;
    let line = line.split(|byte| *byte == b'\n').next()?.strip_prefix(b"#!")?;
    let shown = UntrustedText::from_bytes(line.trim_ascii());
    Some(match line.ends_with(b"\r") {
        true => format!(
            "its first line, `#!{shown}`, ends with a carriage return, as on Windows: `sed -i 's/\\r$//' {}` removes them",
            shell::path(path)
        ),
        false => format!("its first line asks for `{shown}`, which is not on this node"),
    })
}

/// Most bytes of a first line that the system reads.
const LONGEST_LINE: u64 = 256;

fn missing(program: &Path, places: String) -> ProgramError {
    ProgramError::Missing { program: program.display().to_string(), places }
}

fn problem(path: &Path) -> Option<&'static str> {
    match std::fs::metadata(path) {
        Err(_) => Some("missing"),
        Ok(found) if found.is_dir() => Some("a directory"),
        Ok(found) if found.permissions().mode() & 0o111 == 0 => Some("not executable (chmod +x makes it so)"),
        Ok(_) => rustix::fs::access(path, rustix::fs::Access::EXEC_OK).err().map(|_| "not executable for you"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_a_shell_does() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let mut environment = Environment::default();
        environment.set("PATH", "/usr/bin:/bin");
        let found = |program: &str| find(Path::new(program), at, &environment).map_err(|e| e.to_string());
        assert!(found("sh").unwrap().ends_with("sh"));
        let text = found("./x").unwrap_err();
        assert!(text.starts_with(&format!("program ./x not found (looked in {})", at.display())), "{text}");
        assert!(found("no-such-program").unwrap_err().contains("PATH=/usr/bin:/bin"));
        std::fs::write(at.join("x"), "hello").unwrap();
        assert!(found("./x").unwrap_err().contains("not executable"));
        std::fs::set_permissions(at.join("x"), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(found("./x").unwrap(), at.join("./x"));
        let gone_interpreter = io::Error::from(io::ErrorKind::NotFound);
        for (text, expected) in [
            ("#!/bin/sh\r\necho\r\n", Some("`#!/bin/sh`, ends with a carriage return")),
            ("#!/no/such/python -u\n", Some("asks for `/no/such/python -u`, which is not on this node")),
            ("text", None),
        ] {
            std::fs::write(at.join("x"), text).unwrap();
            let why = bad_interpreter(&at.join("x"), &gone_interpreter);
            assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
            assert!(why.is_none_or(|why| why.contains(expected.unwrap())));
        }
        let gone = find(Path::new("sh"), Path::new("/no/such/place"), &environment).unwrap_err();
        assert!(gone.to_string().contains("/no/such/place"));
    }
}
