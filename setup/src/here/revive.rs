//! A gateway in the background that has ended is started again by whoever needs it and may.

use std::path::Path;
use std::time::Duration;

use super::background::{Background, lives_here};
use super::error::HereError;
use super::folders::Folders;
use crate::remedy::same;

/// How long its trunks may take then.
const TRUNKS: Duration = Duration::from_secs(12);

/// Starts the gateway of a site of this account if it ran in the background and has ended; gives what was done, for the user.
///
/// `None`: it runs, or it is not for this account to start: another sites file, another machine, or a gateway that somebody
/// starts by hand.
///
/// # Errors
/// It does not start.
pub async fn revive(file: &Path, site: &str) -> Result<Option<String>, HereError> {
    let folders = Folders::of_user()?;
    let ours = same(file, &folders.sites_file()) && folders.state_file(site).is_file() && lives_here(&folders, site);
    if !ours {
        return Ok(None);
    }
    let background = Background::new(&folders, site);
    let (started, note) = background.start_if_ended().await?;
    if started {
        background.await_trunks(TRUNKS).await;
    }
    Ok(started.then(|| format!("its gateway had ended: {note}")))
}
