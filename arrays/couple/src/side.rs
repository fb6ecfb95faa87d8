//! Joining a coupling: each rank of a side gets its part in it.
//!
//! The first rank starts the helper, which returns the sites and their gateways. Each rank opens a port. The first rank
//! gathers their addresses for the helper. When the other side has come, the first rank broadcasts the helper's
//! description of the job, with the job's secret sealed for each rank, and each rank opens its part. In the end either
//! all ranks have a part, or all have the same error.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use endpoint::JobConfig;
use endpoint::config::SiteGateway;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use types::Rank;
use types::coupling::{Coupled, CouplingSite, HelperOrder, HelperReport, Process, name_and_site};
use types::id::is_link_local;
use types::sites::Keys;

use crate::call::Patience;
use crate::helper::Helper;
use crate::secret::{Sealed, SecretReceiver};
use crate::{Coupling, CouplingMembership};

/// Time limit for the helper to read the sites file and to reach its gateway.
const HOME: Duration = Duration::from_secs(60);
const NO_RANDOM: &str = "no key for the job's secret: this system has no random numbers";
/// Maximum length of a node's name.
const LONGEST_NODE: usize = 64;

/// The ranks of a side, which all call the same functions in the same order.
pub trait Ranks {
    fn rank(&self) -> u32;

    /// Returns the bytes of the first rank. The others wait for them without using their core.
    ///
    /// # Errors
    /// The ranks cannot reach each other.
    fn broadcast(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, RanksError>;

    /// Returns the bytes of each rank.
    ///
    /// # Errors
    /// As [`Ranks::broadcast`].
    fn gather(&mut self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, RanksError>;
}

/// The ranks of a side could not exchange data.
#[derive(Clone, Debug, Error)]
#[error("{0}")]
pub struct RanksError(pub String);

/// A side of one process.
pub struct Alone;

impl Ranks for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn broadcast(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, RanksError> {
        Ok(bytes)
    }

    fn gather(&mut self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, RanksError> {
        Ok(vec![own])
    }
}

/// A request to join a coupling.
#[derive(Clone, Debug)]
pub struct JoinRequest {
    /// The coupling's name, such as `ocean@lyon`.
    pub name: String,
    /// The site this program was started at; `None`: the site whose key is on this machine.
    pub site: Option<String>,
    /// The command `landbridge`, or the reason why there is none. Only the first rank uses it.
    pub command: Result<PathBuf, NoCommand>,
}

/// The reason why there is no command `landbridge`.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("{0}")]
pub struct NoCommand(pub String);

/// Reasons why there is no coupling; the same on all ranks.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum JoinError {
    #[error("no coupling within {seconds} s: {waiting}")]
    Slow { seconds: f64, waiting: String },
    #[error("{0}")]
    Over(String),
    /// The caller's own check has stopped the call.
    #[error("interrupted")]
    Interrupted,
}

/// The reason why one rank cannot take part. The ranks exchange it as text.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
#[serde(transparent)]
#[error("{0}")]
struct RankFailure(String);

impl RankFailure {
    fn new(reason: impl std::fmt::Display) -> RankFailure {
        RankFailure(reason.to_string())
    }
}

/// A rank's part in a coupling.
pub struct Side {
    pub coupling: Coupling,
    /// Name of the other side, for messages.
    pub other: String,
    helper: Mutex<Option<Helper>>,
}

/// The helper's first answer, which the first rank broadcasts.
#[derive(Serialize, Deserialize)]
struct Home {
    site: String,
    sites: Vec<CouplingSite>,
}

impl Side {
    /// Joins a coupling; collective. `patience` limits the wait for the other side.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(ranks: &mut dyn Ranks, request: &JoinRequest, patience: &mut Patience<'_>) -> Result<Side, JoinError> {
        let mut helper = None;
        let joined = Side::try_to(ranks, request, patience, &mut helper);
        if let (Err(error), Some(helper)) = (&joined, helper.take()) {
            helper.leave(&error.to_string());
        }
        joined
    }

    fn try_to(
        ranks: &mut dyn Ranks,
        request: &JoinRequest,
        patience: &mut Patience<'_>,
        helper: &mut Option<Helper>,
    ) -> Result<Side, JoinError> {
        // The caller's limit is for the whole call.
        let (first, begun) = (ranks.rank() == 0, Instant::now());
        let home: Home = passed_on(ranks, first.then(|| start(request, patience, begun, helper)))?;
        let opened = open(&home);
        let own = SecretReceiver::new().map_err(|_| RankFailure::new(NO_RANDOM));
        let told = match (&opened, &own) {
            (Ok((_, process)), Ok(own)) => Ok((process.clone(), own.public().to_vec())),
            (Err(error), _) => Err(RankFailure::new(error)),
            (_, Err(error)) => Err(error.clone()),
        };
        let (processes, mut coupled, sealed): (Vec<Process>, Coupled, Vec<Sealed>) = {
            let told: Vec<Result<(Process, Vec<u8>), RankFailure>> = gathered(ranks, &told)?;
            let work = || {
                let told = told.into_iter().collect::<Result<Vec<(Process, Vec<u8>)>, RankFailure>>();
                let (processes, keys): (Vec<Process>, Vec<Vec<u8>>) = told.map_err(over)?.into_iter().unzip();
                let helper = helper.as_mut().ok_or_else(|| over("there is no helper"))?;
                helper.tell(&HelperOrder::Processes(processes.clone()));
                match helper.next(patience, begun)? {
                    HelperReport::Coupled(mut coupled) => {
                        let secret = std::mem::take(&mut coupled.secret);
                        let sealed = keys.iter().map(|key| Sealed::new(&secret, key));
                        let sealed = sealed.collect::<Result<_, _>>().map_err(|_| over(NO_RANDOM))?;
                        Ok((processes, *coupled, sealed))
                    }
                    said => Err(over(format_args!("bad line from its helper: {said:?}"))),
                }
            };
            passed_on(ranks, first.then(work))?
        };
        let part = opened.map_err(RankFailure::new).and_then(|(listener, process)| {
            let sealed = sealed.into_iter().nth(ranks.rank() as usize);
            let sealed = sealed.ok_or_else(|| RankFailure::new("no secret of the job for this process"))?;
            let changed = |_| RankFailure::new("the secret of the job has changed on its way through this side's MPI");
            coupled.secret = own?.open(sealed).map_err(changed)?;
            let here = home.sites.iter().find(|place| place.name == process.site);
            let here = here.ok_or_else(|| RankFailure::new("its site is gone"))?;
            let place = placed(ranks.rank(), here, &processes, &coupled)?;
            Coupling::open(listener, place).map_err(RankFailure::new)
        });
        let all: Vec<Option<String>> = gathered(ranks, &part.as_ref().err())?;
        if let Some((rank, text)) = all.iter().enumerate().find_map(|(rank, text)| Some((rank, text.as_ref()?))) {
            // If the other side has left meanwhile, its gateways may report that before its own reason arrives.
            let ended = || helper.as_ref().and_then(Helper::reason).map_or(Ok(format!("rank {rank}: {text}")), Ok);
            return Err(JoinError::Over(passed_on(ranks, first.then(ended))?));
        }
        let coupling = part.map_err(over)?;
        let helper = helper.take();
        if let Some(helper) = &helper {
            let fail = coupling.failing();
            helper.watch(Box::new(move |reason| fail(reason)));
            // The partner learns the reason now, even if the program closes its coupling much later.
            coupling.watch(helper.leaving());
        }
        Ok(Side { coupling, other: coupled.other, helper: Mutex::new(helper) })
    }

    /// Ends this rank's part. On the first rank, this ends the coupling, for this reason.
    pub fn end(&self, reason: &str) {
        self.coupling.close();
        let helper = self.helper.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(helper) = helper {
            helper.leave(reason);
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.end("its process has dropped it");
    }
}

fn over(text: impl std::fmt::Display) -> JoinError {
    JoinError::Over(text.to_string())
}

/// Broadcasts the first rank's result, or its error, to all ranks. `found`: that result, on the first rank only.
fn passed_on<T: Serialize + DeserializeOwned>(
    ranks: &mut dyn Ranks,
    found: Option<Result<T, JoinError>>,
) -> Result<T, JoinError> {
    let bytes = found.map(|found| serde_json::to_vec(&found)).transpose().map_err(over)?;
    let bytes = ranks.broadcast(bytes.unwrap_or_default()).map_err(over)?;
    serde_json::from_slice::<Result<T, JoinError>>(&bytes).map_err(over)?
}

fn gathered<T: Serialize, U: DeserializeOwned>(ranks: &mut dyn Ranks, own: &T) -> Result<Vec<U>, JoinError> {
    let all = ranks.gather(serde_json::to_vec(own).map_err(over)?).map_err(over)?;
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(over)).collect()
}

fn start(
    request: &JoinRequest,
    patience: &mut Patience<'_>,
    begun: Instant,
    place: &mut Option<Helper>,
) -> Result<Home, JoinError> {
    name_and_site(&request.name).map_err(over)?;
    let command = request.command.as_ref().map_err(over)?;
    let helper = Helper::start(command, &request.name, request.site.as_deref()).map_err(over)?;
    let limit = Some(patience.limit.map_or(HOME, |limit| limit.min(HOME)));
    let said = place.insert(helper).next(&mut Patience { limit, stop: &mut *patience.stop }, begun)?;
    match said {
        HelperReport::Home { site, sites } => Ok(Home { site, sites }),
        said => Err(over(format_args!("bad line from its helper: {said:?}"))),
    }
}

/// Opens this process's port. Returns it with the process's site, node and address.
fn open(home: &Home) -> io::Result<(TcpListener, Process)> {
    let site = std::env::var("LANDBRIDGE_SITE_NAME").ok().filter(|name| !name.is_empty());
    let site = site.unwrap_or_else(|| home.site.clone());
    let here = home.sites.iter().find(|place| place.name == site).ok_or_else(|| {
        let text = format!("this process is at site {site}, which is not in the sites file of site {}", home.site);
        io::Error::other(text)
    })?;
    let listener = TcpListener::bind((own_address(here)?, 0))?;
    let address = listener.local_addr()?;
    Ok((listener, Process { site, node: node(), address }))
}

/// This process's address towards the first gateway of its site that it has a route to.
fn own_address(here: &CouplingSite) -> io::Result<IpAddr> {
    let mut last = io::Error::other(format!("site {} has no gateway", here.name));
    for (name, gateway) in &here.gateways {
        let problem = match numeric(gateway) {
            Ok((_, Some(own))) if !is_link_local(own.ip()) => return Ok(own.ip()),
            Ok((_, Some(own))) => format!("this process reaches {gateway} from the link-local address {}", own.ip()),
            Ok((_, None)) => format!("this machine has no route to {gateway}"),
            Err(error) => error.to_string(),
        };
        last = io::Error::other(format!("site {}: gateway {name}: {problem}", here.name));
    }
    Err(last)
}

/// The node's name, in the form that rosters accept.
fn node() -> String {
    let name = std::env::var("LANDBRIDGE_NODE_NAME").ok().filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let fits = |each: char| if each.is_ascii_alphanumeric() || "._-".contains(each) { each } else { '-' };
    let name: String = name.chars().map(fits).take(LONGEST_NODE).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}

/// The first address of a host and port that this machine has a route to, and this machine's address on that route.
/// Without a route, the first address: a route may come later.
fn numeric(address: &str) -> io::Result<(SocketAddr, Option<SocketAddr>)> {
    let failed = |e: io::Error| io::Error::new(e.kind(), format!("{address}: {e}"));
    let mut first = None;
    for found in address.to_socket_addrs().map_err(failed)? {
        match route_to(found) {
            Ok(own) => return Ok((found, Some(own))),
            Err(_) => _ = first.get_or_insert(found),
        }
    }
    first.map(|found| (found, None)).ok_or_else(|| failed(io::Error::other("the name has no address")))
}

/// This machine's address from which a packet to `there` would leave. Sends nothing.
fn route_to(there: SocketAddr) -> io::Result<SocketAddr> {
    let probe = match there {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }?;
    probe.connect(there)?;
    probe.local_addr()
}

/// A rank's place in the coupling's job.
fn placed(
    rank: u32,
    here: &CouplingSite,
    processes: &[Process],
    coupled: &Coupled,
) -> Result<CouplingMembership, RankFailure> {
    let text = |what: &str, error: &dyn std::fmt::Display| RankFailure(format!("{what}: {error}"));
    let own = coupled.ranks[0].get(rank as usize).copied();
    let own = own.ok_or_else(|| RankFailure::new("this process has no rank"))?;
    let gateway = |(name, address): &(String, String)| {
        let (address, _) = numeric(address)?;
        Ok(SiteGateway { site: here.name.clone(), name: name.clone(), address })
    };
    let (gateways, failed): (Vec<_>, Vec<io::Result<SiteGateway>>) =
        here.gateways.iter().map(gateway).partition(Result::is_ok);
    // A gateway whose name has no address here is left out if there is another.
    if let (true, Some(Err(error))) = (gateways.is_empty(), failed.into_iter().next()) {
        return Err(RankFailure::new(error));
    }
    let key = |key: &String| key.parse().map_err(|e| text("a key", &e));
    let keys = here.keys.iter().map(key).collect::<Result<Vec<_>, RankFailure>>()?;
    let job = JobConfig {
        id: coupled.job.parse().map_err(|e| text("the job", &e))?,
        secret: coupled.secret.parse().map_err(|e| text("the secret", &e))?,
        roster: coupled.roster.parse().map_err(|e| text("the roster", &e))?,
        rank: Rank(own),
        gateways: gateways.into_iter().flatten().collect(),
        watched: true,
        window: coupled.window,
        memory: Vec::new(),
        encrypted: keys.first().map(|current| Keys { current: *current, next: keys.get(1).copied() }),
    };
    let side = |ranks: &[u32], addresses: Vec<SocketAddr>| {
        if ranks.len() != addresses.len() {
            return Err(RankFailure(format!("{} processes, but {} addresses", ranks.len(), addresses.len())));
        }
        Ok(ranks.iter().map(|rank| Rank(*rank)).zip(addresses).collect())
    };
    let [of_ours, of_theirs] = &coupled.ranks;
    let ours = side(of_ours, processes.iter().map(|process| process.address).collect())?;
    Ok(CouplingMembership { job, process: rank, sides: [ours, side(of_theirs, coupled.addresses.clone())?] })
}

#[cfg(test)]
mod tests;
