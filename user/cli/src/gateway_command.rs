//! `landbridge gateway`.

use std::sync::Arc;

use anyhow::Result;
use gateway::GatewayConfig;
use setup::join::Doorman;
use starters::tunnel::SshTunneller;
use starters::{beside, starter};

use crate::args::GatewayArgs;
use crate::{log, sites_file};

/// Runs a gateway until a signal ends it, and returns the exit code.
pub(crate) fn gateway(args: &GatewayArgs) -> Result<i32> {
    log::start(std::env::var_os(log::VARIABLE).as_deref())?;
    // Held while this process lives, so that other processes see that this gateway runs.
    let _presence = match args.background {
        true => Some(setup::here::background::enter(&args.site)?),
        false => None,
    };
    let path = sites_file::locate(&args.sites)?;
    let sites = sites_file::read(&path)?;
    let mut config = GatewayConfig::new(sites.file, &path, &args.site, args.gateway.as_deref())?;
    config.doorkeeper = Some(Arc::new(Doorman::new(std::path::absolute(&path)?)));
    config.tunneller = Some(Arc::new(SshTunneller::new(&std::path::absolute(&sites.folder)?)));
    config.beside = Some(Arc::from(beside()));
    let starter = starter(&config.own_site().starter, &sites.folder);
    gateway::serve(config, Arc::from(starter))?;
    Ok(0)
}
