//! How a gateway stands: its jobs and trunks; and taking up sites that were added to its sites file while it runs.
//!
//! Sites that come after those known are new trunks and nothing else, so open jobs do not notice. Any other change of what
//! concerns this gateway asks for a restart, which is for whoever changed the file to decide.

use std::path::Path;
use std::rc::Rc;

use types::sites::{Site, SitesFile};
use wire::Control;
use wire::control::TrunkStanding;

use crate::relay::TrunkInfo;
use crate::server::{Gateway, trunks};

/// The longest sites file that is read, in bytes.
const MAX_FILE: u64 = 4 << 20;

impl Gateway {
    /// How it stands, after reading the sites file again if asked to.
    pub fn standing(&self, reload: bool) -> Control {
        let stale = if reload { self.reload().err() } else { None };
        if let Some(problem) = &stale {
            tracing::warn!(problem, "the sites file cannot be taken up while running");
        }
        let relay = self.relay.borrow();
        let trunks = relay.trunks.iter().map(|trunk| TrunkStanding {
            site: trunk.site.clone(),
            up: trunk.up,
            problem: if trunk.up { String::new() } else { trunk.problem.clone() },
        });
        Control::Standing { jobs: relay.jobs.len() as u32, trunks: trunks.collect(), stale }
    }

    /// Reads the sites file again and takes up what was added.
    pub fn reload(&self) -> Result<(), String> {
        let Some(path) = &self.file else { return Err("this gateway was started without a sites file".into()) };
        self.take_up(read(path)?)
    }

    /// Takes up the sites that a newer sites file has after those known.
    fn take_up(&self, newer: SitesFile) -> Result<(), String> {
        let (own_site, own_gateway) = self.own;
        if let Some(problem) = difference(&self.sites.borrow(), &newer, own_site) {
            return Err(problem);
        }
        let known = self.trunks.borrow().len();
        for trunk in trunks(&newer, own_site, own_gateway).into_iter().skip(known) {
            tracing::info!(site = trunk.site, gateway = trunk.gateway, fingerprint = %trunk.fingerprint, "site added");
            let info = TrunkInfo::new(trunk.site.clone());
            let id = self.relay.borrow_mut().add_trunk(info);
            debug_assert_eq!(id, trunk.id);
            let trunk = Rc::new(trunk);
            self.trunks.borrow_mut().push(trunk.clone());
            self.expect(&trunk);
            self.dial_trunk(&trunk);
        }
        self.sites.replace(newer);
        self.expect_meetings();
        Ok(())
    }
}

fn read(path: &Path) -> Result<SitesFile, String> {
    use std::io::Read;
    let name = path.display().to_string();
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| format!("sites file {name}: {e}"))?;
    file.take(MAX_FILE).read_to_string(&mut text).map_err(|e| format!("sites file {name}: {e}"))?;
    SitesFile::parse(&text, &name).map_err(|e| e.to_string())
}

/// What of the known sites is otherwise in the newer file, as far as the gateway of site `own` works by it.
fn difference(known: &SitesFile, newer: &SitesFile, own: usize) -> Option<String> {
    for (at, old) in known.sites.iter().enumerate() {
        let Some(new) = newer.sites.get(at).filter(|new| new.name == old.name) else {
            return Some(format!("site {} is gone from its place in the sites file", old.name));
        };
        let same = if at == own {
            // Where its key lies and how its users reach it is not the gateway's business.
            Site { key: old.key.clone(), ssh: old.ssh.clone(), folder: old.folder.clone(), ..new.clone() } == *old
        } else {
            (new.fingerprint, seen(&new.gateways)) == (old.fingerprint, seen(&old.gateways))
        };
        if !same {
            return Some(format!("site {} is another than when this gateway was started", old.name));
        }
    }
    None
}

/// What matters of another site's gateways: not where they show their page, each on its own machine.
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
        assert_eq!(told(&[("a", "1", "n1"), ("b", "2", "n1"), ("c", "3", "n1")]), None);
        // Nodes of another site are the business of its own gateway.
        assert_eq!(told(&[("a", "1", "n1"), ("b", "2", "n7")]), None);
        for newer in [
            &[("a", "1", "n1")][..],
            &[("b", "2", "n1"), ("a", "1", "n1")],
            &[("a", "1", "n2"), ("b", "2", "n1")],
            &[("a", "1", "n1"), ("b", "9", "n1")],
        ] {
            assert!(told(newer).is_some(), "{newer:?}");
        }
        // Where a gateway has its page is its own business.
        for (at, same) in [(0, false), (1, true)] {
            let mut newer = known.clone();
            newer.sites[at].gateways[0].page = Some("127.0.0.1:7780".parse().unwrap());
            assert_eq!(difference(&known, &newer, 0).is_none(), same);
        }
    }
}
