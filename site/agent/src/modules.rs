//! Environment modules: the changes to the environment of a login shell on this node when it loads them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use thiserror::Error;
use tokio::process::Command;

use job::capture::{CaptureError, capture};

/// Time limit for a login shell and all modules; shorter than the launcher's time limit for a node to be ready.
const LIMIT: Duration = Duration::from_secs(12);

/// Prints the environment, a separator, and the environment with all modules. The modules' own output goes to standard
/// error.
const SCRIPT: &str = r#"
command -v module >/dev/null || { echo "this login shell has no command \`module\`" >&2; exit 1; }
env -0; printf '=\0'
for name; do module load "$name" >&2 || { echo "module load $name failed" >&2; exit 1; }; done
env -0
"#;

/// Modules could not be loaded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("modules {names}: {problem}: correct `modules` in [site.run]; `bash -lc 'module avail'` there lists them")]
pub struct ModulesError {
    names: String,
    problem: String,
}

/// Loads modules in a login shell. Returns the variables that changed; one that was unset has an empty value.
///
/// # Errors
/// [`ModulesError`], with the shell's output.
pub async fn load(names: &[String]) -> Result<Vec<(OsString, OsString)>, ModulesError> {
    let wrong = |problem: String| ModulesError { names: names.join(" "), problem };
    let mut command = Command::new("bash");
    command.args(["-l", "-c", SCRIPT, "modules"]).args(names);
    let output = capture(&mut command, LIMIT).await.map_err(|e| match e {
        CaptureError::Silent(seconds) => wrong(format!("not loaded within {seconds} s")),
        CaptureError::Io(e) => wrong(format!("cannot start bash: {e}")),
        e => wrong(e.to_string()),
    })?;
    let printed = output.stderr.last_lines().to_string();
    let changed = changes(&output.stdout);
    match changed {
        // Old releases of Environment Modules exit with 0 even if a module does not exist.
        Some(changed) if output.status.success() && !changed.is_empty() => Ok(changed),
        Some(_) if output.status.success() => Err(wrong(format!("loading them changed nothing ({printed})"))),
        _ => Err(wrong(if printed.is_empty() { output.status.to_string() } else { printed })),
    }
}

/// The difference between the two environments that the script printed.
fn changes(text: &[u8]) -> Option<Vec<(OsString, OsString)>> {
    let mut entries = text.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    let split = |entry: &[u8]| {
        let at = entry.iter().position(|byte| *byte == b'=')?;
        Some((OsStr::from_bytes(&entry[..at]).to_owned(), OsStr::from_bytes(&entry[at + 1..]).to_owned()))
    };
    let before: Vec<_> = entries.by_ref().take_while(|entry| *entry != b"=").filter_map(split).collect();
    let after: Vec<_> = entries.filter_map(split).collect();
    if after.is_empty() {
        return None;
    }
    let gone = before.iter().filter(|(name, _)| !after.iter().any(|(other, _)| other == name));
    let gone: Vec<_> = gone.map(|(name, _)| (name.clone(), OsString::new())).collect();
    let set = after.into_iter().filter(|entry| !before.contains(entry) && entry.0 != "_");
    Some(set.chain(gone).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_counts() {
        let text = b"A=1\0B=x=y\0C=\n\0GONE=1\0=\0A=2\0B=x=y\0C=\n\0D=new\0_=env\0";
        let pairs = [("A", "2"), ("D", "new"), ("GONE", "")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(changes(text).unwrap(), pairs);
        assert_eq!(changes(b"A=1\0=\0"), None);
        assert_eq!(changes(b""), None);
    }
}
