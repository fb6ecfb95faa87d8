//! The environment's settings that a job would use, and those that cannot work.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use job::message::Family;
use job::mpi::{Library, settings};
use job::settings::WrongSetting;

use super::report::{Question, Report, Verdict};
use super::secrets::is_secret;

/// Prefixes of the variables that matter to Landbridge, libfabric or an MPI library.
const OURS: &[&str] = &[
    "LANDBRIDGE_",
    "FI_",
    "MPIR_CVAR_",
    "I_MPI_",
    "OMPI_MCA_",
    "UCX_",
    "SLURM_JOB",
    "PBS_JOBID",
    "PBS_NODEFILE",
    "PE_HOSTFILE",
    "SGE_TASK_ID",
];
const OTHERS: &[&str] = &["PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "LOADEDMODULES"];

pub(super) fn examine(question: &Question, report: &mut Report) {
    for (name, what) in [
        ("LANDBRIDGE_SITES", "sites file"),
        ("LANDBRIDGE_PROVIDER", "provider"),
        ("LANDBRIDGE_PMIX", "library"),
        ("LANDBRIDGE_LIBFABRIC", "library"),
    ] {
        if let Some(path) = question.variable(name).filter(|path| !Path::new(path).exists()) {
            let detail = format!("{name}={} names no {what}", path.display());
            report.failed(name, detail, format!("unset {name}, or correct it"));
        }
    }
    let conflicts = conflicts(question);
    for conflict in &conflicts {
        let name = conflict.split('=').next().unwrap_or_default();
        report.failed(name, conflict, format!("unset {name}"));
    }
    let wrong = wrong(question);
    for setting in &wrong {
        report.failed(setting.name(), setting.to_string(), format!("unset {}, or correct it", setting.name()));
    }
    if conflicts.is_empty() && wrong.is_empty() {
        report.add("settings", Verdict::Ok, "no variable conflicts with jobs across sites");
    }
    let matters = |name: &OsStr| {
        let name = name.to_string_lossy();
        OURS.iter().any(|begin| name.starts_with(begin)) || OTHERS.contains(&name.as_ref())
    };
    let mut lines: Vec<String> = question.variables.iter().filter(|(name, _)| matters(name)).map(line).collect();
    lines.sort();
    report.section("environment", &lines.join("\n"));
}

fn line((name, value): &(std::ffi::OsString, std::ffi::OsString)) -> String {
    let name = name.to_string_lossy();
    let value = if is_secret(&name) { "[removed]".into() } else { value.to_string_lossy() };
    format!("{name}={value}")
}

/// The variables that `run` would refuse.
fn wrong(question: &Question) -> Vec<WrongSetting> {
    job::settings::wrong(question.variables.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
}

/// The messages that `run` would print about settings that it must replace, for any MPI library that a program may use.
fn conflicts(question: &Question) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for family in [Family::Mpich, Family::Intel, Family::OpenMpi] {
        let library = Library { family, file: None, beside: false, linked: false };
        let mut environment = question.environment();
        let provider = job::mpi::find_provider(&environment);
        for note in settings(&library, &mut environment, &provider, true) {
            if !all.contains(&note) {
                all.push(note);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examined(variables: &[(&str, &str)]) -> Report {
        let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let (version, path) = ("0".to_owned(), "/x".into());
        let mut report = Report::default();
        examine(&Question { version, path, sites: None, home: None, variables }, &mut report);
        report
    }

    #[test]
    fn a_setting_that_cannot_work_is_named_with_its_remedy() {
        let report = examined(&[("FI_PROVIDER", "tcp"), ("LANDBRIDGE_SITES", "/nowhere")]);
        let remedies: Vec<_> = report.findings.iter().filter_map(|finding| finding.remedy.as_deref()).collect();
        assert_eq!(remedies, ["unset LANDBRIDGE_SITES, or correct it", "unset FI_PROVIDER"]);
        assert!(!report.ok() && report.findings[1].detail.starts_with("FI_PROVIDER=tcp cannot work across sites"));
    }

    #[test]
    fn a_value_that_run_refuses_is_named_with_its_remedy() {
        let report = examined(&[("LANDBRIDGE_SPIN", "often"), ("LANDBRIDGE_TREES", "oak"), ("LANDBRIDGE_BIND", "")]);
        let parts: Vec<_> = report.findings.iter().map(|finding| finding.part.as_str()).collect();
        assert_eq!(parts, ["LANDBRIDGE_SPIN", "LANDBRIDGE_TREES"]);
        assert!(report.findings[0].detail.starts_with("LANDBRIDGE_SPIN=often: give microseconds"));
        assert_eq!(report.findings[0].remedy.as_deref(), Some("unset LANDBRIDGE_SPIN, or correct it"));
    }

    #[test]
    fn harmless_settings_are_listed_and_secrets_are_not() {
        let report = examined(&[("FI_LOG_LEVEL", "warn"), ("LANDBRIDGE_SECRET", "5ec"), ("AWS_REGION", "x")]);
        assert!(report.ok(), "{:?}", report.findings);
        assert_eq!(report.sections[0].text, "FI_LOG_LEVEL=warn\nLANDBRIDGE_SECRET=[removed]");
    }
}
