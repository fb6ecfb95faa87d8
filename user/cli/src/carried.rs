//! Commands typed on a machine that belongs to no site: ssh carries them to a site, and their output comes here.

use std::ffi::OsString;
use std::io::Read;

use anyhow::Result;
use commands::carried::{self, Carried, carry_to};
use commands::runtime::runtime;
use launcher::Sites;
use setup::machine::Input;
use tokio::sync::mpsc;
use types::sites::Site;

use crate::bar::{Bar, asking};
use crate::output;

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
    let carried = Carried { sites, site, command, words, input, asking: asking() };
    let code = runtime.block_on(async {
        // These commands pass the output of programs unchanged.
        if matches!(command, ["run" | "logs" | "forward"]) {
            return carry_to(carried, (output::raw_stdout(), output::raw_stderr()), &mut Bar::new()).await;
        }
        carry_to(carried, (output::stdout(), output::stderr()), &mut Bar::new()).await
    });
    runtime.shutdown_background();
    Ok(code?)
}

/// Carries a command to the site; returns its exit code and its output.
pub(crate) fn answer(sites: &Sites, site: &Site, command: &[&str], words: Vec<OsString>) -> Result<(i32, Vec<u8>)> {
    let carried = Carried { sites, site, command, words, input: None, asking: asking() };
    Ok(carried::answer(carried, output::stderr(), &mut Bar::new())?)
}

/// This process's standard input. Reading starts when the command at the site has started.
fn standard_input() -> Input {
    Box::new(|most| {
        let (sender, receiver) = mpsc::channel(1);
        // The thread ends with the process: a read from a terminal may never return.
        std::thread::spawn(move || {
            let mut piece = vec![0; most];
            loop {
                match crate::input::Input.read(&mut piece) {
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
