//! A site's entry in the sites file, derived from the user's wish and the survey of the machine.

use std::net::SocketAddr;
use std::time::Duration;

use job::capture::{CaptureError, capture};
use thiserror::Error;
use tokio::process::Command;
use types::quantity::counted;
use types::sites::{Gateway, Login, Site, any_address};
use types::untrusted::printable;

use super::Wish;
use crate::book::{SiteEntry, Start};
use crate::company::whereabouts;
use crate::error::SetupError;
use crate::message::Survey;
use crate::place::MachinePlace;
use crate::release::Release;

/// The user's wish, checked as far as this machine can.
#[derive(Debug)]
pub(super) struct Checked {
    /// The site's machine.
    pub place: MachinePlace,
    /// The folder for the copies there.
    pub folder: Option<String>,
    /// The nodes that the user named.
    pub nodes: Option<Vec<String>>,
    /// The release to copy, if not this one.
    pub programs: Option<Release>,
}

/// Checks a wish before contacting any machine.
///
/// # Errors
/// All problems of the wish, one a line.
pub(super) fn check(wish: &Wish, known: Option<&Site>) -> Result<Checked, SetupError> {
    let mut problems = Vec::new();
    let mut note = |error: SetupError| problems.push(error.to_string());
    if let Err(error) = check_name(&wish.name) {
        note(error);
    }
    for (one, other, why) in [
        (
            wish.dial_out,
            wish.advertise.is_some(),
            "--dial-out is for a site that nobody can dial, --advertise for one that others dial: leave one out",
        ),
        (
            wish.nodes.is_some(),
            !wish.slurm.is_empty(),
            "--nodes names nodes to reach by ssh, --slurm asks Slurm for nodes: leave one out",
        ),
    ] {
        if one && other {
            note(SetupError::Request(why.into()));
        }
    }
    for (flag, text) in [("--advertise", &wish.advertise), ("--inside", &wish.inside)] {
        if let Some(Err(error)) = text.as_ref().map(|text| with_port(flag, text, 1)) {
            note(error);
        }
    }
    let folder = wish.folder.clone().or_else(|| known.and_then(|site| site.folder.clone()));
    if let Some(folder) = folder.as_ref().filter(|folder| !types::sites::is_fixed_path(folder)) {
        note(SetupError::Request(format!("--folder `{folder}` must begin with / or ~/")));
    }
    let nodes = wish.nodes.as_deref().map(crate::nodes::expand).transpose();
    let nodes = nodes.map_err(|error| note(error.into())).ok().flatten();
    let place = place(wish, known).map_err(&mut note);
    let programs = wish.programs.as_deref().map(|folder| Release::read(Some(folder))).transpose();
    let programs = programs.map_err(&mut note).ok().flatten();
    match place {
        Ok(place) if problems.is_empty() => Ok(Checked { place, folder, nodes, programs }),
        _ => Err(SetupError::Request(problems.join("\n"))),
    }
}

fn check_name(name: &str) -> Result<(), SetupError> {
    if types::sites::is_name(name) {
        return Ok(());
    }
    let name = printable(name);
    Err(SetupError::Request(format!(
        "`{name}` cannot be the name of a site: use at most 64 letters, digits, `.`, `_` and `-`, with a letter or a \
         digit first"
    )))
}

/// The site's machine: the one that the user names, else the one in the sites file, else this machine.
fn place(wish: &Wish, known: Option<&Site>) -> Result<MachinePlace, SetupError> {
    let name = &wish.name;
    let wanted: Option<MachinePlace> = wish.place.as_deref().map(str::parse).transpose()?;
    let Some(site) = known else { return Ok(wanted.unwrap_or(MachinePlace::Here)) };
    let there = whereabouts(site)?;
    match (wanted, there) {
        (None, Some(there)) => Ok(there),
        (None, None) => Err(SetupError::Request(format!(
            "site {name} joined by itself: type `landbridge sites join {name} --ticket FILE` there to repair it"
        ))),
        (Some(wanted), there) => {
            let recorded = site.ssh.clone().map(MachinePlace::Ssh);
            if let Some(recorded) = recorded.filter(|recorded| *recorded != wanted) {
                return Err(SetupError::Request(format!(
                    "the name {name} is taken by the site at {recorded}: choose another, or take that one out with \
                     `landbridge sites remove {name}`"
                )));
            }
            // On the site's own machine there is no need to go through ssh.
            Ok(there.filter(|there| *there == MachinePlace::Here).unwrap_or(wanted))
        }
    }
}

/// Makes the site's entry. Settings that the user does not give now stay as in the sites file.
pub(super) async fn entry(
    wish: &Wish,
    place: &MachinePlace,
    survey: &Survey,
    nodes: Option<Vec<String>>,
    known: Option<&Site>,
    notes: &mut Vec<String>,
) -> Result<SiteEntry, SetupError> {
    let old = known.and_then(|site| site.gateways.first());
    let recorded = |address: &str| address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let port = wish.port.or_else(|| recorded(&old?.listen)).unwrap_or(survey.port);
    let advertise = advertise(wish, place, old, port, notes).await?;
    let inside = match (&wish.inside, old) {
        (Some(text), _) => with_port("--inside", text, port)?,
        (None, Some(old)) if wish.port.is_none() => old.inside.clone(),
        (None, _) => match survey.inside {
            Some(address) => SocketAddr::new(address, port).to_string(),
            None => format!("127.0.0.1:{port}"),
        },
    };
    let (nodes, starter) = nodes_and_starter(wish, survey, nodes, known)?;
    let starter = if nodes == [survey.host.clone()] { Start::Local } else { starter };
    if starter != Start::Local && !survey.shared_home && known.is_none() {
        notes.push(format!(
            "the home directory of {} is on {}: nodes that do not see it cannot start; --folder DIR puts the programs on a \
             file system that they see",
            wish.name, survey.home
        ));
    }
    // If the user gives an address, other sites dial it instead of using ssh.
    let ssh = old.and_then(|old| old.ssh.clone()).filter(|_| wish.advertise.is_none());
    Ok(SiteEntry { advertise, ssh, inside, listen: any_address(port), nodes, starter })
}

/// The address at which other sites dial the gateway; `None` if it dials out.
async fn advertise(
    wish: &Wish,
    place: &MachinePlace,
    old: Option<&Gateway>,
    port: u16,
    notes: &mut Vec<String>,
) -> Result<Option<String>, SetupError> {
    Ok(match (&wish.advertise, old) {
        _ if wish.dial_out => None,
        (Some(text), _) => Some(with_port("--advertise", text, port)?),
        (None, Some(old)) => match (&old.advertise, wish.port) {
            (Some(text), Some(port)) => text.rsplit_once(':').map(|(host, _)| format!("{host}:{port}")),
            (advertise, _) => advertise.clone(),
        },
        (None, None) => match default_host(place).await {
            Ok(host) => Some(with_port("host", &host, port)?),
            Err(why) => {
                notes.push(format!(
                    "other sites cannot dial {}, it dials out: {why}; give its address by --advertise HOST",
                    wish.name
                ));
                None
            }
        },
    })
}

/// The site's nodes, and the way in which agents are started on them.
fn nodes_and_starter(
    wish: &Wish,
    survey: &Survey,
    nodes: Option<Vec<String>>,
    known: Option<&Site>,
) -> Result<(Vec<String>, Start), SetupError> {
    Ok(match (nodes, known, &survey.slurm) {
        (Some(nodes), _, _) => (nodes, Start::Ssh),
        (None, _, None) if !wish.slurm.is_empty() => {
            return Err(SetupError::site(
                &wish.name,
                format!(
                    "--slurm is for a site with Slurm, and on {} `sinfo` is missing or does not answer: log in there and try \
                     it, or name the nodes with --nodes LIST",
                    survey.host
                ),
            ));
        }
        (None, _, Some(_)) if !wish.slurm.is_empty() => (Vec::new(), Start::Slurm),
        // The sites file's own entries for the nodes are not rewritten.
        (None, Some(site), _) => (site.nodes.iter().map(|node| node.name.clone()).collect(), Start::Ssh),
        (None, None, Some(_)) => (Vec::new(), Start::Slurm),
        (None, None, None) => (vec![survey.host.clone()], Start::Local),
    })
}

/// `host[:port]`, with `port` added if the text has none.
fn with_port(flag: &str, text: &str, port: u16) -> Result<String, SetupError> {
    let wrong = || SetupError::Request(format!("{flag} `{text}` is not HOST or HOST:PORT"));
    if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control() || c == '/' || c == '@') {
        return Err(wrong());
    }
    match text.rsplit_once(':') {
        None => Ok(format!("{text}:{port}")),
        Some((host, given)) if !host.is_empty() && (!host.contains(':') || host.ends_with(']')) => {
            given.parse::<u16>().ok().filter(|port| *port != 0).map(|_| text.to_owned()).ok_or_else(wrong)
        }
        // A bare IPv6 address.
        Some(_) if text.parse::<std::net::Ipv6Addr>().is_ok() => Ok(format!("[{text}]:{port}")),
        Some(_) => Err(wrong()),
    }
}

/// Reasons for not knowing the address at which others dial a machine.
#[derive(Debug, Error)]
pub(super) enum NoHost {
    #[error("it is this machine, whose name outside is not known here")]
    Here,
    #[error("ssh -G: {0}")]
    Ssh(CaptureError),
    #[error("ssh reaches it by {key} {value}")]
    Proxy { key: &'static str, value: String },
    #[error("ssh names no host")]
    Unnamed,
}

/// The host that ssh dials, which others can probably dial too; or the reason why it is unknown.
async fn default_host(place: &MachinePlace) -> Result<String, NoHost> {
    login(place).await.map(|login| login.host().to_owned())
}

/// The login that ssh uses, in terms that do not depend on the user's ssh configuration; or the reason why it is
/// unknown.
pub(super) async fn login(place: &MachinePlace) -> Result<Login, NoHost> {
    if *place == MachinePlace::Here {
        return Err(NoHost::Here);
    }
    // The name that the user types may exist only in the ssh configuration.
    let mut command = Command::new("ssh");
    command.arg("-G").args(place.arguments());
    let answer = capture(&mut command, Duration::from_secs(10)).await.map_err(NoHost::Ssh)?.text();
    let setting = |key: &str| {
        let lines = answer.lines().filter_map(|line| line.split_once(' '));
        lines.filter(|(name, value)| *name == key && *value != "none").map(|(_, value)| value.to_owned()).next()
    };
    for key in ["proxyjump", "proxycommand"] {
        if let Some(value) = setting(key) {
            return Err(NoHost::Proxy { key, value });
        }
    }
    let host = setting("hostname").or_else(|| place.host().map(str::to_owned)).ok_or(NoHost::Unnamed)?;
    let port = setting("port").and_then(|port| port.parse().ok());
    let target = setting("user").map_or_else(|| host.clone(), |user| format!("{user}@{host}"));
    Ok(Login { target, port })
}

/// The entry described in text, for a user who is waiting.
pub(super) fn describe(entry: &SiteEntry, survey: &Survey) -> String {
    let dialled = entry.advertise.as_deref().map_or("it dials out".to_owned(), |text| format!("others dial {text}"));
    let nodes = match entry.nodes.as_slice() {
        [only] if *only == survey.host => "its node is this machine".to_owned(),
        [] => "its nodes are those that Slurm gives".to_owned(),
        [only] => format!("its node is {only}"),
        nodes => format!("{}, by ssh", counted(nodes.len(), "node")),
    };
    format!("gateway at {}, {dialled}; {nodes}", entry.inside)
}

/// The survey described in text, for the table of findings.
pub(super) fn describe_machine(survey: &Survey) -> String {
    let scheduler = match (&survey.slurm, survey.pbs) {
        (Some(nodes), _) => format!("Slurm with {}", counted(nodes.len(), "node")),
        (None, true) => "PBS".to_owned(),
        (None, false) => "no scheduler".to_owned(),
    };
    let mpi = match survey.mpi.as_slice() {
        [] => "no mpiexec on the path".to_owned(),
        found => found.join(", "),
    };
    let python = survey.python.as_deref().unwrap_or("no python3");
    format!("{}: {scheduler}, home on {}, {python}, {mpi}", survey.host, survey.home)
}
