//! Finds the requirements of an isolated lab that this machine and user lack.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::namespace;
use crate::network::{self, Script};
use crate::run;
use crate::sys;

/// A requirement of an isolated lab that this machine does not meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The missing requirement, with the system's error message.
    pub what: String,
    /// The remedy for the user.
    pub remedy: String,
}

/// Tries all requirements of an isolated lab in temporary namespaces. An empty list means that a lab will work.
///
/// # Errors
/// If the probe itself cannot run, for example because no process can be started.
pub fn probe() -> Result<Vec<Missing>, LabError> {
    let mut missing: Vec<Missing> = ["ip", "tc"]
        .into_iter()
        .filter_map(|program| match network::find(program) {
            Err(LabError::Unavailable { what, remedy }) => Some(Missing { what, remedy }),
            _ => None,
        })
        .collect();
    match run::probe_namespaces() {
        Ok(more) => missing.extend(more),
        Err(LabError::Unavailable { what, remedy }) => missing.push(Missing { what, remedy }),
        Err(other) => return Err(other),
    }
    Ok(missing)
}

/// The part of the probe that runs inside the outer namespaces.
pub(crate) fn inside(visible: &[PathBuf]) -> Result<Vec<Missing>, LabError> {
    namespace::mount_outer(visible)?;
    let mut missing = Vec::new();
    let mut note = |what: String, remedy: &str| missing.push(Missing { what, remedy: remedy.to_owned() });
    if network::find("ip").is_ok() && network::find("tc").is_ok() {
        for (what, ip, tc, remedy) in [
            ("a bridge", "link add lbp-b type bridge mcast_snooping 0\n", "", "load the kernel module bridge"),
            ("a virtual cable", "link add lbp-v type veth peer name lbp-w\n", "", "load the kernel module veth"),
            (
                "a rate limit",
                "link set lbp-v up\n",
                "qdisc add dev lbp-v root tbf rate 1mbit burst 10k latency 5ms\n",
                "load the kernel module sch_tbf, or switch off the NIC rate",
            ),
        ] {
            let script = Script { ip: ip.to_owned(), tc: tc.to_owned() };
            if let Err(error) = network::apply(&script, what) {
                note(error.to_string(), remedy);
            }
        }
        if let Err(error) = sys::packet_socket("lbp-w") {
            note(
                format!("a packet socket: {error}"),
                "the kernel needs CONFIG_PACKET with PACKET_VNET_HDR and PACKET_IGNORE_OUTGOING (4.20)",
            );
        }
    }
    namespace::enter_host("probe", &PathBuf::from("/dev/null"), &[])?;
    Ok(missing)
}
