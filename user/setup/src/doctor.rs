//! `landbridge doctor`: examines everything that a job needs on this machine and at the sites, and writes the findings
//! into one text that a user can attach to a report.
//!
//! Start at [`examine`]. Each file below examines one part and adds findings and sections to the [`Report`]. No
//! examination changes anything, and each command and connection has a time limit. Keys are never read. Apparent
//! secrets in settings and logs are left out.

mod command;
mod installation;
mod libraries;
mod limits;
mod logs;
mod reach;
mod secrets;
mod variables;

use std::ffi::OsString;
use std::path::PathBuf;

use job::environment::{Environment, travelling};
use launcher::Sites;
use serde::Serialize;
use thiserror::Error;

use crate::SetupError;
use crate::here::folders::Folders;

/// The reason why a sites file cannot be used.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct SitesUnusable(pub String);

/// The subject of an examination.
pub struct Question {
    /// Version of the command, such as `0.1.0 (1f2e3d4c5b6a)`.
    pub version: String,
    /// Path of the sites file, whether or not it exists.
    pub path: PathBuf,
    /// The content of the sites file, or the reason why it cannot be used. `None`: there is no such file.
    pub sites: Option<Result<Sites, SitesUnusable>>,
    /// The site that this machine belongs to, if a site's key is here.
    pub home: Option<String>,
    /// The environment of the command.
    pub variables: Vec<(OsString, OsString)>,
}

impl Question {
    fn environment(&self) -> Environment {
        let variables = self.variables.iter().cloned();
        Environment::new(&travelling(variables.clone()), variables)
    }

    fn variable(&self, name: &str) -> Option<&OsString> {
        let found = self.variables.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value).filter(|value| !value.is_empty())
    }
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It works.
    Ok,
    /// It works, and the detail may explain something.
    Note,
    /// It does not work.
    Failed,
}

/// The result of one examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The examined part, such as `provider` or `a: gateway gw1`.
    pub part: String,
    pub verdict: Verdict,
    /// The result.
    pub detail: String,
    /// The remedy. Set for a failure, unless `detail` contains it.
    pub remedy: Option<String>,
}

/// A part of the text to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub title: String,
    /// Its text, without secrets.
    pub text: String,
}

/// All findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The findings, in the order of the examinations.
    pub findings: Vec<Finding>,
    /// The other parts of the text.
    pub sections: Vec<Section>,
}

impl Report {
    /// True if nothing failed.
    pub fn ok(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Failed)
    }

    /// The sections as one text.
    pub fn text(&self) -> String {
        let part = |section: &Section| format!("\n== {} ==\n{}\n", section.title, section.text.trim_end());
        self.sections.iter().map(part).collect()
    }

    fn add(&mut self, part: impl Into<String>, verdict: Verdict, detail: impl Into<String>) {
        let (part, detail) = (part.into(), secrets::without(&detail.into()));
        self.findings.push(Finding { part, verdict, detail, remedy: None });
    }

    fn failed(&mut self, part: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) {
        let (part, detail) = (part.into(), secrets::without(&detail.into()));
        self.findings.push(Finding { part, verdict: Verdict::Failed, detail, remedy: Some(remedy.into()) });
    }

    fn section(&mut self, title: impl Into<String>, text: &str) {
        self.sections.push(Section { title: title.into(), text: secrets::without(text) });
    }
}

/// Examines everything. A failed examination becomes a finding.
///
/// # Errors
/// The user has no home directory.
pub async fn examine(question: &Question) -> Result<Report, SetupError> {
    let folders = Folders::of_user()?;
    let mut report = Report::default();
    installation::examine(question, &mut report).await;
    variables::examine(question, &mut report);
    libraries::examine(question, &mut report);
    limits::examine(&mut report);
    reach::examine(question, &mut report).await;
    logs::examine(question, &folders, &mut report);
    Ok(report)
}
