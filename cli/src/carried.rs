//! `landbridge run` on a machine that is no site: carried to one over ssh.

use std::ffi::OsString;

use anyhow::Result;
use launch::launcher::Sites;
use setup::carry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use types::sites::Site;

use crate::runtime;
use crate::sites_add::{Lines, asking};

/// The site to carry a job to, if no site's key is here (or not that of the site named by `--from`).
pub(crate) fn destination<'a>(sites: &'a Sites, from: Option<&str>) -> Option<&'a Site> {
    let from = from.map(str::to_owned).or_else(crate::sites_file::named_site);
    let mut here = sites.file.sites.iter().filter(|site| from.as_ref().is_none_or(|from| site.name == *from));
    if here.any(|site| sites.client_secret(site).is_ok()) {
        return None;
    }
    carry::destination(&sites.file.sites, from.as_deref())
}

/// Carries what was typed to the site and gives the job's exit code.
pub(crate) fn run(sites: &Sites, site: &Site, words: Vec<OsString>) -> Result<i32> {
    let words = words.into_iter().skip_while(|word| word != "run").skip(1);
    let directory = std::env::current_dir()?;
    let home = std::env::home_dir();
    let carried = carry::request(&site.name, words, &directory, home.as_deref(), std::env::vars_os())?;
    let others: Vec<&Site> = sites.file.sites.iter().filter(|other| other.name != site.name).collect();
    let runtime = runtime()?;
    let code = runtime.block_on(async {
        let (out, err) = (tokio::io::stdout(), tokio::io::stderr());
        anyhow::Ok(carry::carry(site, &others, carried, asking(), out, err, signals()?, &mut Lines).await?)
    });
    runtime.shutdown_background();
    code
}

/// The signals by which a user ends a job, as they come.
fn signals() -> Result<mpsc::Receiver<i32>> {
    let (sender, receiver) = mpsc::channel(4);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let (mut signal, sender) = (signal(kind)?, sender.clone());
        tokio::spawn(async move {
            while signal.recv().await.is_some() && sender.send(kind.as_raw_value()).await.is_ok() {}
        });
    }
    Ok(receiver)
}
