//! Restarts of an ended background gateway by a command that needs it, if this account may start it.

use std::path::Path;

use super::background::{Background, lives_here};
use super::error::HereError;
use super::folders::Folders;
use crate::Progress;
use crate::lift::TRUNK;
use crate::remedy::same;

/// Starts the gateway of a site of this account if it ran in the background and has ended. Returns true if it was
/// started.
///
/// It is not started if it runs, or if this account must not start it because it belongs to another sites file or
/// another machine, or is started by hand.
///
/// # Errors
/// The gateway does not start.
pub async fn revive(file: &Path, site: &str, progress: &mut dyn Progress) -> Result<bool, HereError> {
    let folders = Folders::of_user()?;
    let ours = same(file, &folders.sites_file()) && folders.state_file(site).is_file() && lives_here(&folders, site);
    if !ours {
        return Ok(false);
    }
    let background = Background::new(&folders, site);
    let (started, note) = background.start_if_ended().await?;
    if started {
        let seconds = TRUNK.as_secs();
        progress.step(site, &format!("its gateway had ended: {note}; waiting for its trunks, at most {seconds} s"));
        background.await_trunks(TRUNK).await;
    }
    Ok(started)
}
