//! The environment of a rank: the user's variables from the shell in which `run` was typed, the node's variables, and
//! the variables that MPI and the provider need.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use thiserror::Error;

use crate::home::{TYPED_DIRECTORY, TYPED_HOME};

/// Variables of an environment, as raw bytes.
pub type RawEnvironment = Vec<(Vec<u8>, Vec<u8>)>;

/// Variables that describe the machine or session of `run`, not the program's settings. The node has its own values, or
/// none.
const HOST_SPECIFIC: &[&str] = &[
    "_",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "HOST",
    "HOSTNAME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "SLURMD_NODENAME",
    "SLURM_TOPOLOGY_ADDR",
    "SLURM_TOPOLOGY_ADDR_PATTERN",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "TMUX",
    "STY",
    "WAYLAND_DISPLAY",
    "WINDOWID",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "XDG_SESSION_ID",
    "XDG_SEAT",
    "XDG_VTNR",
];

/// Variables for which the node's own value takes precedence over the user's.
const NODE_FIRST: &[&str] = &["HOME", "HOSTNAME", "LOGNAME", "SHELL", "TMPDIR", "USER", "XDG_RUNTIME_DIR"];

/// Variables with which other launchers identify a rank or place ranks. With them, an MPI library would believe that
/// such a launcher had started it. Each entry is a name or, with `*` at its end, the beginning of names. Variables that
/// describe a batch job are not in this list, because programs read their task number of an array from them.
///
/// `SLURM_NNODES`, `SLURM_NODELIST` and `SLURM_NPROCS` are older names of `SLURM_JOB_NUM_NODES`, `SLURM_JOB_NODELIST`
/// and `SLURM_NTASKS`, which are passed on. Intel MPI takes the number of nodes from the first two. If the batch job
/// has one node but the ranks run on several, of other components or other sites, all of them would map the shared
/// memory of the first.
const FOREIGN: &[&str] = &[
    "PMI_*",
    "PMI2_*",
    "PMIX_*",
    "HYDRA_*",
    "HYDI_*",
    "MPIEXEC_*",
    "OMPI_COMM_WORLD_*",
    "OMPI_UNIVERSE_*",
    "ORTE_*",
    "PRTE_*",
    "SLURM_DISTRIBUTION",
    "SLURM_DIST_*",
    "SLURM_GTIDS",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_LOCALID",
    "SLURM_MPI_TYPE",
    "SLURM_NNODES",
    "SLURM_NODEID",
    "SLURM_NODELIST",
    "SLURM_NPROCS",
    "SLURM_PMI*",
    "SLURM_PROCID",
    "SLURM_SRUN_*",
    "SLURM_STEPID",
    "SLURM_STEP_*",
    "SLURM_TASK_PID",
    "PBS_NODENUM",
    "PBS_TASKNUM",
    "PBS_VNODENUM",
    "PALS_*",
    "ALPS_*",
    "MPI_LOCALNRANKS",
    "MPI_LOCALRANKID",
];

/// Prefixes of settings that match [`FOREIGN`] but are passed on.
const SETTINGS: &[&str] = &["PMIX_MCA_", "PRTE_MCA_", "ORTE_MCA_"];

/// Variables that apply to all nodes of the site where `run` was typed, and to no other site: a path that a module sets
/// there, and the secret with which a process starts others in a PBS job.
const SITE_SPECIFIC: &[&str] = &["LANDBRIDGE_PROVIDER", "PBS_JOBCOOKIE"];

/// Variables that name a folder, and are of no use where it does not exist. PBS and other batch systems make a folder
/// for temporary files when a job starts, often on the first of its nodes alone.
const FOLDERS: &[&str] = &["TMPDIR"];

/// Variables that Landbridge sets for each rank. A value from an outer job would be wrong.
const OURS: &[&str] = &[
    "LANDBRIDGE_JOB",
    "LANDBRIDGE_SECRET",
    "LANDBRIDGE_SECRET_FD",
    "LANDBRIDGE_ROSTER",
    "LANDBRIDGE_RANK",
    "LANDBRIDGE_ADDRESS",
    "LANDBRIDGE_GATEWAYS",
    "LANDBRIDGE_WINDOW",
    "LANDBRIDGE_MEMORY",
    "LANDBRIDGE_MEMORY_FD",
    "LANDBRIDGE_CROWDED",
    "LANDBRIDGE_MPI_SHM",
    "LANDBRIDGE_LAYER",
    "LANDBRIDGE_FABRIC",
    "LANDBRIDGE_LIBFABRIC",
    "LANDBRIDGE_INSIDE_KEYS",
    "LANDBRIDGE_SITE_NAME",
    "LANDBRIDGE_NODE_NAME",
    "LANDBRIDGE_LOCAL_RANK",
    "LANDBRIDGE_SIZE",
    TYPED_HOME,
    TYPED_DIRECTORY,
];

/// Reasons why a variable cannot be set for ranks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingError {
    /// The variable has no name.
    #[error("-x {0}: not NAME or NAME=VALUE")]
    Nameless(String),
    /// No value is given, and the variable is not set here.
    #[error("-x {0}: there is no such variable here; -x {0}=VALUE sets it")]
    Unset(String),
    /// Only the launcher may set the variable.
    #[error("-x {0}: only the launcher may set this variable: it identifies a rank or the place of ranks")]
    Ours(String),
}

/// Parses a variable for a job: `NAME=VALUE`, or `NAME` for the value that `here` returns.
///
/// # Errors
/// The variable has no name or no value, or only a launcher may set it.
pub fn setting(text: &OsStr, here: impl Fn(&OsStr) -> Option<OsString>) -> Result<(Vec<u8>, Vec<u8>), SettingError> {
    let shown = || text.to_string_lossy().into_owned();
    let (name, value) = match text.as_bytes().iter().position(|byte| *byte == b'=') {
        Some(at) => (&text.as_bytes()[..at], text.as_bytes()[at + 1..].to_vec()),
        None => {
            let value = here(text).ok_or_else(|| SettingError::Unset(shown()));
            (text.as_bytes(), if text.is_empty() { Vec::new() } else { value?.into_vec() })
        }
    };
    match std::str::from_utf8(name) {
        Ok("") => Err(SettingError::Nameless(shown())),
        Ok(word) if is_launchers(word) => Err(SettingError::Ours(word.to_owned())),
        _ => Ok((name.to_vec(), value)),
    }
}

/// True if a launcher, ours or another, identifies a rank by this variable.
fn is_launchers(name: &str) -> bool {
    let named = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *pattern,
    };
    let is_setting = SETTINGS.iter().any(|prefix| name.starts_with(prefix));
    OURS.contains(&name) || (FOREIGN.iter().any(named) && !is_setting)
}

/// True if a variable of `run` is passed on to the ranks.
fn travels(name: &str) -> bool {
    !HOST_SPECIFIC.contains(&name) && !is_launchers(name)
}

/// The part of `run`'s environment that is passed on to the ranks.
pub fn travelling(variables: impl Iterator<Item = (OsString, OsString)>) -> RawEnvironment {
    variables
        .filter(|(name, _)| name.to_str().is_none_or(travels))
        .map(|(name, value)| (name.into_vec(), value.into_vec()))
        .collect()
}

/// Removes the variables that apply only to the site where `run` was typed.
pub fn leave_site(environment: &mut RawEnvironment) {
    environment.retain(|(name, _)| !SITE_SPECIFIC.iter().any(|kept| kept.as_bytes() == name));
}

/// An environment under construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The user's variables that are passed on. For those of `NODE_FIRST`, the node's own values take precedence.
    pub fn new(user: &RawEnvironment, node: impl Iterator<Item = (OsString, OsString)>) -> Environment {
        let mut variables: BTreeMap<OsString, OsString> = user
            .iter()
            .filter(|(name, _)| std::str::from_utf8(name).is_ok_and(travels))
            .map(|(name, value)| (OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value).to_owned()))
            .collect();
        let own = node.filter(|(name, _)| name.to_str().is_some_and(|name| NODE_FIRST.contains(&name)));
        variables.extend(own);
        Environment(variables)
    }

    /// Removes the variables that name a folder which is not on this node.
    pub fn leave_out_missing_folders(&mut self, exists: impl Fn(&Path) -> bool) {
        self.0.retain(|name, value| !FOLDERS.iter().any(|known| name == known) || exists(Path::new(value)));
    }

    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    pub fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.insert(name.into(), value.into());
    }

    /// Sets a variable whose name may be any bytes.
    pub fn set_raw(&mut self, name: OsString, value: OsString) {
        self.0.insert(name, value);
    }

    /// Sets a variable unless the user has set it.
    pub fn set_default(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.entry(name.into()).or_insert_with(|| value.into());
    }

    /// Puts a directory first in a colon-separated list.
    pub fn prepend(&mut self, name: &str, directory: &OsStr) {
        let mut list = directory.to_owned();
        if let Some(old) = self.get(name).filter(|old| !old.is_empty()) {
            if std::env::split_paths(old).any(|path| path.as_os_str() == directory) {
                return;
            }
            list.push(":");
            list.push(old);
        }
        self.set(name, list);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(list: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        list.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn variables_of_other_launchers_are_left_out() {
        let here = variables(&[
            ("OMP_NUM_THREADS", "2"),
            ("PMIX_NAMESPACE", "x"),
            ("PMI_RANK", "0"),
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NODELIST", "n1"),
            ("SLURMD_NODENAME", "n1"),
            ("SLURM_ARRAY_TASK_ID", "7"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_NUM_NODES", "1"),
            ("SLURM_JOB_NODELIST", "n1"),
            ("SLURM_NNODES", "1"),
            ("SLURM_NODELIST", "n1"),
            ("SLURM_NPROCS", "4"),
            ("SLURM_DIST_PLANESIZE", "2"),
            ("PMIX_MCA_gds", "hash"),
            ("LANDBRIDGE_SECRET", "old"),
            ("LANDBRIDGE_LOG", "debug"),
            ("HOSTNAME", "login"),
            ("HOME", "/home/u"),
        ]);
        let raw = travelling(here.into_iter());
        let names: Vec<_> = raw.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
        let passed = [
            "OMP_NUM_THREADS",
            "SLURM_ARRAY_TASK_ID",
            "SLURM_NTASKS",
            "SLURM_JOB_NUM_NODES",
            "SLURM_JOB_NODELIST",
            "PMIX_MCA_gds",
            "LANDBRIDGE_LOG",
            "HOME",
        ];
        assert_eq!(names, passed);
        let mut raw = raw;
        raw.push((b"PMI_FD".to_vec(), b"3".to_vec()));
        let node = variables(&[("HOME", "/users/u"), ("PATH", "/node/bin")]);
        let environment = Environment::new(&raw, node.into_iter());
        assert_eq!(environment.get("HOME"), Some(OsStr::new("/users/u")));
        assert_eq!(environment.get("PATH"), None);
        assert_eq!(environment.get("PMI_FD"), None);
    }

    #[test]
    fn a_folder_of_a_batch_job_is_named_only_where_it_exists() {
        let typed = travelling(variables(&[("TMPDIR", "/tmp/pbs.7"), ("X", "/nowhere")]).into_iter());
        let on_node = |folder: &str| {
            let mut environment = Environment::new(&typed, std::iter::empty());
            environment.leave_out_missing_folders(|path| path == Path::new(folder));
            assert_eq!(environment.get("X"), Some(OsStr::new("/nowhere")));
            environment.get("TMPDIR").map(OsStr::to_owned)
        };
        assert_eq!(on_node("/tmp/pbs.7"), Some("/tmp/pbs.7".into()));
        assert_eq!(on_node("/tmp"), None);
    }

    #[test]
    fn the_secret_of_a_batch_job_stays_at_its_site() {
        let mut raw = travelling(variables(&[("PBS_JOBCOOKIE", "15A9"), ("PBS_JOBID", "7.s")]).into_iter());
        assert_eq!(raw.len(), 2, "ranks of the job's own site may start tasks in it");
        leave_site(&mut raw);
        assert_eq!(raw, [(b"PBS_JOBID".to_vec(), b"7.s".to_vec())]);
    }

    #[test]
    fn a_variable_of_the_command_line_has_a_name_and_a_value() {
        let here = |name: &OsStr| (name == "HERE").then(|| "1".into());
        let set = |text: &str| setting(OsStr::new(text), here);
        assert_eq!(set("A=b=c"), Ok((b"A".to_vec(), b"b=c".to_vec())));
        assert_eq!(set("A="), Ok((b"A".to_vec(), Vec::new())));
        assert_eq!(set("HERE"), Ok((b"HERE".to_vec(), b"1".to_vec())));
        assert_eq!(set("AWAY"), Err(SettingError::Unset("AWAY".into())));
        assert_eq!(set("=x"), Err(SettingError::Nameless("=x".into())));
        assert_eq!(set(""), Err(SettingError::Nameless(String::new())));
        assert_eq!(set("SLURM_ARRAY_TASK_ID=2"), Ok((b"SLURM_ARRAY_TASK_ID".to_vec(), b"2".to_vec())));
        assert_eq!(set("SLURM_PROCID=1"), Err(SettingError::Ours("SLURM_PROCID".into())));
        assert_eq!(set("PMI_RANK=1"), Err(SettingError::Ours("PMI_RANK".into())));
        assert_eq!(set("LANDBRIDGE_SIZE=1"), Err(SettingError::Ours("LANDBRIDGE_SIZE".into())));
    }

    #[test]
    fn lists_and_defaults() {
        let mut environment = Environment::default();
        environment.prepend("P", OsStr::new("/a"));
        environment.prepend("P", OsStr::new("/b"));
        environment.prepend("P", OsStr::new("/a"));
        assert_eq!(environment.get("P"), Some(OsStr::new("/b:/a")));
        environment.set_default("P", "x");
        assert_eq!(environment.get("P"), Some(OsStr::new("/b:/a")));
    }
}
