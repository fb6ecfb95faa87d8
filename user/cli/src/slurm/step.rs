//! A step of a hook, run as the job's user: `landbridge stage move` with the user's own sites file, a look at paths, a
//! check of places, or a removal.

use std::ffi::OsString;
use std::io::{BufRead, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use node_service::message::Work;
use node_service::step::{Kept, Step, StepEnd};
use rustix::process::{Pid, Signal};
use stage::look::Role;
use types::sites::Site;

use crate::sites::file::SitesFileArgs;
use crate::slurm::service::at_node;
use crate::stage::look::look;
use crate::stage::places::Map;

/// Time limit for ending a transfer.
const GIVE_UP: Duration = Duration::from_secs(10);

/// Time limit for a check of all places: a job waits for it.
const LOOK: Duration = Duration::from_secs(30);

/// Runs the step, given as a line on standard input. The end of standard input aborts it.
pub(crate) fn step() -> Result<i32> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let step: Step = serde_json::from_str(&line).context("the step on standard input")?;
    let path = crate::sites::file::locate(&SitesFileArgs { sites: None })?;
    let sites = crate::sites::file::read(&path)?;
    let home = crate::sites::file::own_site(&sites, None)?;
    let site = sites.site(&home)?;
    let Some(port) = site.starter.node_service() else {
        bail!("site {home}: {} has no `node_service` in its [site.starter]: add node_service = 7760", path.display());
    };
    match step {
        Step::Move { from, to, rate, harm, other_owner } => {
            let mut words: Vec<OsString> = ["stage", "move", "--json", "--from", &home].map(Into::into).into();
            for (option, value) in [("--rate", rate), ("--harm", harm)] {
                words.extend(value.into_iter().flat_map(|value| [option.into(), value.into()]));
            }
            if other_owner {
                words.push("--allow-other-owner".into());
            }
            words.extend(["--".into(), typed(&from, site).into(), typed(&to, site).into()]);
            carry_out(&words)
        }
        Step::Check { sources, targets } => {
            let map = Map::open(&SitesFileArgs { sites: None }, Some(&home))?;
            let ends = |ends: Vec<StepEnd>, role| ends.into_iter().map(move |end| (typed(&end, site), role));
            let places: Vec<_> = ends(sources, Role::Source).chain(ends(targets, Role::Target)).collect();
            let checked = look(&map, &places, LOOK);
            writeln!(crate::output::stdout(), "{}", crate::json::escaped(&serde_json::to_string(&checked)?))?;
            Ok(0)
        }
        Step::Look { nodes, path } => {
            let mut there = Vec::new();
            for node in nodes {
                let work = Work::Look { path: path.clone().into_bytes() };
                let ended = at_node(&node, port, work, std::io::empty()).with_context(|| node.clone())?;
                match ended.code {
                    0 => {}
                    1 => there.push(node),
                    _ => bail!("{node}: {}", ended.words),
                }
            }
            writeln!(crate::output::stdout(), "{}", crate::json::escaped(&serde_json::to_string(&there)?))?;
            Ok(0)
        }
        Step::Remove { nodes, paths } => {
            let mut kept = Vec::new();
            for node in nodes {
                let paths = paths.iter().map(|path| path.clone().into_bytes()).collect();
                let problem = match at_node(&node, port, Work::Remove { paths }, std::io::empty()) {
                    Ok(ended) if ended.code == 0 => continue,
                    Ok(ended) => ended.words,
                    Err(error) => crate::whole(&error).into(),
                };
                kept.push(Kept { node, problem });
            }
            writeln!(crate::output::stdout(), "{}", crate::json::escaped(&serde_json::to_string(&kept)?))?;
            Ok(0)
        }
    }
}

fn typed(end: &StepEnd, site: &Site) -> String {
    end.typed(&site.name)
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
    bail!("given up, because the hook that wanted it is gone")
}
