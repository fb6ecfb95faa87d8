//! Finding and reading the sites file, and determining the site of this machine.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::{Client, ClientError, Role};
use launcher::Sites;
use launcher::session::dialled;
use setup::here::folders::{Folders, read_sites};
use tokio::task::JoinSet;
use tokio::time::timeout;
use types::SitesFile;
use types::sites::{Fingerprint, Site};

use crate::error::{CommandError, Context, Result, refusal, refuse};

const VARIABLE: &str = "LANDBRIDGE_SITES";
const OWN_SITE: &str = "LANDBRIDGE_SITE_NAME";

/// The path of the sites file, which the user may have `named`. An error if there is none.
pub fn locate(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = find(named)? {
        return Ok(path);
    }
    refuse!(
        "no sites file: `landbridge sites add NAME [USER@]HOST` begins one; or give --sites FILE, set {VARIABLE}, or \
         write {}",
        place(named)?.display()
    )
}

/// The path of the sites file. `None` if the user has named none and the default one does not exist.
pub fn find(named: Option<&Path>) -> Result<Option<PathBuf>> {
    let path = place(named)?;
    let is_named = named.is_some() || std::env::var_os(VARIABLE).is_some_and(|path| !path.is_empty());
    Ok(Some(path).filter(|path| is_named || path.exists()))
}

/// The path of the sites file, whether it exists or not.
pub fn place(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    Ok(Folders::of_user()?.sites_file())
}

/// Reads the sites file.
pub fn read(path: &Path) -> Result<Sites> {
    let name = path.display().to_string();
    let text = read_sites(path).map_err(|error| refusal!("sites file {error}"))?;
    let text = text.with_context(|| format!("sites file {name}: No such file or directory"))?;
    let file = SitesFile::parse(&text, &name)?;
    let folder = std::path::absolute(path)?.parent().unwrap_or(Path::new("/")).to_owned();
    Ok(Sites { file, folder, secret: None })
}

/// Time limit for a gateway's machine to answer.
const NEAR: Duration = Duration::from_millis(500);
/// Time limit for a gateway to prove that it holds its site's key.
const PROOF: Duration = Duration::from_secs(2);

/// The site of this machine: the one given by the user, else the only one whose key is readable. Of several, the first
/// one with a gateway on this machine; else the first whose gateway's machine answers, or at least is in a network that
/// this machine reaches. If sites use the same addresses, the first one whose key a gateway proves to hold.
pub fn own_site(sites: &Sites, from: Option<&str>) -> Result<String> {
    let named = from.map(str::to_owned).or_else(named_site);
    if let Some(name) = named {
        sites.site(&name).map_err(CommandError::option)?;
        return Ok(name);
    }
    let mut usable: Vec<_> = sites.file.sites.iter().filter(|site| sites.client_secret(site).is_ok()).collect();
    if let [only] = usable[..] {
        return Ok(only.name.clone());
    }
    usable.sort_by_key(|site| !site.gateways.iter().any(|gateway| is_here(&gateway.inside)));
    // If none answers, connecting to the best one reports the problem.
    let mut own: Option<(Nearness, &Site)> = None;
    for site in usable.iter().copied() {
        let is_shared = usable.iter().any(|other| other.name != site.name && have_an_address_in_common(site, other));
        let found = match if is_shared { holder(sites, site) } else { Holder::Unknown } {
            Holder::Site => Nearness::Answers,
            Holder::Another => Nearness::Other,
            Holder::Unknown => {
                let found = best(site.gateways.iter().map(|gateway| nearness(&gateway.inside)));
                // A machine that answers at an address of two sites shows nothing.
                if is_shared { found.max(Nearness::Silent) } else { found }
            }
        };
        if own.is_none_or(|(best, _)| found < best) {
            own = Some((found, site));
        }
        if found == Nearness::Answers {
            break;
        }
    }
    if let Some((_, own)) = own {
        return Ok(own.name.clone());
    }
    let problems = sites.key_problems();
    Err(refusal!(
        "at which site is this? No site's key can be used here: {problems}. Correct that, or name the site with --from or {OWN_SITE}"
    ))
}

/// The reason why another site than this machine's may have been taken for its own: the user has named none, and the
/// sites file has several. `None`: there is no doubt.
pub fn doubt(sites: &Sites, from: Option<&str>, own: &str) -> Option<String> {
    if from.is_some() || named_site().is_some() || sites.file.sites.len() < 2 {
        return None;
    }
    let problem = |site: &Site| sites.client_secret(site).err().map(|error| error.to_string());
    let others = sites.file.sites.iter().filter(|site| site.name != own);
    let problems: Vec<String> = others.filter(|site| site.key.is_some()).filter_map(problem).collect();
    let because = if problems.is_empty() { String::new() } else { format!(" ({})", problems.join("; ")) };
    Some(format!(
        "this machine was taken for one of site {own}{because}: if it is another site's, name that with --from or {OWN_SITE}"
    ))
}

/// The site named by `OWN_SITE`.
pub fn named_site() -> Option<String> {
    std::env::var(OWN_SITE).ok().filter(|name| !name.is_empty())
}

/// The reach of a gateway's machine from here, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Nearness {
    Answers,
    Silent,
    Unreachable,
    /// At its address is another site's gateway.
    Other,
}

/// A machine answers even if it refuses the connection: the own site's gateway may be down, while gateways of other
/// sites are unreachable at their inside addresses. Towards a silent one this machine has a route at least.
fn nearness(address: &str) -> Nearness {
    let reach = |address| match TcpStream::connect_timeout(&address, NEAR) {
        Ok(_) => Nearness::Answers,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Nearness::Answers,
        Err(error) if error.kind() == ErrorKind::NetworkUnreachable => Nearness::Unreachable,
        Err(_) => Nearness::Silent,
    };
    best(resolved(address).map(reach))
}

/// The first addresses of a `host:port`; none if the name has none.
fn resolved(address: &str) -> impl Iterator<Item = SocketAddr> {
    address.to_socket_addrs().into_iter().flatten().take(4)
}

/// True if the address is one of this machine's own. A loopback address may be the end of a tunnel.
fn is_here(address: &str) -> bool {
    let own = |address: SocketAddr| {
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Nothing is sent; the system only chooses the address from which it would send.
        socket.connect(address).ok()?;
        Some(socket.local_addr().ok()?.ip() == address.ip() && !address.ip().is_loopback())
    };
    resolved(address).any(|address| own(address) == Some(true))
}

fn have_an_address_in_common(one: &Site, other: &Site) -> bool {
    one.gateways.iter().any(|gateway| other.gateways.iter().any(|of_other| of_other.inside == gateway.inside))
}

/// The owner of the key that a site's gateways prove to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Site,
    /// Another site of the sites file.
    Another,
    /// None has proved anything in time: they may be frozen, or other programs.
    Unknown,
}

/// Asks all gateways of a site side by side to prove their key. The first one that proves the key of any site decides.
fn holder(sites: &Sites, site: &Site) -> Holder {
    let Ok(secret) = sites.client_secret(site) else { return Holder::Unknown };
    let prove = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let mut attempts = JoinSet::new();
        let role = Role::Client { secret };
        let gateways = site.gateways.iter().map(|gateway| dialled(site, gateway));
        runtime.block_on(async {
            for gateway in gateways {
                let role = role.clone();
                attempts.spawn(async move { Client::connect(&gateway, &role).await.map(drop) });
            }
            let first = async {
                while let Some(attempt) = attempts.join_next().await {
                    match attempt {
                        Ok(Ok(())) => return Some(Holder::Site),
                        Ok(Err(ClientError::OtherKey { shown, .. })) if is_anothers(sites, site, shown) => {
                            return Some(Holder::Another);
                        }
                        Ok(Err(_)) | Err(_) => {}
                    }
                }
                None
            };
            timeout(PROOF, first).await.ok().flatten()
        })
    };
    // The caller may be a task of a runtime.
    std::thread::scope(|scope| scope.spawn(prove).join().ok().flatten()).unwrap_or(Holder::Unknown)
}

fn is_anothers(sites: &Sites, site: &Site, key: Fingerprint) -> bool {
    sites.file.sites.iter().any(|other| other.name != site.name && other.keys().accept(Some(key)))
}

/// The best of these. Tries none after one that answers.
fn best(each: impl Iterator<Item = Nearness>) -> Nearness {
    let mut best = Nearness::Unreachable;
    for found in each {
        best = best.min(found);
        if best == Nearness::Answers {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_tried_after_a_machine_that_answers() {
        let mut tried = Vec::new();
        let given = [Nearness::Unreachable, Nearness::Silent, Nearness::Answers, Nearness::Silent];
        assert_eq!(best(given.into_iter().inspect(|found| tried.push(*found))), Nearness::Answers);
        assert_eq!(tried, given[..3]);
        assert_eq!(best(given[..2].iter().copied()), Nearness::Silent);
        assert_eq!(best(std::iter::empty()), Nearness::Unreachable);
    }
}
