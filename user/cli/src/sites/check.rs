//! `landbridge sites check`.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use commands::carried::destination;
use commands::runtime::runtime;
use commands::{gateways, sites_file};
use launcher::Sites;
use setup::Progress;
use setup::remedy::remedy;
use types::untrusted::{one_line, printable};
use watching::check::{Finding, check_with};
use watching::measure::{Pair, measure};

use crate::bar::Bar;
use crate::sites::args::CheckArgs;
use crate::table::{self, hanging, width};
use crate::{carried, output};

/// Checks, prints the findings, and returns the exit code.
pub(crate) fn check(args: CheckArgs) -> Result<i32> {
    let (path, sites) = args.sites.read()?;
    if let Some(site) = destination(&sites, args.from.as_deref()) {
        return carried::command(&sites, site, &["sites", "check"], carried::typed_after("check"));
    }
    let home = sites_file::own_site(&sites, args.from.as_deref())?;
    let program = commands::run::program(args.program)?;
    let (findings, pairs) = runtime()?.block_on(async {
        let (mut bar, job) = (Bar::new(), args.job.then_some(args.wait));
        let mut news = |site: &str, state: &str| bar.step(site, state);
        let mut findings = check_with(&sites, &home, &program, job, &mut news).await;
        advise(&mut findings, &sites, &home, args.from.as_deref(), &path);
        let measured = measure(&sites, &home, !args.quick, progress).await;
        // Measuring needs the own site's gateway. If that is down, the findings already report it.
        (findings, measured.unwrap_or_default())
    });
    output::clear();
    let failed = findings.iter().filter(|finding| !finding.ok).count();
    let failed = failed + pairs.iter().filter(|pair| pair.problem.is_some()).count();
    let mut out = output::stdout();
    let file = path.display().to_string();
    if args.json {
        let answer = serde_json::json!({
            "ok": failed == 0, "file": file, "from": home, "findings": findings, "pairs": pairs,
        });
        writeln!(out, "{}", crate::json::object(answer)?)?;
    } else {
        let text = rows(&file, &home, &findings) + &matrix(&pairs) + &verdict(failed);
        out.write_all(text.as_bytes())?;
    }
    Ok(i32::from(failed > 0))
}

/// Adds the command that restarts a gateway to findings about gateways that do not answer. `from`: the own site, if the
/// user has named it.
fn advise(findings: &mut [Finding], sites: &Sites, home: &str, from: Option<&str>, file: &Path) {
    for finding in findings.iter_mut().filter(|finding| !finding.ok) {
        let is_gateway = finding.part.starts_with("gateway ") || finding.part == format!("trunk from {home}");
        if let Some(site) = sites.site(&finding.site).ok().filter(|_| is_gateway) {
            let repair = if site.name == home { gateways::repair(file, sites, home, from).ok() } else { None };
            let repair = repair.unwrap_or_else(|| remedy(site, file));
            finding.detail += &format!("; if the gateway of site {} does not run, {repair}", site.name);
        }
    }
}

/// The findings about a site as a table. `ok`: the site itself works.
pub(crate) fn findings_table(file: &str, home: &str, findings: &[Finding], ok: bool) -> String {
    let verdict = match findings.iter().filter(|finding| !finding.ok).count() {
        // The exit code is for this site only.
        1 if ok => format!("site {home} works; 1 thing elsewhere does not\n"),
        failed @ 2.. if ok => format!("site {home} works; {failed} things elsewhere do not\n"),
        0 if !ok => format!("site {home} does not work yet\n"),
        failed => verdict(failed),
    };
    rows(file, home, findings) + &verdict
}

fn rows(file: &str, home: &str, findings: &[Finding]) -> String {
    let sites = width(findings.iter().map(|finding| finding.site.as_str()), "site");
    let parts = width(findings.iter().map(|finding| finding.part.as_str()), "part");
    let mut text =
        format!("sites file {file}, from site {home}\n{:sites$}  {:parts$}  {:6}  found\n", "site", "part", "");
    for finding in findings {
        let verdict = if finding.ok { "ok" } else { "FAILED" };
        let begun = format!("{:sites$}  {:parts$}  {verdict:6}  ", printable(&finding.site), printable(&finding.part));
        text += &format!("{begun}{}\n", hanging(&finding.detail, begun.chars().count()));
    }
    text
}

fn verdict(failed: usize) -> String {
    match failed {
        0 => "everything works\n".to_owned(),
        1 => "1 thing does not work\n".to_owned(),
        failed => format!("{failed} things do not work\n"),
    }
}

/// Round trips and rates between sites: a row per sender, a column per receiver, followed by the problems.
fn matrix(pairs: &[Pair]) -> String {
    let mut sites: Vec<&str> = Vec::new();
    for site in pairs.iter().flat_map(|pair| [&pair.from, &pair.to]) {
        if !sites.contains(&site.as_str()) {
            sites.push(site);
        }
    }
    if sites.is_empty() {
        return String::new();
    }
    let cell = |from: &str, to: &str| {
        pairs.iter().find(|pair| pair.from == from && pair.to == to).map_or("–".to_owned(), figures)
    };
    let mut text = "\nround trip and rate of a trunk between sites\n".to_owned();
    text += &table::matrix(&sites, cell);
    for pair in pairs {
        if let Some(problem) = &pair.problem {
            text += &format!("{} to {}: {}\n", pair.from, pair.to, one_line(problem));
        }
    }
    text.push('\n');
    text
}

/// The cell of one pair.
fn figures(pair: &Pair) -> String {
    let Some(rtt) = pair.rtt_ms else { return "FAILED".to_owned() };
    let rate = match pair.mbit_s {
        None => String::new(),
        Some(rate) if rate < 10.0 => format!(" {rate:.1} Mbit/s"),
        Some(rate) => format!(" {rate:.0} Mbit/s"),
    };
    format!("{rtt:.1} ms{rate}")
}

/// Redraws one line on a terminal.
fn progress(from: &str, to: &str, done: usize, all: usize) {
    output::redraw(&format!("measuring {from} to {to} ({} of {all}) …", done + 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(from: &str, to: &str, figures: Result<(f64, Option<f64>), &str>) -> Pair {
        let (rtt_ms, mbit_s) = figures.map_or((None, None), |(rtt, rate)| (Some(rtt), rate));
        Pair { from: from.into(), to: to.into(), rtt_ms, mbit_s, problem: figures.err().map(str::to_owned) }
    }

    #[test]
    fn every_pair_has_its_cell_and_what_went_wrong_is_below() {
        let pairs = [
            pair("a", "b", Ok((5.12, Some(940.4)))),
            pair("a", "kyoto", Err("site kyoto: refused")),
            pair("b", "a", Ok((5.1, Some(2.25)))),
            pair("b", "kyoto", Ok((120.04, None))),
            pair("kyoto", "a", Err("busy\u{1b}")),
        ];
        let expected = "
round trip and rate of a trunk between sites
from / to  a                b                  kyoto
a          –                5.1 ms 940 Mbit/s  FAILED
b          5.1 ms 2.2 Mbit/s  –                120.0 ms
kyoto      FAILED           –                  –
a to kyoto: site kyoto: refused
kyoto to a: busy\\u{1b}

";
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let text = matrix(&pairs);
        assert_eq!(words(&text), words(expected));
        let columns: Vec<_> = text.lines().skip(2).take(3).map(|line| line.chars().count() > 31).collect();
        assert_eq!(columns, [true; 3], "{text}");
        assert_eq!(matrix(&[]), "", "one site has no pairs");
    }

    #[test]
    fn a_finding_has_one_row() {
        let text = findings_table("f", "a", &[Finding::new("a\n", "key", Err("x\nb     key   ok      y"))], false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[2..4], ["a\\n   key   FAILED  x", "                    b     key   ok      y"], "{text}");
    }

    #[test]
    fn failures_are_counted() {
        let finding = |ok: bool| Finding::new("a", "key", if ok { Ok("x".into()) } else { Err("y") });
        assert!(findings_table("f", "a", &[finding(true)], true).ends_with("everything works\n"));
        assert!(findings_table("f", "a", &[finding(false)], false).ends_with("1 thing does not work\n"));
        assert!(findings_table("f", "a", &[finding(false), finding(false)], false).ends_with("2 things do not work\n"));
        // The exit code and the last line both report whether the site itself works.
        assert!(
            findings_table("f", "a", &[finding(false)], true).ends_with("site a works; 1 thing elsewhere does not\n")
        );
    }
}
