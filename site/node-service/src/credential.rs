//! Munge credentials: texts that only a user's own processes can obtain, through the commands `munge` and `unmunge`.
//!
//! Munge itself refuses a credential that is forged, was used on this node before, is too old, or is for another
//! reader. This crate runs its commands instead of linking its library, whose faults in C could otherwise reach this
//! process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use thiserror::Error;
use types::UntrustedText;

use crate::bounded::{ProgramLimits, RunError, run};

/// Largest accepted age of a credential in seconds, whatever lifetime its maker requested from munge.
pub const MOST_AGE_S: u64 = 60;
/// The longest payload that is encrypted, in bytes.
const LONGEST: usize = 128 << 10;

/// Munged answers at once; its largest message is one mebibyte.
const LIMITS: ProgramLimits = ProgramLimits { time: Duration::from_secs(20), output: 2 << 20 };

/// Reasons for failing to make or accept a credential.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CredentialError {
    #[error("cannot run {command}: {source}: install munge on this machine")]
    Command { command: &'static str, source: RunError },
    #[error("munge made no credential: {0}: is munged running on this machine?")]
    Make(UntrustedText),
    /// Munge's message, such as `Invalid credential`.
    #[error("munge refuses the credential: {0}")]
    Refused(UntrustedText),
    #[error("the credential is {0} s old, at most {MOST_AGE_S} are accepted: are the clocks of both machines set?")]
    Old(u64),
    #[error("unmunge's output has no {0}: is its munge older than 0.5.11?")]
    Output(&'static str),
    #[error("an order of {0} bytes: it must be shorter than 128 KiB")]
    Long(usize),
}

/// The contents of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedCredential {
    /// The user whose process made it.
    pub user: u32,
    pub payload: Vec<u8>,
}

/// The first bytes of each credential; they identify a line that holds one.
pub const BEGIN: &[u8] = b"MUNGE:";

/// Makes and opens credentials.
pub trait Credentials: Send + Sync {
    /// # Errors
    /// [`CredentialError`]: it is not accepted.
    fn open(&self, credential: &[u8]) -> Result<OpenedCredential, CredentialError>;

    /// Makes a credential of this process's user, one line, that only `reader` can open and that is valid for
    /// [`MOST_AGE_S`].
    ///
    /// # Errors
    /// [`CredentialError`]: munge fails to make one.
    fn seal(&self, payload: &[u8], reader: u32) -> Result<Vec<u8>, CredentialError>;
}

/// The site's munge, through the socket of this machine's munged.
#[derive(Clone, Debug, Default)]
pub struct Munge {
    /// `None`: munge's default socket.
    pub socket: Option<PathBuf>,
}

impl Munge {
    fn command(&self, name: &'static str) -> Command {
        let mut command = Command::new(name);
        if let Some(socket) = &self.socket {
            command.arg("--socket").arg(socket);
        }
        command
    }
}

impl Credentials for Munge {
    fn open(&self, credential: &[u8]) -> Result<OpenedCredential, CredentialError> {
        let mut command = self.command("unmunge");
        command.args(["--numeric", "--keys=STATUS,ENCODE_TIME,DECODE_TIME,UID"]);
        let (code, out, words) = talk("unmunge", command, credential)?;
        // It prints the contents of a credential even if it does not accept it.
        match code {
            Some(0) => parse(&out),
            _ if words.is_blank() => Err(CredentialError::Refused(status(&out).into())),
            _ => Err(CredentialError::Refused(words)),
        }
    }

    fn seal(&self, payload: &[u8], reader: u32) -> Result<Vec<u8>, CredentialError> {
        if payload.len() >= LONGEST {
            return Err(CredentialError::Long(payload.len()));
        }
        let mut command = self.command("munge");
        command.args([format!("--restrict-uid={reader}"), format!("--ttl={MOST_AGE_S}")]);
        let (code, out, words) = talk("munge", command, payload)?;
        match code {
            Some(0) => Ok(out.into_iter().filter(|byte| *byte != b'\n').collect()),
            _ => Err(CredentialError::Make(words)),
        }
    }
}

/// Munge's reason for refusing a genuine credential, from the status number that its library defines.
fn status(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let status = text.lines().find_map(|line| line.strip_prefix("STATUS:")).map_or("", str::trim);
    match status {
        "15" => "expired: it is too old".to_owned(),
        "16" => "it comes from the future: are the clocks of both machines set?".to_owned(),
        "17" => "replayed: it has been used on this node before".to_owned(),
        "18" => "it is for another user".to_owned(),
        _ => format!("status `{}`", status.escape_debug()),
    }
}

/// Runs a munge command with this standard input. Returns its exit code, output and standard error.
fn talk(
    name: &'static str,
    command: Command,
    input: &[u8],
) -> Result<(Option<i32>, Vec<u8>, UntrustedText), CredentialError> {
    let failed = |source| CredentialError::Command { command: name, source };
    let done = run(command, input, LIMITS).map_err(failed)?;
    let words = done.stderr.raw().trim().trim_start_matches(name).trim_start_matches(": Error: ");
    Ok((done.code, done.stdout, words.into()))
}

/// Parses unmunge's output: lines `KEY: number`, an empty line, the payload.
fn parse(output: &[u8]) -> Result<OpenedCredential, CredentialError> {
    let end = output.windows(2).position(|pair| pair == b"\n\n").ok_or(CredentialError::Output("payload"))?;
    let head = String::from_utf8_lossy(&output[..end]);
    let number = |key: &'static str| -> Result<u64, CredentialError> {
        let of = |line: &str| line.strip_prefix(key)?.strip_prefix(':')?.trim().parse().ok();
        head.lines().find_map(of).ok_or(CredentialError::Output(key))
    };
    if number("STATUS")? != 0 {
        return Err(CredentialError::Refused(format!("status {}", number("STATUS")?).into()));
    }
    let age = number("DECODE_TIME")?.abs_diff(number("ENCODE_TIME")?);
    if age > MOST_AGE_S {
        return Err(CredentialError::Old(age));
    }
    let user = u32::try_from(number("UID")?).map_err(|_| CredentialError::Output("UID"))?;
    Ok(OpenedCredential { user, payload: output[end + 2..].to_vec() })
}

/// The socket in Slurm's `AuthInfo`, such as `socket=/run/munge/munge.socket.2,ttl=300`.
pub fn socket_of(auth_info: &str) -> Option<&Path> {
    auth_info.split(',').find_map(|word| word.trim().strip_prefix("socket=")).map(Path::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_unmunge_is_read() {
        let text = |age: u64, status: u32, user: &str| {
            format!(
                "STATUS:           {status}\nENCODE_TIME:      100\nDECODE_TIME:      {}\nUID: {user}\n\nUID: 0\n\nx",
                100 + age
            )
        };
        let opened = parse(text(3, 0, "1000").as_bytes()).unwrap();
        assert_eq!(opened, OpenedCredential { user: 1000, payload: b"UID: 0\n\nx".to_vec() });
        assert!(parse(text(61, 0, "1000").as_bytes()).unwrap_err().to_string().contains("61 s old"));
        assert!(parse(text(0, 17, "1000").as_bytes()).unwrap_err().to_string().contains("status 17"));
        assert!(super::status(b"STATUS:   17\nUID: 3\n").contains("replayed"));
        for wrong in ["", "STATUS: 0\n\nx", "x\n\n", &text(0, 0, "-1"), &text(0, 0, "4294967296"), &text(0, 0, "")] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_credential_from_the_future_is_as_bad_as_an_old_one() {
        let text = "STATUS: 0\nENCODE_TIME: 1000\nDECODE_TIME: 900\nUID: 5\n\n";
        assert!(matches!(parse(text.as_bytes()), Err(CredentialError::Old(100))));
    }

    #[test]
    fn slurms_configuration_names_the_socket() {
        assert_eq!(socket_of("ttl=3,socket=/run/m/s"), Some(Path::new("/run/m/s")));
        assert_eq!(socket_of("(null)"), None);
    }
}
