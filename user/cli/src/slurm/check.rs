//! `landbridge slurm check`: finds problems before submission that Slurm would find after it.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use node_service::hook::places_at_sites;
use node_service::step::Checked;
use stage::look::Role;

use crate::sites::file::SitesFileArgs;
use crate::slurm::hook::plan;
use crate::stage::look::look;
use crate::stage::places::Map;

/// Time limit for checking all places.
const LIMIT: Duration = Duration::from_secs(30);

/// Checks the places of a job script that are at sites. The exit code is 1 if one is not usable.
pub(crate) fn check(script: &Path, sites: &SitesFileArgs) -> Result<i32> {
    let plan = plan(script)?;
    let (sources, targets) = places_at_sites(&plan);
    let sources = sources.into_iter().map(|place| (place.to_owned(), Role::Source));
    let places: Vec<_> = sources.chain(targets.into_iter().map(|place| (place.to_owned(), Role::Target))).collect();
    if places.is_empty() {
        writeln!(crate::output::stdout(), "{}: no places at sites in its #BB_LUA lines", script.display())?;
        return Ok(0);
    }
    let Checked { unusable, unknown } = look(&Map::open(sites, None)?, &places, LIMIT);
    for problem in unknown.iter().chain(&unusable) {
        crate::output::note(&problem.to_string());
    }
    if unusable.is_empty() {
        let usable = places.len().saturating_sub(unknown.len());
        writeln!(crate::output::stdout(), "{usable} place(s) usable, {} unknown", unknown.len())?;
    }
    Ok(i32::from(!unusable.is_empty()))
}
