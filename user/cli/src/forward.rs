//! `landbridge forward`.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, bail};
use clap::Args;
use commands::carried::destination;
use commands::forward::{Destination, Listen, forward_through, of_this_machine};
use commands::sites_file;
use launcher::Sites;
use launcher::forward::Near;
use setup::Progress;
use thiserror::Error;
use types::sites::{Site, TargetError};

use crate::bar::{Bar, asking};
use crate::sites::file::SitesFileArgs;
use crate::{carried, json, output};

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
    #[arg(value_name = "SITE:[HOST:]PORT", value_parser = target)]
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

fn target(text: &str) -> Result<Destination, ForwardArgumentError> {
    let (site, target) = text
        .split_once(':')
        .filter(|(site, _)| !site.is_empty())
        .ok_or_else(|| ForwardArgumentError::Destination(text.to_owned()))?;
    Ok(Destination { site: site.to_owned(), target: target.parse()? })
}

/// Forwards until interrupted, and returns the exit code.
pub(crate) fn forward(args: ForwardArgs) -> Result<i32> {
    let (_, sites) = args.sites.read()?;
    if let Some(far) = destination(&sites, args.from.as_deref()) {
        return through(&sites, far, &args);
    }
    let home = sites_file::own_site(&sites, args.from.as_deref())?;
    sites.site(&args.to.site)?;
    if args.json && args.listen == Listen::Standard {
        bail!("--json prints where the forward listens; with `-`, standard output is the connection's");
    }
    let standard = || Near::Stream(Box::new(tokio::io::stdin()), Box::new(output::raw_stdout()));
    // The forward continues if nobody reads the address.
    let ready = |place| drop(print(place, &args));
    let note = |text: String| output::note(&text);
    Ok(commands::forward::forward((sites, home), args.listen, &args.to, standard, ready, note)?)
}

/// Prints the listening address.
fn print(place: SocketAddr, args: &ForwardArgs) -> Result<(), std::io::Error> {
    let Destination { site, target } = &args.to;
    if args.json {
        let object = serde_json::json!({ "listen": place.to_string(), "site": site, "target": target });
        return writeln!(output::stdout(), "{}", json::object(object)?);
    }
    output::note(&format!("{place} is forwarded to site {site}, {target}"));
    Ok(())
}

/// On a machine that belongs to no site: the site forwards a port of its own, and ssh brings it here.
fn through(sites: &Sites, far: &Site, args: &ForwardArgs) -> Result<i32> {
    let address = match args.listen {
        Listen::Standard => {
            let to = format!("{}:{}", args.to.site, args.to.target);
            return carried::with_input(sites, far, &["forward"], vec!["-".into(), to.into()]);
        }
        Listen::At(address) => of_this_machine(address)?,
    };
    let ready = |place| Ok(print(place, args)?);
    let user = (output::stderr(), &mut Bar::new() as &mut dyn Progress);
    Ok(forward_through((sites, far), address, &args.to, asking(), user, ready)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_typed_is_understood_or_named() {
        assert_eq!(listen("8888").unwrap(), Listen::At("127.0.0.1:8888".parse().unwrap()));
        assert_eq!(listen("[::]:0").unwrap(), Listen::At("[::]:0".parse().unwrap()));
        assert_eq!(listen("-").unwrap(), Listen::Standard);
        let to = |text: &str| target(text).map(|to| (to.site, to.target.to_string()));
        assert_eq!(to("kyoto:80").unwrap(), ("kyoto".to_owned(), "127.0.0.1:80".to_owned()));
        assert_eq!(to("kyoto:n7:80").unwrap(), ("kyoto".to_owned(), "n7:80".to_owned()));
        assert_eq!(to("kyoto:[::1]:80").unwrap().1, "[::1]:80");
        for bad in ["kyoto", "kyoto:", ":80", "kyoto:n7:", "kyoto:n7:0"] {
            assert!(to(bad).is_err(), "{bad}");
        }
        assert!(listen("70000").unwrap_err().to_string().contains("`70000`"));
    }
}
