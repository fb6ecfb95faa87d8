//! Requests to the program on a site's machine, and its replies: one line of JSON each, over [`crate::machine`].

use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use types::JobId;
use types::untrusted::indented;
use watching::check::Finding;
use wire::Secret;
use wire::control::TrunkStanding;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SiteRequest {
    /// Survey the machine.
    Survey {
        /// The site's nodes, if the user named them.
        nodes: Vec<String>,
        /// The port that the gateway should use. `None`: a free one.
        port: Option<u16>,
        /// The site. The port that its gateway already uses counts as free.
        site: String,
    },
    /// Make the site's key unless it exists; return its fingerprint.
    Key { site: String },
    /// Make the key with which the site's gateways log in at other sites, unless it exists; return its public half.
    TrunkKey { site: String },
    /// Let the gateways of another site log in, to reach this site's gateway and nothing else.
    LetIn {
        /// This site.
        site: String,
        /// The other site.
        of: String,
        /// `host:port` of the gateway.
        to: String,
        /// Their public key. `None`: revoke their login.
        key: Option<String>,
    },
    /// Return the sites file of this machine.
    ReadSites,
    /// Replace the sites file of this machine. `None`: remove it.
    WriteSites {
        /// The new text.
        text: Option<String>,
    },
    /// Make the site's gateway run this release and follow the current sites file.
    Gateway { site: String },
    /// Make the site's gateway follow the current sites file; restart it only if necessary.
    Reload { site: String },
    /// Start the site's gateway unless it runs.
    Start { site: String },
    /// Put the command on the user's path, and make the machine restart the site's gateway automatically.
    Settle {
        site: String,
        /// Install the automatic restarts even if they are not installed yet.
        keep: bool,
    },
    /// Stop the site's gateway.
    StopGateway {
        site: String,
        /// Stop it even if jobs are open.
        force: bool,
    },
    /// Check everything that a run needs, from this site.
    Check {
        /// This site.
        site: String,
    },
    /// Try the trunk to another site.
    Probe {
        /// This site.
        site: String,
        /// The other site.
        to: String,
    },
    /// Make a ticket for a joining site.
    Invite {
        site: String,
        /// Validity of the ticket, in seconds.
        seconds: u32,
    },
    /// Return which of these files exist here with the same length.
    Offer {
        /// The items to make here.
        items: Vec<Item>,
    },
    /// Make these items. The request is followed by the content of each file among them and its SHA-256.
    Place {
        /// The items to make here.
        items: Vec<Item>,
    },
    /// Run a command. This is the last request: from here on the connection carries frames.
    Carry(Carry),
    /// Return the status of the site's gateway.
    Status { site: String },
    /// Remove the site's key, notes and log. Also remove the copies and the sites file if no other site of this account
    /// uses them.
    Forget {
        site: String,
        /// The folder of the copies.
        base: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Answers [`SiteRequest::Survey`].
    Survey(Survey),
    /// Answers [`SiteRequest::Key`].
    Key {
        /// The fingerprint, as in the sites file.
        fingerprint: String,
        /// True if the key is new.
        made: bool,
    },
    /// Answers [`SiteRequest::TrunkKey`].
    TrunkKey {
        /// The public half, as in `authorized_keys`.
        public: String,
    },
    /// Answers [`SiteRequest::LetIn`].
    LetIn {
        /// True if the request changed anything.
        changed: bool,
    },
    /// Answers [`SiteRequest::ReadSites`].
    Sites {
        /// The text of the file, if it exists.
        text: Option<String>,
    },
    /// The request was carried out.
    Done {
        /// The action taken, for the user.
        note: String,
    },
    /// Answers [`SiteRequest::Gateway`], [`SiteRequest::Reload`] and [`SiteRequest::Start`].
    Gateway {
        /// The gateway was not running before.
        started: bool,
        /// The action taken, for the user.
        note: String,
    },
    /// Answers [`SiteRequest::Settle`].
    Settled {
        /// Notes for the user.
        notes: Vec<String>,
        /// `None`: automatic restarts were not requested.
        kept: Option<KeepOutcome>,
        /// A mechanism that could restart the gateway and is not set up.
        offer: Option<String>,
    },
    /// Answers [`SiteRequest::Check`] and [`SiteRequest::Probe`].
    Findings(Vec<Finding>),
    /// Answers [`SiteRequest::Offer`]: for each item the SHA-256 of an existing file of that length, in hexadecimal
    /// digits.
    Has {
        /// In the order of the offer.
        sums: Vec<Option<String>>,
    },
    /// Answers [`SiteRequest::Invite`].
    Invited {
        /// The ticket's number.
        ticket: JobId,
        /// Its secret.
        secret: Secret,
    },
    /// Answers [`SiteRequest::Status`].
    Status(Standing),
    /// The request could not be carried out.
    Failed {
        /// The reason, for the user.
        problem: String,
    },
}

/// The outcome of installing automatic restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeepOutcome {
    /// The mechanism that restarts the gateway.
    #[serde(rename = "Ok")]
    Installed(String),
    /// The reason why there is none.
    #[serde(rename = "Err")]
    Refused(String),
}

/// A file, folder or link to make at a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The path: absolute, or relative to the home directory there.
    pub path: Vec<u8>,
    /// The path is relative to the home directory.
    pub below_home: bool,
    pub kind: ItemKind,
}

/// The kind of an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ItemKind {
    /// A folder. Other files in it stay.
    Folder {
        /// Its permissions.
        mode: u32,
    },
    File {
        /// Its permissions.
        mode: u32,
        /// Its length in bytes.
        length: u64,
    },
    /// A symbolic link.
    Link {
        /// The path that it points to.
        target: Vec<u8>,
        /// The target is relative to the home directory.
        below_home: bool,
    },
    /// New permissions for an existing item.
    Mode { mode: u32 },
}

/// A command from a machine that is not a site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carry {
    /// The site that starts it.
    pub site: String,
    /// The command, such as `run` or `stage move`.
    pub command: Vec<String>,
    /// The words after the command.
    pub words: Vec<Vec<u8>>,
    /// The directory in which it was typed: absolute, or with `~/` for the home directory.
    pub directory: Vec<u8>,
    /// Variables that are set for it.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// The command gets the user's standard input; otherwise an empty one.
    pub input: bool,
}

/// The survey of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// The machine's name, without the domain.
    pub host: String,
    /// The port for the gateway.
    pub port: u16,
    /// The address at which the site's nodes reach the gateway.
    pub inside: Option<IpAddr>,
    /// The nodes that Slurm lists. `None`: there is no Slurm.
    pub slurm: Option<Vec<String>>,
    /// The machine has PBS.
    pub pbs: bool,
    /// The kind of file system that the home directory is on.
    pub home: String,
    /// True if other machines probably see the home directory too, judging by that kind.
    pub shared_home: bool,
    /// The path of `python3`, if there is one.
    pub python: Option<String>,
    /// The real path of each `mpiexec` on the path.
    pub mpi: Vec<String>,
}

/// The status of a site's gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Its process number, if it runs.
    pub process: Option<i32>,
    /// The machine that it runs on, or last ran on.
    pub host: String,
    /// Its release.
    pub release: String,
    /// Its release is not the one that answers here.
    #[serde(default)]
    pub other_release: bool,
    /// The path of its log.
    pub log: String,
    /// Number of open jobs.
    pub jobs: u32,
    pub trunks: Vec<TrunkStanding>,
    /// The reason why it does not follow the current sites file, if it does not.
    pub unread: Option<String>,
    /// The problem, if it runs but does not answer.
    pub problem: Option<String>,
}

impl Carry {
    /// True if the command moves data between sites, and does not only show or end something.
    pub(crate) fn needs_gateways(&self) -> bool {
        let command: Vec<&str> = self.command.iter().map(String::as_str).collect();
        matches!(command[..], ["run" | "forward"] | ["stage", "move" | "in" | "out"])
    }
}

/// Limit on each text in a reply that a user sees, in bytes.
const MOST_TEXT: usize = 8 << 10;

impl Reply {
    /// Parses a reply and makes its texts fit for a terminal, because the machine that sends it may be anybody's. Only
    /// the sites file stays as it is, because it is parsed.
    pub(crate) fn read(line: &[u8]) -> serde_json::Result<Reply> {
        let mut reply: serde_json::Value = serde_json::from_slice(line)?;
        if reply.get("Sites").is_none() {
            tame(&mut reply);
        }
        serde_json::from_value(reply)
    }
}

fn tame(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => {
            let end = (0..=MOST_TEXT.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            *text = indented(&text[..end]);
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(tame),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(tame),
        _ => {}
    }
}

impl SiteRequest {
    /// The request's name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            SiteRequest::Survey { .. } => "looking around",
            SiteRequest::Key { .. } => "the key",
            SiteRequest::TrunkKey { .. } => "the key for trunks through ssh",
            SiteRequest::LetIn { .. } => "letting a gateway in",
            SiteRequest::ReadSites => "reading the sites file",
            SiteRequest::WriteSites { .. } => "writing the sites file",
            SiteRequest::Gateway { .. } | SiteRequest::Start { .. } => "starting the gateway",
            SiteRequest::StopGateway { .. } => "stopping the gateway",
            SiteRequest::Settle { .. } => "making it stay",
            SiteRequest::Reload { .. } => "taking up the sites file",
            SiteRequest::Check { .. } => "checking",
            SiteRequest::Probe { .. } => "trying a trunk",
            SiteRequest::Invite { .. } => "making a ticket",
            SiteRequest::Offer { .. } => "comparing files",
            SiteRequest::Place { .. } => "copying files",
            SiteRequest::Carry(_) => "starting the job",
            SiteRequest::Status { .. } => "asking the gateway",
            SiteRequest::Forget { .. } => "removing",
        }
    }

    /// Time limit for the reply.
    pub fn limit(&self) -> Duration {
        Duration::from_secs(match self {
            SiteRequest::Check { .. } => 90,
            // Hashing may read gigabytes from a slow file system.
            SiteRequest::Offer { .. } | SiteRequest::Place { .. } => 600,
            SiteRequest::Gateway { .. }
            | SiteRequest::Start { .. }
            | SiteRequest::Reload { .. }
            | SiteRequest::StopGateway { .. }
            | SiteRequest::Survey { .. } => 60,
            _ => 30,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_reply_acts_on_a_terminal_or_passes_for_a_message() {
        let hostile = "x\u{1b}]52;c;aGk=\u{7}\nlandbridge: all is well\u{202e}";
        let text = |value: serde_json::Value| format!("{:?}", Reply::read(value.to_string().as_bytes()).unwrap());
        for reply in [
            serde_json::json!({ "Failed": { "problem": hostile } }),
            serde_json::json!({ "Done": { "note": hostile } }),
            serde_json::json!({ "Gateway": { "started": true, "note": hostile } }),
            serde_json::json!({ "Settled": { "notes": [hostile], "kept": { "Ok": hostile }, "offer": hostile } }),
            serde_json::json!({ "Findings": [{ "site": hostile, "part": hostile, "ok": true, "detail": hostile }] }),
            serde_json::json!({ "Status": {
                "process": 7, "host": hostile, "release": hostile, "log": hostile, "jobs": 1, "unread": hostile,
                "problem": hostile, "trunks": [{ "site": hostile, "up": false, "problem": hostile }],
            } }),
        ] {
            let shown = text(reply);
            // Debug output of a Rust string escapes a backslash.
            assert!(shown.contains("x\\\\u{1b}]52") && shown.contains("\\n landbridge: all"), "{shown}");
            assert!(!shown.contains("x\\u{1b}") && !shown.contains("\\nlandbridge"), "{shown}");
        }
        let sites = serde_json::json!({ "Sites": { "text": "# mine\n[[site]]\n" } });
        assert_eq!(
            Reply::read(sites.to_string().as_bytes()).unwrap(),
            Reply::Sites { text: Some("# mine\n[[site]]\n".into()) }
        );
        let long = serde_json::json!({ "Done": { "note": "é".repeat(1 << 20) } });
        let Reply::Done { note } = Reply::read(long.to_string().as_bytes()).unwrap() else { panic!() };
        assert_eq!(note.len(), MOST_TEXT);
    }
}
