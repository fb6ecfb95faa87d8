//! Several private clusters ("sites") on one Linux machine, for tests, demonstrations and benchmarks.
//!
//! Every node and gateway is a set of namespaces with its own network, host name, processes, `/tmp` and `/dev/shm`; a
//! site's hosts share a switch; gateways also reach a WAN whose delay, rate, jitter and loss are emulated in user
//! space. The lab works as root and, if the kernel allows, for an ordinary user. It leaves nothing behind, even if it
//! is killed.
//!
//! Owns: namespaces, wiring, the WAN emulator, running commands on hosts, and making hosts fail. Refuses to know: the
//! meaning of gateways and jobs. It prints nothing.
//!
//! Start at [`run()`], the caller's side. `supervisor` builds the lab; `node` is the first process of every host;
//! `enter` runs commands there; `faults` simulates failures of hosts; `wan` is the emulator. All of them are this same
//! program, started again with hidden commands, so a program that uses this crate begins with [`hidden_main`].
#![deny(unsafe_code)]

mod cables;
mod connection;
mod enter;
mod error;
mod faults;
mod gateways;
mod hosts;
mod layout;
mod message;
mod namespace;
mod network;
mod node;
mod options;
mod probe;
mod process;
mod run;
mod signals;
mod state;
mod supervisor;
mod sys;
mod units;
pub mod wan;

use std::ffi::OsString;

pub use connection::{TcpConnection, Wanted};
pub use enter::enter;
pub use error::LabError;
pub use faults::{freeze, kill, plug, reset, thaw, unplug};
pub use options::{Families, Isolation, LabOptions};
pub use probe::{Missing, probe};
pub use run::{LabReport, run};
pub use units::{Rate, UnitError, parse_loss, parse_rate, parse_time};

/// Runs the hidden commands that a lab uses to start its own processes.
///
/// Call it first in `main`, before any thread exists, with the program's arguments without its name. `Some` is the exit
/// code for the program; `None` means that this is an ordinary start.
pub fn hidden_main<I>(arguments: I) -> Option<i32>
where
    I: IntoIterator<Item = OsString>,
{
    let mut arguments = arguments.into_iter();
    match arguments.next()?.to_str()? {
        "lab-outer" => Some(namespace::main()),
        "lab-supervisor" => Some(supervisor::main(arguments.next()? == "isolated")),
        "lab-node" => Some(node::main()),
        "lab-wan" => Some(wan::emulator::main()),
        _ => None,
    }
}
