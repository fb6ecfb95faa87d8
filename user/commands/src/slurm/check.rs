//! `landbridge slurm check`: finds problems before submission that Slurm would find after it.

use std::path::Path;
use std::time::Duration;

use node_service::hook::places_at_sites;
use node_service::step::Checked;
use stage::look::Role;

use super::hook::plan;
use crate::error::Result;
use crate::transfers::look::look;
use crate::transfers::places::Map;

/// Time limit for checking all places.
const LIMIT: Duration = Duration::from_secs(30);

/// Checks the places of a job script that are at sites. Returns their number, and the problems.
///
/// # Errors
/// The script or the sites file cannot be read.
pub fn check(script: &Path, sites: Option<&Path>) -> Result<(usize, Checked)> {
    let plan = plan(script)?;
    let (sources, targets) = places_at_sites(&plan);
    let sources = sources.into_iter().map(|place| (place.to_owned(), Role::Source));
    let places: Vec<_> = sources.chain(targets.into_iter().map(|place| (place.to_owned(), Role::Target))).collect();
    if places.is_empty() {
        return Ok((0, Checked::default()));
    }
    Ok((places.len(), look(&Map::open(sites, None)?, &places, LIMIT)))
}
