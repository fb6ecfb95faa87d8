//! Copying the user's files to sites, by `sites push` and before a run.

use std::path::PathBuf;

use launcher::Sites;
use setup::Progress;
use setup::parcel::Parcel;
use setup::push::Pushed;

use crate::error::{Result, refuse};
use crate::runtime::runtime;

/// Copies the paths to the named sites, or to all sites if the list is empty.
///
/// # Errors
/// A site is unknown, or a path cannot be read. The result of each site names its own problem.
pub fn push(
    sites: &Sites,
    names: &[String],
    paths: &[PathBuf],
    asking: bool,
    progress: &mut dyn Progress,
) -> Result<Vec<Pushed>> {
    let named = names.iter().map(|name| sites.site(name)).collect::<Result<Vec<_>, _>>()?;
    let wanted = if names.is_empty() { sites.file.sites.iter().collect() } else { named };
    let parcel = Parcel::read(paths, std::env::home_dir().as_deref())?;
    Ok(runtime()?.block_on(setup::push::push(&wanted, &parcel, asking, progress))?)
}

/// Before a job: like [`push`]; returns the sites that got files.
///
/// # Errors
/// A copy to one of the sites failed.
pub fn before_run(
    sites: &Sites,
    names: &[String],
    paths: &[PathBuf],
    asking: bool,
    progress: &mut dyn Progress,
) -> Result<Vec<Pushed>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let mut all = push(sites, names, paths, asking, progress)?;
    let problems: Vec<&str> = all.iter().filter_map(|pushed| pushed.problem.as_deref()).collect();
    if !problems.is_empty() {
        refuse!("{}; nothing was started", problems.join("; "));
    }
    all.retain(|pushed| pushed.sent > 0);
    Ok(all)
}
