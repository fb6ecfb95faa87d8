//! The interface through which a gateway opens a link of a trunk that it cannot dial: a [`Tunneller`] carries the link.
//! The program that runs the gateway passes the tunneller in.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;

use types::sites::Login;

use crate::StartError;

/// Both ends of a tunnel.
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
/// The gateway calls it on its only thread, inside its tokio runtime. The tunneller ensures that a tunnel does not
/// outlive the gateway, even when the gateway is killed.
pub trait Tunneller: Send + Sync + std::fmt::Debug {
    /// Opens a tunnel between a connected stream socket and the other gateway. Returns at once; if it fails later, the
    /// tunnel ends.
    ///
    /// # Errors
    /// The reason why it could not be started.
    fn open(&self, order: &TunnelOrder, socket: OwnedFd) -> Result<Box<dyn Tunnel>, StartError>;
}

/// An open tunnel. Dropping it closes it.
pub trait Tunnel {
    /// Waits until the tunnel has ended. Returns the reason, for the user; empty if the gateway closed its socket.
    /// Cancel-safe, and may be called again.
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>>;
}
