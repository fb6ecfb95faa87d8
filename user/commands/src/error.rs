//! Errors of commands.

use std::error::Error;

use thiserror::Error;

/// Reasons for a failed command. Each names the next step where there is one.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// An option has a wrong value, which only a check beyond its syntax finds.
    #[error("{0}")]
    Option(String),
    /// The command cannot be carried out as typed.
    #[error("{0}")]
    Request(String),
    /// Something is missing on this machine.
    #[error("{0}")]
    Missing(String),
    /// Work on the subject failed.
    #[error("{subject}")]
    Failed {
        /// The file, the option or the step.
        subject: String,
        source: Box<dyn Error + Send + Sync>,
    },
    /// An error of another crate, whose text names its subject.
    #[error(transparent)]
    Cause(Box<dyn Error + Send + Sync>),
}

pub type Result<T, E = CommandError> = std::result::Result<T, E>;

impl CommandError {
    /// An option has a wrong value.
    pub fn option(problem: impl std::fmt::Display) -> CommandError {
        CommandError::Option(problem.to_string())
    }
}

macro_rules! causes {
    ($($error:ty),* $(,)?) => {$(
        impl From<$error> for CommandError {
            fn from(error: $error) -> CommandError {
                CommandError::Cause(Box::new(error))
            }
        }
    )*};
}

causes!(
    client::key::KeyError,
    gateway::GatewayError,
    launcher::forward::ForwardError,
    starters::held::HeldError,
    launcher::SessionError,
    launcher::spread::SpreadError,
    node_service::client::CallError,
    node_service::child::ProgramError,
    node_service::directive::DirectiveError,
    node_service::hook::HookError,
    node_service::install::InstallError,
    node_service::record::RecordError,
    node_service::slurm::SlurmError,
    node_service::teardown::SweepError,
    node_service::teardown::TeardownError,
    plan::UnknownAlgorithm,
    rustix::io::Errno,
    serde_json::Error,
    setup::SetupError,
    setup::here::HereError,
    stage::PlaceError,
    stage::StageError,
    std::io::Error,
    types::sites::SitesError,
);

/// Names the subject of an error.
pub(crate) trait Context<T> {
    fn context(self, subject: impl Into<String>) -> Result<T>;
    fn with_context<S: Into<String>>(self, subject: impl FnOnce() -> S) -> Result<T>;
}

impl<T, E: Error + Send + Sync + 'static> Context<T> for std::result::Result<T, E> {
    fn context(self, subject: impl Into<String>) -> Result<T> {
        self.with_context(|| subject)
    }

    fn with_context<S: Into<String>>(self, subject: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|error| CommandError::Failed { subject: subject().into(), source: Box::new(error) })
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, subject: impl Into<String>) -> Result<T> {
        self.with_context(|| subject)
    }

    fn with_context<S: Into<String>>(self, subject: impl FnOnce() -> S) -> Result<T> {
        self.ok_or_else(|| CommandError::Missing(subject().into()))
    }
}

/// The error of a command that cannot be carried out as typed.
macro_rules! refusal {
    ($($text:tt)*) => { $crate::error::CommandError::Request(format!($($text)*)) };
}

/// Refuses a command that cannot be carried out as typed.
macro_rules! refuse {
    ($($text:tt)*) => { return Err($crate::error::refusal!($($text)*)) };
}

pub(crate) use {refusal, refuse};

/// The error and its causes in one line. Causes that the error's own text already contains are skipped.
pub fn whole(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(error) = source {
        let cause = error.to_string();
        if !contains_whole(&text, &cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

/// Returns true if a text contains this cause, and not as the beginning of a longer word.
fn contains_whole(text: &str, cause: &str) -> bool {
    let mut found = text.match_indices(cause).map(|(at, _)| &text[at + cause.len()..]);
    found.any(|rest| rest.is_empty() || rest.starts_with([':', ';', ',', ')']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let source = || std::io::Error::from_raw_os_error(2);
        let named = setup::SetupError::File { path: "/no/file".into(), source: source() };
        let text = whole(&Err::<(), _>(named).context("sites file").unwrap_err());
        assert_eq!(text, "sites file: /no/file: No such file or directory (os error 2)");
        let plain = Err::<(), _>(source()).context("/no/file").unwrap_err();
        assert_eq!(whole(&plain), "/no/file: No such file or directory (os error 2)");
        assert_eq!(whole(&refusal!("one")), "one");
        let gateway = client::ClientError::Connect { address: "g:1".into(), source: source() };
        assert_eq!(whole(&gateway), "gateway at g:1: No such file or directory (os error 2); is it running?");
        assert!(contains_whole("site 1: 2", "1") && !contains_whole("site 12", "1"));
    }
}
