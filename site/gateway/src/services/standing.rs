//! A gateway's standing: its jobs and trunks; and reloading its sites file while it runs.
//!
//! Sites appended after the known ones only add trunks and do not affect open jobs. A site that was removed is revoked:
//! its links are cut, and the jobs it takes part in end. A site's keys may change, including this site's. Any other
//! change that concerns this gateway needs a restart, which is left to the person who changed the file.

use std::path::Path;
use std::rc::Rc;

use client::key::KeyError;
use thiserror::Error;
use types::sites::{Site, SitesError, SitesFile};
use wire::control::{ObservationMessage, TrunkStanding};

use crate::config::site_key;
use crate::error::GatewayError;
use crate::sites::Sites;
use crate::table::TrunkInfo;
use crate::trunks::Trunks;
use crate::trunks::list::{self, TrunkList};
use crate::trunks::trunk::Trunk;

/// The longest sites file that is read, in bytes.
const MAX_FILE: u64 = 4 << 20;

/// Reasons why a change in the sites file cannot be applied while the gateway runs.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum ReloadError {
    #[error("this gateway was started without a sites file")]
    NoFile,
    #[error("sites file {name}: {source}")]
    Read { name: String, source: std::io::Error },
    #[error(transparent)]
    Sites(#[from] SitesError),
    #[error("site {0}, which is this gateway's own, was removed from the sites file")]
    OwnGone(String),
    #[error("site {0} has moved within the sites file: restore the order, or restart the gateway")]
    Moved(String),
    #[error("site {0} has changed since this gateway was started: restart the gateway")]
    Another(String),
    #[error("site {0} is new and not at the end of the sites file: move it to the end, or restart the gateway")]
    NewBefore(String),
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// The gateway's standing, after reloading the sites file if `reload` is set.
pub(crate) fn standing(trunks: &Rc<Trunks>, reload: bool) -> ObservationMessage {
    let stale = if reload { reload_and_log(trunks) } else { unread(&trunks.sites) };
    let table = trunks.path.table.read();
    let standings = table.trunks.iter().filter(|trunk| !trunk.retired).map(|trunk| TrunkStanding {
        site: trunk.site.clone(),
        up: trunk.up,
        problem: if trunk.up { String::new() } else { trunk.problem.clone() },
    });
    ObservationMessage::Standing { jobs: table.jobs.len() as u32, trunks: standings.collect(), stale }
}

/// Reports an edit or an error in the sites file that this gateway has not applied, if there is one.
fn unread(sites: &Sites) -> Option<String> {
    let path = sites.path.as_ref()?;
    match read(path) {
        Ok(newer) if newer == *sites.file.borrow() => None,
        Ok(_) => Some(format!("the sites file {} was edited after this gateway read it", path.display())),
        Err(error) => Some(error.to_string()),
    }
}

/// Reloads the sites file. If that fails, logs and returns the reason.
pub(crate) fn reload_and_log(trunks: &Rc<Trunks>) -> Option<String> {
    let problem = reload(trunks).err().map(|error| error.to_string());
    match &problem {
        Some(problem) => tracing::warn!(problem, "cannot apply the sites file while running"),
        None => tracing::info!("sites file reloaded"),
    }
    problem
}

/// Reads the sites file again and applies the changes.
///
/// # Errors
/// It cannot be read or applied; nothing has changed then.
pub(crate) fn reload(trunks: &Rc<Trunks>) -> Result<(), ReloadError> {
    let Some(path) = &trunks.sites.path else { return Err(ReloadError::NoFile) };
    let newer = read(path)?;
    let (site, gateway) = trunks.sites.own.get();
    let known = trunks.sites.file.borrow().sites[site].clone();
    let Some(own) = newer.sites.iter().position(|site| site.name == known.name) else {
        return Err(ReloadError::OwnGone(known.name));
    };
    if let Some(problem) = difference(&trunks.sites.file.borrow(), &newer, own) {
        return Err(problem);
    }
    // If the key cannot be used, nothing changes.
    let key = site_key(&newer, path, &known.name)?;
    if key.fingerprint() != trunks.sites.credentials().fingerprint {
        tracing::info!(fingerprint = %key.fingerprint(), "the site's key has changed");
        trunks.sites.replace_key(&key)?;
    }
    trunks.sites.own.set((own, gateway));
    trunks.survey.adopt(&newer);
    trunks.sites.file.replace(newer);
    take_up(trunks);
    // The cause of a trunk's failure may be gone even if the file is the same: a key was accepted, a gateway was
    // started.
    trunks.list.kick();
    Ok(())
}

/// Makes the trunks match the sites file.
fn take_up(trunks: &Rc<Trunks>) {
    let wanted = list::trunks(&trunks.sites.file.borrow(), trunks.sites.own.get());
    for trunk in trunks.list.in_use() {
        match wanted.iter().find(|wanted| is_same(wanted, &trunk)) {
            Some(wanted) if wanted.keys() != trunk.keys() => {
                let (site, gateway, keys) = (&trunk.site, &trunk.gateway, wanted.keys());
                tracing::info!(site, gateway, %keys, "trusted keys have changed");
                trunk.trust(keys);
            }
            Some(_) => {}
            None => revoke(&trunks.list, &trunk),
        }
    }
    for trunk in wanted {
        if trunks.list.in_use().iter().any(|known| is_same(known, &trunk)) {
            continue;
        }
        tracing::info!(site = trunk.site, gateway = trunk.gateway, keys = %trunk.keys(), "site added");
        if let Some(known) = retired(&trunks.list, &trunk) {
            known.take_back(trunk.keys());
            trunks.path.table.change(|table| table.take_back_trunk(known.id));
            trunks.visits.expect(&known);
            trunks.dial(&known);
            continue;
        }
        let id = trunks.path.table.change(|table| table.add_trunk(TrunkInfo::new(trunk.site.clone())));
        let trunk = Rc::new(trunk.numbered(id));
        trunks.list.add(trunk.clone());
        trunks.visits.expect(&trunk);
        trunks.dial(&trunk);
    }
    trunks.visits.expect_meetings();
}

/// Returns the trunk to a gateway that was removed from the sites file and has returned unchanged. A gateway that
/// returns with another address gets a new trunk.
fn retired(list: &TrunkList, like: &Trunk) -> Option<Rc<Trunk>> {
    list.retired().into_iter().find(|trunk| is_same(trunk, like) && trunk.is_dialled_like(like))
}

fn revoke(list: &TrunkList, trunk: &Trunk) {
    let (site, gateway) = (&trunk.site, &trunk.gateway);
    let reason = format!("site {}: gateway {gateway} of site {site} is no longer in its sites file", list.sites.site);
    tracing::warn!(site, gateway, "revoked: no longer in the sites file");
    trunk.retire(&reason);
    list.path.table.change(|table| table.retire_trunk(trunk.id, &reason));
}

fn is_same(one: &Trunk, other: &Trunk) -> bool {
    one.site == other.site && one.gateway == other.gateway
}

fn read(path: &Path) -> Result<SitesFile, ReloadError> {
    use std::io::Read;
    let name = path.display().to_string();
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    read.map_err(|source| ReloadError::Read { name: name.clone(), source })?;
    Ok(SitesFile::parse(&text, &name)?)
}

/// Returns a difference between the files that concerns the gateway of site `own` and cannot be applied while it runs.
fn difference(known: &SitesFile, newer: &SitesFile, own: usize) -> Option<ReloadError> {
    let position = |site: &Site| newer.sites.iter().position(|new| new.name == site.name);
    let mut last = None;
    for old in &known.sites {
        let Some(at) = position(old) else { continue };
        // The site that comes first in the file dials the other.
        if last.is_some_and(|last| last > at) {
            return Some(ReloadError::Moved(old.name.clone()));
        }
        last = Some(at);
        let new = &newer.sites[at];
        let same = if at == own {
            // The location of its key and the address for its users do not concern the gateway. It applies changed
            // keys.
            let Site { key, ssh, folder, fingerprint, next, .. } = old.clone();
            Site { key, ssh, folder, fingerprint, next, ..new.clone() } == *old
        } else {
            seen(&new.gateways) == seen(&old.gateways)
        };
        if !same {
            return Some(ReloadError::Another(old.name.clone()));
        }
    }
    let first_new = newer.sites.iter().position(|new| known.sites.iter().all(|old| old.name != new.name));
    let before = first_new.filter(|new| last.is_some_and(|last| last > *new));
    before.map(|new| ReloadError::NewBefore(newer.sites[new].name.clone()))
}

/// Another site's gateways without their pages, which only their own machines use.
fn seen(gateways: &[types::sites::Gateway]) -> Vec<types::sites::Gateway> {
    gateways.iter().map(|gateway| types::sites::Gateway { page: None, ..gateway.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(entries: &[(&str, &str, &str)]) -> SitesFile {
        let text = entries.iter().map(|(name, port, node)| {
            let print = "0".repeat(64);
            format!(
                "[[site]]\nname = \"{name}\"\nfingerprint = \"sha256:{print}\"\n[[site.gateway]]\nname = \"gw1\"\n\
                 advertise = \"h:{port}\"\n[[site.node]]\nname = \"{node}\"\n"
            )
        });
        SitesFile::parse(&text.collect::<String>(), "x").unwrap()
    }

    #[test]
    fn only_what_comes_after_is_an_addition() {
        let known = file(&[("a", "1", "n1"), ("b", "2", "n1")]);
        let told = |newer: &[(&str, &str, &str)]| difference(&known, &file(newer), 0);
        assert!(told(&[("a", "1", "n1"), ("b", "2", "n1"), ("c", "3", "n1")]).is_none());
        // Nodes of another site concern only its own gateway.
        assert!(told(&[("a", "1", "n1"), ("b", "2", "n7")]).is_none());
        // A site that was removed is revoked.
        assert!(told(&[("a", "1", "n1")]).is_none());
        assert!(told(&[("a", "1", "n1"), ("c", "3", "n1")]).is_none());
        for newer in [
            &[("b", "2", "n1"), ("a", "1", "n1")][..],
            &[("a", "1", "n1"), ("c", "3", "n1"), ("b", "2", "n1")],
            &[("a", "1", "n2"), ("b", "2", "n1")],
            &[("a", "1", "n1"), ("b", "9", "n1")],
        ] {
            assert!(told(newer).is_some(), "{newer:?}");
        }
        // A gateway's page concerns only that gateway.
        for (at, same) in [(0, false), (1, true)] {
            let mut newer = known.clone();
            newer.sites[at].gateways[0].page = Some("127.0.0.1:7780".parse().unwrap());
            assert_eq!(difference(&known, &newer, 0).is_none(), same);
        }
    }
}
