//! `landbridge forward`: a port of this machine is forwarded to a port at another site.

use std::net::{Ipv4Addr, SocketAddr};

use launcher::Sites;
use launcher::forward::{ForwardError, ForwardRequest, Near, run};
use serde::Deserialize;
use setup::Progress;
use setup::tunnel::Tunnel;
use tokio::io::{AsyncBufReadExt, AsyncWrite, BufReader, duplex};
use tokio::net::TcpListener;
use types::sites::{Site, Target};

use crate::carried::{Carried, carry_to};
use crate::error::{Context, Result, refuse};
use crate::runtime::runtime;

/// Source of the connections to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    At(SocketAddr),
    /// This process's standard input and output.
    Standard,
}

/// A target at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub site: String,
    pub target: Target,
}

/// Forwards until interrupted, and returns the exit code. `standard`: makes the near end for [`Listen::Standard`].
/// `ready`: gets the listening address.
///
/// # Errors
/// The address cannot be listened on, or the forward fails.
pub fn forward(
    (sites, home): (Sites, String),
    listen: Listen,
    to: &Destination,
    standard: impl FnOnce() -> Near,
    ready: impl Fn(SocketAddr),
    note: impl FnMut(String),
) -> Result<i32> {
    sites.site(&to.site)?;
    let runtime = runtime()?;
    let forwarded = runtime.block_on(async {
        let (near, place) = match listen {
            Listen::Standard => (standard(), None),
            Listen::At(address) => {
                let listener = TcpListener::bind(address).await;
                let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
                let place = listener.local_addr().context("the port listened on")?;
                (Near::Listener(listener), Some(place))
            }
        };
        let ready = || place.into_iter().for_each(&ready);
        let request = ForwardRequest { sites, home, site: to.site.clone(), target: to.target.clone() };
        match run(request, near, ready, note).await {
            Ok(()) => Ok(0),
            Err(ForwardError::Interrupted(signal)) => Ok(128 + signal),
            Err(error) => Err(error.into()),
        }
    });
    // Do not wait for a read of standard input that may never end.
    runtime.shutdown_background();
    forwarded
}

/// The address on a machine that is no site, where only a port of 127.0.0.1 can be forwarded.
///
/// # Errors
/// It is another address.
pub fn of_this_machine(address: SocketAddr) -> Result<SocketAddr> {
    if address.ip() != Ipv4Addr::LOCALHOST {
        refuse!(
            "{address}: from a machine that is no site, only a port of 127.0.0.1 can be forwarded: leave the address out"
        );
    }
    Ok(address)
}

/// On a machine that belongs to no site: the site forwards a port of its own, and ssh brings it to `address`. Returns
/// the exit code. `errors`: for messages of the forward at the site.
///
/// # Errors
/// The site cannot be reached, or the tunnel to it ends.
pub fn forward_through(
    (sites, far): (&Sites, &Site),
    address: SocketAddr,
    to: &Destination,
    asking: bool,
    (errors, progress): (impl AsyncWrite + Unpin, &mut dyn Progress),
    ready: impl FnOnce(SocketAddr) -> Result<()>,
) -> Result<i32> {
    let runtime = runtime()?;
    let forwarded = runtime.block_on(async {
        let (output, seen) = duplex(LINE);
        let words = vec!["0".into(), format!("{}:{}", to.site, to.target).into(), "--json".into()];
        let command = Carried { sites, site: far, command: &["forward"], words, input: None, asking };
        let carried = carry_to(command, (output, errors), progress);
        let bring = async {
            let mut line = String::new();
            BufReader::new(seen).read_line(&mut line).await?;
            let Ok(there) = serde_json::from_str::<Listening>(&line) else {
                // The forward at the site has ended and has printed the reason.
                return std::future::pending().await;
            };
            let port = Some(address.port()).filter(|port| *port != 0);
            let mut tunnel = Tunnel::open(far, there.listen, port, asking).await?;
            ready(SocketAddr::new(address.ip(), tunnel.port))?;
            Err(tunnel.ended().await.into())
        };
        tokio::select! {
            ended = carried => ended,
            failed = bring => failed,
        }
    });
    runtime.shutdown_background();
    forwarded
}

/// Maximum length of the JSON line from a forward at a site.
const LINE: usize = 4096;

/// The listening address of a forward at a site.
#[derive(Deserialize)]
struct Listening {
    listen: SocketAddr,
}
