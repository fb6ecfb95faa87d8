//! `landbridge gateway`.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::Result;
use gateway::GatewayConfig;
use launch::starter::starter;
use launch::tunnel::SshTunneller;
use setup::join::Doorman;
use tracing_subscriber::EnvFilter;

use crate::args::GatewayArgs;
use crate::log::Line;
use crate::sites_file;

/// Runs a gateway until it is told to end and gives the exit code.
pub(crate) fn gateway(args: &GatewayArgs) -> Result<i32> {
    let filter = EnvFilter::try_from_env("LANDBRIDGE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(Line::new).with_ansi(ansi).init();
    // Held as long as this process lives: it says that this gateway runs.
    let _presence = match args.background {
        true => Some(setup::here::background::enter(&args.site)?),
        false => None,
    };
    let path = sites_file::locate(&args.sites)?;
    let sites = sites_file::read(&path)?;
    let mut config = GatewayConfig::new(sites.file, &path, &args.site, args.gateway.as_deref())?;
    config.doorkeeper = Some(Arc::new(Doorman::new(std::path::absolute(&path)?)));
    config.tunneller = Some(Arc::new(SshTunneller::new(&std::path::absolute(&sites.folder)?)));
    let starter = starter(&config.own_site().starter, &sites.folder);
    gateway::serve(config, Arc::from(starter))?;
    Ok(0)
}
