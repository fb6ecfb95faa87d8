//! Files through which an MPI library's ranks share memory. The library removes them only when the ranks end normally.
//!
//! There are two kinds. *Claimed* files have a name that begins with a prefix of this job only, so they are the job's.
//! *Strays* have random names: MPICH and Intel MPI make them for windows and unlink them once all ranks have them open,
//! so ranks that are killed in between leave them behind. A stray is removed only if it belongs to the user, appeared
//! while the job ran, and is open in no process. The process that makes such a file keeps it open until it is unlinked,
//! so the file of another running job is never removed.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folders in which MPI libraries share memory, and the prefixes of the files with random names.
const STRAYS: [(&str, &str); 4] =
    [("/dev/shm", "mpich_shar_tmp"), ("/tmp", "mpich_shar_tmp"), ("/dev/shm", "Intel_MPI_"), ("/tmp", "Intel_MPI_")];

/// Removes the files whose paths begin with `claim`.
pub(crate) fn remove_claimed(claim: &Path) {
    let (Some(folder), Some(begin)) = (claim.parent(), claim.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    for path in files(folder, begin) {
        // After a normal end, the ranks have already removed them.
        let _ = std::fs::remove_file(path);
    }
}

/// Removes the strays that appeared after `since`. All processes that could make one for the job must have ended.
pub(crate) fn remove_strays(since: SystemTime) {
    let all = STRAYS.iter().flat_map(|(folder, begin)| files(Path::new(folder), begin));
    remove_unheld(all.filter(|path| is_ours(path, since)).collect());
}

fn remove_unheld(strays: HashSet<PathBuf>) {
    if strays.is_empty() {
        return;
    }
    let held = held(&strays);
    for path in strays.difference(&held) {
        tracing::info!(path = %path.display(), "removed: left by an MPI library");
        let _ = std::fs::remove_file(path);
    }
}

fn files<'a>(folder: &'a Path, begin: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(move |entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(begin)))
        .map(|e| e.path())
}

fn is_ours(path: &Path, since: SystemTime) -> bool {
    let me = rustix::process::getuid().as_raw();
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| {
        let born = found.created().or_else(|_| found.modified());
        found.is_file() && found.uid() == me && born.is_ok_and(|born| born > since)
    })
}

/// The files that a process of the user has open or mapped.
fn held(files: &HashSet<PathBuf>) -> HashSet<PathBuf> {
    let mut held = HashSet::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()) {
        // Entries that are not processes have neither file. Other users' files cannot be read.
        let maps = std::fs::read_to_string(process.join("maps")).unwrap_or_default();
        let mapped = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..)).map(PathBuf::from));
        held.extend(mapped.filter(|path| files.contains(path)));
        let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let open = open.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok());
        held.extend(open.filter(|path| files.contains(path)));
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    #[test]
    fn only_files_with_the_claimed_prefix_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["mpich_shm_ab_0", "mpich_shm_ab_12", "mpich_shm_abc_0", "mpich_vci_ab_0", "users"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_claimed(&folder.path().join("mpich_shm_ab_"));
        assert_eq!(names(folder.path()), ["mpich_shm_abc_0", "mpich_vci_ab_0", "users"]);
        remove_claimed(Path::new("/no/such/folder/x_"));
    }

    #[test]
    fn open_files_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("free"), "x").unwrap();
        let open = std::fs::File::create(path("open")).unwrap();
        remove_unheld(["free", "open"].map(path).into());
        assert_eq!(names(folder.path()), ["open"]);
        drop(open);
    }

    #[test]
    fn older_files_are_not_ours() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let now = SystemTime::now();
        assert!(is_ours(file.path(), now - std::time::Duration::from_secs(60)));
        assert!(!is_ours(file.path(), now + std::time::Duration::from_secs(60)));
        assert!(!is_ours(Path::new("/no/such/file"), now));
    }
}
