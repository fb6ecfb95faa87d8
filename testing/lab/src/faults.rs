//! Simulated failures of real machines: a power failure, a hanging system, an unplugged cable, a reset connection.
//!
//! This is the caller's side, usable from any process of the lab. The supervisor handles cables (`cables`), because it
//! holds one end of each; the host's first process (`node`) handles processes and connections.

use crate::connection::{TcpConnection, Wanted};
use crate::enter::connect;
use crate::error::LabError;
use crate::message::{Channel, LabMessageKind};
use crate::process::{PATIENCE, expect, expect_within};
use crate::state::LabDirectory;

/// Ends the host `host` of the lab around this process as if its power failed. Its cables are cut first, so that no
/// other host sees its processes end; then its processes and its network are gone.
///
/// # Errors
/// [`LabError::NoSuchNode`] outside a lab or for an unknown host; [`LabError::Unavailable`] in a loopback lab, whose
/// hosts are one machine; [`LabError::Timeout`] if the host does not end.
pub fn kill(host: &str) -> Result<(), LabError> {
    let state = LabDirectory::around_us();
    let channel = connect(&state, host)?;
    set_cables(&state, host, false)?;
    channel.send(LabMessageKind::Die, &[]).map_err(|e| LabError::setup(host, e))?;
    // The host answers by closing the connection.
    match expect_within(&channel, LabMessageKind::Exit, host, PATIENCE) {
        Err(LabError::Ended { .. }) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(LabError::setup(host, "answered instead of ending")),
    }
}

/// Stops every process of a host, as if its system hung: the kernel still acknowledges arriving data, but no process
/// reads it. Requests to the host by [`enter`](crate::enter()) wait until it thaws.
///
/// # Errors
/// See [`kill`]; [`LabError::Setup`] if a process cannot be stopped.
pub fn freeze(host: &str) -> Result<(), LabError> {
    ask(&connect(&LabDirectory::around_us(), host)?, LabMessageKind::Freeze, host)
}

/// Resumes a host that [`freeze`] stopped. A host that is not frozen stays as it is.
///
/// # Errors
/// See [`kill`].
pub fn thaw(host: &str) -> Result<(), LabError> {
    ask(&connect(&LabDirectory::around_us(), host)?, LabMessageKind::Thaw, host)
}

/// Unplugs a host's cables at the switch's end: nothing arrives or leaves, and the host's interfaces do not notice.
///
/// # Errors
/// See [`kill`].
pub fn unplug(host: &str) -> Result<(), LabError> {
    let state = LabDirectory::around_us();
    connect(&state, host)?;
    set_cables(&state, host, false)
}

/// Plugs a host's cables in again.
///
/// # Errors
/// See [`kill`].
pub fn plug(host: &str) -> Result<(), LabError> {
    let state = LabDirectory::around_us();
    connect(&state, host)?;
    set_cables(&state, host, true)
}

/// Resets one of a host's established TCP connections, as `ss -K` does: the peer receives an RST, the owner an error.
/// If several match, it takes the first by peer and port. Returns the connection.
///
/// # Errors
/// As [`kill`]; [`LabError::Options`] if the host has no such connection (the message lists its connections);
/// [`LabError::Unavailable`] if the kernel cannot reset connections.
pub fn reset(host: &str, wanted: &Wanted) -> Result<TcpConnection, LabError> {
    let channel = connect(&LabDirectory::around_us(), host)?;
    channel.send_json(LabMessageKind::Reset, wanted).map_err(|e| LabError::setup(host, e))?;
    expect(&channel, LabMessageKind::Done, host)?.json().map_err(|e| LabError::setup(host, e))
}

fn ask(channel: &Channel, kind: LabMessageKind, host: &str) -> Result<(), LabError> {
    channel.send(kind, &[]).map_err(|e| LabError::setup(host, e))?;
    expect(channel, LabMessageKind::Done, host).map(|_| ())
}

fn set_cables(state: &LabDirectory, host: &str, plugged: bool) -> Result<(), LabError> {
    let path = state.cables_socket();
    let wrong = |e: std::io::Error| LabError::setup(path.display().to_string(), e);
    let channel = Channel::new(std::os::unix::net::UnixStream::connect(&path).map_err(wrong)?);
    channel.send(LabMessageKind::Cables, &[host.as_bytes(), &[u8::from(plugged)]]).map_err(wrong)?;
    expect(&channel, LabMessageKind::Done, "the lab's supervisor").map(|_| ())
}
