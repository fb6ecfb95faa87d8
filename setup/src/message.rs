//! What is asked of the program at a site's machine, and what it answers: a line of JSON each, over [`crate::machine`].

use std::net::IpAddr;
use std::time::Duration;

use launch::check::Finding;
use serde::{Deserialize, Serialize};
use types::JobId;
use wire::Secret;
use wire::control::TrunkStanding;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// What is there?
    Survey {
        /// The site's nodes, if the user named them.
        nodes: Vec<String>,
        /// The port the gateway should have; `None`: a free one.
        port: Option<u16>,
        /// The site: the port that its gateway has already counts as free.
        site: String,
    },
    /// Make the site's key unless it is there; show its fingerprint.
    Key {
        /// The site.
        site: String,
    },
    /// Make the key by which the site's gateways log in at other sites, unless it is there; show its public half.
    TrunkKey {
        /// The site.
        site: String,
    },
    /// Let the gateways of another site log in, to reach this site's gateway and nothing else.
    LetIn {
        /// This site.
        site: String,
        /// The other.
        of: String,
        /// `host:port` of the gateway.
        to: String,
        /// Their public key; `None`: they are not let in any more.
        key: Option<String>,
    },
    /// The sites file of this machine.
    ReadSites,
    /// Replace the sites file of this machine; `None`: remove it.
    WriteSites {
        /// What it shall say.
        text: Option<String>,
    },
    /// Make the site's gateway run this release and the sites file as it is now.
    Gateway {
        /// The site.
        site: String,
    },
    /// Have the site's gateway work by the sites file as it is now; restart it only if it must be.
    Reload {
        /// The site.
        site: String,
    },
    /// Start the site's gateway unless it runs.
    Start {
        /// The site.
        site: String,
    },
    /// Put the command on the user's path, and have the machine start the site's gateway again by itself.
    Settle {
        /// The site.
        site: String,
        /// Also if the user has not asked for it before.
        keep: bool,
    },
    /// End the site's gateway.
    StopGateway {
        /// The site.
        site: String,
        /// Also if jobs are open.
        force: bool,
    },
    /// Try everything a run needs, from this site.
    Check {
        /// This site.
        site: String,
    },
    /// Try the trunk to another site.
    Probe {
        /// This site.
        site: String,
        /// The other.
        to: String,
    },
    /// Make a ticket for a site that wants to join.
    Invite {
        /// The site.
        site: String,
        /// How long it is good, in seconds.
        seconds: u32,
    },
    /// Which of these files are here with the same length?
    Offer {
        /// What is to be here.
        items: Vec<Item>,
    },
    /// Make these. After the request comes the content of each file among them, followed by its SHA-256.
    Place {
        /// What is to be here.
        items: Vec<Item>,
    },
    /// Run a job; the last request, whose answer is only a failure: else the job has the connection.
    Carry(Carry),
    /// How the site's gateway stands.
    Status {
        /// The site.
        site: String,
    },
    /// Remove the site's key, notes and log; and the copies and the sites file when no other site of this account uses them.
    Forget {
        /// The site.
        site: String,
        /// Where the copies are.
        base: String,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Survey`].
    Survey(Survey),
    /// To [`Request::Key`].
    Key {
        /// The fingerprint, as the sites file shows it.
        fingerprint: String,
        /// Whether the key is new.
        made: bool,
    },
    /// To [`Request::TrunkKey`].
    TrunkKey {
        /// The public half, as `authorized_keys` has it.
        public: String,
    },
    /// To [`Request::LetIn`].
    LetIn {
        /// It was not so before.
        changed: bool,
    },
    /// To [`Request::ReadSites`]: what it says, if it is there.
    Sites {
        /// Its text.
        text: Option<String>,
    },
    /// It is done.
    Done {
        /// How, for the user.
        note: String,
    },
    /// To [`Request::Gateway`].
    Gateway {
        /// It was not running before.
        started: bool,
        /// How, for the user.
        note: String,
    },
    /// To [`Request::Settle`].
    Settled {
        /// What the user should know.
        notes: Vec<String>,
        /// What starts the gateway again, or why nothing does; `None`: nobody asked for it.
        kept: Option<Result<String, String>>,
        /// What could start it again and does not.
        offer: Option<String>,
    },
    /// To [`Request::Check`] and [`Request::Probe`].
    Findings(Vec<Finding>),
    /// To [`Request::Offer`]: for each item the SHA-256 of a file of that length, in hexadecimal digits.
    Has {
        /// In the order of the offer.
        sums: Vec<Option<String>>,
    },
    /// To [`Request::Invite`].
    Invited {
        /// The ticket's number.
        ticket: JobId,
        /// Its secret.
        secret: Secret,
    },
    /// To [`Request::Status`].
    Status(Standing),
    /// It could not be done.
    Failed {
        /// Why, for the user.
        problem: String,
    },
}

/// A file, folder or link that is to be at a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Where: absolute, or below the home directory there.
    pub path: Vec<u8>,
    /// The path is below the home directory.
    pub below_home: bool,
    /// What.
    pub kind: ItemKind,
}

/// What an item is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemKind {
    /// A folder; what else is in it stays.
    Folder {
        /// Its permissions.
        mode: u32,
    },
    /// A file.
    File {
        /// Its permissions.
        mode: u32,
        /// Its length in bytes.
        length: u64,
    },
    /// A symbolic link.
    Link {
        /// What it points to.
        target: Vec<u8>,
        /// The target is below the home directory.
        below_home: bool,
    },
    /// Permissions of what is there.
    Mode {
        /// The permissions.
        mode: u32,
    },
}

/// A job of a machine that is no site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carry {
    /// The site that starts it.
    pub site: String,
    /// The command, such as `run`.
    pub command: Vec<String>,
    /// The words after it.
    pub words: Vec<Vec<u8>>,
    /// Where it was typed: absolute, or with `~/` for the home directory.
    pub directory: Vec<u8>,
    /// Variables that are set for it.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What a machine offers a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// Its name, without the domain.
    pub host: String,
    /// The gateway's port.
    pub port: u16,
    /// The address by which the site's nodes reach it.
    pub inside: Option<IpAddr>,
    /// The nodes Slurm knows; `None`: there is no Slurm.
    pub slurm: Option<Vec<String>>,
    /// There is PBS.
    pub pbs: bool,
    /// The file system of the home directory, and whether other machines see it too.
    pub home: String,
    /// As far as can be told by its kind.
    pub shared_home: bool,
    /// Python, if there is one.
    pub python: Option<String>,
    /// MPI libraries on the path.
    pub mpi: Vec<String>,
}

/// How a site's gateway stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its process, if it runs.
    pub process: Option<i32>,
    /// The machine it runs or ran on.
    pub host: String,
    /// Its release.
    pub release: String,
    /// Its log.
    pub log: String,
    /// Open jobs.
    pub jobs: u32,
    /// Its trunks.
    pub trunks: Vec<TrunkStanding>,
    /// Why it works by another sites file than the one that is there, if it does.
    pub unread: Option<String>,
    /// What is wrong, if it runs and does not answer.
    pub problem: Option<String>,
}

impl Request {
    /// What it is, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Request::Survey { .. } => "looking around",
            Request::Key { .. } => "the key",
            Request::TrunkKey { .. } => "the key for trunks through ssh",
            Request::LetIn { .. } => "letting a gateway in",
            Request::ReadSites => "reading the sites file",
            Request::WriteSites { .. } => "writing the sites file",
            Request::Gateway { .. } | Request::Start { .. } => "starting the gateway",
            Request::StopGateway { .. } => "stopping the gateway",
            Request::Settle { .. } => "making it stay",
            Request::Reload { .. } => "taking up the sites file",
            Request::Check { .. } => "checking",
            Request::Probe { .. } => "trying a trunk",
            Request::Invite { .. } => "making a ticket",
            Request::Offer { .. } => "comparing files",
            Request::Place { .. } => "copying files",
            Request::Carry(_) => "starting the job",
            Request::Status { .. } => "asking the gateway",
            Request::Forget { .. } => "removing",
        }
    }

    /// How long the answer may take.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(match self {
            Request::Check { .. } => 90,
            // A slow file system may have gigabytes to read.
            Request::Offer { .. } | Request::Place { .. } => 600,
            Request::Gateway { .. }
            | Request::Start { .. }
            | Request::Reload { .. }
            | Request::StopGateway { .. }
            | Request::Survey { .. } => 60,
            _ => 30,
        })
    }
}
