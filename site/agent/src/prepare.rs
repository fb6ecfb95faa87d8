//! Checks that this node can run its ranks before anything runs.

use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gateway_tasks::GatewayAddress;
use thiserror::Error;
use types::id::is_link_local;
use types::sites::Inside;
use types::{NodeId, Rank, Roster, SiteId};

use rustix::thread::CpuSet;
use wire::Secret;

use super::cores::{self, BindError};
use super::memory::{Shared, share};
use crate::folder::FolderError;
use job::environment::Environment;
use job::home::{expand, path_in};
use job::message::{Family, InputTo, MpiChoice, Otherwise, Part, Program};
use job::mpi::layer::{self, Coverage};
use job::mpi::{self, MpiError};
use job::order::Order;
use job::program::{self, ProgramError};

/// Reasons why a node cannot run its ranks.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrepareError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The program or its directory is missing.
    #[error("{problem}{also}{advice}")]
    NotHere {
        problem: ProgramError,
        /// The other places where the node looked.
        also: String,
        /// The launcher's advice.
        advice: String,
    },
    #[error(transparent)]
    Mpi(#[from] MpiError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Open MPI's ranks need libpmix to start.
    #[error(transparent)]
    Pmix(#[from] pmix::PmixError),
    /// The programs cannot be in the same job.
    #[error(
        "program {first} uses {first_mpi}, and {other} uses {other_mpi}: all programs of a job need the same MPI library; \
         where it cannot be recognised, name it with --mpi"
    )]
    Mixed { first: String, first_mpi: &'static str, other: String, other_mpi: &'static str },
    #[error(transparent)]
    Roster(#[from] types::roster::RosterError),
    /// The roster does not have this node.
    #[error("node {0} is not in the job's roster")]
    NotInRoster(String),
    /// The memory that ranks share cannot be made.
    #[error(transparent)]
    Memory(#[from] pool::PoolError),
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The ranks need an address of this node that others can dial.
    #[error(
        "address {0} is link-local, which other nodes cannot dial without an interface: give the node another `address` \
         in the sites file, or its gateway another `inside`"
    )]
    Address(IpAddr),
}

/// Everything that the node needs to start its ranks.
#[derive(Debug)]
pub struct Prepared {
    /// The programs of this node's ranks.
    pub parts: Vec<PreparedPart>,
    /// The ranks of each of the job's programs. A program's index is its `MPI_APPNUM`.
    pub programs: Vec<Range<u32>>,
    /// The recognised MPI.
    pub mpi: Option<Family>,
    /// True if the programs use libfabric without an MPI.
    pub uses_libfabric: bool,
    /// The job's ranks.
    pub roster: Roster,
    /// First rank of this node.
    pub first: Rank,
    /// The number of ranks on the node.
    pub count: u32,
    /// Index of this node among the job's nodes, in the order of ranks.
    pub index: usize,
    /// Serves ranks of Open MPI.
    pub pmix: Option<pmix::Library>,
    /// The memory that the node's ranks share.
    pub shared: Option<Shared>,
    /// The address at which the node's ranks listen.
    pub address: IpAddr,
    /// The cores of each rank, if ranks are bound.
    pub cores: Option<Vec<CpuSet>>,
    /// Timer slack of the ranks, in nanoseconds. `None`: the system's default.
    pub timer_slack: Option<NonZeroU64>,
    /// The beginning of the line with which the ranks' provider reports why a rank will fail.
    pub place: String,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The ranks that get standard input.
    pub input: InputTo,
    pub raw: bool,
    /// The job's secret. It is not in the ranks' environment, because every process that they start would inherit it.
    pub secret: Secret,
}

/// A program that this node can run.
#[derive(Debug)]
pub struct PreparedPart {
    /// The node's ranks that run this program, by their numbers on the node.
    pub local: Range<u32>,
    /// The file to run; `None` if the job runs no program.
    pub path: Option<PathBuf>,
    /// The program's name as the user wrote it, and its arguments.
    pub words: Vec<OsString>,
    pub directory: PathBuf,
    /// The environment that these ranks share.
    pub environment: Environment,
    mpi: Option<Family>,
    uses_libfabric: bool,
    pmix: Option<pmix::Library>,
    /// The collective operations that the layer can take over.
    collectives: Coverage,
    provider: PathBuf,
}

/// The server that gives a rank its number.
#[derive(Clone, Debug)]
pub enum Start {
    /// A PMI-1 server, on this file descriptor.
    Pmi(i32),
    /// A PMIx server, by these variables.
    Pmix(Vec<(OsString, OsString)>),
}

/// The addresses that the agent found when it connected to its gateway.
#[derive(Clone, Debug)]
pub struct Reach {
    /// The site's gateways with their `ip:port`. The first one leads the job and always exists.
    pub gateways: Vec<GatewayAddress>,
    /// This node's address on the connection to the first.
    pub local: IpAddr,
}

/// Checks everything that the node needs for its ranks.
///
/// # Errors
/// [`PrepareError`], as a message for the user.
pub fn prepare(
    order: &Order,
    reach: &Reach,
    program: &Program,
    roster: &str,
    loaded: &[(OsString, OsString)],
) -> Result<Prepared, PrepareError> {
    let roster: Roster = roster.parse()?;
    let (index, first, count) = this_node(order, &roster)?;
    let mut environment = Environment::new(&program.environment, std::env::vars_os());
    environment.leave_out_missing_folders(Path::is_dir);
    loaded.iter().for_each(|(name, value)| environment.set_raw(name.clone(), value.clone()));
    let programs = program.ranks(roster.size());
    let mut notes = Vec::new();
    let mut parts = prepare_parts(program, &programs, &roster, first.0..first.0 + count, &environment, &mut notes)?;
    let mpi = parts.first().and_then(|part| part.mpi);
    let uses_libfabric = parts.first().is_some_and(|part| part.uses_libfabric);
    let pmix = parts.iter_mut().find_map(|part| part.pmix.take());
    let shared = share(order, &roster)?;
    let address = listen_at(order, reach)?;
    let crowd = std::thread::available_parallelism().map_or(1, |cores| count.div_ceil(cores.get() as u32));
    for PreparedPart { environment, directory, .. } in &mut parts {
        mpi::use_fabric(order.fabric.as_ref(), environment);
        environment.set("PWD", directory.as_path());
        describe(environment, order, reach, &roster, address);
        if let Some(shared) = &shared {
            environment.set("LANDBRIDGE_MEMORY", shared.path());
        }
        if crowd > 1 {
            share_cores(environment, mpi, crowd);
        }
        if let Some(what) = mpi.filter(|_| count > 1).and_then(|family| mpi::own_memory(family, environment)) {
            environment.set("LANDBRIDGE_MPI_SHM", what);
        }
    }
    let cores = parts.first().map(|part| cores::shares(count, &part.environment)).transpose()?.flatten();
    let slack = mpi.and_then(|family| mpi::timer_slack(family, crowd));
    let timer_slack = slack.and_then(|slack| NonZeroU64::new(slack.as_nanos() as u64));
    let place = format!("site {}: node {}: ", order.site, order.node);
    Ok(Prepared {
        parts,
        programs,
        mpi,
        uses_libfabric,
        first,
        count,
        index,
        pmix,
        shared,
        address,
        cores,
        timer_slack,
        place,
        notes,
        input: program.input,
        raw: program.raw,
        roster,
        secret: order.secret.clone(),
    })
}

/// The agent's own node: its index among the job's nodes, its first rank, and the number of its ranks.
fn this_node(order: &Order, roster: &Roster) -> Result<(usize, Rank, u32), PrepareError> {
    let mut nodes = roster.nodes().enumerate();
    nodes
        .find(|(_, (site, node, _, _))| (*site, *node) == (order.site_id, order.node_id))
        .map(|(index, (_, _, first, node))| (index, first, node.ranks))
        .ok_or_else(|| PrepareError::NotInRoster(format!("{}/{}", order.site, order.node)))
}

/// Checks the programs of the node's ranks, `here`; `programs`: the ranks of each program of the job.
fn prepare_parts(
    program: &Program,
    programs: &[Range<u32>],
    roster: &Roster,
    here: Range<u32>,
    environment: &Environment,
    notes: &mut Vec<String>,
) -> Result<Vec<PreparedPart>, PrepareError> {
    let crosses = roster.sites().iter().filter(|site| site.size() > 0).count() > 1;
    let mut parts: Vec<PreparedPart> = Vec::new();
    for (part, ranks) in program.parts.iter().zip(programs) {
        let on_node = |rank: u32| rank.clamp(here.start, here.end) - here.start;
        let local = on_node(ranks.start)..on_node(ranks.end);
        // A node without ranks checks all programs, because any of them could run there.
        if local.is_empty() && !here.is_empty() {
            continue;
        }
        let prepared = prepare_part(part, program.mpi, local, environment.clone(), crosses, notes)?;
        if let Some(before) = parts.first() {
            same_mpi(before, &prepared)?;
        }
        parts.push(prepared);
    }
    // `sites check` opens jobs without ranks, to check everything that a job could need.
    if here.is_empty() {
        let provider = mpi::find_provider(parts.first().map_or(environment, |part| &part.environment));
        if !provider.is_file() {
            return Err(MpiError::NoProvider(provider).into());
        }
    }
    Ok(parts)
}

/// Sets the variables with which `crowd` ranks share a core.
fn share_cores(environment: &mut Environment, mpi: Option<Family>, crowd: u32) {
    environment.set("LANDBRIDGE_CROWDED", crowd.to_string());
    if let Some(family) = mpi {
        mpi::share_cores(family, environment);
    }
    // A rank without a core has not posted its receives yet. An eager message would then be copied twice, so a
    // rendezvous costs less.
    environment.set_default("LANDBRIDGE_EAGER_MEMORY", "8KiB");
}

/// Checks one of the programs. `environment`: the environment of the user and of the modules.
fn prepare_part(
    part: &Part,
    choice: MpiChoice,
    local: Range<u32>,
    mut environment: Environment,
    crosses: bool,
    notes: &mut Vec<String>,
) -> Result<PreparedPart, PrepareError> {
    let settings = part.settings.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value)));
    settings.for_each(|(name, value)| environment.set_raw(name.into(), value.into()));
    let otherwise = &part.otherwise;
    let mut told = Vec::new();
    let directory = here(&environment, &part.directory, otherwise.directory.as_deref(), &mut told);
    let mut words: Vec<OsString> = part.command.iter().map(|word| OsStr::from_bytes(word).to_owned()).collect();
    if let (Some(first), Some(word)) = (words.first_mut(), part.command.first()) {
        *first = here(&environment, word, otherwise.program.as_deref(), &mut told).into_os_string();
    }
    for (at, typed) in &otherwise.arguments {
        if let Some(word) = words.get_mut(*at as usize) {
            *word = argument(&environment, word, typed, &mut told);
        }
    }
    let (mut path, mut mpi, mut pmix, mut uses_libfabric) = (None, None, None, false);
    let (mut collectives, provider) = (Coverage::Native, mpi::find_provider(&environment));
    if let Some(name) = words.first() {
        let found = program::find(name.as_ref(), &directory, &environment);
        let found = found.map_err(|problem| not_here(problem, otherwise))?;
        if let Some(library) = mpi::library(choice, &found, &environment)? {
            told.extend(mpi::settings(&library, &mut environment, &provider, crosses));
            if library.family == Family::OpenMpi {
                pmix = Some(mpi::find_pmix(&library, &environment)?);
            }
            if provider.is_file() {
                collectives = layer::coverage(&library, &environment, &provider, crosses)?;
            }
            mpi = Some(library.family);
        } else {
            mpi::openmpi::refuse_unnamed(&mut environment);
            uses_libfabric = mpi::uses_libfabric(choice, &found, &environment);
            if uses_libfabric {
                told.extend(mpi::libfabric_settings(&mut environment, &provider, crosses));
            }
        }
        let ours = environment.get("FI_PROVIDER").is_some_and(|name| name == "landbridge");
        if ours && (mpi.is_some() || uses_libfabric) && !provider.is_file() {
            return Err(MpiError::NoProvider(provider).into());
        }
        path = Some(found);
    }
    // Several programs often cause the same note, so it is kept once.
    for note in told {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    Ok(PreparedPart { local, path, words, directory, environment, mpi, uses_libfabric, pmix, collectives, provider })
}

/// Checks that all programs of this node use the same MPI library. The launcher compares the nodes.
fn same_mpi(first: &PreparedPart, other: &PreparedPart) -> Result<(), PrepareError> {
    if (first.mpi, first.uses_libfabric) == (other.mpi, other.uses_libfabric) {
        return Ok(());
    }
    let name =
        |part: &PreparedPart| part.words.first().map_or(String::new(), |word| word.to_string_lossy().into_owned());
    let library = |part: &PreparedPart| match (part.mpi, part.uses_libfabric) {
        (Some(family), _) => family.name(),
        (None, true) => "libfabric without an MPI",
        (None, false) => "no MPI",
    };
    Err(PrepareError::Mixed {
        first: name(first),
        first_mpi: library(first),
        other: name(other),
        other_mpi: library(other),
    })
}

/// A path on this node: below the user's home here, or the typed path if only that one exists.
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

/// An argument that contains a path below the user's home; replaces the path as [`here`] does.
fn argument(environment: &Environment, word: &OsStr, typed: &[u8], notes: &mut Vec<String>) -> OsString {
    let (Some(at), Some(typed_at)) = (path_in(word.as_bytes()), path_in(typed)) else { return word.to_owned() };
    let (option, path) = word.as_bytes().split_at(at);
    let path = here(environment, path, Some(&typed[typed_at..]), notes);
    let mut word = OsStr::from_bytes(option).to_owned();
    word.push(path);
    word
}

/// Adds the other places where the node looked, and the launcher's advice, to a problem.
fn not_here(problem: ProgramError, otherwise: &Otherwise) -> PrepareError {
    let (typed, advice) = match &problem {
        ProgramError::Directory(_) => (&otherwise.directory, &otherwise.directory_advice),
        ProgramError::Missing { .. } => (&otherwise.program, &otherwise.program_advice),
        ProgramError::NotExecutable { .. } | ProgramError::NoDirectory(_) | ProgramError::Nameless => {
            return problem.into();
        }
    };
    let typed = typed.as_ref().map(|typed| String::from_utf8_lossy(typed).into_owned());
    let also = typed
        .filter(|typed| !problem.to_string().contains(typed))
        .map_or(String::new(), |typed| format!("; {typed} does not exist here either"));
    PrepareError::NotHere { problem, also, advice: advice.clone() }
}

/// Sets the variables that describe the job, for all ranks of the node.
fn describe(environment: &mut Environment, order: &Order, reach: &Reach, roster: &Roster, address: IpAddr) {
    environment.set("LANDBRIDGE_JOB", order.job.to_string());
    environment.set("LANDBRIDGE_ROSTER", roster.to_string());
    environment.set("LANDBRIDGE_ADDRESS", address.to_string());
    let gateways = reach.gateways.iter().map(|gateway| format!("{}={}", gateway.name, gateway.address));
    environment.set("LANDBRIDGE_GATEWAYS", gateways.collect::<Vec<_>>().join(","));
    if order.inside == Inside::Encrypted {
        let keys = std::iter::once(order.keys.current).chain(order.keys.next).map(|key| key.to_string());
        environment.set("LANDBRIDGE_INSIDE_KEYS", keys.collect::<Vec<_>>().join(","));
    }
    environment.set("LANDBRIDGE_SITE_NAME", &order.site);
    environment.set("LANDBRIDGE_NODE_NAME", &order.node);
    environment.set("LANDBRIDGE_SIZE", roster.size().to_string());
}

/// The address at which the node's ranks listen.
fn listen_at(order: &Order, reach: &Reach) -> Result<IpAddr, PrepareError> {
    let address = order.node_address.unwrap_or(reach.local).to_canonical();
    if is_link_local(address) { Err(PrepareError::Address(address)) } else { Ok(address) }
}

impl Prepared {
    /// The collective operations that the layer can take over: those that every program of this node allows. A node
    /// without ranks allows all.
    pub fn collectives(&self) -> Coverage {
        let parts = self.parts.iter().filter(|_| self.count > 0).map(|part| part.collectives);
        parts.min().unwrap_or(Coverage::Large)
    }

    /// True if ranks of this node listen at an IPv6 address.
    pub fn ipv6(&self) -> bool {
        self.count > 0 && self.address.is_ipv6()
    }

    /// Makes the ranks' addresses long enough for IPv6, because a node of the job has an IPv6 address.
    pub fn make_room_for_ipv6(&mut self) {
        self.parts.iter_mut().for_each(|part| part.environment.set("LANDBRIDGE_IPV6", "1"));
    }

    /// Makes the ranks leave collective operations to the layer, as far as every node of the job allows.
    pub fn cover(&mut self, collectives: Coverage) {
        for part in &mut self.parts {
            layer::preload(collectives, &mut part.environment, &part.provider);
        }
    }

    /// The program of one rank, by its number on the node.
    pub fn part(&self, local: u32) -> Option<&PreparedPart> {
        self.parts.iter().find(|part| part.local.contains(&local))
    }

    /// The number of each rank's program (`MPI_APPNUM`), for the ranks of this node in order.
    pub fn program_numbers(&self) -> Vec<u32> {
        let number = |rank| self.programs.iter().position(|ranks| ranks.contains(&rank)).unwrap_or(0) as u32;
        (self.first.0..self.first.0 + self.count).map(number).collect()
    }

    /// The environment of one rank, by its number on the node.
    pub fn rank_environment(&self, local: u32, window: u32, start: &Start) -> Environment {
        let mut environment = self.part(local).map_or_else(Environment::default, |part| part.environment.clone());
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
mod tests;
