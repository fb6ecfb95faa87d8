//! The changes that an installation makes on a machine, and their undoing. Pure: maps existing files to a list of
//! changes.
//!
//! No file of an administrator is overwritten. Our files begin with a line that identifies them; our lines in
//! `slurm.conf` stand between two marker lines.

use thiserror::Error;

/// The start of each file that we write, after the comment character.
const MARK: &str = "Written by `landbridge slurm install`";
/// The lines around ours in `slurm.conf`.
const BEGIN: &str = "# Begin of what `landbridge slurm install` has added";
const END: &str = "# End of what `landbridge slurm install` has added";
const BURST_BUFFER: &str = "BurstBufferType";
const LUA: &str = "burst_buffer/lua";

/// Paths on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// This program.
    pub command: String,
    pub slurm_conf: String,
    pub unit: String,
    /// In the folder of `slurm.conf`.
    pub lua: String,
    pub burst_buffer_conf: String,
    /// The folder of the records of jobs, which Slurm's user can write.
    pub state: String,
    /// The socket for hooks.
    pub service: String,
}

/// A file and its contents; `None`: it does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub path: String,
    pub text: Option<String>,
}

/// Reasons for changing nothing.
#[derive(Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InstallError {
    #[error(
        "{path} exists and Landbridge did not write it: move it away, or merge both by hand (`--dry-run` shows ours)"
    )]
    Foreign { path: String },
    #[error("{path}, line {line}: `{text}`: Slurm has one burst buffer, and this cluster has another one already")]
    Other { path: String, line: usize, text: String },
    #[error("{path} is not there: --conf names Slurm's configuration")]
    NoConf { path: String },
    #[error("{path}: `{BEGIN}` has no end: remove what we have added there by hand")]
    Torn { path: String },
}

/// The role of a machine in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineRole {
    /// Only movers run there.
    Node,
    /// Slurm's controller runs there.
    Controller,
}

/// Returns the files to write, with their new contents. `read` returns the contents of a file.
///
/// # Errors
/// [`InstallError`]; then nothing should be changed.
pub fn install(
    paths: &Paths,
    role: MachineRole,
    read: impl Fn(&str) -> Option<String>,
) -> Result<Vec<File>, InstallError> {
    let mut files = Vec::new();
    let mut own = |path: &str, text: String| {
        match read(path) {
            Some(there) if !is_ours(&there) => return Err(InstallError::Foreign { path: path.to_owned() }),
            Some(there) if there == text => {}
            _ => files.push(File { path: path.to_owned(), text: Some(text) }),
        }
        Ok(())
    };
    let options = match role {
        MachineRole::Node => String::new(),
        MachineRole::Controller => format!(" --hooks {}", paths.service),
    };
    let fill = |text: &str| {
        let known = text.replace("@COMMAND@", &paths.command).replace("@CONF@", &paths.slurm_conf);
        known.replace("@OPTIONS@", &options).replace("@STATE@", &paths.state).replace("@SERVICE@", &paths.service)
    };
    own(&paths.unit, fill(include_str!("install/landbridge-node.service")))?;
    if role == MachineRole::Node {
        return Ok(files);
    }
    own(&paths.lua, fill(include_str!("install/burst_buffer.lua")))?;
    own(&paths.burst_buffer_conf, fill(include_str!("install/burst_buffer.conf")))?;
    let path = paths.slurm_conf.clone();
    let conf = read(&path).ok_or_else(|| InstallError::NoConf { path: path.clone() })?;
    let rest = without_ours(&path, &conf)?;
    let value = |line: &str| {
        let (name, value) = line.split_once('=')?;
        name.trim().eq_ignore_ascii_case(BURST_BUFFER).then(|| value.trim().to_owned())
    };
    let found = (1..).zip(rest.lines()).find_map(|(number, line)| Some((number, line, value(line)?)));
    let text = match found {
        Some((_, _, value)) if value.eq_ignore_ascii_case(LUA) => rest,
        Some((line, text, _)) => return Err(InstallError::Other { path, line, text: text.to_owned() }),
        None => format!("{}{BEGIN}\n{BURST_BUFFER}={LUA}\n{END}\n", ended(&rest)),
    };
    if text != conf {
        files.push(File { path, text: Some(text) });
    }
    Ok(files)
}

/// Returns the files to restore: our files are removed, and our lines in `slurm.conf`.
///
/// # Errors
/// [`InstallError::Torn`].
pub fn uninstall(paths: &Paths, read: impl Fn(&str) -> Option<String>) -> Result<Vec<File>, InstallError> {
    let own = [&paths.unit, &paths.lua, &paths.burst_buffer_conf];
    let ours = own.into_iter().filter(|path| read(path).is_some_and(|text| is_ours(&text)));
    let mut files: Vec<File> = ours.map(|path| File { path: path.clone(), text: None }).collect();
    let path = paths.slurm_conf.clone();
    if let Some(conf) = read(&path) {
        let text = without_ours(&path, &conf)?;
        if text != conf {
            files.push(File { path, text: Some(text) });
        }
    }
    Ok(files)
}

fn is_ours(text: &str) -> bool {
    text.lines().next().is_some_and(|line| line.trim_start_matches(['#', '-', ' ']).starts_with(MARK))
}

fn ended(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

fn without_ours(path: &str, conf: &str) -> Result<String, InstallError> {
    let Some(begin) = conf.find(BEGIN) else { return Ok(conf.to_owned()) };
    let torn = || InstallError::Torn { path: path.to_owned() };
    let end = begin + conf[begin..].find(END).ok_or_else(torn)? + END.len();
    let rest = conf[end..].strip_prefix('\n').unwrap_or(&conf[end..]);
    Ok(format!("{}{rest}", &conf[..begin]))
}

/// The lines that a change removes and adds, in `diff` format.
pub fn shown(before: Option<&str>, after: Option<&str>) -> Vec<String> {
    let lines = |text: Option<&str>| -> Vec<String> { text.unwrap_or_default().lines().map(str::to_owned).collect() };
    let (old, new) = (lines(before), lines(after));
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let most = old.len().min(new.len()) - same;
    let last = old.iter().rev().zip(new.iter().rev()).take(most).take_while(|(a, b)| a == b).count();
    let gone = old[same..old.len() - last].iter().map(|line| format!("- {line}"));
    gone.chain(new[same..new.len() - last].iter().map(|line| format!("+ {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn paths() -> Paths {
        let own = |name: &str| format!("/etc/slurm/{name}");
        Paths {
            command: "/usr/bin/landbridge".into(),
            slurm_conf: own("slurm.conf"),
            unit: "/etc/systemd/system/landbridge-node.service".into(),
            lua: own("burst_buffer.lua"),
            burst_buffer_conf: own("burst_buffer.conf"),
            state: "/var/spool/landbridge".into(),
            service: "/run/landbridge/hooks".into(),
        }
    }

    struct Machine(BTreeMap<String, String>);

    impl Machine {
        fn new(conf: &str) -> Machine {
            Machine([("/etc/slurm/slurm.conf".to_owned(), conf.to_owned())].into())
        }

        fn read(&self) -> impl Fn(&str) -> Option<String> {
            |path| self.0.get(path).cloned()
        }

        fn change(&mut self, files: Vec<File>) {
            for File { path, text } in files {
                match text {
                    Some(text) => drop(self.0.insert(path, text)),
                    None => drop(self.0.remove(&path)),
                }
            }
        }
    }

    #[test]
    fn what_was_there_is_there_again_afterwards() {
        for conf in ["", "ClusterName=x\n", "ClusterName=x", "A=1\n\n# end\n", "BurstBufferType=burst_buffer/lua\n"] {
            let mut machine = Machine::new(conf);
            machine.change(install(&paths(), MachineRole::Controller, machine.read()).unwrap());
            assert!(machine.0["/etc/slurm/slurm.conf"].contains("BurstBufferType=burst_buffer/lua"));
            assert!(machine.0["/etc/slurm/burst_buffer.lua"].contains("local COMMAND = \"/usr/bin/landbridge\""));
            assert!(machine.0.values().all(|text| !text.contains('@')), "filled in");
            assert_eq!(install(&paths(), MachineRole::Controller, machine.read()), Ok(vec![]), "once is enough");
            machine.change(uninstall(&paths(), machine.read()).unwrap());
            assert_eq!(machine.0.len(), 1);
            assert_eq!(machine.0["/etc/slurm/slurm.conf"], ended(conf));
            assert_eq!(uninstall(&paths(), machine.read()), Ok(vec![]));
        }
    }

    #[test]
    fn a_node_gets_the_service_alone() {
        let machine = Machine(BTreeMap::new());
        let files = install(&paths(), MachineRole::Node, machine.read()).unwrap();
        assert_eq!(files.len(), 1);
        let unit = files[0].text.as_deref().unwrap();
        assert!(unit.contains("ExecStart=/usr/bin/landbridge slurm node-service\n") && unit.contains("CPUWeight=idle"));
    }

    #[test]
    fn nothing_of_an_administrators_is_replaced() {
        let mut machine = Machine::new("X=1\nburstbuffertype = burst_buffer/datawarp\n");
        let error = install(&paths(), MachineRole::Controller, machine.read()).unwrap_err().to_string();
        assert!(error.contains("slurm.conf, line 2") && error.contains("datawarp"), "{error}");
        machine = Machine::new("");
        machine.0.insert("/etc/slurm/burst_buffer.lua".into(), "-- mine\n".into());
        let error = install(&paths(), MachineRole::Controller, machine.read()).unwrap_err().to_string();
        assert!(error.contains("burst_buffer.lua exists and Landbridge did not write it"), "{error}");
        assert_eq!(uninstall(&paths(), machine.read()), Ok(vec![]));
        machine = Machine::new(&format!("{BEGIN}\nX=1\n"));
        assert!(matches!(uninstall(&paths(), machine.read()), Err(InstallError::Torn { .. })));
        let none = install(&paths(), MachineRole::Controller, |_| None).unwrap_err().to_string();
        assert!(none.contains("slurm.conf is not there"), "{none}");
    }

    #[test]
    fn changes_are_shown_by_line() {
        assert_eq!(shown(Some("a\nb\nc\n"), Some("a\nx\nc\n")), ["- b", "+ x"]);
        assert_eq!(shown(None, Some("a\n")), ["+ a"]);
        assert_eq!(shown(Some("a\na\n"), Some("a\n")), ["- a"]);
        assert_eq!(shown(Some("a\n"), None), ["- a"]);
    }
}
