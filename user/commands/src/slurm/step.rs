//! A step of a hook, run as the job's user: `landbridge stage move` with the user's own sites file, a look at paths, a
//! check of places, or a removal.

use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use node_service::message::Work;
use node_service::step::{Kept, Step, StepEnd};
use rustix::process::{Pid, Signal};
use stage::look::Role;

use super::service::at_node;
use crate::error::{Context, Result, refuse, whole};
use crate::sites_file;
use crate::transfers::look::look;
use crate::transfers::places::Map;

/// Time limit for ending a transfer.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Time limit for a check of all places: a job waits for it.
const LOOK: Duration = Duration::from_secs(30);

/// The result of a step.
pub enum StepResult {
    /// The exit code of the transfer, which has printed its own result.
    Moved(i32),
    /// The result as JSON.
    Answer(String),
}

/// The site of the step's user.
struct UsersSite {
    home: String,
    /// The port of the nodes' services.
    port: u16,
}

/// Runs the step, given as a line on standard input. The end of standard input aborts it.
///
/// # Errors
/// The user has no usable sites file, or a node's service cannot be reached.
pub fn step() -> Result<StepResult> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let step: Step = serde_json::from_str(&line).context("the step on standard input")?;
    let users = UsersSite::find()?;
    match step {
        Step::Move { from, to, rate, harm, other_owner } => {
            let mut words: Vec<OsString> = ["stage", "move", "--json", "--from", &users.home].map(Into::into).into();
            for (option, value) in [("--rate", rate), ("--harm", harm)] {
                words.extend(value.into_iter().flat_map(|value| [option.into(), value.into()]));
            }
            if other_owner {
                words.push("--allow-other-owner".into());
            }
            words.extend(["--".into(), users.typed(&from).into(), users.typed(&to).into()]);
            carry_out(&words).map(StepResult::Moved)
        }
        Step::Check { sources, targets } => {
            let map = Map::open(None, Some(&users.home))?;
            let ends = |ends: Vec<StepEnd>, role| {
                let typed: Vec<String> = ends.iter().map(|end| users.typed(end)).collect();
                typed.into_iter().map(move |typed| (typed, role))
            };
            let places: Vec<_> = ends(sources, Role::Source).chain(ends(targets, Role::Target)).collect();
            Ok(StepResult::Answer(serde_json::to_string(&look(&map, &places, LOOK))?))
        }
        Step::Look { nodes, path } => Ok(StepResult::Answer(serde_json::to_string(&users.nodes_with(nodes, &path)?)?)),
        Step::Remove { nodes, paths } => Ok(StepResult::Answer(serde_json::to_string(&users.remove(nodes, &paths))?)),
    }
}

impl UsersSite {
    fn find() -> Result<UsersSite> {
        let path = sites_file::locate(None)?;
        let sites = sites_file::read(&path)?;
        let home = sites_file::own_site(&sites, None)?;
        let Some(port) = sites.site(&home)?.starter.node_service() else {
            refuse!(
                "site {home}: {} has no `node_service` in its [site.starter]: add node_service = 7760",
                path.display()
            );
        };
        Ok(UsersSite { home, port })
    }

    fn typed(&self, end: &StepEnd) -> String {
        end.typed(&self.home)
    }

    /// The nodes on which the path exists.
    fn nodes_with(&self, nodes: Vec<String>, path: &str) -> Result<Vec<String>> {
        let mut there = Vec::new();
        for node in nodes {
            let work = Work::Look { path: path.as_bytes().to_vec() };
            let ended = at_node(&node, self.port, work, std::io::empty()).with_context(|| node.clone())?;
            match ended.code {
                0 => {}
                1 => there.push(node),
                _ => refuse!("{node}: {}", ended.words),
            }
        }
        Ok(there)
    }

    /// Removes the paths, and returns the nodes that keep one.
    fn remove(&self, nodes: Vec<String>, paths: &[String]) -> Vec<Kept> {
        let mut kept = Vec::new();
        for node in nodes {
            let paths = paths.iter().map(|path| path.clone().into_bytes()).collect();
            let problem = match at_node(&node, self.port, Work::Remove { paths }, std::io::empty()) {
                Ok(ended) if ended.code == 0 => continue,
                Ok(ended) => ended.words,
                Err(error) => whole(&error).into(),
            };
            kept.push(Kept { node, problem });
        }
        kept
    }
}

/// Runs this command, and aborts it when standard input ends.
fn carry_out(words: &[OsString]) -> Result<i32> {
    let mut child = Command::new(std::env::current_exe()?).args(words).stdin(Stdio::null()).spawn()?;
    let (gone, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        let _ = gone.send(());
    });
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code().unwrap_or(1));
        }
        if end.recv_timeout(Duration::from_millis(50)).is_ok() {
            return give_up(&mut child);
        }
    }
}

/// Aborts the command. Arrived blocks stay: the hook may be tried again, and removes them after the job.
fn give_up(child: &mut Child) -> Result<i32> {
    let _ = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
    let deadline = Instant::now() + GIVE_UP;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    refuse!("given up, because the hook that wanted it is gone")
}
