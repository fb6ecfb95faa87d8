//! The way of starting a site's agents on its nodes: the `[site.starter]` table.

use serde::Deserialize;

use super::wrong::Wrong;

/// The way of starting agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Starter {
    /// As children of the gateway, on its own machine.
    Local,
    /// Over ssh.
    Ssh(Ssh),
    /// With any command that runs another command on a node.
    Template(Template),
    /// As steps of a Slurm job: the user's own, or one requested for the run.
    Slurm(Slurm),
    /// Over ssh, on the nodes of the PBS job in which `run` was started.
    Pbs(Ssh),
    /// Over ssh, on the nodes of the Grid Engine job in which `run` was started.
    GridEngine(Ssh),
}

impl Starter {
    /// Returns true if the site's nodes come from a batch job, so the sites file does not list them.
    pub fn allocates(&self) -> bool {
        self.submits_with().is_some()
    }

    /// Returns true if Landbridge can request jobs; otherwise `run` must be typed in a job of the user's own.
    pub fn makes_jobs(&self) -> bool {
        match self {
            Starter::Slurm(_) => true,
            Starter::Local | Starter::Ssh(_) | Starter::Template(_) | Starter::Pbs(_) | Starter::GridEngine(_) => false,
        }
    }

    /// The command with which a user submits a job's script, if the nodes come from a batch system.
    pub fn submits_with(&self) -> Option<&'static str> {
        match self {
            Starter::Slurm(_) => Some("sbatch"),
            Starter::Pbs(_) | Starter::GridEngine(_) => Some("qsub"),
            Starter::Local | Starter::Ssh(_) | Starter::Template(_) => None,
        }
    }

    /// The port of the service that starts movers on nodes outside the user's jobs.
    pub fn node_service(&self) -> Option<u16> {
        match self {
            Starter::Slurm(slurm) => slurm.node_service,
            Starter::Local | Starter::Ssh(_) | Starter::Template(_) | Starter::Pbs(_) | Starter::GridEngine(_) => None,
        }
    }
}

/// An ssh login on every node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ssh {
    /// The user there. `None`: from ssh's configuration.
    pub user: Option<String>,
    /// The port of the nodes' sshd. `None`: from ssh's configuration.
    pub port: Option<u16>,
    /// The private key to use, relative to the sites file. `None`: from ssh's configuration.
    pub identity: Option<String>,
    /// Further words for ssh's command line, such as `-J` and `login`.
    pub options: Vec<String>,
    /// Path of `landbridge` on the nodes. `None`: the gateway's own path.
    pub landbridge: Option<String>,
}

/// A command that runs another command on a node and passes its standard input on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Program and arguments; `{node}`, `{user}`, `{site}` and `{agent}` are replaced by their values. Without
    /// `{agent}`, the agent's command is appended word by word.
    pub command: Vec<String>,
    /// The value of `{user}`.
    pub user: Option<String>,
    /// Path of `landbridge` on the nodes. `None`: the gateway's own path.
    pub landbridge: Option<String>,
}

/// Options for requesting a job from Slurm. `None`: Slurm's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slurm {
    pub partition: Option<String>,
    /// The account to charge.
    pub account: Option<String>,
    /// The quality of service.
    pub qos: Option<String>,
    /// The time limit, in the format of `salloc --time`.
    pub time: Option<String>,
    /// Further words for salloc's command line, such as `--constraint=gpu`.
    pub options: Vec<String>,
    /// Path of `landbridge` on the nodes. `None`: the gateway's own path.
    pub landbridge: Option<String>,
    /// The port of the node service, which starts movers on any node, behind other users' jobs. `None`: no such
    /// service.
    pub node_service: Option<u16>,
}

/// The placeholders that a [`Template`] may contain.
pub const PLACEHOLDERS: [&str; 4] = ["{node}", "{user}", "{site}", "{agent}"];

/// The table as written.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Raw {
    Local {},
    Ssh(RawSsh),
    Template(RawTemplate),
    Slurm(RawSlurm),
    Pbs(RawSsh),
    GridEngine(RawSsh),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSlurm {
    partition: Option<String>,
    account: Option<String>,
    qos: Option<String>,
    time: Option<String>,
    #[serde(default)]
    options: Vec<String>,
    landbridge: Option<String>,
    node_service: Option<u16>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSsh {
    user: Option<String>,
    port: Option<u16>,
    identity: Option<String>,
    #[serde(default)]
    options: Vec<String>,
    landbridge: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTemplate {
    command: Vec<String>,
    user: Option<String>,
    landbridge: Option<String>,
}

impl Default for Raw {
    fn default() -> Raw {
        Raw::Local {}
    }
}

impl Raw {
    pub(super) fn check(self) -> Result<Starter, Wrong> {
        match self {
            Raw::Local {} => Ok(Starter::Local),
            Raw::Ssh(raw) => raw.check().map(Starter::Ssh),
            Raw::Template(raw) => raw.check().map(Starter::Template),
            Raw::Slurm(raw) => raw.check().map(Starter::Slurm),
            Raw::Pbs(raw) => raw.check().map(Starter::Pbs),
            Raw::GridEngine(raw) => raw.check().map(Starter::GridEngine),
        }
        .map_err(|wrong| wrong.within("starter"))
    }
}

impl RawSsh {
    fn check(self) -> Result<Ssh, Wrong> {
        if self.port == Some(0) {
            return Err(Wrong::new("port", "`0` is not a port: give 1 to 65535, or remove it"));
        }
        Ok(Ssh {
            user: user(self.user)?,
            port: self.port,
            identity: path("identity", self.identity)?,
            options: self.options,
            landbridge: path("landbridge", self.landbridge)?,
        })
    }
}

impl RawTemplate {
    fn check(self) -> Result<Template, Wrong> {
        if self.command.first().is_none_or(String::is_empty) {
            return Err(Wrong::new(
                "command",
                "is empty: give the program and its arguments, such as [\"rsh\", \"{node}\"]",
            ));
        }
        let user = user(self.user)?;
        for word in &self.command {
            if let Some(unknown) = braces(word).find(|found| !PLACEHOLDERS.contains(found)) {
                let known = PLACEHOLDERS.join(", ");
                return Err(Wrong::new(
                    "command",
                    format!("unknown placeholder `{unknown}` in `{word}`; there are {known}"),
                ));
            }
            if user.is_none() && word.contains("{user}") {
                return Err(Wrong::new("command", format!("`{word}` needs `user`, which is not set")));
            }
        }
        Ok(Template { command: self.command, user, landbridge: path("landbridge", self.landbridge)? })
    }
}

impl RawSlurm {
    fn check(self) -> Result<Slurm, Wrong> {
        let value = |place: &str, value: Option<String>| match value {
            Some(text) if text.is_empty() || text.contains(char::is_whitespace) => {
                Err(Wrong::new(place, format!("`{text}` is not a single word, as Slurm requires")))
            }
            value => Ok(value),
        };
        if self.node_service == Some(0) {
            return Err(Wrong::new("node_service", "`0` is not a port: give 1 to 65535, or remove it"));
        }
        Ok(Slurm {
            partition: value("partition", self.partition)?,
            account: value("account", self.account)?,
            qos: value("qos", self.qos)?,
            time: value("time", self.time)?,
            options: self.options,
            landbridge: path("landbridge", self.landbridge)?,
            node_service: self.node_service,
        })
    }
}

/// The words in braces that look like placeholders: lower-case letters only.
fn braces(word: &str) -> impl Iterator<Item = &str> {
    word.match_indices('{').filter_map(|(at, _)| {
        let length = word[at + 1..].find(|c: char| !c.is_ascii_lowercase())?;
        (length > 0 && word[at + 1 + length..].starts_with('}')).then(|| &word[at..at + length + 2])
    })
}

fn user(value: Option<String>) -> Result<Option<String>, Wrong> {
    match value {
        Some(name) if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) => {
            Err(Wrong::new("user", format!("`{name}` is not the name of a user")))
        }
        value => Ok(value),
    }
}

fn path(place: &str, value: Option<String>) -> Result<Option<String>, Wrong> {
    match value {
        Some(text) if text.is_empty() || text.contains('\0') => {
            Err(Wrong::new(place, format!("`{}` is not a path", text.escape_debug())))
        }
        value => Ok(value),
    }
}
