//! `landbridge gateway`.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use gateway::GatewayConfig;
use setup::join::Doorman;
use starters::tunnel::SshTunneller;
use starters::{beside, starter};

use crate::log;
use crate::sites::file::SitesFileArgs;

/// Run the gateway of a site
#[derive(Debug, Args)]
#[command(
    long_about = "Run the gateway of a site, until it is ended by SIGTERM or SIGINT.\n\n\
        It needs one port, which the site's nodes and the gateways of other sites dial; sites that cannot be dialled dial \
        out. It starts the agents of jobs on the site's nodes with the starter of the sites file.\n\n\
        LANDBRIDGE_LOG sets the level of the log on standard error: off, error, warn, info (default), debug or trace, and \
        PART=LEVEL for one part of the program, as in info,gateway::trunks=debug.",
    after_help = "Example:\n  landbridge gateway --sites sites.toml --site lyon"
)]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    pub sites: SitesFileArgs,
    /// Name of the site
    #[arg(long, value_name = "NAME")]
    pub site: String,
    /// Name of the gateway [default: the site's only one]
    #[arg(long, value_name = "NAME")]
    pub gateway: Option<String>,
    /// Leave the session that this command was started in, as `sites add` requires
    #[arg(long, hide = true)]
    pub background: bool,
}

/// Runs a gateway until a signal ends it, and returns the exit code.
pub(crate) fn gateway(args: &GatewayArgs) -> Result<i32> {
    log::start(std::env::var_os(log::VARIABLE).as_deref())?;
    // Held while this process lives, so that other processes see that this gateway runs.
    let _presence = match args.background {
        true => Some(setup::here::background::enter(&args.site)?),
        false => None,
    };
    let (path, sites) = args.sites.read()?;
    let mut config = GatewayConfig::new(sites.file, &path, &args.site, args.gateway.as_deref())?;
    config.doorkeeper = Some(Arc::new(Doorman::new(std::path::absolute(&path)?)));
    config.tunneller = Some(Arc::new(SshTunneller::new(&std::path::absolute(&sites.folder)?)));
    config.beside = Some(Arc::from(beside()));
    let starter = starter(&config.own_site().starter, &sites.folder);
    gateway::serve(config, Arc::from(starter))?;
    Ok(0)
}
