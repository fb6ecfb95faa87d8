//! Restarts of ended gateways before a job is carried to a site: at that site, and at the sites to which it has no
//! trunk.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use types::SitesFile;
use types::sites::Site;

use crate::apply::difference;
use crate::machine::Machine;
use crate::message::{Reply, SiteRequest};
use crate::start::start;
use crate::{Progress, SetupError};

/// Time limit for a trunk to come up after a gateway was started.
pub(crate) const TRUNK: Duration = Duration::from_secs(12);
const POLL: Duration = Duration::from_millis(200);

/// Starts gateways that have ended. A site whose gateway cannot be started is reported and skipped: the job will report
/// its missing sites.
///
/// # Errors
/// The gateway of the job's own site does not start.
pub(crate) async fn lift(
    machine: &mut Machine,
    site: &Site,
    file: &SitesFile,
    asking: bool,
    progress: &mut dyn Progress,
) -> Result<(), SetupError> {
    let others: Vec<&Site> = file.sites.iter().filter(|other| other.name != site.name).collect();
    let others = others.as_slice();
    if let Reply::Sites { text: Some(text) } = machine.ask(&SiteRequest::ReadSites).await?
        && let Some(problem) = difference(file, &text)
    {
        progress.step(&site.name, &problem);
    }
    let Reply::Gateway { started, note } = machine.ask(&SiteRequest::Start { site: site.name.clone() }).await? else {
        return Err(SetupError::site(&site.name, "an answer to another question"));
    };
    if started {
        progress.step(&site.name, &format!("its gateway had ended: {note}"));
    }
    let wait = if started { TRUNK } else { Duration::ZERO };
    let mut started = false;
    for name in lost(machine, site, others, wait, progress).await? {
        let Some(other) = others.iter().find(|other| other.name == name && other.ssh.is_some()) else { continue };
        progress.step(&name, &format!("no trunk from site {}: looking at its gateway", site.name));
        match start(other, asking, progress).await {
            Ok(note) => {
                progress.step(&name, &note);
                started = true;
            }
            Err(error) => progress.step(&name, &error.to_string()),
        }
    }
    if started {
        lost(machine, site, others, TRUNK, progress).await?;
    }
    Ok(())
}

/// The other sites that have no trunk, after waiting up to `wait` for all trunks to come up.
async fn lost(
    machine: &mut Machine,
    site: &Site,
    others: &[&Site],
    wait: Duration,
    progress: &mut dyn Progress,
) -> Result<Vec<String>, SetupError> {
    let end = Instant::now() + wait;
    let mut told = false;
    loop {
        let Reply::Status(standing) = machine.ask(&SiteRequest::Status { site: site.name.clone() }).await? else {
            return Err(SetupError::site(&site.name, "an answer to another question"));
        };
        let down = standing.trunks.into_iter().filter(|trunk| !trunk.up).map(|trunk| trunk.site);
        let mut down: Vec<_> = down.filter(|name| others.iter().any(|other| other.name == *name)).collect();
        down.dedup();
        if down.is_empty() || Instant::now() >= end {
            return Ok(down);
        }
        if !std::mem::replace(&mut told, true) {
            let text = format!("waiting for its trunks to {}, at most {} s", down.join(", "), wait.as_secs());
            progress.step(&site.name, &text);
        }
        sleep(POLL).await;
    }
}
