//! Errors for the user: their text, and their exit codes.

use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use commands::CommandError;
use setup::SetupError;

use crate::output;

/// The exit code if standard output is closed: a program without a SIGPIPE handler ends with it too.
pub(crate) const CLOSED: u8 = 141;
/// The exit code of wrong options.
const WRONG: u8 = 2;

/// The user pressed Ctrl-C before anything was changed.
#[derive(Debug, thiserror::Error)]
#[error("interrupted: the sites file is as it was")]
pub(crate) struct Interrupted;

/// The error and its causes in one line; of a mistake in the command line, all lines.
pub(crate) fn whole(error: &anyhow::Error) -> String {
    error.downcast_ref().map_or_else(|| commands::error::whole(error.as_ref()), parsed_text)
}

/// The text of a mistake in the command line, in the style of this command's other errors.
fn parsed_text(error: &clap::Error) -> String {
    let text = error.render().to_string();
    // No option of ours takes a value that begins with a dash after `--`.
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("tip: to pass '-"));
    let text = lines.collect::<Vec<_>>().join("\n").replace("\n\n\n", "\n\n");
    text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned()
}

/// An option has a wrong value. The exit code is that of a syntax error.
pub(crate) fn wrong(problem: impl std::fmt::Display) -> anyhow::Error {
    CommandError::option(problem).into()
}

/// Prints help, a version, or a mistake in the command line in the style of this command's other errors. Returns the
/// exit code.
pub(crate) fn report_parsed(error: &clap::Error) -> ExitCode {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If standard error is closed, the help cannot be shown.
        let _ = output::stderr().write_all(error.render().to_string().as_bytes());
    } else if error.use_stderr() {
        output::note(&parsed_text(error));
    } else if let Err(failed) = output::stdout().write_all(error.render().to_string().as_bytes()) {
        return report(&failed.into());
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
    ExitCode::from(code(error))
}

/// The exit code of an error, as in `docs/troubleshooting.md`.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    let setup = match error.downcast_ref() {
        Some(CommandError::Option(_)) => return WRONG,
        Some(CommandError::Cause(cause)) => cause.downcast_ref(),
        _ => error.downcast_ref(),
    };
    if error.is::<clap::Error>() {
        return WRONG;
    }
    if matches!(setup, Some(SetupError::Request(_) | SetupError::Place(_) | SetupError::Nodes(_))) {
        return WRONG;
    }
    #[cfg(feature = "lab")]
    if let Some(error) = error.downcast_ref() {
        return match error {
            lab::LabError::Options(_) => WRONG,
            lab::LabError::Command { .. } | lab::LabError::Interrupted { .. } => error.exit_code(),
            _ => 1,
        };
    }
    if matches!(error.downcast_ref(), Some(stage::mover::MoverError::Lost { .. })) {
        return launcher::LOST_CODE as u8;
    }
    if error.is::<Interrupted>() { 130 } else { 1 }
}

/// Exit codes have eight bits. A failure whose low eight bits are zero must stay a failure.
pub(crate) fn exit(code: i32) -> ExitCode {
    ExitCode::from(if code != 0 && code & 0xff == 0 { 1 } else { (code & 0xff) as u8 })
}
