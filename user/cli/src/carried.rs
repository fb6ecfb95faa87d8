//! Commands typed on a machine that belongs to no site: ssh carries them to a site.

use std::ffi::OsString;
use std::io::Read;

use anyhow::Result;
use job::home::TYPED_DIRECTORY;
use job::signals::{ENDING, PASSED, Signals};
use launcher::Sites;
use setup::carry;
use setup::machine::{Input, Streams};
use tokio::io::{AsyncReadExt, AsyncWrite, duplex};
use tokio::sync::mpsc;
use types::sites::Site;

use crate::bar::Bar;
use crate::bar::asking;
use crate::run::working_directory;
use crate::{output, runtime};

/// The site to carry a command to, if this machine has no site's key, or not the key of the site that the user names
/// with `--from` or in the environment.
pub(crate) fn destination<'a>(sites: &'a Sites, from: Option<&str>) -> Option<&'a Site> {
    let from = from.map(str::to_owned).or_else(crate::sites::file::named_site);
    let mut here = sites.file.sites.iter().filter(|site| from.as_ref().is_none_or(|from| site.name == *from));
    if here.any(|site| sites.client_secret(site).is_ok()) {
        return None;
    }
    carry::destination(&sites.file.sites, from.as_deref())
}

/// Returns true if this process was carried here from a machine that belongs to no site.
pub(crate) fn is_carried() -> bool {
    std::env::var_os(TYPED_DIRECTORY).is_some()
}

/// Carries `run` to the site and returns its exit code. `input`: the ranks read this process's standard input.
pub(crate) fn run(sites: &Sites, site: &Site, words: Vec<OsString>, input: bool) -> Result<i32> {
    let words = words.into_iter().skip_while(|word| word != "run").skip(1).collect();
    through(sites, site, &["run"], words, input.then(standard_input))
}

/// Carries a command to the site and returns its exit code. `words` follow the command on the command line.
pub(crate) fn command(sites: &Sites, site: &Site, command: &[&str], words: Vec<OsString>) -> Result<i32> {
    through(sites, site, command, words, None)
}

/// Like [`command`], with this process's standard input.
pub(crate) fn with_input(sites: &Sites, site: &Site, command: &[&str], words: Vec<OsString>) -> Result<i32> {
    through(sites, site, command, words, Some(standard_input()))
}

fn through(sites: &Sites, site: &Site, command: &[&str], words: Vec<OsString>, input: Option<Input>) -> Result<i32> {
    let runtime = runtime()?;
    let code = runtime.block_on(async {
        // These commands pass the output of programs unchanged.
        if matches!(command, ["run" | "logs" | "forward"]) {
            return carry_to(sites, site, command, words, (output::raw_stdout(), output::raw_stderr()), input).await;
        }
        carry_to(sites, site, command, words, (output::stdout(), output::stderr()), input).await
    });
    runtime.shutdown_background();
    code
}

/// Maximum output of a command whose answer is parsed here, in bytes.
const ANSWER: u64 = 16 << 20;

/// Carries a command to the site; returns its exit code and its output.
pub(crate) fn answer(sites: &Sites, site: &Site, command: &[&str], words: Vec<OsString>) -> Result<(i32, Vec<u8>)> {
    let (output, seen) = duplex(64 << 10);
    let runtime = runtime()?;
    let (code, printed) = runtime.block_on(async {
        let reading = async {
            let mut printed = Vec::new();
            // The rest is not read, so a command that prints more ends.
            seen.take(ANSWER).read_to_end(&mut printed).await.map(|_| printed)
        };
        tokio::join!(carry_to(sites, site, command, words, (output, crate::output::stderr()), None), reading)
    });
    runtime.shutdown_background();
    Ok((code?, printed?))
}

/// Like [`command`], with other streams.
pub(crate) async fn carry_to(
    sites: &Sites,
    site: &Site,
    command: &[&str],
    words: Vec<OsString>,
    (output, errors): (impl AsyncWrite + Unpin, impl AsyncWrite + Unpin),
    input: Option<Input>,
) -> Result<i32> {
    let directory = working_directory()?;
    let home = std::env::home_dir();
    // Only jobs and transfers depend on the working directory.
    let moves = matches!(command, ["run"] | ["stage", ..]);
    let directory = if moves { directory } else { home.clone().unwrap_or(directory) };
    let (words, home) = (words.into_iter(), home.as_deref());
    let carried = carry::request(&site.name, command, words, &directory, home, std::env::vars_os(), input.is_some())?;
    let streams = Streams { output, errors, input, signals: signals(&[&ENDING[..], &PASSED].concat())? };
    Ok(carry::carry(site, &sites.file, carried, asking(), streams, &mut Bar::new()).await?)
}

/// This process's standard input. Reading starts when the command at the site has started.
fn standard_input() -> Input {
    Box::new(|most| {
        let (sender, receiver) = mpsc::channel(1);
        // The thread ends with the process: a read from a terminal may never return.
        std::thread::spawn(move || {
            let mut piece = vec![0; most];
            loop {
                match crate::run::input::Input.read(&mut piece) {
                    Ok(0) => return,
                    Ok(count) if sender.blocking_send(piece[..count].to_vec()).is_ok() => {}
                    Ok(_) => return,
                    Err(error) => {
                        output::note(&format!("standard input: {error}"));
                        return;
                    }
                }
            }
        });
        receiver
    })
}

/// The words after `word` on the command line.
pub(crate) fn typed_after(word: &str) -> Vec<OsString> {
    std::env::args_os().skip_while(|typed| typed != word).skip(1).collect()
}

/// Catches these signals, except those that are ignored, and returns them as they arrive.
pub(crate) fn signals(numbers: &[i32]) -> Result<mpsc::Receiver<i32>> {
    let (sender, receiver) = mpsc::channel(4);
    let mut signals = Signals::catch(numbers)?;
    tokio::spawn(async move { while sender.send(signals.next().await).await.is_ok() {} });
    Ok(receiver)
}
