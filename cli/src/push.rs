//! `landbridge sites push` and `run --push`: the user's program to sites.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use launch::launcher::Sites;
use setup::Progress;
use setup::parcel::Parcel;
use setup::push::Pushed;

use crate::sites_add::asking;
use crate::sites_args::PushArgs;
use crate::{runtime, sites_file};

/// How often what is under way is drawn.
const DRAW: Duration = Duration::from_millis(100);

/// Pushes, prints, and gives the exit code.
pub(crate) fn push(args: &PushArgs) -> Result<i32> {
    let path = sites_file::locate(&args.sites)?;
    let sites = sites_file::read(&path)?;
    let all = push_to(&sites, &args.to, &args.paths)?;
    let ok = all.iter().all(|pushed| pushed.problem.is_none());
    let mut out = std::io::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::json!({ "ok": ok, "sites": all }))?;
        return Ok(i32::from(!ok));
    }
    for pushed in &all {
        writeln!(out, "{}: {}", pushed.site, told(pushed))?;
    }
    Ok(i32::from(!ok))
}

/// Before a job: what `run --push` names goes to the job's sites, by name; to all without a name.
pub(crate) fn before_run(sites: &Sites, names: &[String], paths: &[PathBuf]) -> Result<()> {
    if paths.is_empty() {
        return Ok(());
    }
    let all = push_to(sites, names, paths)?;
    let problems: Vec<&str> = all.iter().filter_map(|pushed| pushed.problem.as_deref()).collect();
    if !problems.is_empty() {
        bail!("{}; nothing was started", problems.join("; "));
    }
    for pushed in all.iter().filter(|pushed| pushed.sent > 0) {
        writeln!(std::io::stderr(), "landbridge: {}: {}", pushed.site, told(pushed))?;
    }
    Ok(())
}

fn push_to(sites: &Sites, names: &[String], paths: &[PathBuf]) -> Result<Vec<Pushed>> {
    let named = names.iter().map(|name| sites.site(name)).collect::<Result<Vec<_>, _>>()?;
    let wanted = if names.is_empty() { sites.file.sites.iter().collect() } else { named };
    let parcel = Parcel::read(paths, std::env::home_dir().as_deref())?;
    let mut bar = Bar::new();
    let all = runtime()?.block_on(setup::push::push(&wanted, &parcel, asking(), &mut bar));
    bar.clear();
    Ok(all?)
}

fn told(pushed: &Pushed) -> String {
    match &pushed.problem {
        Some(problem) => format!("FAILED: {problem}"),
        None if pushed.here => "is this machine".to_owned(),
        None => {
            let megabytes = pushed.bytes as f64 / 1e6;
            format!("{} file(s) sent ({megabytes:.1} MB), {} unchanged", pushed.sent, pushed.unchanged)
        }
    }
}

/// Steps as lines, and on a terminal one line that is drawn again and again.
struct Bar {
    drawn: Option<Instant>,
    interactive: bool,
}

impl Bar {
    fn new() -> Bar {
        Bar { drawn: None, interactive: std::io::stderr().is_terminal() }
    }

    fn clear(&mut self) {
        if self.drawn.take().is_some() {
            let _ = std::io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

impl Progress for Bar {
    fn step(&mut self, site: &str, text: &str) {
        self.clear();
        let _ = writeln!(std::io::stderr(), "landbridge: {site}: {text}");
    }

    fn part(&mut self, site: &str, done: u64, total: u64) {
        if !self.interactive || self.drawn.is_some_and(|drawn| drawn.elapsed() < DRAW && done < total) {
            return;
        }
        self.drawn = Some(Instant::now());
        let (done, total) = (done as f64 / 1e6, total as f64 / 1e6);
        let share = if total > 0.0 { done / total * 100.0 } else { 100.0 };
        let _ = write!(std::io::stderr(), "\r\x1b[K{site}: {done:.1} of {total:.1} MB ({share:.0} %)");
    }
}
