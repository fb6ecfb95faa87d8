//! `landbridge sites check`.

use std::io::Write;

use anyhow::Result;
use launch::check::{Finding, check as check_everything};

use crate::args::{CheckArgs, Mpi};
use crate::{run, runtime, sites_file};

/// Checks, prints, and gives the exit code.
pub fn check(args: CheckArgs) -> Result<i32> {
    let path = sites_file::locate(&args.sites)?;
    let sites = sites_file::read(&path)?;
    let home = sites_file::own_site(&sites, args.from.as_deref())?;
    let program = run::program(args.program, Mpi::Auto)?;
    let findings = runtime()?.block_on(check_everything(&sites, &home, &program));
    let ok = findings.iter().all(|finding| finding.ok);
    let mut out = std::io::stdout();
    if args.json {
        let file = path.display().to_string();
        writeln!(out, "{}", serde_json::json!({ "ok": ok, "file": file, "from": home, "findings": findings }))?;
    } else {
        out.write_all(table(&path.display().to_string(), &home, &findings).as_bytes())?;
    }
    Ok(i32::from(!ok))
}

/// Findings for people.
pub fn table(file: &str, home: &str, findings: &[Finding]) -> String {
    let width = |of: fn(&Finding) -> &str, title: &str| {
        findings.iter().map(|finding| of(finding).len()).max().unwrap_or(0).max(title.len())
    };
    let (sites, parts) = (width(|f| &f.site, "site"), width(|f| &f.part, "part"));
    let mut text =
        format!("sites file {file}, from site {home}\n{:sites$}  {:parts$}  {:6}  found\n", "site", "part", "");
    for finding in findings {
        let verdict = if finding.ok { "ok" } else { "FAILED" };
        text += &format!("{:sites$}  {:parts$}  {verdict:6}  {}\n", finding.site, finding.part, finding.detail);
    }
    let failed = findings.iter().filter(|finding| !finding.ok).count();
    text += &match failed {
        0 => "everything works\n".to_owned(),
        1 => "1 thing does not work\n".to_owned(),
        failed => format!("{failed} things do not work\n"),
    };
    text
}
