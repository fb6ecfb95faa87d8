//! Errors for the user: their text, and their exit codes.

use std::process::ExitCode;

use commands::CommandError;

use crate::output;

/// The exit code if standard output is closed: a program without a SIGPIPE handler ends with it too.
pub(crate) const CLOSED: u8 = 141;

/// The user pressed Ctrl-C before anything was changed.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: the sites file is as it was")]
pub(crate) struct Interrupted;

/// The error and its causes in one line.
pub(crate) fn whole(error: &anyhow::Error) -> String {
    commands::error::whole(error.as_ref())
}

/// An option has a wrong value. The exit code is that of a syntax error.
pub(crate) fn wrong(problem: impl std::fmt::Display) -> anyhow::Error {
    CommandError::option(problem).into()
}

/// Prints help, a version, or a mistake in the command line in the style of this command's other errors. Returns the
/// exit code.
pub(crate) fn report_parsed(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        let text = error.render().to_string();
        output::note(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    } else if error.print().is_err() {
        return ExitCode::from(CLOSED);
    }
    exit(error.exit_code())
}

/// Prints the error, and returns its exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if output::is_closed(error) {
        return ExitCode::from(CLOSED);
    }
    if let Some(error) = error.downcast_ref() {
        return report_parsed(error);
    }
    output::note(&whole(error));
    if matches!(error.downcast_ref(), Some(CommandError::Option(_))) {
        ExitCode::from(2)
    } else if error.is::<Interrupted>() {
        ExitCode::from(130)
    } else {
        ExitCode::FAILURE
    }
}

/// Exit codes have eight bits. A failure whose low eight bits are zero must stay a failure.
pub(crate) fn exit(code: i32) -> ExitCode {
    ExitCode::from(if code != 0 && code & 0xff == 0 { 1 } else { (code & 0xff) as u8 })
}
