//! Checks of the ends of transfers before they begin: done by movers, as the users who will read and write there.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use job::capture::tail_blocking;
use node_service::step::Checked;
use rustix::process::{Pid, Signal};
use stage::Place;
use stage::look::{Found, Role};
use stage::mover::{Event, Look, Order, Settings};
use types::UntrustedText;

use super::places::{At, Map, Movers};
use crate::error::{Context, Result, refuse, whole};

/// Maximum output of movers about the places of a site, in bytes.
const MOST_OUTPUT: u64 = 1 << 20;
/// Time limit for movers to end after a request.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Checks places, each of which names a site. Takes at most `limit`; a place without an answer by then is unknown.
pub fn look(map: &Map, places: &[(String, Role)], limit: Duration) -> Checked {
    let deadline = Instant::now() + limit;
    let mut checked = Checked::default();
    // Each site gets a job of its own, so that a site that is down leaves only its own places unknown.
    let mut sites: BTreeMap<String, Vec<(Place, At, Role)>> = BTreeMap::new();
    for (typed, role) in places {
        match resolve(map, typed) {
            Ok(found) => {
                for (place, at) in found {
                    sites.entry(at.site.clone()).or_default().push((place, at, *role));
                }
            }
            Err(error) => checked.unusable.push(whole(&error).into()),
        }
    }
    for (site, looks) in sites {
        if let Err(error) = by_movers(map, &looks, deadline, &mut checked) {
            let typed: Vec<String> = looks.iter().map(|(place, ..)| place.to_string()).collect();
            let problem = whole(&error);
            checked.unknown.push(format!("{}: nobody could look at site {site}: {problem}", typed.join(", ")).into());
        }
    }
    checked
}

/// The nodes of a place.
fn resolve(map: &Map, typed: &str) -> Result<Vec<(Place, At)>> {
    let place = Place::parse(OsStr::new(typed))?;
    Ok(map.nodes_of(&place)?.into_iter().map(|at| (place.clone(), at)).collect())
}

fn by_movers(map: &Map, looks: &[(Place, At, Role)], deadline: Instant, checked: &mut Checked) -> Result<()> {
    let mut movers = Movers::default();
    for (_, at, _) in looks {
        movers.add(std::slice::from_ref(at));
    }
    let movers = movers.settle(map);
    let look = |(place, at, role): &(Place, At, Role)| Ok(Look { at: movers.of_place(place, at)?, role: *role });
    let looks = looks.iter().map(look).collect::<Result<Vec<_>>>()?;
    let mut left = looks.len();
    let order = Order { tasks: Vec::new(), looks, options: Settings::default() };
    ask(map.job(&movers.nodes)?, &order, deadline, |event| {
        let (place, found) = match event {
            Event::Looked { place, found, .. } => (place, found),
            Event::Failed { text } => refuse!("{}", UntrustedText::from(text)),
            _ => refuse!("the movers answered another question than they were asked"),
        };
        match found {
            Found::Usable => {}
            Found::Unusable(problem) => checked.unusable.push(format!("{place}: {problem}").into()),
            Found::Unknown(problem) => checked.unknown.push(format!("{place}: {problem}").into()),
        }
        left = left.saturating_sub(1);
        Ok(left > 0)
    })
}

/// Sends an order to movers, and passes their events on until the last one.
fn ask(
    mut command: Command,
    order: &Order,
    deadline: Instant,
    mut hear: impl FnMut(Event) -> Result<bool>,
) -> Result<()> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (lines, heard) = channel();
    let (words, said) = channel();
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    std::thread::spawn(move || pass_on(output, &lines));
    std::thread::spawn(move || words.send(tail_blocking(errors)));
    let mut conversation = || -> Result<()> {
        // Standard input stays open until the movers are done.
        let mut input = child.stdin.take().context("standard input of the movers")?;
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        // Movers that end before they have read the order report the reason themselves.
        let _ = input.write_all(&line);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match heard.recv_timeout(left) {
                Ok(line) => {
                    let event = serde_json::from_str(&line).context("output of the movers")?;
                    if !hear(event)? {
                        return Ok(());
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => refuse!("no answer in time"),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    let words = said.recv_timeout(GIVE_UP).unwrap_or_default();
                    refuse!("{}", words.last_lines())
                }
            }
        }
    };
    let result = conversation();
    end(&mut child)?;
    result
}

fn pass_on(output: Option<impl Read>, lines: &Sender<String>) {
    let Some(output) = output else { return };
    for line in BufReader::new(output.take(MOST_OUTPUT)).lines() {
        let Ok(line) = line else { return };
        if lines.send(line).is_err() {
            return;
        }
    }
}

/// Waits for movers to end. Those that have answered end by themselves; others get SIGTERM, then SIGKILL.
fn end(child: &mut Child) -> Result<()> {
    let (begun, mut told) = (Instant::now(), false);
    while child.try_wait()?.is_none() {
        if begun.elapsed() > GIVE_UP / 2 && !std::mem::replace(&mut told, true) {
            let _ = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
        }
        if begun.elapsed() > GIVE_UP {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
