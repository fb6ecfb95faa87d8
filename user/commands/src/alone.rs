//! `run` without a sites file: one site with this machine only, whose gateway is a thread of this process.
//!
//! The gateway listens on the loopback interface. Its key is in no file, so no other process can open a job there.
//! However this process ends, its agents end too.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use client::key::SiteKey;
use gateway::{GatewayConfig, GatewayError};
use launcher::Sites;
use starters::starter;
use tokio::sync::oneshot;
use types::SitesFile;

use crate::error::{Context, Result, refusal};
use job::host_name;

/// The name of the site.
pub const SITE: &str = "here";
/// Note for the user.
pub const NOTE: &str =
    "no sites file, so all ranks run on this machine; `landbridge sites add NAME [USER@]HOST` adds a site";

/// A site of this machine, not started yet.
pub struct Alone {
    port: TcpListener,
    key: SiteKey,
    /// A sites file that has only this site.
    pub sites: Sites,
}

/// The running gateway of the site.
pub struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<Result<(), GatewayError>>,
}

impl Alone {
    pub fn new() -> Result<Alone> {
        let key = SiteKey::random()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a port on the loopback interface")?;
        let text = format!(
            "[[site]]\nname = \"{SITE}\"\nfingerprint = \"{}\"\n[[site.gateway]]\nname = \"gw1\"\ninside = \"{}\"\n\
             [[site.node]]\nname = \"{}\"\n",
            key.fingerprint(),
            port.local_addr().context("a port on the loopback interface")?,
            node(&host_name())
        );
        let file = SitesFile::parse(&text, "the site of this machine")?;
        let sites = Sites { file, folder: PathBuf::from("/"), secret: Some(key.client_secret()) };
        Ok(Alone { port, key, sites })
    }

    /// Starts the site's gateway.
    pub fn start(self) -> Result<Running> {
        let Alone { port, key, sites } = self;
        let config = GatewayConfig::with_key(sites.file, SITE, None, key)?;
        let starter = Arc::from(starter(&config.own_site().starter, &sites.folder));
        let (stop, stopped) = oneshot::channel();
        let work = move || gateway::serve_on(port, config, starter, async { drop(stopped.await) });
        let thread = std::thread::Builder::new().name("gateway".into()).spawn(work).context("a thread")?;
        Ok(Running { stop, thread })
    }
}

impl Running {
    /// Ends the gateway and its remaining agents.
    pub fn end(self) -> Result<()> {
        drop(self.stop);
        match self.thread.join() {
            Ok(result) => Ok(result?),
            Err(_) => Err(refusal!("the gateway of this machine has panicked")),
        }
    }
}

/// The host's name, if it is valid as a node name.
fn node(host: &str) -> &str {
    if types::sites::is_name(host) { host } else { "localhost" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_has_the_name_of_the_host_if_that_is_one() {
        assert_eq!(node("n1.example.org"), "n1.example.org");
        for odd in ["", "a b", "_gateway", "-x", &"x".repeat(65)] {
            assert_eq!(node(odd), "localhost", "{odd}");
        }
        let alone = Alone::new().unwrap();
        assert_eq!(alone.sites.file.names(), SITE);
    }
}
