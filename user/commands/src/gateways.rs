//! Gateways that are down: restarted before a job if this account may, else named after a failed job.

use std::path::Path;
use std::time::Duration;

use launcher::{Failure, Sites};
use setup::Progress;
use setup::remedy::remedy;
use tokio::time::timeout;

use crate::error::{Context, Result, refuse};
use crate::runtime::runtime;
use crate::sites_file;

/// Time limit for a gateway's answer after a failed job. Better advice is not worth a longer wait.
const ADVICE: Duration = Duration::from_secs(1);

/// Before a job: restarts the gateway of the user's own site if it ran in the background and has ended.
///
/// # Errors
/// It has ended and cannot be restarted.
pub fn ensure(file: &Path, sites: &Sites, home: &str, progress: &mut dyn Progress) -> Result<()> {
    let started = runtime()?.block_on(setup::here::revive::revive(file, home, progress));
    match started {
        Ok(false) => {
            if let Some(unread) = runtime()?.block_on(unread(sites, home)) {
                progress.step(home, &format!("{unread}: `landbridge sites apply` has every gateway work by it"));
            }
            Ok(())
        }
        Ok(true) => Ok(()),
        Err(error) => {
            let site = sites.site(home).context("the own site")?;
            refuse!("site {home}: its gateway has ended and cannot be started here: {error}; {}", remedy(site, file))
        }
    }
}

/// Edits of the sites file that the gateway has not loaded yet, if it answers.
async fn unread(sites: &Sites, home: &str) -> Option<String> {
    let (mut client, _) = sites.connect(sites.site(home).ok()?).await.ok()?;
    client.standing(false).await.ok()?.stale
}

/// The command that starts the gateway of the user's own site again. `from`: the site, if the user has named it.
///
/// # Errors
/// There is no such site.
pub fn repair(file: &Path, sites: &Sites, home: &str, from: Option<&str>) -> Result<String> {
    let doubt = sites_file::doubt(sites, from, home).map_or(String::new(), |doubt| format!("; {doubt}"));
    Ok(remedy(sites.site(home)?, file) + &doubt)
}

/// After a failed job: the command to type if a gateway that is down may be the cause.
///
/// `from`: the own site, if the user has named it.
pub fn advice(file: &Path, sites: &Sites, home: &str, from: Option<&str>, failure: &Failure) -> Option<String> {
    if failure.node.is_some() || failure.rank.is_some() {
        return None;
    }
    // Without its key, starting a gateway does not help.
    let own = sites.site(home).ok().filter(|own| sites.client_secret(own).is_ok())?;
    let standing = async {
        let (mut client, _) = sites.connect(own).await.ok()?;
        client.standing(false).await.ok()
    };
    let answer = async { timeout(ADVICE, standing).await.ok().flatten() };
    let Some(standing) = runtime().ok()?.block_on(answer) else {
        let repair = repair(file, sites, home, from).ok()?;
        return Some(format!("if the gateway of site {home} does not run, {repair}"));
    };
    let lost = failure.site.as_deref()?;
    let down = standing.trunks.iter().any(|trunk| trunk.site == lost && !trunk.up);
    let site = sites.site(lost).ok().filter(|_| down)?;
    Some(format!("if the gateway of site {lost} does not run, {}", remedy(site, file)))
}
