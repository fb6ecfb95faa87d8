//! Reasons for refusing a request about a job. The text is for the user who made it.

use thiserror::Error;
use types::roster::RosterError;
use types::{Identity, JobId, Slot};

use crate::log::quantity;

/// A site that does not take part, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub site: String,
    pub why: JobError,
}

/// Reasons why a job is not opened, or why a peer is not a member of it. Rosters are shortened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(crate) enum JobError {
    #[error("job {job} is being closed at site {site}")]
    Closing { job: JobId, site: String },
    #[error("job {job} is not open at site {site}")]
    NotOpen { job: JobId, site: String },
    #[error("{slot} of job {job} is already connected")]
    Connected { job: JobId, slot: Slot },
    #[error("{identity} does not belong to site {site}, which is site #{number} of the job")]
    OtherSite { identity: Identity, site: String, number: u16 },
    #[error("rank {rank} is not at site {site}, which has ranks {first}..{beyond}")]
    RankElsewhere { rank: u32, site: String, first: u32, beyond: u32 },
    #[error("site {site} has no node #{node} in this job, it has {nodes}")]
    NoSuchNode { site: String, node: u32, nodes: usize },
    #[error("this gateway knows no service #{0} of a job")]
    NoSuchService(u32),
    #[error("this gateway does not know the job: it was restarted meanwhile, and the site has no other")]
    Forgotten,
    #[error("only the connection that opens the job is its launcher")]
    Launcher,
    #[error("a gateway cannot be a member of a job")]
    Gateway,
    #[error("a job's number must not be zero")]
    Zero,
    #[error("job {0} is already open")]
    Open(JobId),
    #[error("job {0} belongs to another user or site")]
    Anothers(JobId),
    #[error(transparent)]
    Roster(#[from] RosterError),
    #[error("site {site} is not in the roster {roster}")]
    NotInRoster { site: String, roster: String },
    #[error("site {site} occurs twice in the roster {roster}")]
    Twice { site: String, roster: String },
    #[error("the launcher's site {home} is not in the roster {roster}")]
    HomeNotInRoster { home: String, roster: String },
    #[error("the launcher is at site {home}, but this is a gateway of site {site}")]
    WrongHome { home: String, site: String },
    #[error("the gateway of site {own} has no site {site} in its sites file: compare the sites files")]
    UnknownSite { own: String, site: String },
    #[error(
        "no ports are forwarded there: `[site.forward]` with `allow = [\"HOST:PORT\"]` in its sites file allows them, once \
         the gateway is restarted (`landbridge sites add {site}`)"
    )]
    ForwardsNothing { site: String },
    #[error("site {site} has no node {node}; it has: {known}")]
    UnknownNode { site: String, node: String, known: String },
    #[error(
        "{jobs} jobs of site {home} are open here and take {} of memory; one site may take {}: wait until some end, \
         or raise `memory` of the gateway",
        quantity(*.described),
        quantity(*.most)
    )]
    Described { home: String, jobs: usize, described: u64, most: u64 },
    #[error(transparent)]
    Memory(#[from] GrantError),
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The problem with the site's trunk.
    #[error("{0}")]
    Unreached(String),
}

/// Reasons for not requesting nodes for a job.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(crate) enum AllocationError {
    /// The job is open, or its number is zero.
    #[error("job {0} can no longer ask for nodes")]
    Late(JobId),
    /// Another launcher or site has requested nodes for this job.
    #[error("job {0} belongs to another user or site")]
    Anothers(JobId),
    /// The job has already requested nodes.
    #[error("job {0} has already asked for nodes")]
    Twice(JobId),
    /// Too many jobs of its site have or wait for nodes.
    #[error("{most} jobs of site {site} already have or wait for nodes: wait until some end")]
    TooManyOfSite { site: String, most: usize },
    /// Too many jobs have or wait for nodes.
    #[error("{0} jobs already have or wait for nodes: try again when some have ended")]
    TooMany(usize),
    /// Once the job is open, the gateway could not hold the frames of its ranks at other sites.
    #[error("did not ask for nodes: {0}")]
    NoMemory(GrantError),
}

/// Reasons why a job does not fit into a gateway's memory.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(crate) enum GrantError {
    #[error(
        "{remote} members at other sites need {} of gateway memory for their frames ({} each), but only {} of {} is \
         free: raise `memory` of the gateway to at least {}, or wait until other jobs end",
        quantity(*.needed),
        quantity(*.each),
        quantity(*.left),
        quantity(*.all),
        quantity(*.wanted)
    )]
    Memory { remote: u64, needed: u64, each: u64, left: u64, all: u64, wanted: u64 },
    #[error(
        "{remote} members at other sites need {} of gateway memory for windows of {}, but only {} of {} is free: give \
         all gateways of a site the same `memory`, or wait until other jobs end",
        quantity(*.needed),
        quantity(*.window),
        quantity(*.left),
        quantity(*.all)
    )]
    Window { remote: u64, needed: u64, window: u64, left: u64, all: u64 },
    #[error(
        "a window of {} was requested; it must be between {} and {}",
        quantity(*.window),
        quantity(*.least),
        quantity(*.most)
    )]
    Size { window: u64, least: u64, most: u64 },
}

/// A message that its sender, a gateway or a launcher, may not send. The sender breaks the rules, and its connection is
/// closed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct Violation(pub String);

impl From<&str> for Violation {
    fn from(what: &str) -> Violation {
        Violation(what.to_owned())
    }
}
