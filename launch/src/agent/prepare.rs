//! Finding out, before anything runs, whether this node can run its ranks.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use hooks::GatewayAddress;
use thiserror::Error;
use types::sites::Inside;
use types::{NodeId, Rank, Roster, SiteId};

use rustix::thread::CpuSet;
use wire::Secret;

use super::cores::{self, BindError};
use super::memory::{Shared, share};
use crate::environment::Environment;
use crate::folder::FolderError;
use crate::home::expand;
use crate::message::{Family, InputTo, Otherwise, Program};
use crate::mpi::{self, MpiError};
use crate::order::Order;
use crate::program::{self, ProgramError};

/// Why a node cannot run its ranks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The program or its directory, with what the launcher advises.
    #[error("{problem}{also}{advice}")]
    NotHere {
        problem: ProgramError,
        /// Where else it was looked for.
        also: String,
        advice: String,
    },
    /// Its MPI.
    #[error(transparent)]
    Mpi(#[from] MpiError),
    /// The folder for their files.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// What Open MPI's ranks need to start.
    #[error(transparent)]
    Pmix(#[from] pmix::PmixError),
    /// The roster.
    #[error(transparent)]
    Roster(#[from] types::roster::RosterError),
    /// The roster does not have this node.
    #[error("node {0} is not in the job's roster")]
    NotInRoster(String),
    /// The memory they would share.
    #[error(transparent)]
    Memory(#[from] pool::PoolError),
    /// Which cores they are to run on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The ranks need an IPv4 address of this node.
    #[error("address {0} is not IPv4: give the node an IPv4 `address` in the sites file")]
    Address(IpAddr),
}

/// All that is needed to start the ranks of this node.
#[derive(Debug)]
pub struct Prepared {
    /// The file to run; `None` when the job runs none.
    pub path: Option<PathBuf>,
    /// The program's name as the user wrote it, and its arguments.
    pub words: Vec<OsString>,
    /// Where to run it.
    pub directory: PathBuf,
    /// The environment that all ranks of the node share.
    pub environment: Environment,
    /// The recognised MPI.
    pub mpi: Option<Family>,
    /// Whether the program uses libfabric without an MPI.
    pub uses_libfabric: bool,
    /// The job's ranks.
    pub roster: Roster,
    /// First rank of this node.
    pub first: Rank,
    /// How many ranks the node has.
    pub count: u32,
    /// Which of the job's nodes, in the order of their ranks, this is.
    pub index: usize,
    /// What serves ranks of Open MPI.
    pub pmix: Option<pmix::Library>,
    /// The memory they share.
    pub shared: Option<Shared>,
    /// The cores of each of them, if they are kept apart.
    pub cores: Option<Vec<CpuSet>>,
    /// How late their timers may be, in nanoseconds; `None`: as the system has it.
    pub timer_slack: Option<NonZeroU64>,
    /// What the ranks' provider begins with when it says why a rank will fail.
    pub place: String,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Which ranks get standard input.
    pub input: InputTo,
    /// What ranks prove. Not in their environment, which whatever they start would inherit.
    pub secret: Secret,
}

/// How a rank finds whoever tells it who it is.
#[derive(Clone, Debug)]
pub enum Start {
    /// A PMI-1 server, on this file descriptor.
    Pmi(i32),
    /// A PMIx server, by these variables.
    Pmix(Vec<(OsString, OsString)>),
}

/// What the agent's connection to its gateway showed.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The site's gateways, each at its `ip:port`; first the one that leads the job, which is always there.
    pub gateways: Vec<GatewayAddress>,
    /// This node's address on that connection.
    pub local: IpAddr,
}

/// Checks everything.
///
/// # Errors
/// [`PrepareError`], for the user.
pub fn prepare(
    order: &Order,
    reach: &Reach,
    program: &Program,
    roster: &str,
    loaded: &[(OsString, OsString)],
) -> Result<Prepared, PrepareError> {
    let roster: Roster = roster.parse()?;
    let (index, (_, _, first, node)) = roster
        .nodes()
        .enumerate()
        .find(|(_, (site, node, _, _))| (*site, *node) == (order.site_id, order.node_id))
        .ok_or_else(|| PrepareError::NotInRoster(format!("{}/{}", order.site, order.node)))?;
    let count = node.ranks;
    let mut environment = Environment::new(&program.environment, std::env::vars_os());
    loaded.iter().for_each(|(name, value)| environment.set_raw(name.clone(), value.clone()));
    let settings = program.settings.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value)));
    settings.for_each(|(name, value)| environment.set_raw(name.into(), value.into()));
    let otherwise = &program.otherwise;
    let mut notes = Vec::new();
    let directory = here(&environment, &program.directory, otherwise.directory.as_deref(), &mut notes);
    let mut words: Vec<OsString> = program.command.iter().map(|word| OsStr::from_bytes(word).to_owned()).collect();
    if let (Some(first), Some(word)) = (words.first_mut(), program.command.first()) {
        *first = here(&environment, word, otherwise.program.as_deref(), &mut notes).into_os_string();
    }
    let (mut path, mut mpi, mut pmix) = (None, None, None);
    let provider = mpi::find_provider(&environment);
    let crosses = roster.sites().iter().filter(|site| site.size() > 0).count() > 1;
    let mut uses_libfabric = false;
    if let Some(name) = words.first() {
        let found = program::find(name.as_ref(), &directory, &environment);
        let found = found.map_err(|problem| not_here(problem, otherwise))?;
        if let Some(library) = mpi::library(program.mpi, &found, &environment)? {
            notes.extend(mpi::settings(&library, &mut environment, &provider, crosses));
            if library.family == Family::OpenMpi {
                pmix = Some(mpi::find_pmix(&library, &environment)?);
            }
            mpi = Some(library.family);
        } else {
            mpi::openmpi::refuse_unnamed(&mut environment);
            uses_libfabric = mpi::uses_libfabric(program.mpi, &found, &environment);
            if uses_libfabric {
                notes.extend(mpi::libfabric_settings(&mut environment, &provider, crosses));
            }
        }
        let ours = environment.get("FI_PROVIDER").is_some_and(|name| name == "landbridge");
        if ours && (mpi.is_some() || uses_libfabric) && !provider.is_file() {
            return Err(MpiError::NoProvider(provider).into());
        }
        path = Some(found);
    }
    // Nodes without ranks are there for a check of everything a job could need.
    if count == 0 && !provider.is_file() {
        return Err(MpiError::NoProvider(provider).into());
    }
    mpi::use_fabric(order.fabric.as_ref(), &mut environment);
    environment.set("PWD", &directory);
    describe(&mut environment, order, reach, &roster)?;
    let shared = share(order, &roster)?;
    if let Some(shared) = &shared {
        environment.set("LANDBRIDGE_MEMORY", shared.path());
    }
    let cores = cores::shares(count, &environment)?;
    let crowd = std::thread::available_parallelism().map_or(1, |cores| count.div_ceil(cores.get() as u32));
    if crowd > 1 {
        environment.set("LANDBRIDGE_CROWDED", crowd.to_string());
        if let Some(family) = mpi {
            mpi::share_cores(family, &mut environment);
        }
        // Who has no core now has not posted its receives either, and what nobody waits for is copied twice: asking costs less.
        environment.set_default("LANDBRIDGE_EAGER_MEMORY", "8KiB");
    }
    let slack = mpi.and_then(|family| mpi::timer_slack(family, crowd));
    let timer_slack = slack.and_then(|slack| NonZeroU64::new(slack.as_nanos() as u64));
    if let Some(what) = mpi.filter(|_| count > 1).and_then(|family| mpi::own_memory(family, &environment)) {
        environment.set("LANDBRIDGE_MPI_SHM", what);
    }
    let place = format!("site {}: node {}: ", order.site, order.node);
    Ok(Prepared {
        path,
        words,
        directory,
        environment,
        mpi,
        uses_libfabric,
        first,
        count,
        index,
        pmix,
        shared,
        cores,
        timer_slack,
        place,
        notes,
        input: program.input,
        roster,
        secret: order.secret.clone(),
    })
}

/// A path on this node: below the user's home here, or as it was typed if only that exists.
fn here(environment: &Environment, path: &[u8], typed: Option<&[u8]>, notes: &mut Vec<String>) -> PathBuf {
    let own = expand(path, environment.get("HOME"));
    let typed = typed.map(|typed| PathBuf::from(OsStr::from_bytes(typed)));
    match typed.filter(|typed| *typed != own && !own.exists() && typed.exists()) {
        Some(typed) => {
            notes.push(format!("{} does not exist here, so {} is used", own.display(), typed.display()));
            typed
        }
        None => own,
    }
}

/// The problem with where else the node looked and what to do.
fn not_here(problem: ProgramError, otherwise: &Otherwise) -> PrepareError {
    let (typed, advice) = match &problem {
        ProgramError::Directory(_) => (&otherwise.directory, &otherwise.directory_advice),
        ProgramError::Missing { .. } => (&otherwise.program, &otherwise.program_advice),
        ProgramError::NotExecutable { .. } => return problem.into(),
    };
    let typed = typed.as_ref().map(|typed| String::from_utf8_lossy(typed).into_owned());
    let also = typed
        .filter(|typed| !problem.to_string().contains(typed))
        .map_or(String::new(), |typed| format!("; {typed} does not exist here either"));
    PrepareError::NotHere { problem, also, advice: advice.clone() }
}

/// What every rank of the node is told about its job.
fn describe(environment: &mut Environment, order: &Order, reach: &Reach, roster: &Roster) -> Result<(), PrepareError> {
    environment.set("LANDBRIDGE_JOB", order.job.to_string());
    environment.set("LANDBRIDGE_ROSTER", roster.to_string());
    environment.set("LANDBRIDGE_ADDRESS", ipv4(order.node_address.unwrap_or(reach.local))?.to_string());
    let gateways = reach.gateways.iter().map(|gateway| format!("{}={}", gateway.name, gateway.address));
    environment.set("LANDBRIDGE_GATEWAYS", gateways.collect::<Vec<_>>().join(","));
    if order.inside == Inside::Encrypted {
        let keys = std::iter::once(order.keys.current).chain(order.keys.next).map(|key| key.to_string());
        environment.set("LANDBRIDGE_INSIDE_KEYS", keys.collect::<Vec<_>>().join(","));
    }
    environment.set("LANDBRIDGE_SITE_NAME", &order.site);
    environment.set("LANDBRIDGE_NODE_NAME", &order.node);
    environment.set("LANDBRIDGE_SIZE", roster.size().to_string());
    Ok(())
}

fn ipv4(address: IpAddr) -> Result<Ipv4Addr, PrepareError> {
    match address {
        IpAddr::V4(address) => Ok(address),
        IpAddr::V6(v6) => v6.to_ipv4_mapped().ok_or(PrepareError::Address(address)),
    }
}

impl Prepared {
    /// The environment of one rank, by its number on the node.
    pub fn rank_environment(&self, local: u32, window: u32, start: &Start) -> Environment {
        let mut environment = self.environment.clone();
        let rank = (self.first.0 + local).to_string();
        environment.set("LANDBRIDGE_RANK", &rank);
        environment.set("LANDBRIDGE_LOCAL_RANK", local.to_string());
        environment.set("LANDBRIDGE_WINDOW", window.to_string());
        match start {
            Start::Pmi(descriptor) => {
                environment.set("PMI_FD", descriptor.to_string());
                environment.set("PMI_RANK", rank);
                environment.set("PMI_SIZE", self.roster.size().to_string());
                environment.set("MPI_LOCALNRANKS", self.count.to_string());
                environment.set("MPI_LOCALRANKID", local.to_string());
            }
            Start::Pmix(variables) => {
                for (name, value) in variables {
                    environment.set_raw(name.clone(), value.clone());
                }
            }
        }
        environment
    }

    /// The nodes of a site that take part.
    pub fn nodes_of(&self, site: SiteId) -> impl Iterator<Item = NodeId> + use<> {
        let count = self.roster.site(site).map_or(0, |site| site.nodes.len() as u32);
        (0..count).map(NodeId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::sites::Memory;

    use crate::order::example;

    fn try_it(command: &[&str]) -> Result<Prepared, PrepareError> {
        try_with(command, "a:n1*2;b:n1*3")
    }

    fn try_with(command: &[&str], roster: &str) -> Result<Prepared, PrepareError> {
        try_on(crate::message::MpiChoice::Auto, command, roster, &[])
    }

    fn try_on(
        mpi: crate::message::MpiChoice,
        command: &[&str],
        roster: &str,
        settings: &[(&str, &str)],
    ) -> Result<Prepared, PrepareError> {
        let reach = Reach {
            gateways: [("gw1", "10.0.0.1:7700"), ("gw2", "10.0.0.2:7700")]
                .map(|(name, address)| GatewayAddress { name: name.into(), address: address.into() })
                .to_vec(),
            local: "10.0.0.7".parse().unwrap(),
        };
        let program = Program {
            command: command.iter().map(|word| word.as_bytes().to_vec()).collect(),
            directory: b"/tmp".to_vec(),
            environment: vec![(b"PATH".to_vec(), b"/usr/bin:/bin".to_vec()), (b"X".to_vec(), b"y".to_vec())],
            mpi,
            settings: vec![(b"X".to_vec(), b"s".to_vec())],
            ..Program::default()
        };
        let mut order = example(Memory::Node, 0);
        order.0.job = types::JobId(0xabc);
        let mut machine = vec![("X".into(), "m".into()), ("M".into(), "m".into())];
        machine.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
        prepare(&order, &reach, &program, roster, &machine)
    }

    #[test]
    fn ranks_learn_their_place() {
        let prepared = try_it(&["sh", "-c", "true"]).unwrap();
        assert_eq!((prepared.first, prepared.count, prepared.mpi), (Rank(2), 3, None));
        let environment = prepared.rank_environment(1, 65536, &Start::Pmi(9));
        for (name, value) in [
            ("X", "s"),
            ("M", "m"),
            ("LANDBRIDGE_JOB", "00000abc"),
            ("LANDBRIDGE_RANK", "3"),
            ("LANDBRIDGE_LOCAL_RANK", "1"),
            ("LANDBRIDGE_SIZE", "5"),
            ("LANDBRIDGE_ADDRESS", "10.0.0.7"),
            ("LANDBRIDGE_GATEWAYS", "gw1=10.0.0.1:7700,gw2=10.0.0.2:7700"),
            ("LANDBRIDGE_ROSTER", "a:n1*2;b:n1*3"),
            ("LANDBRIDGE_WINDOW", "65536"),
            ("PMI_RANK", "3"),
            ("PMI_FD", "9"),
        ] {
            assert_eq!(environment.get(name), Some(OsStr::new(value)), "{name}");
        }
    }

    #[test]
    fn the_secret_is_not_in_the_environment() {
        let prepared = try_it(&["sh", "-c", "true"]).unwrap();
        let environment = prepared.rank_environment(0, 65536, &Start::Pmi(9));
        let secret = prepared.secret.to_hex();
        assert!(environment.iter().all(|(_, value)| !value.to_string_lossy().contains(&secret)));
    }

    #[test]
    fn ranks_of_an_encrypted_site_know_the_keys_of_its_gateways() {
        let mut order = example(Memory::Node, 0);
        let mut environment = Environment::default();
        let reach = Reach { gateways: Vec::new(), local: "10.0.0.7".parse().unwrap() };
        let roster: Roster = "a:n1*2;b:n1*3".parse().unwrap();
        describe(&mut environment, &order, &reach, &roster).unwrap();
        assert_eq!(environment.get("LANDBRIDGE_INSIDE_KEYS"), None);
        order.0.inside = Inside::Encrypted;
        order.0.keys.next = Some(types::sites::Fingerprint([8; 32]));
        describe(&mut environment, &order, &reach, &roster).unwrap();
        let keys = format!("sha256:{},sha256:{}", "07".repeat(32), "08".repeat(32));
        assert_eq!(environment.get("LANDBRIDGE_INSIDE_KEYS"), Some(OsStr::new(&keys)));
    }

    #[test]
    fn ranks_that_share_cores_are_told() {
        let cores = std::thread::available_parallelism().unwrap().get();
        for (ranks, crowd, eager) in [(cores, None, None), (2 * cores, Some("2"), Some("8KiB"))] {
            let prepared = try_with(&["sh", "-c", "true"], &format!("a:n1*1;b:n1*{ranks}")).unwrap();
            let environment = prepared.rank_environment(0, 65536, &Start::Pmi(9));
            assert_eq!(environment.get("LANDBRIDGE_CROWDED"), crowd.map(OsStr::new), "{ranks} ranks");
            assert_eq!(environment.get("LANDBRIDGE_EAGER_MEMORY"), eager.map(OsStr::new), "{ranks} ranks");
        }
    }

    #[test]
    fn programs_without_an_mpi_get_the_provider_when_they_use_libfabric() {
        use crate::message::MpiChoice::{Auto, Libfabric};
        let given = [("LANDBRIDGE_PROVIDER", "/opt/lb/liblandbridge-fi.so")];
        let error = try_on(Libfabric, &["sh"], "a:n1*1;b:n1*1", &given).unwrap_err().to_string();
        assert!(error.contains("/opt/lb/liblandbridge-fi.so"), "{error}");
        let given = [("LANDBRIDGE_PROVIDER", "/bin/sh")];
        for (choice, provider) in [(Auto, None), (Libfabric, Some("landbridge"))] {
            let prepared = try_on(choice, &["sh"], "a:n1*1;b:n1*1", &given).unwrap();
            assert_eq!((prepared.mpi, prepared.uses_libfabric), (None, choice == Libfabric));
            let environment = prepared.rank_environment(0, 65536, &Start::Pmi(9));
            assert_eq!(environment.get("FI_PROVIDER"), provider.map(OsStr::new), "{choice:?}");
            assert_eq!(environment.get("FI_PROVIDER_PATH"), provider.map(|_| OsStr::new("/bin")), "{choice:?}");
            assert_eq!(environment.get("PMI_FD"), Some(OsStr::new("9")));
        }
    }

    #[test]
    fn ranks_are_told_of_memory_that_only_their_mpi_sees() {
        let shared = |family, count, settings: &[(&str, &str)]| {
            let settings = [&[("LANDBRIDGE_PROVIDER", "/bin/sh")], settings].concat();
            let choice = crate::message::MpiChoice::Named(family);
            let prepared = try_on(choice, &["sh"], &format!("a:n1*1;b:n1*{count}"), &settings).unwrap();
            let environment = prepared.rank_environment(0, 65536, &Start::Pmi(9));
            environment.get("LANDBRIDGE_MPI_SHM").map(OsStr::to_owned)
        };
        assert_eq!(shared(Family::Mpich, 2, &[]), Some("messages".into()));
        assert_eq!(shared(Family::Mpich, 1, &[]), None, "nobody is beside it");
        assert_eq!(shared(Family::Mpich, 2, &[("MPIR_CVAR_NOLOCAL", "1")]), None);
        assert_eq!(shared(Family::Intel, 2, &[("I_MPI_FABRICS", "ofi")]), Some("messages".into()), "its collectives");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = try_it(&["./no-such-program"]).unwrap_err().to_string();
        assert!(error.starts_with("program ./no-such-program not found (looked in /tmp)"), "{error}");
    }
}
