//! A port on this machine that leads, through the user's own ssh, to a port on a site's machine. It closes when this
//! process ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use job::capture::tail;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use types::sites::Site;

use crate::company::whereabouts;
use crate::error::SetupError;
use crate::place::MachinePlace;

/// Time limit for ssh to open the port: long enough for the user to type a password.
const OPEN: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Tunnel {
    /// The port on this machine's loopback.
    pub port: u16,
    child: Child,
    site: String,
}

impl Tunnel {
    /// Opens a port here that leads to `there` on a site's machine. `port`: the port to use; `None`: a free one.
    ///
    /// # Errors
    /// The site cannot be reached, or the port is taken.
    pub async fn open(site: &Site, there: SocketAddr, port: Option<u16>, asking: bool) -> Result<Tunnel, SetupError> {
        let wrong = |problem: String| SetupError::site(&site.name, problem);
        let Some(place @ MachinePlace::Ssh(_)) = whereabouts(site)? else {
            return Err(wrong("cannot be reached by ssh from here: type this at the site".to_owned()));
        };
        // Binding the port checks that it is free. Another program could take it only between here and ssh's own bind.
        let taken = |source: std::io::Error| {
            wrong(format!("port {} here cannot be had: {source}; choose another with --port", port.unwrap_or(0)))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.unwrap_or(0))).await.map_err(taken)?;
        let port = listener.local_addr().map_err(taken)?.port();
        drop(listener);
        let mut command = Command::new("ssh");
        command.args([
            "-T",
            "-oExitOnForwardFailure=yes",
            "-oConnectTimeout=15",
            "-oServerAliveInterval=10",
            "-oForwardX11=no",
        ]);
        // On a shared connection, the port would stay open after this process.
        command.args(["-oControlMaster=no", "-oControlPath=none", "-oRemoteCommand=none"]);
        command.arg(if asking { "-oBatchMode=no" } else { "-oBatchMode=yes" });
        command.arg("-L").arg(format!("127.0.0.1:{port}:{there}")).args(place.arguments());
        // The remote command ends with its input, and so with this process, however this process ends.
        command.arg("cat >/dev/null");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let child = command.spawn().map_err(|error| wrong(format!("cannot start ssh: {error}")))?;
        let mut tunnel = Tunnel { port, child, site: site.name.clone() };
        let end = Instant::now() + OPEN;
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
            if tunnel.child.try_wait().ok().flatten().is_some() {
                return Err(tunnel.ended().await);
            }
            if Instant::now() > end {
                return Err(wrong(format!("ssh did not open the port within {} s", OPEN.as_secs())));
            }
            sleep(POLL).await;
        }
        Ok(tunnel)
    }

    /// Waits until ssh ends; returns the reason.
    pub async fn ended(&mut self) -> SetupError {
        let words = tail(self.child.stderr.take()).await.last_lines();
        let _ = self.child.wait().await;
        SetupError::site(&self.site, format!("ssh ended: {words}"))
    }
}
