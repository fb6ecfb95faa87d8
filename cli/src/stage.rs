//! `landbridge stage`: moving files and folders, on this machine or by a job of movers.

use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use stage::mover::{Event, Order, Placed, Settings, Spot, Task};
use stage::{Node, Place, transfer};
use types::sites::Site;

use crate::bar::Line;
use crate::stage_args::{MoveArgs, StageArgs, StageCommand};
use crate::stage_control::Desk;
use crate::{json, run, sites_file, stage_control};

/// Does what was typed, and returns the exit code.
pub(crate) fn stage(args: &StageArgs) -> Result<i32> {
    match &args.command {
        StageCommand::Move(args) => move_all(args),
        StageCommand::Status(args) => stage_control::status(args),
        StageCommand::Pause(args) => stage_control::pause(args),
        StageCommand::Resume(args) => stage_control::resume(args),
        StageCommand::Cancel(args) => stage_control::cancel(args),
        StageCommand::Rate(args) => stage_control::rate(args),
    }
}

/// A rank of a job that moves files, or a process that moves them `here`.
pub(crate) fn mover(here: bool) -> Result<i32> {
    if here {
        // Its session and its threads give way to others. It ends with the command that has started it.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
        rustix::process::setsid()?;
        transfer::here(std::io::stdin().as_fd(), &mut std::io::stdout())?;
        return Ok(0);
    }
    let secret = std::env::var("LANDBRIDGE_SECRET_FD").ok();
    let secret = secret.and_then(|number| std::fs::read_to_string(format!("/proc/self/fd/{number}")).ok());
    let lookup = |name: &str| match name {
        "LANDBRIDGE_SECRET" => secret.clone(),
        _ => std::env::var(name).ok(),
    };
    stage::mover::run(lookup, std::io::stdin().as_fd(), &mut std::io::stdout())?;
    Ok(0)
}

/// What became of one source at one target.
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
    let began = Instant::now();
    let mut view = View::new();
    let moved = match places.iter().all(|place| place.site.is_none()) {
        true => here(args, from, to, &mut view)?,
        false => by_job(args, from, to, &mut view)?,
    };
    view.line.clear();
    let seconds = began.elapsed().as_secs_f64();
    let Some(moved) = moved else { return Ok(1) };
    let mut out = std::io::stdout();
    if args.json {
        let object = serde_json::json!({ "seconds": seconds, "moved": moved });
        writeln!(out, "{}", json::object(object)?)?;
        return Ok(0);
    }
    for Moved { from, to, placed } in &moved {
        for note in &placed.notes {
            writeln!(std::io::stderr(), "landbridge: {to}: {note}")?;
        }
        let resumed = match placed.resumed {
            0 => String::new(),
            bytes => format!(", {} of them by an earlier transfer", size(bytes)),
        };
        let harm = placed.harm.map_or(String::new(), |harm| {
            format!("; the application there lost {:.1} % of its time to it", harm * 100.0)
        });
        let (files, bytes) = (placed.files, size(placed.bytes));
        writeln!(out, "{from} is at {to} ({}): {files} file(s), {bytes}{resumed}{harm}", placed.path)?;
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

fn settings(args: &MoveArgs) -> Settings {
    let deadline = args.deadline.map(|deadline| deadline.as_millis() as u64);
    Settings { block: args.block, rate: args.rate, kept: args.keep_free, deadline, harm: args.harm }
}

/// Both ends are on this machine: no job is needed.
fn here(args: &MoveArgs, from: &[Place], to: &Place, view: &mut View) -> Result<Option<Vec<Moved>>> {
    let spot =
        |place: &Place| Ok::<_, anyhow::Error>(Spot { rank: 0, path: absolute(place)?, typed: place.to_string() });
    let task = |place| Ok(Task { from: spot(place)?, to: vec![spot(to)?], into: from.len() > 1 });
    let order = Order { tasks: from.iter().map(task).collect::<Result<_>>()?, options: settings(args) };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["mover", "--here"]);
    watch(command, &order, from.len(), view)
}

/// A path as another process of this machine understands it, with the slash that it may end in.
fn absolute(place: &Place) -> Result<Vec<u8>> {
    let mut bytes = run::working_directory()?.join(&place.path).into_os_string().into_encoded_bytes();
    if place.path.as_os_str().as_bytes().ends_with(b"/") && !bytes.ends_with(b"/") {
        bytes.push(b'/');
    }
    Ok(bytes)
}

/// Each end is on a node: a job with a mover on each. `None`: it failed, and has said why.
fn by_job(args: &MoveArgs, from: &[Place], to: &Place, view: &mut View) -> Result<Option<Vec<Moved>>> {
    let path = sites_file::locate(&args.sites)?;
    let sites = sites_file::read(&path)?;
    let home = sites_file::own_site(&sites, args.from.as_deref())?;
    let mut nodes: Vec<(String, String)> = Vec::new();
    let mut on = |place: &Place| -> Result<Vec<(String, String)>> {
        let found = nodes_of(place, &sites.file.sites, &home)?;
        for node in &found {
            if !nodes.contains(node) {
                nodes.push(node.clone());
            }
        }
        Ok(found)
    };
    let sources = from.iter().map(&mut on).collect::<Result<Vec<_>>>()?;
    let targets = on(to)?;
    // Ranks are in the order of the sites file, and at a site in that of the hosts.
    let position = |name: &str| sites.file.sites.iter().position(|site| site.name == name);
    nodes.sort_by_key(|(site, _)| position(site));
    let spot = |place: &Place, node: &(String, String), named: bool| -> Result<Spot> {
        let rank = nodes.iter().position(|other| other == node).context("a node of the job")? as u32;
        let path = match place.site {
            Some(_) => place.path.as_os_str().as_bytes().to_vec(),
            None => absolute(place)?,
        };
        let typed = match named {
            true => format!("{}/{}:{}", node.0, node.1, place.path.display()),
            false => place.to_string(),
        };
        Ok(Spot { rank, path, typed })
    };
    let all = to.is_several();
    let mut tasks = Vec::new();
    for (place, found) in from.iter().zip(&sources) {
        let source = found.first().context("a node of the source")?;
        let to = targets.iter().map(|node| spot(to, node, all)).collect::<Result<Vec<_>>>()?;
        tasks.push(Task { from: spot(place, source, false)?, to, into: from.len() > 1 });
    }
    let order = Order { tasks, options: settings(args) };
    let hosts: Vec<String> = nodes.iter().map(|(site, node)| format!("{site}/{node}:1")).collect();
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("run").arg("--sites").arg(&path).args(["--from", &home, "--mpi", "none", "--host", &hosts.join(",")]);
    command.args(["-n", &hosts.len().to_string(), "--stdin", "0", "--", launch::program::OWN, "mover"]);
    watch(command, &order, from.len() * targets.len(), view)
}

/// Gives movers their order, and shows how far they are. `None`: they failed, and have said why.
fn watch(mut command: Command, order: &Order, expected: usize, view: &mut View) -> Result<Option<Vec<Moved>>> {
    let to = order.tasks.iter().take(1).flat_map(|task| &task.to);
    let places = order.tasks.iter().map(|task| &task.from).chain(to).map(|spot| spot.typed.clone());
    let desk = Desk::open(places.collect(), order.options.rate)?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting the movers")?;
    let input = child.stdin.take().context("standard input of the movers")?;
    let output = child.stdout.take().context("standard output of the movers")?;
    let mut line = serde_json::to_vec(order)?;
    line.push(b'\n');
    desk.begin(input, &line);
    let (mut moved, mut failed) = (Vec::new(), None);
    for line in BufReader::new(output).lines() {
        let line = line.context("what the movers print")?;
        match serde_json::from_str(&line).with_context(|| format!("what the movers print: `{line}`"))? {
            Event::Progress { arrived, total } => {
                desk.progress(arrived, total);
                view.draw(arrived, total);
            }
            Event::Placed { from, to, report } => moved.push(Moved { from, to, placed: report }),
            Event::Failed { text } => failed = Some(text),
            Event::Cancelled => failed = Some("cancelled: what had not arrived as a whole is removed".to_owned()),
        }
    }
    view.line.clear();
    let status = child.wait().context("waiting for the movers")?;
    if let Some(text) = failed {
        return Err(anyhow!(text));
    }
    match status.success() && moved.len() == expected {
        true => Ok(Some(moved)),
        // The job has said what happened.
        false => Ok(None),
    }
}

/// The nodes that a place is on, each with its site.
fn nodes_of(place: &Place, sites: &[Site], home: &str) -> Result<Vec<(String, String)>> {
    let name = place.site.as_deref().unwrap_or(home);
    let site = sites.iter().find(|site| site.name == name).ok_or_else(|| {
        let known: Vec<&str> = sites.iter().map(|site| site.name.as_str()).collect();
        anyhow!(
            "{place}: unknown site `{name}`: the sites file has {}. A path with a colon begins with ./",
            known.join(", ")
        )
    })?;
    if let (Node::Named(wanted), Some(_)) = (&place.node, site.starter.node_service()) {
        return Ok(wanted.split(',').map(|node| (name.to_owned(), node.to_owned())).collect());
    }
    if site.nodes.is_empty() {
        bail!("{place}: the nodes of site {name} are those of its batch system's jobs: this is not possible yet");
    }
    let of = |node: &types::sites::Node| (name.to_owned(), node.name.clone());
    if place.site.is_none() {
        let own = site.nodes.iter().find(|node| is_this_machine(node));
        return own.map(|node| vec![of(node)]).ok_or_else(|| {
            anyhow!(
                "{place}: this machine is no node of site {home}: name the node that has the file, as {home}/NODE:PATH"
            )
        });
    }
    match &place.node {
        Node::Any => Ok(site.nodes.iter().take(1).map(of).collect()),
        Node::All => Ok(site.nodes.iter().map(of).collect()),
        Node::Named(wanted) => {
            let find = |wanted: &str| {
                let found = site.nodes.iter().find(|node| node.name == wanted);
                found.map(of).ok_or_else(|| {
                    let known: Vec<&str> = site.nodes.iter().map(|node| node.name.as_str()).collect();
                    anyhow!("{place}: site {name} has no node `{wanted}`: the sites file has {}", known.join(", "))
                })
            };
            wanted.split(',').map(find).collect()
        }
    }
}

/// Whether a node's address is one of this machine's, or its name is.
fn is_this_machine(node: &types::sites::Node) -> bool {
    match node.address {
        Some(address) => UdpSocket::bind((address, 0)).is_ok(),
        None => rustix::system::uname().nodename().to_bytes() == node.name.as_bytes(),
    }
}

/// How far it is, on a terminal.
struct View {
    line: Line,
    began: Instant,
    /// What had arrived when it was drawn first.
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
