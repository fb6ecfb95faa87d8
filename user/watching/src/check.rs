//! Checks everything that a run needs: keys, the user's own gateway, trunks, an agent on every node, and provider and
//! program there.
//!
//! Start reading at [`check()`]. If the own gateway does not answer, `alone` runs the checks that need no gateway.

mod alone;
mod batch;
mod nodes;

use std::fmt::Display;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use client::ClientError;
use client::key::{self, KeyError};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::Instant;
use types::roster::RosterError;
use types::shell;
use types::sites::{Dialling, Site, SitesFile};

use launcher::tailor::Typed;
use launcher::{SessionError, Sites};

/// Time limit for all agents together to start and reply.
const AGENTS: Duration = Duration::from_secs(8);

/// One finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The site.
    pub site: String,
    /// The part of the site, such as `gateway gw1` or `node n2`.
    pub part: String,
    /// True if the part works.
    pub ok: bool,
    /// The details of the result.
    pub detail: String,
}

impl Finding {
    /// A finding from a result: a description if the part works, the problem if not.
    pub fn new(site: &str, part: impl Into<String>, result: Result<String, impl Display>) -> Finding {
        let ok = result.is_ok();
        let detail = result.unwrap_or_else(|problem| problem.to_string());
        Finding { site: site.to_owned(), part: part.into(), ok, detail }
    }
}

/// Problems that a check finds. The messages do not repeat the place.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The own site has no key.
    #[error("the sites file names no `key`, so no job can be opened from here")]
    NoKey,
    /// Other users may read a key.
    #[error("{path} can be read by others (mode {mode:o}): `chmod 600 {typed}`", path = .path.display(), typed = shell::path(path))]
    Readable {
        /// The key.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Connecting to the own gateway or opening a job failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A request to the own gateway failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The job of the check cannot have these nodes.
    #[error(transparent)]
    Roster(#[from] RosterError),
    /// A problem that a site, a gateway or an agent reports.
    #[error("{0}")]
    Reported(String),
    /// An agent does not start.
    #[error("its agent could not be started: {0}")]
    NotStarted(String),
    /// No reply arrived in time.
    #[error("{what} within {seconds} s: look at {log}")]
    Silent {
        /// The missing reply.
        what: &'static str,
        seconds: u64,
        /// The log that may have the reason.
        log: &'static str,
    },
    /// Another site's gateway cannot be dialled from this machine.
    #[error("{address}: {source}; nothing listens there, or a firewall blocks port {port}")]
    Undialled { address: String, port: String, source: std::io::Error },
}

/// Called with a site and the state of its request for nodes, for a person who waits.
pub type News<'a> = &'a mut dyn FnMut(&str, &str);

/// Checks everything from the user's own site `home`. Checks the `typed` program on every node too, unless its command
/// is empty.
pub async fn check(sites: &Sites, home: &str, typed: &Typed) -> Vec<Finding> {
    check_with(sites, home, typed, None, &mut |_, _| {}).await
}

/// Like [`check()`]. With `job`, at sites whose nodes come from a batch system, also makes a job, starts an agent in
/// it, and gives the job back; `job` is the longest wait in the queue. `None`: only asks the batch system whether it
/// would accept a job.
pub async fn check_with(
    sites: &Sites,
    home: &str,
    typed: &Typed,
    job: Option<Duration>,
    news: News<'_>,
) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for site in &sites.file.sites {
        findings.extend(check_key(sites, site, site.name == home));
    }
    let Ok(own) = sites.site(home) else { return findings };
    let gateway = check_gateway(sites, own).await;
    let reached = gateway.iter().any(|finding| finding.ok);
    findings.extend(gateway);
    if !reached {
        findings.extend(alone::check(sites, own).await);
        return findings;
    }
    let mut linked = vec![home.to_owned()];
    for site in sites.file.sites.iter().filter(|site| site.name != home) {
        let trunk = check_trunk(sites, own, site).await;
        linked.extend(trunk.ok.then(|| site.name.clone()));
        findings.push(trunk);
    }
    let allocating = sites.file.sites.iter().filter(|site| site.starter.allocates() && linked.contains(&site.name));
    let allocating: Vec<&Site> = allocating.collect();
    findings.extend(batch::check(sites, home, &allocating, typed, job, news).await);
    findings.extend(nodes::check(sites, home, &linked, typed).await);
    findings
}

/// Checks a key. The own site needs one; another site's key is checked only if it is on this machine.
fn check_key(sites: &Sites, site: &Site, home: bool) -> Option<Finding> {
    let Some(path) = sites.key_path(site) else {
        return home.then(|| Finding::new(&site.name, "key", Err(CheckError::NoKey)));
    };
    if !home && !path.exists() {
        return None;
    }
    let checked = sites.client_secret(site).map_err(CheckError::from).and_then(|_| {
        let mode = std::fs::metadata(&path).map_or(0, |found| found.permissions().mode() & 0o777);
        if mode & 0o077 != 0 {
            return Err(CheckError::Readable { path: path.clone(), mode });
        }
        let loaded = key::load(&path)?;
        Ok(format!("{} is {}", path.display(), loaded.fingerprint()))
    });
    Some(Finding::new(&site.name, "key", checked))
}

async fn check_gateway(sites: &Sites, own: &Site) -> Vec<Finding> {
    let mut findings = Vec::new();
    for gateway in &own.gateways {
        let one = Site { gateways: vec![gateway.clone()], ..own.clone() };
        let began = Instant::now();
        let (result, unread) = match sites.connect(&one).await {
            Ok((mut client, _)) => {
                let admitted = format!("{} admits us in {:.1} ms", gateway.inside, began.elapsed().as_secs_f64() * 1e3);
                (Ok(admitted), client.standing(false).await.ok().and_then(|standing| standing.stale))
            }
            Err(error) => (Err(error), None),
        };
        findings.push(Finding::new(&own.name, format!("gateway {}", gateway.name), result));
        findings.extend(unread.map(|unread| {
            let told = format!("{unread}: `landbridge sites apply` has every gateway work by it");
            Finding::new(&own.name, "sites file", Err(CheckError::Reported(told)))
        }));
    }
    findings
}

/// Checks the trunk from the user's own site to another.
pub async fn check_trunk(sites: &Sites, own: &Site, site: &Site) -> Finding {
    let probed = async {
        let (mut client, _) = sites.connect(own).await?;
        Ok::<_, CheckError>(client.probe(&site.name).await?)
    };
    let how = if goes_through_ssh(&sites.file, own, site) { ", through ssh" } else { "" };
    let result = probed.await.map(|rtt| format!("round trip from {} {:.2} ms{how}", own.name, rtt.as_secs_f64() * 1e3));
    Finding::new(&site.name, format!("trunk from {}", own.name), result)
}

/// True if the first gateways of two sites reach each other through ssh.
fn goes_through_ssh(file: &SitesFile, own: &Site, other: &Site) -> bool {
    let at = |wanted: &Site| file.sites.iter().position(|site| site.name == wanted.name);
    let (earlier, later) = if at(own) < at(other) { (own, other) } else { (other, own) };
    match (earlier.gateways.first(), later.gateways.first()) {
        (Some(earlier), Some(later)) => Dialling::between(earlier, later).is_ssh(),
        _ => false,
    }
}
