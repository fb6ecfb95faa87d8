//! `landbridge sites push`.

use std::io::Write;

use anyhow::Result;
use setup::push::Pushed;

use crate::bar::{Bar, asking};
use crate::quantity::megabytes;
use crate::sites::args::PushArgs;

/// Copies the files, prints the result, and returns the exit code.
pub(crate) fn push(args: &PushArgs) -> Result<i32> {
    let (_, sites) = args.sites.read()?;
    let all = commands::push::push(&sites, &args.to, &args.paths, asking(), &mut Bar::new())?;
    let ok = all.iter().all(|pushed| pushed.problem.is_none());
    let mut out = crate::output::stdout();
    if args.json {
        writeln!(out, "{}", crate::json::object(serde_json::json!({ "ok": ok, "sites": all }))?)?;
        return Ok(i32::from(!ok));
    }
    for pushed in &all {
        writeln!(out, "{}: {}", pushed.site, sent(pushed))?;
    }
    Ok(i32::from(!ok))
}

/// The result of a copy to one site.
pub(crate) fn sent(pushed: &Pushed) -> String {
    match &pushed.problem {
        Some(problem) => format!("FAILED: {problem}"),
        None if pushed.here => "is this machine".to_owned(),
        None => {
            let (sent, unchanged) = (pushed.sent, pushed.unchanged);
            format!("{sent} file(s) sent ({} MB), {unchanged} unchanged", megabytes(pushed.bytes))
        }
    }
}
