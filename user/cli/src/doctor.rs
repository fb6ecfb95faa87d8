//! `landbridge doctor`.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use commands::carried::destination;
use commands::error::whole;
use commands::runtime::runtime;
use commands::sites_file;
use setup::doctor::{Finding, Question, Report, SitesUnusable, Verdict, examine};
use types::untrusted::one_line;

use crate::sites::file::SitesFileArgs;
use crate::table::width;
use crate::{json, version};

/// Examine this machine and the sites, and write a file to attach to a report
#[derive(Debug, Args)]
#[command(
    long_about = "Examine this machine and the sites, and write a file to attach to a report.\n\n\
        Looks at versions, the provider, variables that conflict, MPI libraries and the libfabric that each loads, limits, \
        ssh, the sites file, gateways and nodes. Prints each finding with its remedy. The file has the findings, the \
        settings, the sites file and the ends of logs. It contains names of users and hosts. Keys are never read, and \
        values that look like passwords or tokens are left out; read the file before you send it.\n\n\
        Exit code: 0 when nothing failed, 1 when something did.",
    after_help = "Examples:\n  \
        landbridge doctor\n  \
        landbridge doctor --output /tmp/report.txt --json"
)]
pub(crate) struct DoctorArgs {
    /// The file to write [default: landbridge-doctor-DATE.txt in this directory]
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The site where you type this command [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Examines, writes the report, prints the findings, and returns the exit code.
pub(crate) fn doctor(args: DoctorArgs) -> Result<i32> {
    let question = question(&args)?;
    let report = runtime()?.block_on(examine(&question))?;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let file = args.output.unwrap_or_else(|| format!("landbridge-doctor-{}.txt", date(seconds)).into());
    write(&file, &report_text(&report, seconds)).with_context(|| {
        format!("{}: the report cannot be written: choose another file with --output FILE", file.display())
    })?;
    let mut out = crate::output::stdout();
    if args.json {
        let answer = serde_json::json!({
            "ok": report.ok(), "file": file.display().to_string(), "findings": report.findings,
        });
        writeln!(out, "{}", json::object(answer)?)?;
    } else {
        let text = table(&report.findings) + &verdict(&report.findings);
        out.write_all(text.as_bytes())?;
        writeln!(
            out,
            "\n{} has all of this, settings, the sites file and logs, to attach to a report. It has names of users and \
             hosts, and no keys: read it before you send it.",
            file.display()
        )?;
    }
    Ok(i32::from(!report.ok()))
}

fn question(args: &DoctorArgs) -> Result<Question> {
    let path = args.sites.place()?;
    // A file given by the user must exist; the default one need not.
    let sites = (path.exists() || args.sites.sites.is_some())
        .then(|| sites_file::read(&path).map_err(|error| SitesUnusable(whole(&error))));
    let home = match &sites {
        Some(Ok(sites)) if destination(sites, args.from.as_deref()).is_none() => {
            sites_file::own_site(sites, args.from.as_deref()).ok()
        }
        _ => None,
    };
    let variables = std::env::vars_os().collect();
    Ok(Question { version: version::TEXT.to_owned(), path, sites, home, variables })
}

fn report_text(report: &Report, seconds: u64) -> String {
    format!(
        "landbridge doctor, {} UTC\n\n{}{}{}",
        date(seconds),
        table(&report.findings),
        verdict(&report.findings),
        report.text()
    )
}

/// Writes the report, readable by its owner only. Replaces an earlier report.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}

/// One line for each finding, followed by its remedy.
fn table(findings: &[Finding]) -> String {
    let width = width(findings.iter().map(|finding| finding.part.as_str()), "");
    let mut text = String::new();
    for Finding { part, verdict, detail, remedy } in findings {
        let verdict = match verdict {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Failed => "FAILED",
        };
        text += &format!("{verdict:6}  {part:width$}  {}\n", one_line(detail));
        if let Some(remedy) = remedy {
            text += &format!("{:6}  {:width$}  -> {}\n", "", "", one_line(remedy));
        }
    }
    text
}

fn verdict(findings: &[Finding]) -> String {
    match findings.iter().filter(|finding| finding.verdict == Verdict::Failed).count() {
        0 => "nothing is wrong\n".to_owned(),
        1 => "1 thing is wrong\n".to_owned(),
        count => format!("{count} things are wrong\n"),
    }
}

/// Seconds since 1970 as `2026-11-24-205501`, in UTC.
fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days: years begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}-{:02}{:02}{:02}", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01-000000");
        assert_eq!(date(951_782_399), "2000-02-28-235959");
        assert_eq!(date(951_782_400), "2000-02-29-000000");
        assert_eq!(date(1_795_553_701), "2026-11-24-205501");
    }

    #[test]
    fn what_failed_is_counted_and_has_its_remedy_below() {
        let finding = |verdict, remedy: Option<&str>| Finding {
            part: "ssh".into(),
            verdict,
            detail: "gone\u{1b}".into(),
            remedy: remedy.map(str::to_owned),
        };
        let findings = [finding(Verdict::Note, None), finding(Verdict::Failed, Some("install it"))];
        let text = table(&findings) + &verdict(&findings);
        let lines: Vec<_> = text.lines().collect();
        let expected =
            ["note    ssh  gone\\u{1b}", "FAILED  ssh  gone\\u{1b}", "             -> install it", "1 thing is wrong"];
        assert_eq!(lines, expected);
        assert_eq!(verdict(&findings[..1]), "nothing is wrong\n");
    }
}
