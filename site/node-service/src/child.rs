//! Starts this program again as a user.
//!
//! `setpriv` switches to the user completely (groups, no capabilities and no way to regain any) and then executes a
//! copy of this program, which belongs to root. So the first process that handles a user's path has only the user's
//! rights.
//!
//! The user must not get a process on a node where he has no job: he could trace a process of his own and turn it into
//! another program. So the copy has no read permission: the kernel then lets nobody without privileges trace the
//! process or read its memory, from its first instruction on. The same holds for every later execution of this copy. A
//! supervisor running as root stays above the process and ends any processes that it leaves.

use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use thiserror::Error;
use types::MOST_HARM;

use crate::account::Account;
use crate::bounded::{Done, ProgramLimits, run};
use crate::message::Work;

/// Search path for programs, independent of any setting of a user or an administrator.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Limits for the copy to print its version.
const TRIAL: ProgramLimits = ProgramLimits { time: Duration::from_secs(60), output: 64 << 10 };
/// Mode bits that let anybody but root write.
const WRITABLE: u32 = 0o022;

/// The program to start, and the first line that it reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    Node(Work),
    /// A step of a hook.
    Step(String),
}

impl Task {
    /// The subcommand and its options.
    fn words(&self) -> &'static [&'static str] {
        match self {
            Task::Node(Work::Agent { .. }) => &["agent", "--only-movers"],
            Task::Node(Work::Look { .. }) => &["slurm", "look"],
            Task::Node(Work::Remove { .. }) => &["slurm", "remove"],
            Task::Step(_) => &["slurm", "step"],
        }
    }

    /// The line on its standard input.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = match self {
            Task::Node(Work::Agent { order }) => order.clone().into_bytes(),
            // Serialising a list of numbers cannot fail.
            Task::Node(Work::Look { path }) => serde_json::to_vec(path).unwrap_or_default(),
            Task::Node(Work::Remove { paths }) => serde_json::to_vec(paths).unwrap_or_default(),
            Task::Step(step) => step.clone().into_bytes(),
        };
        line.push(b'\n');
        line
    }
}

/// Reasons why the service cannot start this program for users.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProgramError {
    #[error("cannot find this program's own file: {0}")]
    Unknown(std::io::Error),
    #[error(
        "{} can be changed by others than root, and would then run as any user: give it, and all folders above it, to root \
         (chown root, chmod go-w)",
        .0.display()
    )]
    Writable(PathBuf),
    #[error("cannot put a copy of this program into {}: {source}: --programs names another folder", folder.display())]
    Copy { folder: PathBuf, source: std::io::Error },
    #[error("the file system of {} allows no programs ({problem}): --programs names another folder", file.display())]
    NotExecutable { file: PathBuf, problem: String },
}

/// Builds the command of a task for a user. The tests have another implementation, because they need not be root.
pub trait Programs: Send + Sync {
    fn command(&self, account: &Account, task: &Task, memory: &MemoryLimits) -> Command;
}

/// Limits of the memory that a task may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Limit on each process's own memory, in bytes.
    pub of_process: u64,
    /// The control group of all its processes.
    pub group: Option<PathBuf>,
}

/// This program.
#[derive(Clone, Debug)]
pub struct OwnProgram {
    /// The file that root runs.
    file: PathBuf,
    /// The copy that users run.
    copy: PathBuf,
    /// Share of their time that other users' applications may lose to a mover, in percent.
    most_harm: String,
    /// Variables that the program gets besides those of every login.
    variables: Vec<(OsString, OsString)>,
}

impl OwnProgram {
    /// `folder`: target folder of the copy of this program. `most_harm`: share of their time that other users'
    /// applications may lose to a mover, in percent. `kept`: names of this process's variables that the started
    /// programs also get. `variables`: further variables of the started programs.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn new(
        folder: &Path,
        most_harm: f64,
        kept: &[impl AsRef<OsStr>],
        mut variables: Vec<(OsString, OsString)>,
    ) -> Result<OwnProgram, ProgramError> {
        let file = std::env::current_exe().map_err(ProgramError::Unknown)?;
        safe(&file)?;
        let copy = copy_for_users(&file, folder)?;
        let value = |name: &OsStr| Some((name.to_owned(), std::env::var_os(name)?));
        variables.extend(kept.iter().filter_map(|name| value(name.as_ref())));
        Ok(OwnProgram { file, copy, most_harm: most_harm.to_string(), variables })
    }
}

/// Copies a program into a folder so that others can execute but not read it, and returns the copy's path. Replaces an
/// existing copy; processes that run it go on.
fn copy_for_users(file: &Path, folder: &Path) -> Result<PathBuf, ProgramError> {
    let copy = folder.join("landbridge");
    let make = || {
        if !folder.is_dir() {
            std::fs::create_dir_all(folder)?;
            std::fs::set_permissions(folder, Permissions::from_mode(0o711))?;
        }
        let fresh = tempfile_in(folder)?;
        std::io::copy(&mut std::fs::File::open(file)?, &mut &fresh.1)?;
        fresh.1.set_permissions(Permissions::from_mode(0o711))?;
        drop(fresh.1);
        std::fs::rename(&fresh.0, &copy)
    };
    make().map_err(|source| ProgramError::Copy { folder: folder.to_owned(), source })?;
    safe(&copy)?;
    let mut trial = Command::new(&copy);
    trial.arg("--version").env_clear();
    match run(trial, b"", TRIAL) {
        Ok(Done { code: Some(0), .. }) => Ok(copy),
        Ok(done) => Err(ProgramError::NotExecutable { file: copy, problem: done.stderr.to_string() }),
        Err(error) => Err(ProgramError::NotExecutable { file: copy, problem: error.to_string() }),
    }
}

/// Creates a new file under a temporary name.
fn tempfile_in(folder: &Path) -> std::io::Result<(PathBuf, std::fs::File)> {
    let path = folder.join(format!(".landbridge-{}", std::process::id()));
    // A killed service with the same process id may have left this file.
    let _ = std::fs::remove_file(&path);
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    Ok((path, file))
}

/// Fails if anybody but root can replace the program.
fn safe(file: &Path) -> Result<(), ProgramError> {
    for path in file.ancestors() {
        let found = std::fs::metadata(path).map_err(ProgramError::Unknown)?;
        // In a folder with the sticky bit, others cannot replace root's files.
        let sticky = found.is_dir() && found.mode() & 0o1000 != 0;
        if found.uid() != 0 || (found.mode() & WRITABLE != 0 && !sticky) {
            return Err(ProgramError::Writable(path.to_owned()));
        }
    }
    Ok(())
}

impl Programs for OwnProgram {
    fn command(&self, account: &Account, task: &Task, memory: &MemoryLimits) -> Command {
        let mut command = Command::new(&self.file);
        command.args(["slurm", "supervise"]);
        if let Some(group) = &memory.group {
            command.arg("--group").arg(group);
        }
        command.args([&std::process::id().to_string(), "--", "prlimit"]);
        command.args([&format!("--data={}", memory.of_process), "--", "setpriv"]);
        command.arg(format!("--reuid={}", account.user)).arg(format!("--regid={}", account.group));
        command.args(["--init-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]);
        command.arg(&self.copy).args(task.words());
        command.env_clear().env("PATH", PATH).envs(self.variables.iter().cloned());
        command.env("HOME", &account.home).env("USER", &account.name).env("LOGNAME", &account.name);
        command.env(MOST_HARM, &self.most_harm);
        // The home may be on a file system where root has no rights, so only the user's process enters it.
        command.current_dir("/");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_others_can_change_is_not_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("landbridge");
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(safe(&file).unwrap_err().to_string().contains("can be changed by others than root"));
        assert!(safe(Path::new("/usr/bin/env")).is_ok());
    }

    #[test]
    fn the_copy_for_users_can_be_executed_and_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let programs = folder.path().join("programs");
        for _ in 0..2 {
            // The copy that a killed service left is replaced.
            let copy = match copy_for_users(Path::new("/usr/bin/env"), &programs) {
                Ok(copy) => copy,
                // Without root, the folder does not belong to root.
                Err(ProgramError::Writable(_)) if !rustix::process::geteuid().is_root() => return,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(std::fs::metadata(&copy).unwrap().mode() & 0o777, 0o711);
            assert_eq!(std::fs::read_dir(&programs).unwrap().count(), 1, "nothing else is there");
        }
        assert!(copy_for_users(Path::new("/etc/passwd"), &programs).unwrap_err().to_string().contains("no programs"));
        assert!(copy_for_users(Path::new("/usr/bin/env"), Path::new("/proc/x")).is_err());
    }

    #[test]
    fn the_user_is_complete_before_our_program_runs() {
        let most_harm = "3".to_owned();
        let variables = vec![("SLURM_CONF".into(), "/x".into())];
        let (file, copy) = ("/usr/bin/landbridge".into(), "/var/lib/landbridge/landbridge".into());
        let own = OwnProgram { file, copy, most_harm, variables };
        let account = Account { user: 7, group: 8, name: "anna".into(), home: "/home/anna".into() };
        let task = Task::Node(Work::Agent { order: "{}".into() });
        let words_with = |group: Option<PathBuf>| {
            let command = own.command(&account, &task, &MemoryLimits { of_process: 1 << 30, group });
            command.get_args().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(words_with(Some("/g/o".into()))[..4], ["slurm", "supervise", "--group", "/g/o"]);
        let command = own.command(&account, &task, &MemoryLimits { of_process: 1 << 30, group: None });
        let words = words_with(None);
        let first =
            ["--reuid=7", "--regid=8", "--init-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"];
        let service = std::process::id().to_string();
        assert_eq!(command.get_program(), "/usr/bin/landbridge");
        assert_eq!(words[..8], ["slurm", "supervise", &service, "--", "prlimit", "--data=1073741824", "--", "setpriv"]);
        assert_eq!(words[8..14], first);
        assert_eq!(words[14..], ["--", "/var/lib/landbridge/landbridge", "agent", "--only-movers"]);
        let names: Vec<_> = command.get_envs().filter_map(|(name, value)| value.and(name.to_str())).collect();
        assert_eq!(names, ["HOME", "LANDBRIDGE_MOST_HARM", "LOGNAME", "PATH", "SLURM_CONF", "USER"]);
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
    }
}
