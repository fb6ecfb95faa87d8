//! `landbridge sites push` and `run --push`: copying the user's program to sites.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use launcher::Sites;
use setup::parcel::Parcel;
use setup::push::Pushed;

use crate::bar::{Bar, asking};
use crate::runtime;
use crate::sites::args::PushArgs;
use crate::sites::file;

/// Copies the files, prints the result, and returns the exit code.
pub(crate) fn push(args: &PushArgs) -> Result<i32> {
    let path = file::locate(&args.sites)?;
    let sites = file::read(&path)?;
    let all = push_to(&sites, &args.to, &args.paths)?;
    let ok = all.iter().all(|pushed| pushed.problem.is_none());
    let mut out = crate::output::stdout();
    if args.json {
        writeln!(out, "{}", crate::json::object(serde_json::json!({ "ok": ok, "sites": all }))?)?;
        return Ok(i32::from(!ok));
    }
    for pushed in &all {
        writeln!(out, "{}: {}", pushed.site, told(pushed))?;
    }
    Ok(i32::from(!ok))
}

/// Before a job: copies the paths of `run --push` to these sites, or to all sites if the list is empty.
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
        crate::output::note(&format!("{}: {}", pushed.site, told(pushed)));
    }
    Ok(())
}

fn push_to(sites: &Sites, names: &[String], paths: &[PathBuf]) -> Result<Vec<Pushed>> {
    let named = names.iter().map(|name| sites.site(name)).collect::<Result<Vec<_>, _>>()?;
    let wanted = if names.is_empty() { sites.file.sites.iter().collect() } else { named };
    let parcel = Parcel::read(paths, std::env::home_dir().as_deref())?;
    Ok(runtime()?.block_on(setup::push::push(&wanted, &parcel, asking(), &mut Bar::new()))?)
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
