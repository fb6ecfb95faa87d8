//! How a gateway has a link of a trunk carried where it cannot dial: by a [`Tunneller`], which the program that
//! runs it passes in.

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
/// the gateway is killed: that is the tunneller's business.
pub trait Tunneller: Send + Sync + std::fmt::Debug {
    /// Opens a tunnel between a connected stream socket and the other gateway. Returns at once; a failure that shows
    /// later is the tunnel's end.
    ///
    /// # Errors
    /// Why it could not be started.
    fn open(&self, order: &TunnelOrder, socket: OwnedFd) -> Result<Box<dyn Tunnel>, StartError>;
}

/// A tunnel that was opened. Dropping it closes it.
pub trait Tunnel {
    /// Waits until it has ended; gives the reason, for the user, or nothing if the gateway closed its socket. May be
    /// dropped before it is done and called again.
    fn ended(&mut self) -> Pin<Box<dyn Future<Output = String> + '_>>;
}
