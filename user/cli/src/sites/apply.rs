//! `landbridge sites apply`: distributes the edited sites file to every site.

use std::io::Write;

use anyhow::Result;
use commands::runtime::runtime;
use setup::book::Book;

use crate::bar::{Bar, asking};
use crate::sites::args::ApplyArgs;

/// Distributes the file, and returns the exit code.
pub(crate) fn apply(args: &ApplyArgs) -> Result<i32> {
    let path = args.sites.locate()?;
    let all = runtime()?.block_on(async {
        let mut book = Book::change(&path, &mut Bar::new()).await?;
        setup::apply::apply(&mut book, &args.newcomers.accept, asking(), &mut Bar::new()).await
    })?;
    let ok = all.iter().all(|applied| applied.problem.is_none());
    let mut out = crate::output::stdout();
    if args.json {
        writeln!(out, "{}", crate::json::object(serde_json::json!({ "ok": ok, "sites": all }))?)?;
        return Ok(i32::from(!ok));
    }
    for applied in &all {
        match (&applied.problem, &applied.done) {
            (Some(problem), _) => writeln!(out, "{}: FAILED: {problem}", applied.site)?,
            (None, done) => writeln!(out, "{}: its gateway {}", applied.site, done.as_deref().unwrap_or_default())?,
        }
    }
    Ok(i32::from(!ok))
}
