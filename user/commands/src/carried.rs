//! Commands typed on a machine that belongs to no site: ssh carries them to a site.

use std::ffi::OsString;

use job::home::TYPED_DIRECTORY;
use job::signals::{ENDING, PASSED, Signals};
use launcher::Sites;
use setup::machine::{Input, Streams};
use setup::{Progress, carry};
use tokio::io::{AsyncReadExt, AsyncWrite, duplex};
use tokio::sync::mpsc;
use types::sites::Site;

use crate::error::Result;
use crate::machine::working_directory;
use crate::runtime::runtime;
use crate::sites_file;

/// The site to carry a command to, if this machine has no site's key, or not the key of the site that the user names
/// with `--from` or in the environment.
pub fn destination<'a>(sites: &'a Sites, from: Option<&str>) -> Option<&'a Site> {
    let from = from.map(str::to_owned).or_else(sites_file::named_site);
    let mut here = sites.file.sites.iter().filter(|site| from.as_ref().is_none_or(|from| site.name == *from));
    if here.any(|site| sites.client_secret(site).is_ok()) {
        return None;
    }
    carry::destination(&sites.file.sites, from.as_deref())
}

/// Returns true if this process was carried here from a machine that belongs to no site.
pub fn is_carried() -> bool {
    std::env::var_os(TYPED_DIRECTORY).is_some()
}

/// A command to carry to a site.
pub struct Carried<'a> {
    pub sites: &'a Sites,
    pub site: &'a Site,
    /// The command, such as `stage move`.
    pub command: &'a [&'a str],
    /// The words that follow the command on the command line.
    pub words: Vec<OsString>,
    /// The command's standard input. `None`: an empty one.
    pub input: Option<Input>,
    /// A user is at the terminal and can be asked.
    pub asking: bool,
}

/// Carries a command to the site and returns its exit code. `output`, `errors`: for its output.
///
/// # Errors
/// The site cannot be reached, or the connection breaks.
pub async fn carry_to(
    carried: Carried<'_>,
    (output, errors): (impl AsyncWrite + Unpin, impl AsyncWrite + Unpin),
    progress: &mut dyn Progress,
) -> Result<i32> {
    let Carried { sites, site, command, words, input, asking } = carried;
    let directory = working_directory()?;
    let home = std::env::home_dir();
    // Only jobs and transfers depend on the working directory.
    let moves = matches!(command, ["run"] | ["stage", ..]);
    let directory = if moves { directory } else { home.clone().unwrap_or(directory) };
    let (words, home) = (words.into_iter(), home.as_deref());
    let carried = carry::request(&site.name, command, words, &directory, home, std::env::vars_os(), input.is_some())?;
    let streams = Streams { output, errors, input, signals: signals(&[&ENDING[..], &PASSED].concat())? };
    Ok(carry::carry(site, &sites.file, carried, asking, streams, progress).await?)
}

/// Maximum output of a command whose answer is parsed here, in bytes.
const ANSWER: u64 = 16 << 20;

/// Carries a command to the site; returns its exit code and its output.
///
/// # Errors
/// As [`carry_to`].
pub fn answer(
    carried: Carried<'_>,
    errors: impl AsyncWrite + Unpin,
    progress: &mut dyn Progress,
) -> Result<(i32, Vec<u8>)> {
    let (output, seen) = duplex(64 << 10);
    let runtime = runtime()?;
    let (code, printed) = runtime.block_on(async {
        let reading = async {
            let mut printed = Vec::new();
            // The rest is not read, so a command that prints more ends.
            seen.take(ANSWER).read_to_end(&mut printed).await.map(|_| printed)
        };
        tokio::join!(carry_to(carried, (output, errors), progress), reading)
    });
    runtime.shutdown_background();
    Ok((code?, printed?))
}

/// Catches these signals, except those that are ignored, and returns them as they arrive.
///
/// # Errors
/// The system refuses.
pub fn signals(numbers: &[i32]) -> Result<mpsc::Receiver<i32>> {
    let (sender, receiver) = mpsc::channel(4);
    let mut signals = Signals::catch(numbers)?;
    tokio::spawn(async move { while sender.send(signals.next().await).await.is_ok() {} });
    Ok(receiver)
}
