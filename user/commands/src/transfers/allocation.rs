//! `landbridge stage in` and `stage out`: transfers to and from all nodes of an allocation.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use launcher::hosts::Host;
use stage::mover::{Order, Task};
use stage::{Place, means_into};
use types::sites::Site;

use super::job::{PreparedTransfer, here_only};
use super::places::{At, Map, Movers, on_nodes, there};
use super::request::{PlannedTransfer, TransferRequest};
use crate::error::{CommandError, Context, Result, refusal, refuse};
use crate::site_id::far;
use crate::{alone, sites_file};
use job::host_name;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    In,
    Out,
}

/// `SRC=DST`.
struct Spec {
    from: OsString,
    to: OsString,
}

fn parse(text: &OsStr) -> Result<Spec> {
    let bytes = text.as_bytes();
    let shown = text.to_string_lossy();
    let mut parts = bytes.split(|byte| *byte == b'=');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(from), Some(to), None) if !from.is_empty() && !to.is_empty() => {
            let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
            Ok(Spec { from: part(from), to: part(to) })
        }
        (_, _, Some(_)) => {
            Err(CommandError::Option(format!("`{shown}`: it has more than one `=`; `stage move` takes any path")))
        }
        _ => Err(CommandError::Option(format!("`{shown}` is not SRC=DST"))),
    }
}

/// Checks the form of a spec.
///
/// # Errors
/// It is not `SRC=DST`.
pub(super) fn check(spec: &OsStr) -> Result<()> {
    parse(spec).map(drop)
}

/// Returns true if the end outside the nodes is a path of the machine where the spec was typed.
pub fn is_here(spec: &OsStr, way: Way) -> bool {
    let Ok(Spec { from, to }) = parse(spec) else { return false };
    let far = if way == Way::In { from } else { to };
    Place::parse(&far).is_ok_and(|place| place.site.is_none())
}

/// A request to move files to or from all nodes of an allocation.
#[derive(Debug)]
pub struct AllocationRequest {
    pub way: Way,
    /// `SRC=DST`.
    pub specs: Vec<OsString>,
    /// The nodes that stand for the allocation, if the user has named them.
    pub hosts: Vec<Host>,
    pub common: TransferRequest,
}

/// Plans the transfers of the specs.
///
/// # Errors
/// A spec makes no sense, or this machine does not know the nodes.
pub fn plan(request: &AllocationRequest) -> Result<PlannedTransfer> {
    let AllocationRequest { way, specs, hosts, common } = request;
    let (way, file, from) = (*way, common.sites.as_deref(), common.from.as_deref());
    if let Some((sites, site)) = far(file, from)? {
        refuse_paths_of_this_machine(specs, way, &site)?;
        return Ok(PlannedTransfer::Elsewhere(Box::new((sites, site))));
    }
    let parsed = specs.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    let typed: Vec<String> = specs.iter().map(|spec| spec.to_string_lossy().into_owned()).collect();
    let title = format!("{} {}", if way == Way::In { "in" } else { "out" }, typed.join(" "));
    if hosts.is_empty() && sites_file::find(file)?.is_none() {
        return on_this_machine(&parsed, common, typed, title).map(PlannedTransfer::from);
    }
    let map = Map::open(file, from)?;
    let nodes = map.allocation(hosts)?;
    let transfers = parsed.iter().map(|spec| transfers(spec, way, &map, &nodes)).collect::<Result<Vec<_>>>()?.concat();
    let mut movers = Movers::default();
    for NodeTransfer { from, to, .. } in &transfers {
        movers.add(std::slice::from_ref(&from.at));
        movers.add(&to.iter().map(|end| end.at.clone()).collect::<Vec<_>>());
    }
    let movers = movers.settle(&map);
    let spot = |end: &TransferEnd| movers.spot(&end.at, end.path.clone(), end.typed.clone());
    let task = |NodeTransfer { from, to, optional }: &NodeTransfer| {
        let to = to.iter().map(spot).collect::<Result<Vec<_>>>()?;
        Ok(Task { from: spot(from)?, to, into: false, optional: *optional, layouts: None })
    };
    let tasks = transfers.iter().map(task).collect::<Result<Vec<_>>>()?;
    let targets = tasks.iter().map(|task| task.to.len()).max().unwrap_or(0);
    let order = Order { tasks, looks: Vec::new(), options: common.pace.settings(targets) };
    Ok(PlannedTransfer::from(PreparedTransfer { command: map.job(&movers.nodes)?, order, places: typed, title }))
}

/// A site moves the files, so it cannot reach this machine's.
fn refuse_paths_of_this_machine(specs: &[OsString], way: Way, site: &Site) -> Result<()> {
    let end = if way == Way::In { "SRC" } else { "DST" };
    let Some(spec) = specs.iter().find(|spec| is_here(spec, way)) else { return Ok(()) };
    let (spec, name) = (spec.to_string_lossy(), &site.name);
    refuse!(
        "`{spec}`: this machine is no node of site {name}, so {end} must name a site: move it by `landbridge stage \
         move` first, and give it here as {name}:PATH"
    );
}

/// Without a sites file, this machine is the only node, as for `run`.
fn on_this_machine(
    specs: &[Spec],
    common: &TransferRequest,
    typed: Vec<String>,
    title: String,
) -> Result<PreparedTransfer> {
    let here = At { site: alone::SITE.to_owned(), node: host_name() };
    let place = |text: &OsStr| Ok::<_, CommandError>(Place::parse(&expand(text, &here)?)?);
    let places = specs.iter().map(|spec| Ok((place(&spec.from)?, place(&spec.to)?))).collect::<Result<Vec<_>>>()?;
    if let Some(place) = places.iter().flat_map(|(from, to)| [from, to]).find(|place| place.site.is_some()) {
        refuse!("{place}: there is no sites file, and so no site: `landbridge sites add NAME [USER@]HOST` adds one");
    }
    here_only(&places, (false, None), common.pace.settings(1), typed, title)
}

/// One end of a transfer.
#[derive(Clone, Debug)]
struct TransferEnd {
    at: At,
    path: Vec<u8>,
    typed: String,
}

#[derive(Clone, Debug)]
struct NodeTransfer {
    from: TransferEnd,
    to: Vec<TransferEnd>,
    optional: bool,
}

fn transfers(spec: &Spec, way: Way, map: &Map, nodes: &[At]) -> Result<Vec<NodeTransfer>> {
    match way {
        Way::In => inwards(spec, map, nodes),
        Way::Out => outwards(spec, map, nodes),
    }
}

fn inwards(spec: &Spec, map: &Map, nodes: &[At]) -> Result<Vec<NodeTransfer>> {
    let to = Place::parse(&spec.to)?;
    if to.site.is_some() {
        refuse!("{to}: what is staged in goes to every node of the allocation: give a path alone, or use `stage move`");
    }
    let to = |at: &At| on_node(&spec.to, at);
    // Each node gets its own source.
    if has_pattern(&spec.from) {
        let each = |at: &At| {
            let from = Place::parse(&expand(&spec.from, at)?)?;
            Ok(NodeTransfer { from: on_place(&from, map)?, to: vec![to(at)?], optional: false })
        };
        return nodes.iter().map(each).collect();
    }
    let from = on_place(&Place::parse(&spec.from)?, map)?;
    let to = nodes.iter().map(to).collect::<Result<_>>()?;
    Ok(vec![NodeTransfer { from, to, optional: false }])
}

fn outwards(spec: &Spec, map: &Map, nodes: &[At]) -> Result<Vec<NodeTransfer>> {
    let from = Place::parse(&spec.from)?;
    if from.site.is_some() {
        let to = Place::parse(&spec.to)?;
        let from = match from.is_several() {
            true => refuse!("{from}: give a path alone: it is on every node of the allocation"),
            false => on_place(&from, map)?,
        };
        return Ok(vec![NodeTransfer { from, to: vec![on_place(&to, map)?], optional: false }]);
    }
    let several_sites = nodes.iter().any(|at| at.site != nodes[0].site);
    let each = |at: &At| {
        let mut to = spec.to.clone();
        if nodes.len() > 1 && !has_pattern(&to) {
            if means_into(Path::new(&to)) {
                // In a folder, the file of each node needs its own name.
                to.push("/");
                to.push(from.path.file_name().with_context(|| format!("{from}: no name"))?);
            }
            to.push(if several_sites { ".%s.%n" } else { ".%n" });
        }
        let to = Place::parse(&expand(&to, at)?)?;
        // Some nodes may have no such file.
        Ok(NodeTransfer { from: on_node(&spec.from, at)?, to: vec![on_place(&to, map)?], optional: nodes.len() > 1 })
    };
    nodes.iter().map(each).collect()
}

/// A path on a node of the allocation.
fn on_node(path: &OsStr, at: &At) -> Result<TransferEnd> {
    let path = expand(path, at)?;
    let typed = format!("{}/{}:{}", at.site, at.node, path.to_string_lossy());
    Ok(TransferEnd { at: at.clone(), path: on_nodes(&path)?, typed })
}

/// A place on a single node.
fn on_place(place: &Place, map: &Map) -> Result<TransferEnd> {
    if place.is_several() {
        refuse!("{place}: name one node");
    }
    let at = map.nodes_of(place)?.into_iter().next().context("a node of the place")?;
    Ok(TransferEnd { at, path: there(place)?, typed: place.to_string() })
}

fn has_pattern(text: &OsStr) -> bool {
    text.as_bytes().windows(2).any(|two| two == b"%n" || two == b"%s")
}

/// Expands `%n` to the node's name, `%s` to its site's name, and `%%` to `%`.
fn expand(text: &OsStr, at: &At) -> Result<OsString> {
    let mut bytes = text.as_bytes().iter().copied();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => match bytes.next() {
                Some(b'n') => out.extend_from_slice(at.node.as_bytes()),
                Some(b's') => out.extend_from_slice(at.site.as_bytes()),
                Some(b'%') => out.push(b'%'),
                other => {
                    let other = other.map_or(String::new(), |byte| char::from(byte).to_string());
                    let text = text.to_string_lossy();
                    return Err(refusal!("`{text}`: %{other} means nothing: %n is the node, %s its site, %% is %"));
                }
            },
            byte => out.push(byte),
        }
    }
    Ok(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_sites_are_filled_in() {
        let at = At { site: "lyon".into(), node: "n7".into() };
        let filled = |text: &str| expand(OsStr::new(text), &at).map_err(|error| error.to_string());
        assert_eq!(filled("a.%s.%n%%"), Ok("a.lyon.n7%".into()));
        assert!(filled("100%").unwrap_err().contains("%n is the node"));
        assert!(has_pattern(OsStr::new("x%n")) && !has_pattern(OsStr::new("x%%")));
    }

    #[test]
    fn a_spec_has_two_places() {
        let spec = parse(OsStr::new("lyon:a/b=/tmp/c")).unwrap();
        assert_eq!((spec.from, spec.to), ("lyon:a/b".into(), "/tmp/c".into()));
        for (text, problem) in [("a", "is not SRC=DST"), ("a=", "is not SRC=DST"), ("a=b=c", "more than one `=`")] {
            assert!(parse(OsStr::new(text)).err().unwrap().to_string().contains(problem), "{text}");
        }
    }
}
