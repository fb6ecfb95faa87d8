//! `landbridge stage move`: the transfer between its places.

use std::collections::HashMap;
use std::ffi::OsString;

use stage::mover::{Order, Task};
use stage::relaid::{Layouts, split_pattern};
use stage::{Place, means_into};
use types::shell;
use types::sites::Site;

use super::job::{PreparedTransfer, here_only};
use super::places::{At, Map, Movers};
use super::request::{PlannedTransfer, TransferRequest};
use crate::error::{CommandError, Context, Result, refuse};
use crate::site_id::far;

/// A request to move files between places.
#[derive(Debug)]
pub struct MoveRequest {
    /// The sources and the target, as typed.
    pub places: Vec<OsString>,
    /// The layouts of an array's files at the source and the target.
    pub layouts: Option<(String, String)>,
    pub common: TransferRequest,
}

/// Plans the transfer.
///
/// # Errors
/// The places make no sense, or this machine does not know their nodes.
pub fn plan(request: &MoveRequest) -> Result<PlannedTransfer> {
    let places = request.places.iter().map(|text| Place::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let (to, from) = places.split_last().context("a source and a target")?;
    for place in from {
        if place.is_several() {
            refuse!(
                "{place}: a source is on one node: name it, as in {}/n1:…",
                place.site.as_deref().unwrap_or("SITE")
            );
        }
    }
    refuse_ambiguous(from, to)?;
    let common = &request.common;
    if places.iter().any(|place| place.site.is_some())
        && let Some((sites, site)) = far(common.sites.as_deref(), common.from.as_deref())?
    {
        refuse_places_of_this_machine(&places, &site)?;
        return Ok(PlannedTransfer::Elsewhere(Box::new((sites, site))));
    }
    let (to, layouts) = relaid(request, from, to)?;
    if places.iter().any(|place| place.site.is_some()) {
        return by_job(common, from, &to, layouts.as_ref()).map(PlannedTransfer::from);
    }
    let pairs: Vec<(Place, Place)> = from.iter().map(|from| (from.clone(), to.clone())).collect();
    let settings = common.pace.settings(1);
    here_only(&pairs, (from.len() > 1, layouts), settings, typed(from, &to), title(from, &to))
        .map(PlannedTransfer::from)
}

/// Several sources need a target folder and distinct names in it.
fn refuse_ambiguous(from: &[Place], to: &Place) -> Result<()> {
    if from.len() > 1 && !means_into(&to.path) {
        refuse!("{to}: several sources go into a folder that is there: write {to}/");
    }
    let mut names = HashMap::new();
    for place in from.iter().filter(|_| from.len() > 1) {
        if let Some(other) = place.path.file_name().and_then(|name| names.insert(name, place)) {
            refuse!("{other} and {place} have the same name, and cannot go into the same folder");
        }
    }
    Ok(())
}

/// A site moves the files, so it cannot reach this machine's.
fn refuse_places_of_this_machine(places: &[Place], site: &Site) -> Result<()> {
    if let Some((target, _)) = places.split_last()
        && target.site.is_none()
    {
        refuse!("{target}: this machine is no node of a site, so no site can write here: fetch it with scp or rsync");
    }
    if let Some(place) = places.iter().find(|place| place.site.is_none()) {
        let other = places.iter().find_map(|place| place.site.as_deref()).unwrap_or(&site.name);
        refuse!(
            "{place}: this machine is no node of a site: `landbridge sites push {} --to {other}` copies it to the same place \
             below your home there",
            shell::path(&place.path)
        );
    }
    Ok(())
}

/// The target, or its folder if files of an array change their layout.
fn relaid(request: &MoveRequest, from: &[Place], to: &Place) -> Result<(Place, Option<Layouts>)> {
    let Some((one, other)) = &request.layouts else { return Ok((to.clone(), None)) };
    let [source] = from else { refuse!("--from-layout: give one source, whose name has %r for the process's number") };
    split_pattern(&source.path).map_err(|problem| CommandError::Request(problem.to_string()))?;
    let (folder, name) = split_pattern(&to.path).map_err(|problem| CommandError::Request(problem.to_string()))?;
    let layouts = Layouts { from: one.clone(), to: other.clone(), name };
    layouts.read().map_err(|problem| CommandError::Request(problem.to_string()))?;
    Ok((Place { path: folder, ..to.clone() }, Some(layouts)))
}

/// A transfer between nodes: a job with a mover on each.
fn by_job(common: &TransferRequest, from: &[Place], to: &Place, layouts: Option<&Layouts>) -> Result<PreparedTransfer> {
    let map = Map::open(common.sites.as_deref(), common.from.as_deref())?;
    let mut movers = Movers::default();
    let mut on = |place: &Place| -> Result<Vec<At>> {
        let found = map.nodes_of(place)?;
        movers.add(&found);
        Ok(found)
    };
    let sources = from.iter().map(&mut on).collect::<Result<Vec<_>>>()?;
    let targets = on(to)?;
    let movers = movers.settle(&map);
    let mut tasks = Vec::new();
    for (place, found) in from.iter().zip(&sources) {
        let source = found.first().context("a node of the source")?;
        let to = targets.iter().map(|at| movers.of_place(to, at)).collect::<Result<Vec<_>>>()?;
        tasks.push(Task {
            from: movers.of_place(place, source)?,
            to,
            into: from.len() > 1,
            optional: false,
            layouts: layouts.cloned(),
        });
    }
    let order = Order { tasks, looks: Vec::new(), options: common.pace.settings(targets.len()) };
    Ok(PreparedTransfer { command: map.job(&movers.nodes)?, order, places: typed(from, to), title: title(from, to) })
}

fn title(from: &[Place], to: &Place) -> String {
    format!("{} to {to}", from.iter().map(Place::to_string).collect::<Vec<_>>().join(" "))
}

fn typed(from: &[Place], to: &Place) -> Vec<String> {
    from.iter().chain([to]).map(Place::to_string).collect()
}
