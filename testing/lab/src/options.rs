use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::layout::{Host, HostRole};
use crate::network::Nic;
use crate::units::Rate;
use crate::wan::LinkSettings;

/// The isolation between the hosts of a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Isolation {
    /// Namespaces if this machine and user allow them, otherwise loopback with a notice.
    #[default]
    Auto,
    /// Namespaces or an error.
    Namespaces,
    /// All hosts are this machine, with addresses 127.S.0.N: no isolation, no WAN.
    Loopback,
}

/// The address families of a site's hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Families {
    #[default]
    Ipv4,
    Ipv6,
    /// Each host has an address of each family, and the sites file gives the gateways' inside addresses by host name.
    Both,
}

impl Families {
    pub(crate) fn ipv4(self) -> bool {
        self != Families::Ipv6
    }

    pub(crate) fn ipv6(self) -> bool {
        self != Families::Ipv4
    }
}

impl std::str::FromStr for Families {
    type Err = LabError;
    fn from_str(text: &str) -> Result<Families, LabError> {
        match text {
            "4" => Ok(Families::Ipv4),
            "6" => Ok(Families::Ipv6),
            "both" => Ok(Families::Both),
            _ => Err(LabError::Options(format!("`{}` is not 4, 6 or both", text.escape_debug()))),
        }
    }
}

/// A lab's topology, and the programs that run in it.
///
/// The default is the lab of the documentation: two sites of two nodes and one gateway, 5 ms apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabOptions {
    /// Number of sites, 1 to 26, named `a`, `b`, … Default 2.
    pub sites: usize,
    /// Nodes per site, 1 to 100; node 2 of site `a` is the host `a-n2`. Default 2.
    pub nodes: usize,
    /// Gateways per site, 1 to 100; gateway 1 of site `a` is the host `a-gw1`. Default 1.
    pub gateways: usize,
    /// One-way delay between every pair of sites. Default 5 ms.
    pub delay: Duration,
    /// Random addition to the delay, uniform from 0 to this value; packets of a link never overtake each other. Default
    /// 0.
    pub jitter: Duration,
    /// Probability that one segment is lost between two sites, 0 ≤ loss < 1. Default 0.
    pub loss: f64,
    /// Rate between every pair of sites, each direction. Default 1 Gbit/s.
    pub wan_rate: Rate,
    /// The most bytes queued on a WAN link. Default: 20 ms or twice the delay, whichever is longer, times the rate, and
    /// at least 256 KiB.
    pub wan_queue: Option<u64>,
    /// Rate of every network interface of nodes and gateways, in both directions on the LAN; on the WAN only in a
    /// gateway's sending direction. Default 200 Mbit/s; 0 shapes nothing.
    pub nic_rate: Rate,
    /// The same for gateways alone. Default: the same as [`LabOptions::nic_rate`].
    pub gateway_nic_rate: Option<Rate>,
    /// Burst that an idle network interface sends at once, as time at its rate, and at least two packets. Default 0.4
    /// ms.
    pub nic_burst: Duration,
    /// Seed of loss and jitter. Default 1.
    pub seed: u64,
    /// Give every site the same private range, 10.0.0.0/24. Default: 10.S.0.0/24, with S = 1, 2, …
    pub same_range: bool,
    /// Address families of each site, in order; the last entry counts for all further sites. Default: IPv4. On the WAN
    /// gateways have addresses of every family that some site has.
    pub families: Vec<Families>,
    /// Let gateways forward IP and give nodes a default route, so that a benchmark can measure direct routing.
    pub route_directly: bool,
    /// The isolation between hosts. Default: namespaces if possible.
    pub isolation: Isolation,
    /// The command line of each gateway, with the placeholders `{site}`, `{gateway}` and `{sites_file}`. Default: this
    /// program with `gateway --sites {sites_file} --site {site} --gateway {gateway}`. An empty command starts no
    /// gateways.
    pub gateway_command: Option<Vec<String>>,
    /// The `memory` bound of each gateway in the sites file. Default `256MiB`.
    pub gateway_memory: String,
    /// TCP connections per trunk, 1 to 64: the `links` of each gateway in the sites file. `None`: not set, so the round
    /// trip decides.
    pub links: Option<u16>,
    /// A folder directly in `/run` that all nodes of a site share as a pool of memory. Each site has its own pool, and
    /// the sites file gives the folder as the site's `memory`. Default: none, so the ranks of each node share its own
    /// `/dev/shm`.
    pub pool: Option<PathBuf>,
    /// Size of a pool, in bytes. Default: half of the machine's memory.
    pub pool_bytes: Option<u64>,
    /// Directories below `/tmp`, `/dev/shm` or `/run` that every host must see although these mounts are private to it.
    /// Always visible: the top folders below these mounts that hold the working directory, this program, absolute paths
    /// among the command's words, and directories of `PATH` and `LD_LIBRARY_PATH`. Default: none.
    pub visible: Vec<PathBuf>,
    /// File for the WAN's report in JSON, written when the lab ends. Default: none.
    pub report: Option<PathBuf>,
    /// A directory that receives the logs of gateways when the lab ends, also after a failure. Default: none.
    pub logs: Option<PathBuf>,
    /// The program and arguments to run on the first node of the first site.
    #[serde(skip)]
    pub command: Vec<OsString>,
}

impl Default for LabOptions {
    fn default() -> Self {
        LabOptions {
            sites: 2,
            nodes: 2,
            gateways: 1,
            delay: Duration::from_millis(5),
            jitter: Duration::ZERO,
            loss: 0.0,
            wan_rate: Rate(1_000_000_000),
            wan_queue: None,
            nic_rate: Rate(200_000_000),
            gateway_nic_rate: None,
            nic_burst: Duration::from_micros(400),
            seed: 1,
            same_range: false,
            families: Vec::new(),
            route_directly: false,
            isolation: Isolation::Auto,
            gateway_command: None,
            gateway_memory: "256MiB".to_owned(),
            links: None,
            pool: None,
            pool_bytes: None,
            visible: Vec::new(),
            report: None,
            logs: None,
            command: Vec::new(),
        }
    }
}

impl LabOptions {
    /// Checks that these options describe a lab that can exist.
    ///
    /// # Errors
    /// [`LabError::Options`] naming the field, its value and the allowed values.
    pub fn check(&self) -> Result<(), LabError> {
        let refuse = |text: String| Err(LabError::Options(text));
        for (name, value, most) in
            [("sites", self.sites, 26), ("nodes", self.nodes, 100), ("gateways", self.gateways, 100)]
        {
            if value == 0 || value > most {
                return refuse(format!("{name} is {value}; it must be from 1 to {most}"));
            }
        }
        if let Some(links) = self.links.filter(|links| !(1..=64).contains(links)) {
            return refuse(format!("links is {links}; it must be from 1 to 64"));
        }
        if !(0.0..1.0).contains(&self.loss) {
            return refuse(format!("loss is {}; it must be at least 0 and below 1", self.loss));
        }
        if let Some(pool) = &self.pool {
            let name = pool.strip_prefix("/run").ok().and_then(|below| below.to_str()).unwrap_or_default();
            if name.is_empty() || name.contains(['/', '"', '\\']) || name.starts_with("landbridge") {
                return refuse(format!("pool is {}; it must be a folder directly in /run", pool.display()));
            }
            if self.isolation == Isolation::Loopback {
                return refuse("the hosts of a loopback lab share everything; drop the pool or loopback".to_owned());
            }
        }
        if self.command.is_empty() {
            return refuse("there is no command to run; give one after --".to_owned());
        }
        if self.same_range && self.route_directly {
            return refuse("sites that use the same range cannot be routed directly; drop one of the two".to_owned());
        }
        if self.families.len() > self.sites {
            let (given, sites) = (self.families.len(), self.sites);
            return refuse(format!("address families of {given} sites are given, and there are {sites}"));
        }
        if self.any_ipv6() && (self.route_directly || self.isolation == Isolation::Loopback) {
            return refuse("direct routing and loopback labs have IPv4 only; drop them or IPv6".to_owned());
        }
        if self.route_directly && self.isolation == Isolation::Loopback {
            return refuse("a loopback lab has no routes; drop direct routing or loopback".to_owned());
        }
        Ok(())
    }

    /// The address families of a site.
    pub(crate) fn families(&self, site: usize) -> Families {
        self.families.get(site).or(self.families.last()).copied().unwrap_or_default()
    }

    /// True if a host of the lab has an IPv6 address.
    pub(crate) fn any_ipv6(&self) -> bool {
        (0..self.sites).any(|site| self.families(site).ipv6())
    }

    /// The shaping of a host's interfaces.
    pub(crate) fn nic(&self, host: Host) -> Nic {
        let rate = match host.role {
            HostRole::Gateway => self.gateway_nic_rate.unwrap_or(self.nic_rate),
            HostRole::Node => self.nic_rate,
        };
        Nic { rate, burst: self.nic_burst }
    }

    pub(crate) fn link_settings(&self) -> LinkSettings {
        LinkSettings {
            delay: self.delay,
            jitter: self.jitter,
            loss: self.loss,
            rate: self.wan_rate,
            queue_bytes: self.wan_queue,
            down: false,
        }
    }
}
