//! The subject of an examination, and its findings.

use std::ffi::OsString;
use std::path::PathBuf;

use job::environment::{Environment, travelling};
use launcher::Sites;
use serde::Serialize;
use thiserror::Error;

use super::secrets::without;

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
    pub(super) fn environment(&self) -> Environment {
        let variables = self.variables.iter().cloned();
        Environment::new(&travelling(variables.clone()), variables)
    }

    pub(super) fn variable(&self, name: &str) -> Option<&OsString> {
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

    pub(super) fn add(&mut self, part: impl Into<String>, verdict: Verdict, detail: impl Into<String>) {
        let (part, detail) = (part.into(), without(&detail.into()));
        self.findings.push(Finding { part, verdict, detail, remedy: None });
    }

    pub(super) fn failed(&mut self, part: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) {
        let (part, detail) = (part.into(), without(&detail.into()));
        self.findings.push(Finding { part, verdict: Verdict::Failed, detail, remedy: Some(remedy.into()) });
    }

    pub(super) fn section(&mut self, title: impl Into<String>, text: &str) {
        self.sections.push(Section { title: title.into(), text: without(text) });
    }
}
