//! Paths below the user's home directory. It differs between sites, so such paths are sent as `~/…`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The home directory on the machine where the job was typed, if ssh carries the job to this machine.
pub const TYPED_HOME: &str = "LANDBRIDGE_TYPED_HOME";
/// The directory in which the job was typed; a path below that home directory begins with `~/`. It may not exist here.
pub const TYPED_DIRECTORY: &str = "LANDBRIDGE_TYPED_DIRECTORY";

/// The home directories that typed paths may be below: the one where the job was typed, and the one here.
pub fn homes() -> Vec<Vec<u8>> {
    [TYPED_HOME, "HOME"].into_iter().filter_map(std::env::var_os).map(OsString::into_vec).collect()
}

/// Replaces the first of these home directories that contains the path by `~/`. Other paths stay unchanged.
pub fn portable(path: &[u8], homes: &[Vec<u8>]) -> Vec<u8> {
    let below = homes.iter().find_map(|home| {
        // Everything is below `/`, which is nobody's home.
        let home = home.strip_suffix(b"/").unwrap_or(home);
        let rest = path.strip_prefix(home).filter(|_| home.starts_with(b"/"))?;
        if rest.is_empty() { Some(&b""[..]) } else { rest.strip_prefix(b"/") }
    });
    below.map_or_else(|| path.to_vec(), |rest| [b"~/", rest].concat())
}

/// Index at which the path begins in an argument that is an absolute path or `NAME=PATH`.
pub fn path_in(argument: &[u8]) -> Option<usize> {
    let equals = argument.iter().position(|byte| *byte == b'=').map(|at| at + 1);
    let starts = |at: &usize| matches!(argument[*at..], [b'/', ..] | [b'~', b'/', ..]);
    Some(0).filter(starts).or(equals.filter(starts))
}

/// Replaces `~/` in the path by a home directory.
pub fn expand(path: &[u8], home: Option<&OsStr>) -> PathBuf {
    match (path.strip_prefix(b"~/"), home) {
        (Some(b""), Some(home)) => PathBuf::from(home),
        (Some(rest), Some(home)) => PathBuf::from(home).join(OsStr::from_bytes(rest)),
        _ => PathBuf::from(OsStr::from_bytes(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_home_here_is_below_home_there() {
        let homes = [b"/home/u".to_vec(), b"/users/b/v/".to_vec(), b"/".to_vec(), b"".to_vec()];
        for (path, portable_path, there) in [
            ("/home/u/work", "~/work", "/h/work"),
            ("/home/u", "~/", "/h"),
            ("/users/b/v/x/y", "~/x/y", "/h/x/y"),
            ("/home/user2/x", "/home/user2/x", "/home/user2/x"),
            ("/scratch/x", "/scratch/x", "/scratch/x"),
            ("./solver", "./solver", "./solver"),
            ("~/solver", "~/solver", "/h/solver"),
        ] {
            assert_eq!(portable(path.as_bytes(), &homes), portable_path.as_bytes(), "{path}");
            assert_eq!(expand(portable_path.as_bytes(), Some(OsStr::new("/h"))), PathBuf::from(there));
        }
        assert_eq!(expand(b"~/x", None), PathBuf::from("~/x"));
    }

    #[test]
    fn an_argument_may_hold_a_path() {
        for (argument, at) in [
            ("/home/u/x", Some(0)),
            ("--in=/home/u/x=y", Some(5)),
            ("--in=~/x", Some(5)),
            ("--in=x=/y", None),
            ("x/y", None),
            ("", None),
        ] {
            assert_eq!(path_in(argument.as_bytes()), at, "{argument}");
        }
    }
}
