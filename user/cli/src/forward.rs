//! `landbridge forward`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail};
use clap::Args;
use launcher::Sites;
use launcher::forward::{ForwardError, Near, Request, run};
use serde::Deserialize;
use setup::tunnel::Tunnel;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, BufReader, duplex};
use tokio::net::TcpListener;
use types::sites::{Site, Target, TargetError};

use crate::bar::asking;
use crate::sites::file;
use crate::sites::file::SitesFileArgs;
use crate::{carried, json, runtime};

/// Forward a TCP port of this machine to a port at another site
#[derive(Debug, Args)]
#[command(
    long_about = "Forward a TCP port of this machine to a port that the machine of another site's gateway can reach: for \
        notebooks, control planes and bootstraps. Connections go through the gateways, by the same keys and the same \
        encrypted trunks as jobs; the other site must allow the port (`[site.forward]` in the sites file of its gateway).\n\n\
        Each connection has 64 KiB in flight at most, so this is for control, not for bulk data. At most 64 connections are \
        open at once; more wait. Runs until it is interrupted. With `-` in place of the port, standard input and output are \
        connected to the target once.",
    after_help = "Examples:\n  \
        landbridge forward 8888 kyoto:8888                     127.0.0.1:8888 here is 127.0.0.1:8888 at kyoto's gateway\n  \
        landbridge forward 0.0.0.0:29500 kyoto:node7:29500     this machine's port 29500, for the other nodes too\n  \
        landbridge forward 0 kyoto:8888                        any free port; it is printed\n  \
        landbridge forward - kyoto:node7:22                    as a ProxyCommand of ssh"
)]
pub(crate) struct ForwardArgs {
    /// Listening address: a port of 127.0.0.1, or ADDRESS:PORT; 0 takes a free port; `-` is standard input and output
    #[arg(value_name = "[ADDRESS:]PORT", value_parser = listen)]
    pub listen: Listen,
    /// The target, as seen from the machine of the site's gateway [default host: 127.0.0.1]
    #[arg(value_name = "SITE:[HOST:]PORT", value_parser = destination)]
    pub to: Destination,
    /// The site where you type this command [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
    /// Print the listening address as JSON, once it accepts connections
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sites: SitesFileArgs,
}

/// Source of the connections to forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listen {
    At(SocketAddr),
    Standard,
}

/// A target at a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    site: String,
    target: Target,
}

/// An invalid argument of `forward`.
#[derive(Debug, Error)]
pub(crate) enum ForwardArgumentError {
    #[error("`{0}` is not PORT, ADDRESS:PORT or -, such as 8888, 0.0.0.0:8888 or [::1]:8888")]
    Listen(String),
    #[error("`{0}` is not SITE:PORT or SITE:HOST:PORT, such as kyoto:8888")]
    Destination(String),
    #[error(transparent)]
    Target(#[from] TargetError),
}

fn listen(text: &str) -> Result<Listen, ForwardArgumentError> {
    let port = || text.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    match text {
        "-" => Ok(Listen::Standard),
        _ => {
            text.parse().ok().or_else(port).map(Listen::At).ok_or_else(|| ForwardArgumentError::Listen(text.to_owned()))
        }
    }
}

fn destination(text: &str) -> Result<Destination, ForwardArgumentError> {
    let (site, target) = text
        .split_once(':')
        .filter(|(site, _)| !site.is_empty())
        .ok_or_else(|| ForwardArgumentError::Destination(text.to_owned()))?;
    Ok(Destination { site: site.to_owned(), target: target.parse()? })
}

/// Forwards until interrupted, and returns the exit code.
pub(crate) fn forward(args: ForwardArgs) -> Result<i32> {
    let sites = file::read(&file::locate(&args.sites)?)?;
    if let Some(far) = carried::destination(&sites, args.from.as_deref()).cloned() {
        return forward_through(&sites, &far, &args);
    }
    let home = file::own_site(&sites, args.from.as_deref())?;
    let Destination { site, target } = args.to;
    sites.site(&site)?;
    if args.json && args.listen == Listen::Standard {
        bail!("--json prints where the forward listens; with `-`, standard output is the connection's");
    }
    let runtime = runtime()?;
    let forwarded = runtime.block_on(async {
        let (near, place) = match args.listen {
            Listen::Standard => {
                (Near::Stream(Box::new(tokio::io::stdin()), Box::new(crate::output::raw_stdout())), None)
            }
            Listen::At(address) => {
                let listener = TcpListener::bind(address).await;
                let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
                let place = listener.local_addr().context("the port listened on")?;
                (Near::Listener(listener), Some(place))
            }
        };
        let (as_json, to) = (args.json, format!("site {site}, {target}"));
        let ready = || {
            let _ = match place {
                Some(place) if as_json => {
                    let object = serde_json::json!({ "listen": place.to_string(), "site": site, "target": target });
                    json::object(object)
                        .map_err(Into::into)
                        .and_then(|line| writeln!(crate::output::stdout(), "{line}"))
                }
                Some(place) => {
                    crate::output::note(&format!("{place} is forwarded to {to}"));
                    Ok(())
                }
                None => Ok(()),
            };
        };
        let request = Request { sites, home, site: site.clone(), target: target.clone() };
        let note = |text: String| {
            crate::output::note(&text);
        };
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

/// On a machine that belongs to no site: the site forwards a port of its own, and ssh brings it here.
fn forward_through(sites: &Sites, far: &Site, args: &ForwardArgs) -> Result<i32> {
    let to = format!("{}:{}", args.to.site, args.to.target);
    let address = match args.listen {
        Listen::Standard => return carried::with_input(sites, far, &["forward"], vec!["-".into(), to.into()]),
        Listen::At(address) if address.ip() == Ipv4Addr::LOCALHOST => address,
        Listen::At(address) => {
            bail!(
                "{address}: from a machine that is no site, only a port of 127.0.0.1 can be forwarded: leave the address out"
            )
        }
    };
    let runtime = runtime()?;
    let forwarded = runtime.block_on(async {
        let (output, seen) = duplex(LINE);
        let words = vec!["0".into(), to.clone().into(), "--json".into()];
        let carried = carried::carry_to(sites, far, &["forward"], words, (output, crate::output::stderr()), None);
        let bring = async {
            let mut line = String::new();
            BufReader::new(seen).read_line(&mut line).await?;
            let Ok(there) = serde_json::from_str::<Listening>(&line) else {
                // The forward at the site has ended and has printed the reason.
                return std::future::pending().await;
            };
            let port = Some(address.port()).filter(|port| *port != 0);
            let mut tunnel = Tunnel::open(far, there.listen, port, asking()).await?;
            let place = SocketAddr::new(address.ip(), tunnel.port);
            if args.json {
                let object =
                    serde_json::json!({ "listen": place.to_string(), "site": args.to.site, "target": args.to.target });
                writeln!(crate::output::stdout(), "{}", json::object(object)?)?;
            } else {
                crate::output::note(&format!("{place} is forwarded to site {}, {}", args.to.site, args.to.target));
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_understood_or_named() {
        assert_eq!(listen("8888").unwrap(), Listen::At("127.0.0.1:8888".parse().unwrap()));
        assert_eq!(listen("[::]:0").unwrap(), Listen::At("[::]:0".parse().unwrap()));
        assert_eq!(listen("-").unwrap(), Listen::Standard);
        let to = |text: &str| destination(text).map(|to| (to.site, to.target.to_string()));
        assert_eq!(to("kyoto:80").unwrap(), ("kyoto".to_owned(), "127.0.0.1:80".to_owned()));
        assert_eq!(to("kyoto:n7:80").unwrap(), ("kyoto".to_owned(), "n7:80".to_owned()));
        assert_eq!(to("kyoto:[::1]:80").unwrap().1, "[::1]:80");
        for bad in ["kyoto", "kyoto:", ":80", "kyoto:n7:", "kyoto:n7:0"] {
            assert!(to(bad).is_err(), "{bad}");
        }
        assert!(listen("70000").unwrap_err().to_string().contains("`70000`"));
    }
}
