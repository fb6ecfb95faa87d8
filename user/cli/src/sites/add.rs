//! `landbridge sites add`, `remove`, `list` and `status`, and their remote end.

use std::future::Future;
use std::io::Write;

use anyhow::{Context, Result};
use commands::runtime::runtime;
use commands::sites_file;
use setup::add::{Outcome, Wish, prepare};
use setup::book::Book;
use tokio::io::BufReader;

use crate::bar::{Bar, Current, asking};
use crate::error::Interrupted;
use crate::output;
use crate::sites::args::{AddArgs, ListArgs, RemoveArgs};
use crate::sites::check::findings_table;

/// Adds or repairs a site, and returns the exit code.
pub(crate) fn add(args: AddArgs) -> Result<i32> {
    let path = args.sites.place()?;
    let wish = Wish {
        name: args.name,
        place: args.place,
        folder: args.folder,
        programs: args.programs,
        port: args.port,
        advertise: args.advertise,
        dial_out: args.dial_out,
        no_trunk_ssh: args.no_trunk_ssh,
        inside: args.inside,
        nodes: args.nodes,
        slurm: args.slurm,
        keep: args.keep,
        accept: args.newcomers.accept,
        asking: asking(),
    };
    let outcome = runtime()?.block_on(async {
        // Ctrl-C ends this at once until something has been changed. After that it completes, which takes seconds.
        let prepared = interruptible(async {
            let book = Book::change(&path, &mut Bar::new()).await?;
            prepare(book, wish, &mut Bar::new()).await
        });
        let prepared = prepared.await??;
        anyhow::Ok(prepared.commit(&mut Bar::new()).await?)
    })?;
    if args.json {
        writeln!(crate::output::stdout(), "{}", crate::json::object(&outcome)?)?;
    } else {
        print(&path.display().to_string(), &outcome)?;
    }
    Ok(i32::from(!outcome.ok))
}

/// Prints the outcome as text.
pub(crate) fn print(file: &str, outcome: &Outcome) -> Result<()> {
    let mut text = findings_table(file, &outcome.site, &outcome.findings, outcome.ok);
    for note in &outcome.notes {
        text += &format!("note: {note}\n");
    }
    Ok(crate::output::stdout().write_all(text.as_bytes())?)
}

async fn interruptible<T>(work: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        done = work => Ok(done),
        _ = tokio::signal::ctrl_c() => Err(Interrupted.into()),
    }
}

/// Removes a site, and returns the exit code.
pub(crate) fn remove(args: &RemoveArgs) -> Result<i32> {
    let path = args.sites.place()?;
    let removal = runtime()?.block_on(async {
        let book = Book::change(&path, &mut Bar::new()).await?;
        setup::remove::remove(book, &args.name, args.force, asking(), &mut Bar::new()).await
    })?;
    let mut out = crate::output::stdout();
    if args.json {
        writeln!(out, "{}", crate::json::object(&removal)?)?;
    } else {
        removal.done.iter().try_for_each(|text| writeln!(out, "{text}"))?;
        removal.left.iter().try_for_each(|text| writeln!(out, "not done: {text}"))?;
    }
    Ok(i32::from(!removal.left.is_empty()))
}

/// Shows the sites file, and returns the exit code.
pub(crate) fn list(args: &ListArgs) -> Result<i32> {
    let path = args.sites.place()?;
    let sites = match args.sites.is_there()? {
        // Without a file named by the user there may be none.
        false => Vec::new(),
        true => sites_file::read(&path)?.file.sites,
    };
    let mut out = crate::output::stdout();
    if args.json {
        let sites = sites.iter().map(|site| {
            let gateway = site.gateways.first();
            serde_json::json!({
                "site": site.name, "ssh": site.ssh.as_ref().map(ToString::to_string),
                "fingerprint": site.fingerprint.to_string(),
                "advertise": gateway.and_then(|gateway| gateway.advertise.clone()),
                "nodes": site.nodes.iter().map(|node| &node.name).collect::<Vec<_>>(),
            })
        });
        writeln!(
            out,
            "{}",
            crate::json::object(
                serde_json::json!({ "file": path.display().to_string(), "sites": sites.collect::<Vec<_>>() })
            )?
        )?;
        return Ok(0);
    }
    if sites.is_empty() {
        writeln!(out, "no sites in {}: `landbridge sites add NAME [USER@]HOST` adds one", path.display())?;
        return Ok(0);
    }
    for site in &sites {
        let dialled = site.gateways.first().and_then(|gateway| gateway.advertise.as_deref());
        let there = site.ssh.as_ref().map_or("-".to_owned(), ToString::to_string);
        let dialled = dialled.unwrap_or("dials out");
        writeln!(out, "{}  {there}  gateway {dialled}  {} node(s)  {}", site.name, site.nodes.len(), site.fingerprint)?;
    }
    Ok(0)
}

/// Asks every site for its status, and returns the exit code.
pub(crate) fn status(args: &ListArgs) -> Result<i32> {
    let path = args.sites.locate()?;
    let book = Book::open(&path)?;
    let all = runtime()?.block_on(interruptible(setup::status::status(&book, asking(), &mut Current::new())))??;
    let ok = all.iter().all(|site| site.ok);
    let mut out = crate::output::stdout();
    if args.json {
        writeln!(out, "{}", crate::json::object(serde_json::json!({ "ok": ok, "sites": all }))?)?;
        return Ok(i32::from(!ok));
    }
    for site in &all {
        let verdict = if site.ok { "ok" } else { "FAILED" };
        let gateway = match &site.gateway {
            Some(standing) => match standing.process {
                Some(process) => format!("gateway {process} on {}, {} job(s)", standing.host, standing.jobs),
                None => "no gateway".to_owned(),
            },
            None => "not reached".to_owned(),
        };
        writeln!(out, "{}  {verdict}  {}  {gateway}", site.site, site.place)?;
        if let Some(problem) = &site.problem {
            writeln!(out, "  {problem}")?;
        }
    }
    Ok(i32::from(!ok))
}

/// The remote end: serves the requests of a user's `sites` command, or becomes a job.
pub(crate) fn other_end() -> Result<i32> {
    let serving = setup::here::serve(BufReader::new(tokio::io::stdin()), output::raw_stdout());
    let runtime = runtime()?;
    let served = runtime.block_on(serving);
    // Do not wait for a read of standard input that may never end.
    runtime.shutdown_background();
    served.context("standard output")
}
