//! What a site's entry in the sites file shall say, from what the user wants and what is there.

use std::time::Duration;

use thiserror::Error;
use tokio::process::Command;
use tokio::time::timeout;
use types::sites::Site;

use super::Wish;
use crate::SetupError;
use crate::book::{Entry, Start};
use crate::company::whereabouts;
use crate::message::Survey;
use crate::place::Place;

/// Where the site's machine is: as the user says, else as the sites file says, else here.
pub(super) fn place(wish: &Wish, known: Option<&Site>) -> Result<Place, SetupError> {
    let name = &wish.name;
    if !types::roster::is_name(name) || name.starts_with(['-', '.']) {
        return Err(SetupError::Request(format!(
            "`{name}` cannot name a site: letters, digits, `.`, `_` and `-`, at most 64, and no `-` or `.` first"
        )));
    }
    if wish.dial_out && wish.advertise.is_some() {
        return Err(SetupError::Request(
            "--dial-out says that nobody can dial the site, --advertise where: drop one".into(),
        ));
    }
    let Some(site) = known else { return Ok(wish.place.clone().unwrap_or(Place::Here)) };
    let there = whereabouts(site)?;
    match (&wish.place, there) {
        (None, Some(there)) => Ok(there),
        (None, None) => Err(SetupError::Request(format!(
            "site {name} joined by itself: type `landbridge sites join {name} TICKET` there to repair it"
        ))),
        (Some(wanted), there) => {
            let recorded = site.ssh.as_deref().and_then(|text| text.parse::<Place>().ok());
            if recorded.is_some_and(|recorded| recorded != *wanted) {
                return Err(SetupError::Request(format!(
                    "the name {name} is taken by the site at {}: choose another, or take that one out with \
                     `landbridge sites remove {name}`",
                    site.ssh.as_deref().unwrap_or_default()
                )));
            }
            // At its own machine there is no need to go out and in again.
            Ok(there.filter(|there| *there == Place::Here).unwrap_or_else(|| wanted.clone()))
        }
    }
}

/// The site's entry. What the user does not say now stays as the sites file says.
pub(super) async fn entry(
    wish: &Wish,
    place: &Place,
    survey: &Survey,
    nodes: Option<Vec<String>>,
    known: Option<&Site>,
    notes: &mut Vec<String>,
) -> Result<Entry, SetupError> {
    let old = known.and_then(|site| site.gateways.first());
    let recorded = |address: &str| address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    let port = wish.port.or_else(|| recorded(&old?.listen)).unwrap_or(survey.port);
    let advertise = match (&wish.advertise, old) {
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
                    "other sites cannot dial {}, it dials out: {why}; --advertise HOST says where",
                    wish.name
                ));
                None
            }
        },
    };
    let inside = match (&wish.inside, old) {
        (Some(text), _) => with_port("--inside", text, port)?,
        (None, Some(old)) if wish.port.is_none() => old.inside.clone(),
        (None, _) => match survey.inside {
            Some(address) => format!("{address}:{port}"),
            None => format!("127.0.0.1:{port}"),
        },
    };
    let (nodes, starter) = match (nodes, known, &survey.slurm) {
        (Some(nodes), _, _) => (nodes, Start::Ssh),
        // What the sites file says of them is not written anew.
        (None, Some(site), _) => (site.nodes.iter().map(|node| node.name.clone()).collect(), Start::Ssh),
        (None, None, Some(_)) => (Vec::new(), Start::Slurm),
        (None, None, None) => (vec![survey.host.clone()], Start::Local),
    };
    let starter = if nodes == [survey.host.clone()] { Start::Local } else { starter };
    if starter != Start::Local && !survey.shared_home && known.is_none() {
        notes.push(format!(
            "the home directory of {} is on {}: nodes that do not see it cannot start; --folder DIR puts the programs on a \
             file system that they see",
            wish.name, survey.home
        ));
    }
    Ok(Entry { advertise, inside, listen: format!("0.0.0.0:{port}"), nodes, starter })
}

/// `host[:port]` with the port that is missing.
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

/// Why it cannot be told where others dial a machine.
#[derive(Debug, Error)]
enum NoHost {
    #[error("it is this machine, whose name outside is not known here")]
    Here,
    #[error("ssh -G: {0}")]
    Ssh(std::io::Error),
    #[error("ssh -G says nothing")]
    Silent,
    #[error("ssh reaches it by {key} {value}")]
    Proxy { key: &'static str, value: String },
    #[error("ssh names no host")]
    Unnamed,
}

/// The host that ssh dials, which others can probably dial too; or why that cannot be told.
async fn default_host(place: &Place) -> Result<String, NoHost> {
    if *place == Place::Here {
        return Err(NoHost::Here);
    }
    // What the user calls it may be a name of the ssh configuration only.
    let mut command = Command::new("ssh");
    command.arg("-G").args(place.arguments()).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let answer = match timeout(Duration::from_secs(10), command.output()).await {
        Ok(Ok(answer)) => String::from_utf8_lossy(&answer.stdout).into_owned(),
        Ok(Err(e)) => return Err(NoHost::Ssh(e)),
        Err(_) => return Err(NoHost::Silent),
    };
    let setting = |key: &str| {
        let lines = answer.lines().filter_map(|line| line.split_once(' '));
        lines.filter(|(name, value)| *name == key && *value != "none").map(|(_, value)| value.to_owned()).next()
    };
    for key in ["proxyjump", "proxycommand"] {
        if let Some(value) = setting(key) {
            return Err(NoHost::Proxy { key, value });
        }
    }
    setting("hostname").or_else(|| place.host().map(str::to_owned)).ok_or(NoHost::Unnamed)
}

/// The entry, for a person who waits.
pub(super) fn describe(entry: &Entry, survey: &Survey) -> String {
    let dialled = entry.advertise.as_deref().map_or("it dials out".to_owned(), |text| format!("others dial {text}"));
    let nodes = match entry.nodes.as_slice() {
        [only] if *only == survey.host => "its node is this machine".to_owned(),
        [] => "its nodes are those that Slurm gives".to_owned(),
        [only] => format!("its node is {only}"),
        nodes => format!("{} nodes, by ssh", nodes.len()),
    };
    format!("gateway at {}, {dialled}; {nodes}", entry.inside)
}

/// What is there, for the table.
pub(super) fn describe_machine(survey: &Survey) -> String {
    let scheduler = match (&survey.slurm, survey.pbs) {
        (Some(nodes), _) => format!("Slurm with {} nodes", nodes.len()),
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
