//! The flag that names the sites file.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use commands::sites_file;
use launcher::Sites;

#[derive(Clone, Debug, Args)]
pub(crate) struct SitesFileArgs {
    /// The sites file [default: $LANDBRIDGE_SITES, else ~/.config/landbridge/sites.toml]
    #[arg(long, value_name = "FILE")]
    pub sites: Option<PathBuf>,
}

impl SitesFileArgs {
    /// The path, if the user has named it.
    pub(crate) fn named(&self) -> Option<&Path> {
        self.sites.as_deref()
    }

    /// The path of the sites file. An error if there is none.
    pub(crate) fn locate(&self) -> Result<PathBuf> {
        Ok(sites_file::locate(self.named())?)
    }

    /// True if the user has named a sites file, or the default one exists.
    pub(crate) fn is_there(&self) -> Result<bool> {
        Ok(sites_file::find(self.named())?.is_some())
    }

    /// The path of the sites file, whether it exists or not.
    pub(crate) fn place(&self) -> Result<PathBuf> {
        Ok(sites_file::place(self.named())?)
    }

    /// Reads the sites file; returns its path, too.
    pub(crate) fn read(&self) -> Result<(PathBuf, Sites)> {
        let path = self.locate()?;
        let sites = sites_file::read(&path)?;
        Ok((path, sites))
    }
}
