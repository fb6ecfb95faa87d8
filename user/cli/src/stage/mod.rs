//! `landbridge stage`: moves files and folders, on this machine or by a job of movers.

pub(crate) mod args;
pub(crate) mod beside;
pub(crate) mod beside_args;
pub(crate) mod control;
pub(crate) mod look;
pub(crate) mod nodes;
pub(crate) mod places;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use launcher::Sites;
use serde::Serialize;
use stage::mover::{Event, Order, Placed, Settings, Spot, Task};
use stage::relaid::{Layouts, split_pattern};
use stage::{Place, means_into, transfer};
use types::shell;
use types::sites::Site;
use types::untrusted::one_line;

use crate::bar::Line;
use crate::site_id::far;
use crate::stage::args::{MoveArgs, StageArgs, StageCommand};
use crate::stage::control::Desk;
use crate::stage::nodes::Way;
use crate::stage::places::{At, Map, Movers, absolute};
use crate::{carried, json};

/// Signal for a file beyond the user's size limit.
const SIGXFSZ: i32 = 25;

/// Runs the command, and returns the exit code.
pub(crate) fn stage(args: &StageArgs) -> Result<i32> {
    match &args.command {
        StageCommand::Move(args) => move_all(args),
        StageCommand::In(args) => nodes::stage(&args.nodes, Way::In),
        StageCommand::Out(args) => nodes::stage(&args.nodes, Way::Out),
        StageCommand::Status(args) => control::status(args),
        StageCommand::Pause(args) => control::pause(args),
        StageCommand::Resume(args) => control::resume(args),
        StageCommand::Cancel(args) => control::cancel(args),
        StageCommand::Rate(args) => control::rate(args),
    }
}

/// A rank of a job that moves files, or a process that moves them `here`.
pub(crate) fn mover(here: bool) -> Result<i32> {
    if here {
        // A session of its own, so that its threads can give way to others. It ends with the command that started it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        rustix::process::setsid()?;
        transfer::here(std::io::stdin().as_fd(), &mut crate::output::raw_std())?;
        return Ok(0);
    }
    let secret = std::env::var("LANDBRIDGE_SECRET_FD").ok();
    let secret = secret.and_then(|number| std::fs::read_to_string(format!("/proc/self/fd/{number}")).ok());
    let lookup = |name: &str| match name {
        "LANDBRIDGE_SECRET" => secret.clone(),
        _ => std::env::var(name).ok(),
    };
    stage::mover::run(lookup, std::io::stdin().as_fd(), &mut crate::output::raw_std())?;
    Ok(0)
}

/// Result of moving one source to one target.
#[derive(Debug, Serialize)]
struct Moved {
    from: String,
    to: String,
    #[serde(flatten)]
    placed: Placed,
}

fn move_all(args: &MoveArgs) -> Result<i32> {
    let places = args.places.iter().map(|text| Place::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let (to, from) = places.split_last().context("a source and a target")?;
    for place in from {
        if place.is_several() {
            bail!("{place}: a source is on one node: name it, as in {}/n1:…", place.site.as_deref().unwrap_or("SITE"));
        }
    }
    refuse_ambiguous(from, to)?;
    if places.iter().any(|place| place.site.is_some())
        && let Some((sites, site)) = far(&args.common.sites, args.common.from.as_deref())?
    {
        return from_elsewhere(&places, &sites, &site);
    }
    let (to, layouts) = relaid(args, from, to)?;
    let job = match places.iter().all(|place| place.site.is_none()) {
        true => {
            let pairs: Vec<(Place, Place)> = from.iter().map(|from| (from.clone(), to.clone())).collect();
            here(&pairs, (from.len() > 1, layouts), args.common.pace.settings(1), typed(from, &to), title(from, &to))?
        }
        false => by_job(args, from, &to, layouts.as_ref())?,
    };
    carry_out(job, args.common.json)
}

/// Several sources need a target folder and distinct names in it.
fn refuse_ambiguous(from: &[Place], to: &Place) -> Result<()> {
    if from.len() > 1 && !means_into(&to.path) {
        bail!("{to}: several sources go into a folder that is there: write {to}/");
    }
    let mut names = HashMap::new();
    for place in from.iter().filter(|_| from.len() > 1) {
        if let Some(other) = place.path.file_name().and_then(|name| names.insert(name, place)) {
            bail!("{other} and {place} have the same name, and cannot go into the same folder");
        }
    }
    Ok(())
}

/// Handles a command on a machine that belongs to no site: a site moves the files.
fn from_elsewhere(places: &[Place], sites: &Sites, site: &Site) -> Result<i32> {
    if let Some((target, _)) = places.split_last()
        && target.site.is_none()
    {
        bail!("{target}: this machine is no node of a site, so no site can write here: fetch it with scp or rsync");
    }
    if let Some(place) = places.iter().find(|place| place.site.is_none()) {
        let other = places.iter().find_map(|place| place.site.as_deref()).unwrap_or(&site.name);
        bail!(
            "{place}: this machine is no node of a site: `landbridge sites push {} --to {other}` copies it to the same place \
             below your home there",
            shell::path(&place.path)
        );
    }
    carried::command(sites, site, &["stage", "move"], carried::typed_after("move"))
}

/// The target, or its folder if files of an array change their layout.
fn relaid(args: &MoveArgs, from: &[Place], to: &Place) -> Result<(Place, Option<Layouts>)> {
    let (Some(one), Some(other)) = (&args.from_layout, &args.to_layout) else { return Ok((to.clone(), None)) };
    let [source] = from else { bail!("--from-layout: give one source, whose name has %r for the process's number") };
    split_pattern(&source.path).map_err(|problem| anyhow!(problem))?;
    let (folder, name) = split_pattern(&to.path).map_err(|problem| anyhow!(problem))?;
    let layouts = Layouts { from: one.clone(), to: other.clone(), name };
    layouts.read().map_err(|problem| anyhow!(problem))?;
    Ok((Place { path: folder, ..to.clone() }, Some(layouts)))
}

/// A transfer that is ready to start.
pub(crate) struct Job {
    /// The command whose first mover reads the order and writes events.
    pub command: Command,
    pub order: Order,
    /// The places as typed.
    pub places: Vec<String>,
    /// The places in a sentence.
    pub title: String,
}

/// Runs the transfer and prints its result. Returns the exit code.
pub(crate) fn carry_out(job: Job, as_json: bool) -> Result<i32> {
    let began = Instant::now();
    let mut view = View::new();
    let moved = watch(job, &mut view)?;
    view.line.clear();
    let seconds = began.elapsed().as_secs_f64();
    let Some(moved) = moved else { return Ok(1) };
    let mut out = crate::output::stdout();
    if as_json {
        let object = serde_json::json!({ "seconds": seconds, "moved": moved });
        writeln!(out, "{}", json::object(object)?)?;
        return Ok(0);
    }
    for Moved { from, to, placed } in &moved {
        for note in &placed.notes {
            crate::output::note(&format!("{}: {}", one_line(to), one_line(note)));
        }
        let resumed = match placed.resumed {
            0 => String::new(),
            bytes => format!(", {} of them by an earlier transfer", size(bytes)),
        };
        let harm = placed.harm.map_or(String::new(), |harm| {
            format!("; the application there lost {:.1} % of its time to it", harm * 100.0)
        });
        let (files, bytes) = (placed.files, size(placed.bytes));
        let (from, to, path) = (one_line(from), one_line(to), one_line(&placed.path));
        writeln!(out, "{from} is at {to} ({path}): {files} file(s), {bytes}{resumed}{harm}")?;
    }
    let fresh: u64 = moved.iter().map(|moved| moved.placed.bytes - moved.placed.resumed).sum();
    writeln!(out, "{} in {seconds:.1} s, {}/s", size(fresh), size((fresh as f64 / seconds) as u64))?;
    Ok(0)
}

pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1000 => format!("{bytes} bytes"),
        1000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// A transfer between places of this machine: needs no job. `into`: each target is a folder.
pub(crate) fn here(
    pairs: &[(Place, Place)],
    (into, layouts): (bool, Option<Layouts>),
    options: Settings,
    places: Vec<String>,
    title: String,
) -> Result<Job> {
    let spot = |place: &Place| {
        let (node, path, typed) = (String::new(), absolute(place)?, place.to_string());
        anyhow::Ok(Spot { rank: 0, node, path, typed })
    };
    let task = |(from, to): &(Place, Place)| {
        Ok(Task { from: spot(from)?, to: vec![spot(to)?], into, optional: false, layouts: layouts.clone() })
    };
    let order = Order { tasks: pairs.iter().map(task).collect::<Result<_>>()?, looks: Vec::new(), options };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["mover", "--here"]);
    Ok(Job { command, order, places, title })
}

/// A transfer between nodes: a job with a mover on each.
fn by_job(args: &MoveArgs, from: &[Place], to: &Place, layouts: Option<&Layouts>) -> Result<Job> {
    let map = Map::open(&args.common.sites, args.common.from.as_deref())?;
    let mut movers = Movers::default();
    let mut on = |place: &Place| -> Result<Vec<At>> {
        let found = map.nodes_of(place)?;
        movers.add(&found);
        Ok(found)
    };
    let sources = from.iter().map(&mut on).collect::<Result<Vec<_>>>()?;
    let targets = on(to)?;
    let movers = movers.settle(&map);
    let mut tasks = Vec::new();
    for (place, found) in from.iter().zip(&sources) {
        let source = found.first().context("a node of the source")?;
        let to = targets.iter().map(|at| movers.of_place(to, at)).collect::<Result<Vec<_>>>()?;
        tasks.push(Task {
            from: movers.of_place(place, source)?,
            to,
            into: from.len() > 1,
            optional: false,
            layouts: layouts.cloned(),
        });
    }
    let order = Order { tasks, looks: Vec::new(), options: args.common.pace.settings(targets.len()) };
    Ok(Job { command: map.job(&movers.nodes)?, order, places: typed(from, to), title: title(from, to) })
}

fn title(from: &[Place], to: &Place) -> String {
    format!("{} to {to}", from.iter().map(Place::to_string).collect::<Vec<_>>().join(" "))
}

fn typed(from: &[Place], to: &Place) -> Vec<String> {
    from.iter().chain([to]).map(Place::to_string).collect()
}

/// Sends the order to the movers, and shows their progress. `None`: they failed, and have printed the reason.
fn watch(job: Job, view: &mut View) -> Result<Option<Vec<Moved>>> {
    let Job { mut command, order, places, title } = job;
    let expected: usize = order.tasks.iter().map(|task| task.to.len()).sum();
    let desk = Desk::open(places, title, order.options.rate)?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting the movers")?;
    let input = child.stdin.take().context("standard input of the movers")?;
    let output = child.stdout.take().context("standard output of the movers")?;
    let mut line = serde_json::to_vec(&order)?;
    line.push(b'\n');
    desk.begin(input, &line);
    let (mut moved, mut absent, mut failed) = (Vec::new(), Vec::new(), None);
    for line in BufReader::new(output).lines() {
        let line = line.context("what the movers print")?;
        match serde_json::from_str(&line).with_context(|| format!("what the movers print: `{}`", one_line(&line)))? {
            Event::Progress { arrived, total } => {
                desk.progress(arrived, total);
                view.draw(arrived, total);
            }
            Event::Placed { from, to, report } => moved.push(Moved { from, to, placed: report }),
            Event::Failed { text } => failed = Some(one_line(&text).into_owned()),
            Event::Absent { from } => absent.push(from),
            Event::Looked { .. } => {}
            Event::Cancelled => failed = Some("cancelled: what had not arrived as a whole is removed".to_owned()),
        }
    }
    view.line.clear();
    let status = child.wait().context("waiting for the movers")?;
    if let Some(text) = failed {
        return Err(anyhow!(text));
    }
    if moved.is_empty() && !absent.is_empty() {
        bail!("none of these exists: {}", one_line(&absent.join(", ")));
    }
    let absent: usize =
        order.tasks.iter().filter(|task| absent.contains(&task.from.typed)).map(|task| task.to.len()).sum();
    if let Some(signal) = status.signal() {
        let to = order.tasks.iter().flat_map(|task| &task.to).map(|spot| spot.typed.as_str()).collect::<Vec<_>>();
        let why = if signal == SIGXFSZ { ", the limit on the size of files (`ulimit -f`)" } else { "" };
        bail!("{}: what was moving it was ended by signal {signal}{why}; the same command continues", to.join(" "));
    }
    match status.success() && moved.len() + absent == expected {
        true => Ok(Some(moved)),
        // The job has printed the reason.
        false => Ok(None),
    }
}

/// Progress display on a terminal.
struct View {
    line: Line,
    began: Instant,
    /// Bytes that had arrived at the first drawing.
    first: Option<u64>,
}

impl View {
    fn new() -> View {
        View { line: Line::new(), began: Instant::now(), first: None }
    }

    fn draw(&mut self, arrived: u64, total: u64) {
        let first = *self.first.get_or_insert(arrived);
        let began = self.began;
        self.line.draw(|| {
            let share = if total == 0 { 100.0 } else { arrived as f64 / total as f64 * 100.0 };
            let rate = arrived.saturating_sub(first) as f64 / began.elapsed().as_secs_f64().max(0.1);
            let left = match rate > 0.0 {
                true => format!(", {:.0} s left", total.saturating_sub(arrived) as f64 / rate),
                false => String::new(),
            };
            format!("{} of {} ({share:.0} %), {}/s{left}", size(arrived), size(total), size(rate as u64))
        });
    }
}
