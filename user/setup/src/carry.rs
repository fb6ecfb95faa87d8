//! Commands on a machine that is not a site: ssh carries each one to a site, which has the key and the gateway.
//!
//! It runs there as if it had been typed there. Its input, its output, its exit code and the user's signals pass
//! through. It ends when the connection is lost or this process dies, unless it is a detached job, which belongs to the
//! site. Nothing is forwarded, and no key leaves its site.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use job::environment::setting;
use job::home::{TYPED_DIRECTORY, TYPED_HOME, portable};
use job::signals::ENDING;
use tokio::io::AsyncWrite;
use tokio::sync::mpsc;
use types::SitesFile;
use types::sites::Site;

use crate::company::whereabouts;
use crate::lift::lift;
use crate::machine::{Machine, Streams, Way};
use crate::message::{Carry, SiteRequest};
use crate::place::MachinePlace;
use crate::release::Release;
use crate::{Progress, SetupError};

/// Prefixes of the variables that affect how a job runs, on any machine.
const SETTINGS: [&str; 6] = ["LANDBRIDGE_", "FI_", "MPIR_CVAR_", "I_MPI_", "OMPI_MCA_", "OMP_"];
/// Variables among them whose values are valid only on the machine where they were set.
const PLACES: [&str; 9] = [
    TYPED_HOME,
    TYPED_DIRECTORY,
    "LANDBRIDGE_SITES",
    "LANDBRIDGE_SITE_NAME",
    "LANDBRIDGE_PROVIDER",
    "LANDBRIDGE_LOG_FILE",
    "FI_PROVIDER_PATH",
    "I_MPI_ROOT",
    "LANDBRIDGE_TEST_MARKER",
];

/// The site to carry a job to when this machine is not a site: `wanted`, or the first that ssh reaches.
pub fn destination<'a>(sites: &'a [Site], wanted: Option<&str>) -> Option<&'a Site> {
    let mut named = sites.iter().filter(|site| wanted.is_none_or(|wanted| site.name == wanted));
    named.find(|site| matches!(whereabouts(site), Ok(Some(MachinePlace::Ssh(_)))))
}

/// Builds the request to carry: the words after the command, for `run` with `--` before the program; the directory in
/// which it was typed; and the settings in this environment. `input`: the command gets the user's standard input.
///
/// # Errors
/// The summary of a job would be written to a file there, or a variable to be set has no value here.
pub fn request(
    site: &str,
    command: &[&str],
    words: impl Iterator<Item = OsString>,
    directory: &Path,
    home: Option<&Path>,
    environment: impl Iterator<Item = (OsString, OsString)>,
    input: bool,
) -> Result<Carry, SetupError> {
    let environment: Vec<(OsString, OsString)> = environment.collect();
    let words = carried_words(site, command == ["run"], words, &environment)?;
    let homes: Vec<Vec<u8>> = home.iter().map(|home| home.as_os_str().as_bytes().to_vec()).collect();
    let directory = portable(directory.as_os_str().as_bytes(), &homes);
    Ok(Carry {
        site: site.to_owned(),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        words: words.into_iter().map(OsStringExt::into_vec).collect(),
        environment: environment
            .into_iter()
            .filter(|(name, _)| travels(name))
            .map(|(name, value)| (name.into_vec(), value.into_vec()))
            .chain(homes.into_iter().map(|home| (TYPED_HOME.into(), home)))
            .chain([(TYPED_DIRECTORY.into(), directory.clone())])
            .collect(),
        directory,
        input,
    })
}

/// The words that the site needs, without those that are about this machine.
///
/// # Errors
/// As [`request`].
fn carried_words(
    site: &str,
    is_run: bool,
    mut words: impl Iterator<Item = OsString>,
    environment: &[(OsString, OsString)],
) -> Result<Vec<OsString>, SetupError> {
    let here = |name: &OsStr| environment.iter().find(|(other, _)| other == name).map(|(_, value)| value.clone());
    // Uses the value that the variable has here.
    let with_value = |word: &OsStr| {
        let (name, value) = setting(word, here).map_err(|error| SetupError::Request(error.to_string()))?;
        Ok::<_, SetupError>(OsString::from_vec([name, b"=".to_vec(), value].concat()))
    };
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"--" => {
                kept.push(word);
                kept.extend(words);
                break;
            }
            // The site has its own sites file, this machine decides `--from`, and `--push` was done from here.
            b"--sites" | b"--from" => drop(words.next()),
            b"--push" if is_run => drop(words.next()),
            text if [&b"--sites="[..], b"--from=", b"--push="].iter().any(|option| text.starts_with(option)) => {}
            text if is_run && text.starts_with(b"--json=") => {
                return Err(SetupError::Request(format!(
                    "{}: the job is started at site {site}, and the file would be written there; --json alone writes the \
                     summary to standard output",
                    word.to_string_lossy()
                )));
            }
            b"-x" if is_run => {
                kept.push(word);
                kept.extend(words.next().map(|word| with_value(&word)).transpose()?);
            }
            text if is_run && text.starts_with(b"-x") => {
                kept.extend(["-x".into(), with_value(OsStr::from_bytes(&text[2..]))?]);
            }
            _ => kept.push(word),
        }
    }
    Ok(kept)
}

/// True if a variable of this machine affects the job at the site.
fn travels(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    SETTINGS.iter().any(|start| name.starts_with(start)) && !PLACES.contains(&name.as_ref())
}

/// Runs the command at the site; returns its exit code. `file`: the sites file here. Ended gateways are started again
/// if the command needs them.
///
/// # Errors
/// The site cannot be reached, or cannot start the command.
pub async fn carry<O: AsyncWrite + Unpin, E: AsyncWrite + Unpin>(
    site: &Site,
    file: &SitesFile,
    carry: Carry,
    asking: bool,
    mut streams: Streams<O, E>,
    progress: &mut dyn Progress,
) -> Result<i32, SetupError> {
    let place = whereabouts(site)?.ok_or_else(|| SetupError::site(&site.name, "cannot be reached from here"))?;
    let way = Way { site: &site.name, place: &place, folder: site.folder.as_deref(), asking };
    let release = Release::read(None)?;
    let ready = async {
        let mut machine = Machine::reach(&way, &release, progress).await?;
        // A check or a view shows the current state and changes nothing.
        if carry.needs_gateways() {
            lift(&mut machine, site, file, asking, progress).await?;
        }
        Ok::<_, SetupError>(machine)
    };
    let machine = tokio::select! {
        machine = ready => machine?,
        signal = ending(&mut streams.signals) => return Ok(128 + signal),
    };
    machine.become_job(&SiteRequest::Carry(carry), streams).await
}

/// Waits for the next signal that ends the command. Other signals are for ranks, of which there are none yet.
async fn ending(signals: &mut mpsc::Receiver<i32>) -> i32 {
    loop {
        match signals.recv().await {
            Some(signal) if ENDING.contains(&signal) => return signal,
            Some(_) => {}
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn carried(words: &[&str], directory: &str) -> Result<Carry, SetupError> {
        carried_to(&["run"], words, directory)
    }

    fn carried_to(command: &[&str], words: &[&str], directory: &str) -> Result<Carry, SetupError> {
        let environment =
            [("OMP_NUM_THREADS", "2"), ("PATH", "/bin"), ("LANDBRIDGE_SITES", "/x"), ("LANDBRIDGE_SPIN", "0")];
        let environment = environment.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let words = words.iter().map(OsString::from);
        request("lyon", command, words, Path::new(directory), Some(Path::new("/home/me")), environment, false)
    }

    #[test]
    fn what_means_this_machine_stays() {
        let words = ["-n", "4", "--sites", "f", "--from=x", "--prefix", "--", "prog", "--sites", "y"];
        let carry = carried(&words, "/home/me/work").unwrap();
        let kept: Vec<_> = carry.words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        assert_eq!(kept, ["-n", "4", "--prefix", "--", "prog", "--sites", "y"]);
        assert_eq!(carry.directory, b"~/work");
        let names: Vec<_> =
            carry.environment.iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect();
        assert_eq!(names, ["OMP_NUM_THREADS", "LANDBRIDGE_SPIN", TYPED_HOME, TYPED_DIRECTORY]);
        assert_eq!(carry.environment[2].1, b"/home/me");
        assert_eq!(carried(&["--", "p"], "/scratch").unwrap().directory, b"/scratch");
        let words = ["-x", "PATH", "-xA=1", "--", "-x", "B"];
        let words = carried(&words, "/").unwrap().words;
        assert_eq!(words.join(&b" "[..]), b"-x PATH=/bin -x A=1 -- -x B");
        let error = carried(&["-x", "AWAY", "--", "p"], "/").unwrap_err().to_string();
        assert!(error.contains("AWAY=VALUE"), "{error}");
        let error = carried(&["--json=f", "--", "p"], "/").unwrap_err().to_string();
        assert!(error.contains("--json=f") && error.contains("lyon"), "{error}");
        // Only `run` has variables and a program.
        let words = carried_to(&["stage", "move"], &["-x", "--from", "y", "--", "--from"], "/").unwrap().words;
        assert_eq!(words.join(&b" "[..]), b"-x -- --from");
    }
}
