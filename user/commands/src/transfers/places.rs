//! The nodes of places, and the job of movers between them.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use job::home::{homes, portable};
use job::program;
use launcher::Sites;
use launcher::hosts::Host;
use stage::mover::Spot;
use stage::{NodeChoice, Place};
use starters::held;
use starters::leash::LEASH;
use types::roster::FORWARDER;
use types::sites::Site;

use crate::error::{CommandError, Context, Result, refusal, refuse};
use crate::machine::working_directory;
use crate::runtime::runtime;
use crate::sites_file;

/// A node of a site. [`FORWARDER`] is the machine of the site's gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At {
    pub site: String,
    pub node: String,
}

/// The sites at present: if this process is in a batch job, the job's nodes are those of its site.
pub struct Map {
    path: PathBuf,
    sites: Sites,
    home: String,
    /// True if this process is in a batch job of its site.
    held: bool,
}

impl Map {
    pub fn open(file: Option<&Path>, from: Option<&str>) -> Result<Map> {
        let path = sites_file::locate(file)?;
        let mut sites = sites_file::read(&path)?;
        let home = sites_file::own_site(&sites, from)?;
        let held = runtime()?.block_on(held::find(sites.site(&home)?))?;
        if let Some(held) = &held {
            held::fill(&mut sites.file, &home, held);
        }
        Ok(Map { path, sites, home, held: held.is_some() })
    }

    fn is_held(&self, site: &str) -> bool {
        self.held && site == self.home
    }

    fn site(&self, name: &str, place: &dyn std::fmt::Display) -> Result<&Site> {
        let sites = &self.sites.file.sites;
        sites.iter().find(|site| site.name == name).ok_or_else(|| {
            let known: Vec<&str> = sites.iter().map(|site| site.name.as_str()).collect();
            let known = known.join(", ");
            refusal!("{place}: unknown site `{name}`: the sites file has {known}. A path with a colon begins with ./")
        })
    }

    /// The nodes of a place.
    pub fn nodes_of(&self, place: &Place) -> Result<Vec<At>> {
        let name = place.site.as_deref().unwrap_or(&self.home);
        let site = self.site(name, place)?;
        let at = |node: &str| At { site: name.to_owned(), node: node.to_owned() };
        if place.site.is_none() {
            return this_machine(site).map(|node| vec![at(&node)]).ok_or_else(|| {
                let gateway = match &site.gateways[..] {
                    [only] => format!(", nor that of its gateway {}", only.name),
                    _ => String::new(),
                };
                refusal!(
                    "{place}: this machine is no node of site {name}{gateway}: name the node that has the file, as \
                     {name}/NODE:PATH, or {name}:PATH if the machine of each gateway sees it"
                )
            });
        }
        match &place.node {
            NodeChoice::Any => Ok(vec![at(FORWARDER)]),
            // Only the batch system knows the site's nodes.
            NodeChoice::Named(wanted) if !self.is_held(name) && site.starter.node_service().is_some() => {
                Ok(wanted.split(',').map(at).collect())
            }
            _ if site.nodes.is_empty() => refuse!(
                "{place}: the nodes of site {name} are those of its batch system's jobs: {name}:PATH is the machine of its \
                 gateway; type this in a job's script to reach the job's nodes"
            ),
            NodeChoice::All => Ok(site.nodes.iter().map(|node| at(&node.name)).collect()),
            NodeChoice::Named(wanted) => {
                let find = |wanted: &str| match site.nodes.iter().any(|node| node.name == *wanted) {
                    true => Ok(at(wanted)),
                    false => Err(refusal!("{place}: site {name} has no node `{wanted}`: it has {}", names(site))),
                };
                wanted.split(',').map(find).collect()
            }
        }
    }

    /// The nodes of the allocation: those given by the user, else those of the batch job around this process, else all
    /// of the own site.
    pub fn allocation(&self, hosts: &[Host]) -> Result<Vec<At>> {
        for (at, Host { site: name, node, .. }) in hosts.iter().enumerate() {
            if hosts[..at].iter().any(|other| (&other.site, &other.node) == (name, node)) {
                return Err(CommandError::Option(format!("--host {name}/{node} is given twice: give it once")));
            }
            let site = self.site(name, &format!("--host {name}/{node}"))?;
            if !site.nodes.iter().any(|other| other.name == *node) {
                refuse!("--host {name}/{node}: site {name} has no node `{node}`: it has {}", names(site));
            }
        }
        if !hosts.is_empty() {
            return Ok(hosts.iter().map(|host| At { site: host.site.clone(), node: host.node.clone() }).collect());
        }
        let site = self.sites.site(&self.home)?;
        if site.nodes.is_empty() && !self.held {
            refuse!(
                "the nodes of site {} are those of its batch system's jobs: type this in a job's script",
                self.home
            );
        }
        Ok(site.nodes.iter().map(|node| At { site: self.home.clone(), node: node.name.clone() }).collect())
    }

    /// Sorts nodes into the order of a job's ranks: sites as in the sites file.
    pub fn sort(&self, nodes: &mut [At]) {
        nodes.sort_by_key(|at| self.sites.file.sites.iter().position(|site| site.name == at.site));
    }

    /// The command that runs a mover on each of these nodes. It ends with this process, even if that is killed.
    pub fn job(&self, nodes: &[At]) -> Result<Command> {
        let hosts: Vec<String> = nodes.iter().map(|at| format!("{}/{}:1", at.site, at.node)).collect();
        let own = std::env::current_exe()?;
        let mut command = Command::new(&own);
        command.args([LEASH, &std::process::id().to_string(), "--"]).arg(&own);
        command.arg("run").arg("--sites").arg(&self.path).args(["--from", &self.home, "--mpi", "none"]);
        command.args([
            "--host",
            &hosts.join(","),
            "-n",
            &nodes.len().to_string(),
            "--stdin",
            "0",
            "--wdir",
            "~/",
            "--",
        ]);
        command.args(program::MOVER);
        Ok(command)
    }
}

fn names(site: &Site) -> String {
    site.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Time limit for looking up the names of nodes.
const LOOK_UP: Duration = Duration::from_secs(3);

/// The node of a site that is this machine: found by address, by name, or by the addresses of the name.
fn this_machine(site: &Site) -> Option<String> {
    let is_own = |address: IpAddr| UdpSocket::bind((address, 0)).is_ok();
    let own = rustix::system::uname();
    let own = own.nodename().to_bytes();
    let is_named =
        |name: &str| own == name.as_bytes() || own.split(|byte| *byte == b'.').next() == Some(name.as_bytes());
    let node = site.nodes.iter().find(|node| node.address.map_or_else(|| is_named(&node.name), is_own));
    let gateway = || match &site.gateways[..] {
        [only] => only.inside.to_socket_addrs().is_ok_and(|mut all| all.any(|address| is_own(address.ip()))),
        // The gateway that will lead a job is not known beforehand.
        _ => false,
    };
    let looked_up = || {
        let end = Instant::now() + LOOK_UP;
        let unnamed = site.nodes.iter().filter(|node| node.address.is_none()).take_while(|_| Instant::now() < end);
        // Ignore loopback addresses: many machines have one for their own name, and every machine has them.
        let is_own = |address: SocketAddr| !address.ip().is_loopback() && is_own(address.ip());
        let mut found =
            unnamed.filter(|node| (&node.name[..], 0).to_socket_addrs().is_ok_and(|mut all| all.any(is_own)));
        found.next().map(|node| node.name.clone())
    };
    node.map(|node| node.name.clone()).or_else(|| gateway().then(|| FORWARDER.to_owned())).or_else(looked_up)
}

/// An absolute path, valid for other processes of this machine. Keeps a trailing slash.
pub fn absolute(place: &Place) -> Result<Vec<u8>> {
    let mut bytes = working_directory()?.join(&place.path).into_os_string().into_encoded_bytes();
    if place.path.as_os_str().as_bytes().ends_with(b"/") && !bytes.ends_with(b"/") {
        bytes.push(b'/');
    }
    Ok(bytes)
}

/// A place's path, valid on its own machine.
pub fn there(place: &Place) -> Result<Vec<u8>> {
    match place.site {
        Some(_) => Ok(place.path.as_os_str().as_bytes().to_vec()),
        None => absolute(place),
    }
}

/// A path, valid on the nodes of a run: relative to the working directory, and below the home there if it is below the
/// home here.
pub fn on_nodes(path: &OsStr) -> Result<Vec<u8>> {
    if path.as_bytes().starts_with(b"~/") {
        return Ok(path.as_bytes().to_vec());
    }
    let place = Place { site: None, node: NodeChoice::Any, path: PathBuf::from(OsString::from(path)) };
    Ok(portable(&absolute(&place)?, &homes()))
}

/// The ranks of a job of movers, while its tasks are collected.
#[derive(Default)]
pub struct Movers {
    nodes: Vec<At>,
}

impl Movers {
    /// Adds nodes to the job.
    pub fn add(&mut self, nodes: &[At]) {
        for at in nodes {
            if !self.nodes.contains(at) {
                self.nodes.push(at.clone());
            }
        }
    }

    /// Fixes the ranks: no node can be added afterwards.
    pub fn settle(mut self, map: &Map) -> Settled {
        map.sort(&mut self.nodes);
        Settled { nodes: self.nodes }
    }
}

/// The ranks of a job of movers.
pub struct Settled {
    pub nodes: Vec<At>,
}

impl Settled {
    /// The spot of a path on `at`, which must have been added.
    pub fn spot(&self, at: &At, path: Vec<u8>, typed: String) -> Result<Spot> {
        let rank = self.nodes.iter().position(|other| other == at).context("a node of the job")? as u32;
        Ok(Spot { rank, node: format!("{}/{}", at.site, at.node), path, typed })
    }

    /// The spot of a place on one of its nodes.
    pub fn of_place(&self, place: &Place, at: &At) -> Result<Spot> {
        let path = there(place)?;
        let typed = match place.is_several() {
            true => format!("{}/{}:{}", at.site, at.node, place.path.display()),
            false => place.to_string(),
        };
        self.spot(at, path, typed)
    }
}
