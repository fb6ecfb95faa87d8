//! Starting this program again as a user.
//!
//! `setpriv` becomes the user completely (groups, no capabilities, none to be had again) and then executes this
//! program's file, which belongs to root. So the process that first sees a path of the user's has the user's rights.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;
use types::MOST_HARM;

use crate::account::Account;
use crate::message::Work;

/// Where programs are looked for, whatever a user or an administrator has set.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
/// Can be written to by anybody but root.
const WRITABLE: u32 = 0o022;

/// What is started, and what it reads first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    Node(Work),
    /// A step of a hook's.
    Step(String),
}

impl Task {
    /// The subcommand with its options.
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
            // Lists of numbers can be written.
            Task::Node(Work::Look { path }) => serde_json::to_vec(path).unwrap_or_default(),
            Task::Node(Work::Remove { paths }) => serde_json::to_vec(paths).unwrap_or_default(),
            Task::Step(step) => step.clone().into_bytes(),
        };
        line.push(b'\n');
        line
    }
}

/// Why the service cannot start this program for users.
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
}

/// Makes the command of a task for a user. The tests have another one, because they need not be root.
pub trait Programs: Send + Sync {
    fn command(&self, account: &Account, task: &Task) -> Command;
}

/// This very program.
#[derive(Clone, Debug)]
pub struct Own {
    file: PathBuf,
    /// The percent of their time that other users' applications may lose to a mover.
    most_harm: String,
    /// Variables that it gets besides those of every login.
    variables: Vec<(OsString, OsString)>,
}

impl Own {
    /// `most_harm`: the percent of their time that other users' applications may lose to a mover. `variables`: which of
    /// this process's own variables the started programs have too.
    ///
    /// # Errors
    /// [`ProgramError`].
    pub fn new(most_harm: f64, variables: &[impl AsRef<OsStr>]) -> Result<Own, ProgramError> {
        let file = std::env::current_exe().map_err(ProgramError::Unknown)?;
        safe(&file)?;
        let value = |name: &OsStr| Some((name.to_owned(), std::env::var_os(name)?));
        let most_harm = most_harm.to_string();
        Ok(Own { file, most_harm, variables: variables.iter().filter_map(|name| value(name.as_ref())).collect() })
    }
}

/// Whether nobody but root can put another program there.
fn safe(file: &Path) -> Result<(), ProgramError> {
    for path in file.ancestors() {
        let found = std::fs::metadata(path).map_err(ProgramError::Unknown)?;
        // In a folder with the sticky bit, others cannot replace what is root's.
        let sticky = found.is_dir() && found.mode() & 0o1000 != 0;
        if found.uid() != 0 || (found.mode() & WRITABLE != 0 && !sticky) {
            return Err(ProgramError::Writable(path.to_owned()));
        }
    }
    Ok(())
}

impl Programs for Own {
    fn command(&self, account: &Account, task: &Task) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={}", account.user)).arg(format!("--regid={}", account.group));
        command.args(["--init-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]);
        command.arg(&self.file).args(task.words());
        command.env_clear().env("PATH", PATH).envs(self.variables.iter().cloned());
        command.env("HOME", &account.home).env("USER", &account.name).env("LOGNAME", &account.name);
        command.env(MOST_HARM, &self.most_harm);
        // The home may be on a file system where root is nobody, so only the user's process goes there.
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
    fn the_user_is_complete_before_our_program_runs() {
        let most_harm = "3".to_owned();
        let own =
            Own { file: "/usr/bin/landbridge".into(), most_harm, variables: vec![("SLURM_CONF".into(), "/x".into())] };
        let account = Account { user: 7, group: 8, name: "anna".into(), home: "/home/anna".into() };
        let command = own.command(&account, &Task::Node(Work::Agent { order: "{}".into() }));
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        let first =
            ["--reuid=7", "--regid=8", "--init-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"];
        assert_eq!(words[..6], first);
        assert_eq!(words[6..], ["--", "/usr/bin/landbridge", "agent", "--only-movers"]);
        let names: Vec<_> = command.get_envs().filter_map(|(name, value)| value.and(name.to_str())).collect();
        assert_eq!(names, ["HOME", "LANDBRIDGE_MOST_HARM", "LOGNAME", "PATH", "SLURM_CONF", "USER"]);
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
    }
}
