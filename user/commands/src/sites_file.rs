//! Finding and reading the sites file, and determining the site of this machine.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use client::ClientError;
use launcher::{SessionError, Sites};
use setup::here::folders::{Folders, read_sites};
use tokio::time::timeout;
use types::SitesFile;
use types::sites::Site;

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
/// this machine reaches. Sites may use the same addresses, so a gateway that holds another site's key does not count.
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
        let mut found = best(site.gateways.iter().map(|gateway| nearness(&gateway.inside)));
        let is_shared = usable.iter().any(|other| other.name != site.name && have_an_address_in_common(site, other));
        if found == Nearness::Answers && is_shared && holds_another_key(sites, site) {
            found = Nearness::Other;
        }
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
    let problems = sites.file.sites.iter().filter_map(|site| sites.client_secret(site).err());
    let problems = problems.map(|e| e.to_string()).collect::<Vec<_>>().join("; ");
    Err(refusal!(
        "at which site is this? No site's key can be used here: {problems}. Correct that, or name the site with --from or {OWN_SITE}"
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

/// True if a gateway proves that it holds the key of another site. One that proves nothing in time may be frozen.
fn holds_another_key(sites: &Sites, site: &Site) -> bool {
    let connect = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        runtime.block_on(async { timeout(PROOF, sites.connect(site)).await }).ok()?.err()
    };
    // The caller may be a task of a runtime.
    let failed = std::thread::scope(|scope| scope.spawn(connect).join().ok().flatten());
    matches!(failed, Some(SessionError::Gateway { source: ClientError::OtherKey { .. }, .. }))
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
