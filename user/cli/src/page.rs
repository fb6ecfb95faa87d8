//! `landbridge page`: the address of a gateway's page, on a site's machine or any other.

use std::io::Write;

use anyhow::{Result, anyhow};
use setup::tunnel::Tunnel;

use crate::args::PageArgs;
use crate::sites_add::asking;
use crate::{carried, runtime, sites_file};

/// Prints the address. On a machine that belongs to no site, forwards the page until interrupted. Returns the exit
/// code.
pub(crate) fn page(args: &PageArgs) -> Result<i32> {
    let path = sites_file::locate(&args.sites)?;
    let sites = sites_file::read(&path)?;
    let far = carried::destination(&sites, args.from.as_deref());
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
        let mut ends = carried::signals(&job::signals::ENDING)?;
        tokio::select! {
            error = tunnel.ended() => Err(error.into()),
            signal = ends.recv() => Ok(128 + signal.unwrap_or(2)),
        }
    })
}
