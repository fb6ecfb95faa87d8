//! How a gateway opens a link of a trunk that it cannot dial: a [`Tunneller`] carries the link. The program that runs
//! the gateway passes the tunneller in.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;

use types::sites::Login;

use crate::StartError;

/// Where a tunnel leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelOrder {
    /// The site of the gateway that dials.
    pub own: String,
    /// The site of the gateway that is dialled.
    pub site: String,
    /// A machine from which `to` can be dialled.
    pub login: Login,
    /// `host:port` of the other gateway, as its own site dials it.
    pub to: String,
}

/// Carries links of trunks through programs such as ssh.
///
/// The gateway calls it on its one thread, inside its tokio runtime. A tunnel must not outlive the gateway, even when
/// the gateway is killed: the tunneller ensures that.
pub trait Tunneller: Send + Sync + std::fmt::Debug {
    /// Opens a tunnel between a connected stream socket and the other gateway. Returns at once; if it fails later, the
    /// tunnel ends.
    ///
    /// # Errors
    /// Why it could not be started.
    fn open(&self, order: &TunnelOrder, socket: OwnedFd) -> Result<Box<dyn Tunnel>, StartError>;
}

/// A tunnel that was opened. Dropping it closes it.
pub trait Tunnel {
    /// Waits until the tunnel has ended. Returns the reason, for the user, or nothing if the gateway closed its socket.
    /// Cancel-safe, and may be called again.
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>>;
}
