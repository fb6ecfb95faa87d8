//! The flags of `landbridge lab`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use types::quantity::{QuantityError, parse_bytes};

/// Isolation of the sites in a lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isolation {
    /// Namespaces if this machine allows them, else loopback with a notice
    Auto,
    /// Namespaces or an error
    Namespaces,
    /// Addresses of this machine only: no isolation, no delay
    Loopback,
}

/// Run a command in several sites on this one machine, for trying things out
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    long_about = "Run a command in several sites on this one machine, for trying things out.\n\n\
        Every node and gateway gets its own network, host name, processes, /tmp and /dev/shm, with an emulated WAN between \
        sites. Gateways run, and LANDBRIDGE_SITES names the sites file. The command runs on the first node of the first \
        site, and its exit code is that of the lab. Nothing is left afterwards. Works as root, and for ordinary users if \
        the kernel allows user namespaces.",
    after_help = "Examples:\n  \
        landbridge lab -- landbridge run -n 4 -- hostname\n  \
        landbridge lab --sites 3 --delay 20ms --wan-rate 100mbit -- bash\n  \
        landbridge lab enter b-n1 -- ip addr        inside a lab: a command on another of its hosts\n  \
        landbridge lab wan a b delay=50ms loss=1%   inside a lab: change the WAN between two sites\n  \
        landbridge lab unplug b-gw1                 inside a lab: pull a host's cables (also kill, freeze, reset)"
)]
pub(crate) struct LabArgs {
    /// A command inside a lab.
    #[command(subcommand)]
    pub command: Option<LabCommand>,
    /// Number of sites, called a, b, …
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub sites: usize,
    /// Nodes per site; node 2 of site a is the host a-n2
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub nodes: usize,
    /// Gateways per site; gateway 1 of site a is the host a-gw1
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub gateways: usize,
    /// One-way delay between sites
    #[arg(long, default_value = "5ms", value_parser = lab::parse_time, value_name = "TIME")]
    pub delay: Duration,
    /// Random addition to the delay, from 0 up to this time
    #[arg(long, default_value = "0", value_parser = lab::parse_time, value_name = "TIME")]
    pub jitter: Duration,
    /// Rate between sites, each direction; 0: unlimited
    #[arg(long, default_value = "1gbit", value_parser = lab::parse_rate, value_name = "RATE")]
    pub wan_rate: lab::Rate,
    /// Rate of every network interface of nodes and gateways; 0: unlimited
    #[arg(long, default_value = "200mbit", value_parser = lab::parse_rate, value_name = "RATE")]
    pub nic_rate: lab::Rate,
    /// Rate of the gateways' network interfaces [default: that of --nic-rate]
    #[arg(long, value_parser = lab::parse_rate, value_name = "RATE")]
    pub gateway_nic_rate: Option<lab::Rate>,
    /// Burst size of a network interface after an idle time, as time at its rate: a larger one makes the emulation
    /// cheaper, and lets short messages arrive sooner than on a real one
    #[arg(long, default_value = "0.4ms", value_parser = lab::parse_time, value_name = "TIME")]
    pub nic_burst: Duration,
    /// Fraction of segments lost between sites, such as 0.01 or 1%
    #[arg(long, default_value = "0", value_parser = lab::parse_loss, value_name = "PART")]
    pub loss: f64,
    /// Seed of loss and jitter
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Give every site the same private addresses, 10.0.0.0/24
    #[arg(long)]
    pub same_range: bool,
    /// Address families of the sites: 4, 6 or both, one for each site, in order; the last one is that of all further
    /// sites
    #[arg(long, value_delimiter = ',', value_name = "FAMILIES", default_value = "4")]
    pub ip: Vec<lab::Families>,
    /// Let gateways forward IP, to measure direct routing
    #[arg(long)]
    pub route_directly: bool,
    /// Isolation of the sites
    #[arg(long, value_enum, default_value = "auto")]
    pub isolation: Isolation,
    /// `memory` of each gateway in the sites file
    #[arg(long, default_value = "256MiB", value_name = "SIZE", value_parser = size)]
    pub gateway_memory: String,
    /// TCP connections per trunk, written to the sites file for each gateway; without it the round trip decides
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub links: Option<u16>,
    /// Start this instead of `landbridge gateway` ({site}, {gateway}, {sites_file} are replaced); empty: no gateways
    #[arg(long, value_name = "COMMAND")]
    pub gateway_command: Option<String>,
    /// A folder in /run that the nodes of each site share as a memory pool, such as /run/pool
    #[arg(long, value_name = "DIR")]
    pub pool: Option<PathBuf>,
    /// The size of each pool [default: half of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, requires = "pool")]
    pub pool_size: Option<u64>,
    /// A directory below /tmp, /dev/shm or /run that all hosts share
    #[arg(long, value_name = "DIR")]
    pub visible: Vec<PathBuf>,
    /// Write the WAN's report here as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Keep the gateways' logs in this directory
    #[arg(long, value_name = "DIR")]
    pub logs: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub program: Vec<OsString>,
}

/// A size, as typed.
fn size(text: &str) -> Result<String, QuantityError> {
    parse_bytes(text).map(|_| text.to_owned())
}

/// Commands inside a lab.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Run a command on another host of the surrounding lab
    Enter {
        /// The host, such as b-n1 or a-gw1
        host: String,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        program: Vec<OsString>,
    },
    /// End a host of the surrounding lab, as if its power failed
    ///
    /// Its cables are cut first, so no other host is notified of the end of its processes: there is no FIN, no RST,
    /// only silence. A `lab enter` that runs something there stays silent too, until it gets a signal. The host does
    /// not come back.
    Kill {
        /// The host, such as b-n1 or a-gw1
        host: String,
    },
    /// Stop every process of a host (SIGSTOP), as if its system hung
    ///
    /// The host's kernel still acknowledges incoming data, but no process reads it. Commands for the host (`lab enter`)
    /// and signals to them wait until it thaws. A host can freeze itself, but only another can thaw it.
    Freeze {
        /// The host, such as b-n1 or a-gw1
        host: String,
    },
    /// Let a frozen host continue
    Thaw {
        /// The host, such as b-n1 or a-gw1
        host: String,
    },
    /// Pull a host's cables, as if its switch port failed
    ///
    /// Nothing arrives and nothing leaves, on the site's switch and for a gateway also on the WAN. The host's
    /// interfaces keep their carrier, so only the silence shows the fault. `lab enter` still works, and its commands
    /// keep their input and output.
    Unplug {
        /// The host, such as b-n1 or a-gw1
        host: String,
    },
    /// Put the cables of a host back
    Plug {
        /// The host, such as b-n1 or a-gw1
        host: String,
    },
    /// Reset one established TCP connection of a host, as `ss -K` does
    ///
    /// The peer receives an RST, the owner an error. Prints the connection: if several match, the first by peer and
    /// port.
    #[command(after_help = "Examples:\n  \
        landbridge lab reset a-n1 --to 10.1.0.102:7700\n  \
        landbridge lab reset a-n1 --to a-gw2 --of python")]
    Reset {
        /// The host that has the connection, such as a-n1 or a-gw1
        host: String,
        /// The peer, by address or (inside a site) by name [default: any]
        #[arg(long, value_name = "HOST[:PORT]")]
        to: Option<String>,
        /// The owner: a process's name, or its number on that host [default: any]
        #[arg(long, value_name = "PROCESS")]
        of: Option<String>,
    },
    /// Show (`report`) or change (`a b delay=50ms down`) the WAN of the surrounding lab
    Wan {
        /// `report`, or two sites and the changes between them
        #[arg(required = true)]
        words: Vec<String>,
    },
}
