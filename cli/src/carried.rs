//! `run`, `sites check` and `top` on a machine that is no site: ssh carries them to a site.

use std::ffi::OsString;

use anyhow::Result;
use launch::launcher::Sites;
use setup::carry;
use tokio::io::AsyncWrite;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use types::sites::Site;

use crate::bar::Bar;
use crate::run::working_directory;
use crate::runtime;
use crate::sites_add::asking;

/// The site to carry a command to, if no site's key is here, or not the key of the site that `--from` names.
pub(crate) fn destination<'a>(sites: &'a Sites, from: Option<&str>) -> Option<&'a Site> {
    let from = from.map(str::to_owned).or_else(crate::sites_file::named_site);
    let mut here = sites.file.sites.iter().filter(|site| from.as_ref().is_none_or(|from| site.name == *from));
    if here.any(|site| sites.client_secret(site).is_ok()) {
        return None;
    }
    carry::destination(&sites.file.sites, from.as_deref())
}

/// Carries `run` to the site and returns its exit code.
pub(crate) fn run(sites: &Sites, site: &Site, words: Vec<OsString>) -> Result<i32> {
    command(sites, site, &["run"], words.into_iter().skip_while(|word| word != "run").skip(1).collect())
}

/// Carries a command to the site and returns its exit code. `words` follow it on the command line.
pub(crate) fn command(sites: &Sites, site: &Site, command: &[&str], words: Vec<OsString>) -> Result<i32> {
    let runtime = runtime()?;
    let code = runtime.block_on(async {
        let (out, err) = (tokio::io::stdout(), tokio::io::stderr());
        carry_to(sites, site, command, words, out, err).await
    });
    runtime.shutdown_background();
    code
}

/// Like [`command`], with other streams for its output.
pub(crate) async fn carry_to(
    sites: &Sites,
    site: &Site,
    command: &[&str],
    words: Vec<OsString>,
    output: impl AsyncWrite + Unpin,
    errors: impl AsyncWrite + Unpin,
) -> Result<i32> {
    let directory = working_directory()?;
    let home = std::env::home_dir();
    // Only a job depends on its working directory.
    let directory = if command == ["run"] { directory } else { home.clone().unwrap_or(directory) };
    let carried =
        carry::request(&site.name, command, words.into_iter(), &directory, home.as_deref(), std::env::vars_os())?;
    Ok(carry::carry(site, &sites.file, carried, asking(), output, errors, signals()?, &mut Bar::new()).await?)
}

/// The words after this one on the command line.
pub(crate) fn typed_after(word: &str) -> Vec<OsString> {
    std::env::args_os().skip_while(|typed| typed != word).skip(1).collect()
}

/// The signals by which a user ends a job, as they arrive.
pub(crate) fn signals() -> Result<mpsc::Receiver<i32>> {
    let (sender, receiver) = mpsc::channel(4);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let (mut signal, sender) = (signal(kind)?, sender.clone());
        tokio::spawn(async move {
            while signal.recv().await.is_some() && sender.send(kind.as_raw_value()).await.is_ok() {}
        });
    }
    Ok(receiver)
}
