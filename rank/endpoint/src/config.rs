//! Configuration of an endpoint: its listener, its job, the site's own network, and limits.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use libfabric::{Fault, FindError, Libfabric, Port};
use thiserror::Error;
use types::id::{is_link_local, plain};
use types::settings::{self, SettingError};
use types::sites::{Fingerprint, FingerprintError, Keys};
use types::{JobId, Rank, Roster};
use wire::Secret;

/// Configuration of an endpoint. In a job it comes from the environment that the agent set ([`Config::from_env`]).
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the listener. Port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// True if an endpoint of the job, or this one, has an IPv6 address. The addresses that programs exchange then have
    /// the length of a `sockaddr_in6`; all processes of a job must agree on that.
    pub ipv6: bool,
    /// The job; `None` outside a job, where every peer is trusted.
    pub job: Option<JobConfig>,
    /// The site's own network; `None`: ranks of a site talk over TCP.
    pub native: Option<NativeConfig>,
    /// Limits; change them when memory is scarce or bandwidth-delay products are large.
    pub limits: EndpointLimits,
}

/// The site's own network, reached through one of libfabric's providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeConfig {
    /// The provider, such as `verbs`, `cxi`, `tcp`.
    pub provider: String,
    /// The libfabric that contains the provider; `None`: the one that MPI uses, else one of the system's.
    pub library: Option<PathBuf>,
}

/// An endpoint's place in a job.
#[derive(Clone, Debug)]
pub struct JobConfig {
    pub id: JobId,
    /// The secret that members of the job prove.
    pub secret: Secret,
    /// The site and node of each rank.
    pub roster: Roster,
    pub rank: Rank,
    /// The gateways of this rank's site, for reaching other sites. If the job has one site they are dialled only for a
    /// rank that is `watched`.
    pub gateways: Vec<SiteGateway>,
    /// True if gateways look after this rank, as in a job without agents.
    pub watched: bool,
    /// Bytes that may initially be in flight to all peers behind gateways together. The limit grows once there is room
    /// for more.
    pub window: u32,
    /// Paths of the region that this rank shares with its neighbours, to be tried in this order. Empty: there is none.
    pub memory: Vec<PathBuf>,
    /// The keys of this rank's site, if its network is shared with strangers: traffic to the site's ranks and gateways
    /// uses TLS, and a peer without TLS is refused. `None`: no TLS.
    pub encrypted: Option<Keys>,
}

/// A gateway of a rank's site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteGateway {
    /// Name of the site.
    pub site: String,
    pub name: String,
    /// The address to dial.
    pub address: SocketAddr,
}

/// Limits of an endpoint.
#[derive(Clone, Copy, Debug)]
pub struct EndpointLimits {
    /// Maximum number of bytes of a message that are sent eagerly to a peer of the same site. Default 1 MiB
    /// (`LANDBRIDGE_EAGER`).
    pub eager: u64,
    /// The same for peers behind gateways, where a rendezvous costs a WAN round trip. Default 1 MiB
    /// (`LANDBRIDGE_EAGER_REMOTE`).
    pub eager_remote: u64,
    /// The same for peers that share memory with us, where a rendezvous costs a microsecond and an unexpected message
    /// is copied twice. Default 64 KiB (`LANDBRIDGE_EAGER_MEMORY`; agents set 8 KiB where ranks share cores).
    pub eager_memory: u64,
    /// Frames in shared memory with at least this many bytes go by single copy, where the kernel allows it
    /// (`LANDBRIDGE_SINGLE_COPY`). Default 128 KiB, or 16 KiB where writing into a ring turns out to be slow.
    pub single_copy: Option<u64>,
    /// Maximum length of the messages that a program may submit for copying, instead of keeping them in place until
    /// they are sent. Default 4 KiB, at most 16 KiB (`LANDBRIDGE_INJECT`).
    pub inject: u64,
    /// Maximum number of bytes stored for unexpected messages, over all peers. Default 64 MiB
    /// (`LANDBRIDGE_UNEXPECTED`).
    pub unexpected: u64,
    /// Maximum number of bytes in our own copies of outgoing messages, over all peers, before operations are refused
    /// with "again". Default 64 MiB.
    pub buffered: u64,
    /// Time limit for a peer to accept a connection. Default 10 s.
    pub connect: Duration,
    /// Time limit for queued bytes to leave on close. Default 10 s.
    pub linger: Duration,
}

impl Default for EndpointLimits {
    fn default() -> EndpointLimits {
        EndpointLimits {
            eager: 1 << 20,
            eager_remote: 1 << 20,
            eager_memory: 64 << 10,
            single_copy: None,
            inject: 4 << 10,
            unexpected: 64 << 20,
            buffered: 64 << 20,
            connect: Duration::from_secs(10),
            linger: Duration::from_secs(10),
        }
    }
}

/// An invalid environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("environment variable {name}={value}: {problem}")]
pub struct ConfigError {
    /// The variable.
    pub name: &'static str,
    /// Its value (secrets are not shown).
    pub value: String,
    /// The problem, in words.
    pub problem: String,
}

impl Config {
    /// A configuration outside any job, with this address for the listener.
    pub fn standalone(listen: SocketAddr) -> Config {
        Config { listen, ipv6: plain(listen).is_ipv6(), job: None, native: None, limits: EndpointLimits::default() }
    }

    /// Reads the environment: `LANDBRIDGE_JOB`, `_SECRET`, `_ROSTER`, `_RANK`, `_ADDRESS`, `_GATEWAYS`, `_WINDOW`,
    /// `_MEMORY`, `_MEMORY_FD`, `_INSIDE_KEYS` (the site's keys; set if ranks must use TLS), `_FABRIC` (the site's own
    /// network, by libfabric's provider), `_LIBFABRIC` (path of a libfabric that contains it), `_IPV6` (set if a
    /// process of the job has an IPv6 address), and the limits. Without `LANDBRIDGE_JOB`: standalone on
    /// `LANDBRIDGE_ADDRESS` or 127.0.0.1. `lookup` returns a variable's value.
    ///
    /// # Errors
    /// [`ConfigError`]: a variable of a job is missing or malformed.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
        let env = Env { lookup: &lookup };
        let ip = env.address()?;
        let job = match env.text("LANDBRIDGE_JOB") {
            None => None,
            Some(_) => Some(JobConfig {
                id: env.required("LANDBRIDGE_JOB")?,
                secret: env.secret()?,
                roster: env.required("LANDBRIDGE_ROSTER")?,
                rank: Rank(env.required("LANDBRIDGE_RANK")?),
                gateways: env.gateways()?,
                watched: false,
                window: env.parse("LANDBRIDGE_WINDOW")?.unwrap_or(DEFAULT_WINDOW),
                memory: env.memory()?,
                encrypted: env.keys()?,
            }),
        };
        if let Some(job) = &job
            && job.roster.place(job.rank).is_none()
        {
            let problem = format!("the job has only {} ranks", job.roster.size());
            return Err(ConfigError { name: "LANDBRIDGE_RANK", value: job.rank.to_string(), problem });
        }
        let mut limits = EndpointLimits::default();
        limits.eager = env.size(settings::EAGER)?.unwrap_or(limits.eager);
        limits.eager_remote = env.size(settings::EAGER_REMOTE)?.unwrap_or(limits.eager_remote);
        limits.eager_memory = env.size(settings::EAGER_MEMORY)?.unwrap_or(limits.eager_memory);
        limits.single_copy = env.size(settings::SINGLE_COPY)?.map(|least| least.max(1));
        limits.inject = env.size(settings::INJECT)?.unwrap_or(limits.inject);
        limits.unexpected = env.size(settings::UNEXPECTED)?.unwrap_or(limits.unexpected);
        let native = env
            .text("LANDBRIDGE_FABRIC")
            .map(|provider| NativeConfig { provider, library: env.text("LANDBRIDGE_LIBFABRIC").map(PathBuf::from) });
        if let (Some(native), true) = (&native, job.as_ref().is_some_and(|job| job.encrypted.is_some())) {
            let problem =
                "a fabric cannot be encrypted, but this site requires TLS between ranks (`inside = \"encrypted\"`)"
                    .to_owned();
            return Err(ConfigError { name: "LANDBRIDGE_FABRIC", value: native.provider.clone(), problem });
        }
        let ipv6 = ip.is_ipv6() || env.text("LANDBRIDGE_IPV6").is_some();
        Ok(Config { listen: SocketAddr::new(ip, 0), ipv6, job, native, limits })
    }
}

/// Reasons why a site's own network cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NativeError {
    /// No libfabric offers its provider.
    #[error(transparent)]
    Find(#[from] FindError),
    /// A libfabric offers the provider, but cannot open a port.
    #[error("{library}: {fault}")]
    Port {
        /// Its file and version.
        library: String,
        /// The call that failed.
        fault: Fault,
    },
}

impl NativeConfig {
    /// Opens a port on the network, at this address if it has several.
    pub(crate) fn open(&self, address: IpAddr) -> Result<Port, NativeError> {
        let found = Libfabric::offering(&self.provider, self.library.as_deref(), Some(address));
        let (library, offer) = found?;
        Port::open(&library, offer, FRAME, RECEIVES)
            .map_err(|fault| NativeError::Port { library: format!("{library:?}"), fault })
    }
}

/// Bytes of a frame on a site's own network: long enough that the fixed cost of a frame hardly matters, short enough
/// that several fit a cache.
const FRAME: usize = 64 << 10;
/// Number of receives posted at a time.
const RECEIVES: usize = 64;
const DEFAULT_WINDOW: u32 = 1 << 20;

struct Env<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl Env<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|value| !value.is_empty())
    }

    fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        value.parse::<T>().map(Some).map_err(|e| ConfigError { name, value: value.clone(), problem: e.to_string() })
    }

    fn required<T: std::str::FromStr<Err: std::fmt::Display>>(&self, name: &'static str) -> Result<T, ConfigError> {
        let missing =
            || ConfigError { name, value: String::new(), problem: "missing, although LANDBRIDGE_JOB is set".into() };
        self.parse(name)?.ok_or_else(missing)
    }

    fn secret(&self) -> Result<Secret, ConfigError> {
        let name = "LANDBRIDGE_SECRET";
        let text = self.text(name).ok_or_else(|| {
            let problem = "missing, although LANDBRIDGE_JOB is set: ranks inherit it in descriptor \
                           LANDBRIDGE_SECRET_FD. The program that starts this one must leave it open (in Python: \
                           close_fds=False), and only the first program that loads the provider can read it";
            ConfigError { name, value: String::new(), problem: problem.into() }
        })?;
        text.parse().map_err(|problem: &str| ConfigError { name, value: "…".into(), problem: problem.into() })
    }

    /// Paths of the region: the descriptor that this rank inherited, then the agent's path. Which of them can be opened
    /// depends on the programs and containers between the agent and this rank.
    fn memory(&self) -> Result<Vec<PathBuf>, ConfigError> {
        let Some(path) = self.text("LANDBRIDGE_MEMORY") else { return Ok(Vec::new()) };
        let inherited: Option<u32> = self.parse("LANDBRIDGE_MEMORY_FD")?;
        let inherited = inherited.map(|descriptor| PathBuf::from(format!("/proc/self/fd/{descriptor}")));
        Ok(inherited.into_iter().chain([PathBuf::from(path)]).collect())
    }

    fn address(&self) -> Result<IpAddr, ConfigError> {
        let name = "LANDBRIDGE_ADDRESS";
        let ip = self.parse(name)?.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)).to_canonical();
        if is_link_local(ip) {
            let problem = "a link-local address means nothing without an interface: name another address of this node";
            return Err(ConfigError { name, value: ip.to_string(), problem: problem.into() });
        }
        Ok(ip)
    }

    fn gateways(&self) -> Result<Vec<SiteGateway>, ConfigError> {
        let name = "LANDBRIDGE_GATEWAYS";
        let text = self.text(name).unwrap_or_default();
        let site = self.text("LANDBRIDGE_SITE_NAME").unwrap_or_default();
        let item = |word: &str| {
            let problem = || "expected NAME=IP:PORT, with the gateway's name".to_owned();
            let wrong = || ConfigError { name, value: word.to_owned(), problem: problem() };
            let (gateway, address) = word.split_once('=').ok_or_else(wrong)?;
            let address: SocketAddr = address.parse().map_err(|_| wrong())?;
            Ok(SiteGateway { site: site.clone(), name: gateway.to_owned(), address: plain(address) })
        };
        text.split(',').filter(|word| !word.is_empty()).map(item).collect()
    }

    fn keys(&self) -> Result<Option<Keys>, ConfigError> {
        let name = "LANDBRIDGE_INSIDE_KEYS";
        let Some(text) = self.text(name) else { return Ok(None) };
        let key = |text: &str| {
            let wrong = |e: FingerprintError| ConfigError { name, value: text.to_owned(), problem: e.to_string() };
            text.parse::<Fingerprint>().map_err(wrong)
        };
        match text.split_once(',') {
            None => Ok(Some(Keys { current: key(&text)?, next: None })),
            Some((current, next)) => Ok(Some(Keys { current: key(current)?, next: Some(key(next)?) })),
        }
    }

    fn size(&self, name: &'static str) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let wrong =
            |e: SettingError| ConfigError { name, value: e.value.to_string(), problem: format!("give {}", e.accepted) };
        settings::size(name, &value).map(Some).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(extra: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let secret = "a5".repeat(32);
        let base = [
            ("LANDBRIDGE_JOB", "0000beef"),
            ("LANDBRIDGE_SECRET", secret.as_str()),
            ("LANDBRIDGE_ROSTER", "a:n1*2;b:n1*2"),
            ("LANDBRIDGE_RANK", "3"),
            ("LANDBRIDGE_ADDRESS", "10.2.0.1"),
            ("LANDBRIDGE_SITE_NAME", "b"),
            ("LANDBRIDGE_GATEWAYS", "gw1=10.2.0.101:7700"),
        ];
        Config::from_env(|name| {
            let find = |list: &[(&str, &str)]| list.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            find(extra).or_else(|| find(&base))
        })
    }

    #[test]
    fn a_job_is_read() {
        let config = lookup(&[("LANDBRIDGE_EAGER", "64KiB")]).unwrap();
        assert_eq!(config.limits.eager, 65536);
        assert_eq!(config.listen, "10.2.0.1:0".parse().unwrap());
        assert!(!config.ipv6);
        let job = config.job.unwrap();
        assert_eq!((job.id, job.rank), (JobId(0xBEEF), Rank(3)));
        let address = "10.2.0.101:7700".parse().unwrap();
        assert_eq!(job.gateways, [SiteGateway { site: "b".into(), name: "gw1".into(), address }]);
        assert_eq!(config.native, None);
    }

    #[test]
    fn addresses_of_both_families_are_read() {
        let gateways = ("LANDBRIDGE_GATEWAYS", "gw1=[fd00::101]:7700,gw2=[::ffff:10.2.0.102]:7700");
        let config = lookup(&[("LANDBRIDGE_ADDRESS", "fd00::1"), gateways]).unwrap();
        assert_eq!((config.listen, config.ipv6), ("[fd00::1]:0".parse().unwrap(), true));
        let addresses: Vec<String> = config.job.unwrap().gateways.iter().map(|at| at.address.to_string()).collect();
        assert_eq!(addresses, ["[fd00::101]:7700", "10.2.0.102:7700"]);
        let config = lookup(&[("LANDBRIDGE_ADDRESS", "::ffff:10.2.0.1")]).unwrap();
        assert_eq!((config.listen, config.ipv6), ("10.2.0.1:0".parse().unwrap(), false));
        assert!(lookup(&[("LANDBRIDGE_IPV6", "1")]).unwrap().ipv6, "another process of the job has one");
    }

    #[test]
    fn a_site_may_have_a_network_of_its_own() {
        let library = "/opt/cray/lib64/libfabric.so.1";
        let config = lookup(&[("LANDBRIDGE_FABRIC", "cxi"), ("LANDBRIDGE_LIBFABRIC", library)]).unwrap();
        let native = NativeConfig { provider: "cxi".into(), library: Some(library.into()) };
        assert_eq!(config.native, Some(native));
    }

    #[test]
    fn a_site_may_be_encrypted_and_has_no_fabric_then() {
        let (one, two) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let keys = |text: &str| lookup(&[("LANDBRIDGE_INSIDE_KEYS", text)]).map(|config| config.job.unwrap().encrypted);
        assert_eq!(keys(""), Ok(None));
        assert_eq!(keys(&one.to_string()), Ok(Some(Keys { current: one, next: None })));
        assert_eq!(keys(&format!("{one},{two}")), Ok(Some(Keys { current: one, next: Some(two) })));
        let error =
            lookup(&[("LANDBRIDGE_INSIDE_KEYS", &one.to_string()), ("LANDBRIDGE_FABRIC", "verbs")]).unwrap_err();
        assert_eq!((error.name, error.value.as_str()), ("LANDBRIDGE_FABRIC", "verbs"));
    }

    #[test]
    fn wrong_variables_are_named() {
        for (name, value, expected) in [
            ("LANDBRIDGE_RANK", "4", "only 4 ranks"),
            ("LANDBRIDGE_RANK", "", "missing"),
            ("LANDBRIDGE_GATEWAYS", "10.2.0.101:7700", "expected NAME=IP:PORT"),
            ("LANDBRIDGE_ADDRESS", "fe80::1", "link-local"),
            ("LANDBRIDGE_ADDRESS", "node7", "invalid IP address"),
            ("LANDBRIDGE_SECRET", "hunter2", "64 hexadecimal"),
            ("LANDBRIDGE_EAGER", "much", "give a size such as"),
            ("LANDBRIDGE_INJECT", "17KiB", "give a size of at most 16KiB"),
            ("LANDBRIDGE_INSIDE_KEYS", "encrypted", "is not a fingerprint"),
        ] {
            let error = lookup(&[(name, value)]).unwrap_err();
            assert_eq!(error.name, name);
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn outside_a_job_it_is_standalone() {
        let config = Config::from_env(|_| None).unwrap();
        assert!(config.job.is_none());
        assert_eq!(config.listen, "127.0.0.1:0".parse().unwrap());
    }
}
