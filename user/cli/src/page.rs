//! `landbridge page`: the address of a gateway's page, on a site's machine or any other.

use std::io::Write;

use anyhow::{Result, anyhow};
use clap::Args;
use commands::carried::destination;
use commands::runtime::runtime;
use commands::sites_file;
use setup::tunnel::Tunnel;

use crate::bar::asking;
use crate::sites::file::SitesFileArgs;

/// Show the address of a gateway's page
#[derive(Debug, Args)]
#[command(
    long_about = "Print the address of the page that a gateway of your site serves on its own machine. On a machine \
        outside all sites, ssh makes the page reachable here as well, until this command ends (Ctrl-C).",
    after_help = "Examples:\n  landbridge page\n  landbridge page --from kyoto --port 8080"
)]
pub(crate) struct PageArgs {
    /// The port on this machine [default: a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// The site [default: as for run]
    #[arg(long, value_name = "SITE")]
    pub from: Option<String>,
}

/// Prints the address. On a machine that belongs to no site, forwards the page until interrupted. Returns the exit
/// code.
pub(crate) fn page(args: &PageArgs) -> Result<i32> {
    let (path, sites) = args.sites.read()?;
    let far = destination(&sites, args.from.as_deref());
    let site = match far {
        Some(site) => site,
        None => sites.site(&sites_file::own_site(&sites, args.from.as_deref())?)?,
    };
    let there = site.gateways.iter().find_map(|gateway| gateway.page).ok_or_else(|| {
        anyhow!(
            "no gateway of site {0} has a page: write `page = \"127.0.0.1:7780\"` under its [[site.gateway]] in {1}, then type \
             `landbridge sites apply`",
            site.name,
            path.display()
        )
    })?;
    let mut out = crate::output::stdout();
    if far.is_none() {
        writeln!(out, "http://{there}/")?;
        return Ok(0);
    }
    let runtime = runtime()?;
    runtime.block_on(async {
        let mut tunnel = Tunnel::open(site, there, args.port, asking()).await?;
        writeln!(out, "http://127.0.0.1:{}/", tunnel.port)?;
        out.flush()?;
        let mut ends = commands::carried::signals(&job::signals::ENDING)?;
        tokio::select! {
            error = tunnel.ended() => Err(error.into()),
            signal = ends.recv() => Ok(128 + signal.unwrap_or(2)),
        }
    })
}
