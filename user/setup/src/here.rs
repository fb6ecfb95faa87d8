//! The other end: carries out requests to the program on a site's machine.

mod access;
pub mod background;
mod carried;
pub(crate) mod error;
pub mod folders;
mod keep;
mod link;
pub mod revive;
mod stage;
mod survey;

use std::io;
use std::time::Duration;

use client::key;
use job::environment::travelling;
use job::home::homes;
use job::message::Part;
use launcher::Sites;
use launcher::tailor::{Typed, TypedPart};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use types::SitesFile;
use watching::check::{Finding, check, check_trunk};

use self::background::Background;
pub use self::error::HereError;
use self::folders::Folders;
use self::keep::Keeping;
use crate::frames::{CarryFrame, send};
use crate::message::{KeepOutcome, Reply, SiteRequest};

/// Longest silence of the sender between two requests.
const SILENCE: Duration = Duration::from_secs(1800);

/// Answers requests until their sender is gone, or until the command of a [`SiteRequest::Carry`] ends. Returns the exit
/// code.
///
/// # Errors
/// The answers cannot be written.
pub async fn serve(input: impl AsyncBufRead + Unpin, mut output: impl AsyncWrite + Unpin) -> io::Result<i32> {
    let mut lines = input.lines();
    while let Ok(Ok(Some(line))) = timeout(SILENCE, lines.next_line()).await {
        let reply = match serde_json::from_str(&line) {
            // From here on the connection carries frames.
            Ok(SiteRequest::Carry(carry)) => {
                let code = match carried::carry_out(&carry, lines.get_mut(), &mut output).await {
                    Ok(code) => code,
                    Err(problem) => {
                        let words = format!("landbridge: site {}: {problem}\n", carry.site);
                        send(&mut output, &CarryFrame::Errors(words.into_bytes())).await?;
                        send(&mut output, &CarryFrame::Ended(1)).await?;
                        1
                    }
                };
                return Ok(code);
            }
            Ok(SiteRequest::Place { items }) => match stage::place(&items, lines.get_mut()).await {
                Err(HereError::Cut) => return Ok(1),
                placed => placed.unwrap_or_else(|error| Reply::Failed { problem: error.to_string() }),
            },
            Ok(request) => {
                carry_out(&request).await.unwrap_or_else(|error| Reply::Failed { problem: error.to_string() })
            }
            Err(e) => {
                Reply::Failed { problem: format!("unreadable request: {e}: is landbridge the same release there?") }
            }
        };
        let mut answer = serde_json::to_vec(&reply)?;
        answer.push(b'\n');
        output.write_all(&answer).await?;
        output.flush().await?;
    }
    Ok(0)
}

async fn carry_out(request: &SiteRequest) -> Result<Reply, HereError> {
    let folders = Folders::of_user()?;
    match request {
        SiteRequest::Survey { nodes, port, site } => survey::survey(&folders, site, nodes, *port).map(Reply::Survey),
        SiteRequest::Key { site } => make_key(&folders, site),
        SiteRequest::TrunkKey { site } => access::trunk_key(&folders, site).map(|public| Reply::TrunkKey { public }),
        SiteRequest::LetIn { site, of, to, key } => {
            access::let_in(site, of, to, key.as_deref()).map(|changed| Reply::LetIn { changed })
        }
        SiteRequest::ReadSites => folders.read_sites().map(|text| Reply::Sites { text }),
        SiteRequest::WriteSites { text } => {
            folders.write_sites(text.as_deref())?;
            Ok(Reply::Done { note: folders.sites_file().display().to_string() })
        }
        SiteRequest::Gateway { site } => {
            let (started, note) = Background::new(&folders, site).renew().await?;
            Ok(Reply::Gateway { started, note })
        }
        SiteRequest::Reload { site } => {
            let (started, note) = Background::new(&folders, site).reload().await?;
            Ok(Reply::Gateway { started, note })
        }
        SiteRequest::Start { site } => {
            let (started, note) = Background::new(&folders, site).start_if_ended().await?;
            Ok(Reply::Gateway { started, note })
        }
        SiteRequest::Settle { site, keep } => Ok(settle(&folders, site, *keep)),
        SiteRequest::StopGateway { site, force } => {
            let note = Background::new(&folders, site).stop(*force).await?;
            Ok(Reply::Done { note })
        }
        SiteRequest::Check { site } => {
            let sites = read(&folders)?;
            Ok(Reply::Findings(check(&sites, site, &nothing()).await))
        }
        SiteRequest::Probe { site, to } => {
            let sites = read(&folders)?;
            let (own, other) = (entry(&sites, site)?, entry(&sites, to)?);
            Ok(Reply::Findings(vec![check_trunk(&sites, own, other).await]))
        }
        SiteRequest::Invite { site, seconds } => Background::new(&folders, site).invite(*seconds).await,
        SiteRequest::Offer { items } => stage::offer(items),
        SiteRequest::Carry(_) | SiteRequest::Place { .. } => Err(HereError::OutOfTurn),
        SiteRequest::Status { site } => Ok(Reply::Status(Background::new(&folders, site).standing().await)),
        SiteRequest::Forget { site, base } => {
            // First remove automatic restarts: otherwise they might start the gateway again right after it was stopped.
            let keeping = Keeping::new(&folders, site);
            if keeping.is_installed() {
                keeping.remove()?;
                Background::new(&folders, site).stop(true).await?;
            }
            forget(&folders, site, base).map(|note| Reply::Done { note })
        }
    }
}

/// Sets up the command on the user's path and automatic restarts of the gateway. `keep` installs the restarts; without
/// it, installed restarts are only updated to this release.
fn settle(folders: &Folders, site: &str, keep: bool) -> Reply {
    let keeping = Keeping::new(folders, site);
    let offer = if keep { None } else { keeping.offer().map(str::to_owned) };
    let kept = (keep || keeping.is_installed()).then(|| match keeping.install() {
        Ok(mechanism) => KeepOutcome::Installed(mechanism),
        Err(error) => KeepOutcome::Refused(error.to_string()),
    });
    let mut notes: Vec<String> = match link::make() {
        Ok(note) => note.into_iter().collect(),
        Err(error) => vec![error.to_string()],
    };
    if let Err(error) = folders::remove_old_releases(&background::releases_in_use(folders)) {
        notes.push(error.to_string());
    }
    Reply::Settled { notes, kept, offer }
}

fn make_key(folders: &Folders, site: &str) -> Result<Reply, HereError> {
    let path = folders.key(site);
    let made = key::is_missing(&path);
    let key = if made {
        folders::make(&folders.configuration)?;
        key::generate(&path)
    } else {
        key::load(&path)
    };
    let fingerprint = key?.fingerprint().to_string();
    Ok(Reply::Key { fingerprint, made })
}

/// Reads the sites file of this account.
pub(crate) fn read(folders: &Folders) -> Result<Sites, HereError> {
    let path = folders.sites_file();
    let text = folders.read_sites()?.ok_or_else(|| HereError::NoSitesFile(path.clone()))?;
    let file = SitesFile::parse(&text, &path.display().to_string())?;
    Ok(Sites { file, folder: folders.configuration.clone(), secret: None })
}

fn entry<'a>(sites: &'a Sites, name: &str) -> Result<&'a types::sites::Site, HereError> {
    Ok(sites.site(name)?)
}

/// A job without a program: agents only report whether they could run one.
pub(crate) fn nothing() -> Typed {
    let part = Part { directory: b"/".to_vec(), ..Part::default() };
    let parts = vec![TypedPart { part, ..TypedPart::default() }];
    Typed { parts, environment: travelling(std::env::vars_os()), homes: homes(), ..Typed::default() }
}

/// Removes a site's files from this account. The copies and the sites file are removed with the account's last site.
fn forget(folders: &Folders, site: &str, base: &str) -> Result<String, HereError> {
    folders.remove(&folders.key(site))?;
    for half in folders.trunk_key(site) {
        folders.remove(&half)?;
    }
    access::let_nobody_in(site)?;
    folders.remove(&folders.state_file(site))?;
    for log in folders.logs(site) {
        folders.remove(&log)?;
    }
    let left = folders.keys()?;
    if !left.is_empty() {
        return Ok(format!("key and log removed; the copies stay for {}", left.join(", ")));
    }
    folders.remove(&folders.sites_file())?;
    folders.remove(&folders.sites_file_before())?;
    folders.remove(&folders.sums())?;
    folders.remove(&starters::tunnel::known_hosts(&folders.configuration))?;
    link::remove(base.as_ref())?;
    folders::remove_releases(base.as_ref())?;
    for folder in [&folders.configuration, &folders.state] {
        // Any other file in these folders belongs to the user.
        let _ = std::fs::remove_dir(folder);
    }
    Ok("key, log, sites file and copies removed".to_owned())
}

/// A finding about this end that the user sees beside the findings of [`check`].
pub(crate) fn finding(site: &str, part: &str, text: impl Into<String>) -> Finding {
    Finding::new(site, part, Ok::<_, std::convert::Infallible>(text.into()))
}
