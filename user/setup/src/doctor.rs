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
mod report;
mod secrets;
mod variables;

pub use report::{Finding, Question, Report, Section, SitesUnusable, Verdict};

use crate::error::SetupError;
use crate::here::folders::Folders;

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
