//! Files that an MPI library makes for the ranks of a node and removes at their orderly end only: MPICH's shared memory.
//!
//! Their names are known once the ranks have them mapped. The agent's keeper is told, and removes them when all is over.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::keeper;
use crate::processes::descendants;

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    known: HashSet<PathBuf>,
}

impl Leftovers {
    /// Looks at what the ranks have mapped: at the ranks started here, and if these have nothing, at what is below them.
    pub fn look(&mut self, ranks: impl Iterator<Item = u32>) {
        let mut found = ranks.map(files_of).find(|files| !files.is_empty());
        if found.is_none() && self.known.is_empty() {
            let below = descendants().into_iter().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
            found = below.map(files_of).find(|files| !files.is_empty());
        }
        for file in found.unwrap_or_default() {
            if self.known.insert(file.clone()) {
                keeper::remove_in_the_end(&file);
            }
        }
    }
}

/// Such files that a process has mapped. All ranks of a node have the same.
fn files_of(pid: u32) -> Vec<PathBuf> {
    in_maps(&std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default())
}

fn in_maps(maps: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        let Some(file) = line.find(keeper::SHARED_MEMORY).and_then(|at| line.get(at..)).map(Path::new) else {
            continue;
        };
        if keeper::is_shared_by_mpi(file) && files.last().is_none_or(|last| last != file) {
            files.push(file.to_owned());
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_mpi_libraries_leave_is_taken() {
        let maps = "\
7f00-7f01 rw-s 00000000 00:1b 5 /dev/shm/mpich_shm_305e7f2e_0
7f01-7f02 rw-s 00001000 00:1b 5 /dev/shm/mpich_shm_305e7f2e_0
7f02-7f03 rw-s 00000000 00:1b 6 /dev/shm/mpich_shm_305e7f2e_1
7f03-7f04 rw-s 00000000 00:1b 7 /dev/shm/mpich_shm_4049c3da_0 (deleted)
7f04-7f05 rw-s 00000000 00:1b 8 /dev/shm/the_users_cache
7f05-7f06 rw-s 00000000 00:1b 9 /scratch/dev/shm/mpich_shm_1/data
7f06-7f07 r-xp 00000000 08:01 9 /usr/lib/libc.so.6
7f07-7f08 rw-p 00000000 00:00 0 [heap]";
        let expected = ["/dev/shm/mpich_shm_305e7f2e_0", "/dev/shm/mpich_shm_305e7f2e_1"].map(PathBuf::from);
        assert_eq!(in_maps(maps), expected);
    }
}
