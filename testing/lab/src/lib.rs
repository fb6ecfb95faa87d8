//! Several private clusters ("sites") on one Linux machine, for tests, demonstrations and benchmarks.
//!
//! Every node and gateway is a set of namespaces with its own network, host name, processes, `/tmp` and `/dev/shm`; a
//! site's hosts share a switch; gateways also reach a WAN whose delay, rate, jitter and loss are emulated in user
//! space. It works as root and, where the kernel allows, for an ordinary user. Nothing is left when it ends, however it
//! ends.
//!
//! Owns: namespaces, wiring, the WAN emulator, running commands on hosts, and making hosts fail. Refuses to know: what
//! a gateway or a job is. It prints nothing.
//!
//! Where to start: [`run()`] is the caller's side; `supervisor` builds the lab; `node` is the first process of every
//! host; `enter` runs commands there; `faults` does to hosts what befalls real ones; `wan` is the emulator. All are
//! this same program, started again with hidden commands, which is why a program that uses this crate begins with
//! [`hidden_main`].
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

pub use connection::{Connection, Wanted};
pub use enter::enter;
pub use error::LabError;
pub use faults::{freeze, kill, plug, reset, thaw, unplug};
pub use options::{Families, Isolation, LabOptions};
pub use probe::{Missing, probe};
pub use run::{LabReport, run};
pub use units::{Rate, UnitError, parse_loss, parse_rate, parse_time};

/// Serves the hidden commands by which a lab starts its own processes.
///
/// Call it first thing in `main`, before any thread exists, with the program's arguments without its name. `Some` is
/// the exit code to leave with; `None` means that this is an ordinary start of the program.
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
