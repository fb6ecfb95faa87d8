//! Sites that another machine's sites file names and ours does not.
//!
//! The writer of that file could add a stranger's site to ours. So an entry is taken over without the fields that
//! decide which programs run here and where this user logs in, never in place of an entry of our own, and only if the
//! user has accepted the site by name.

use types::sites::Site;
use types::untrusted::printable;

use crate::book::Book;
use crate::{Progress, SetupError};

/// The result of taking over the sites that a file names and ours did not.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    /// The sites taken over, described for the user.
    pub notes: Vec<String>,
    /// The sites that the user has not accepted.
    pub left: Vec<Newcomer>,
}

/// A site that the user has not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Newcomer {
    pub name: String,
    /// Its key and the addresses of its gateways.
    pub description: String,
}

impl Taken {
    /// The sites that were not accepted, as text. `None`: there are none.
    pub(crate) fn refused(&self) -> Option<String> {
        let left = self.left.iter().map(|one| format!("site {} ({})", one.name, one.description));
        let left = left.collect::<Vec<_>>().join(", ");
        (!left.is_empty()).then_some(left)
    }

    /// The flags that accept them.
    pub(crate) fn flags(&self) -> String {
        self.left.iter().map(|one| format!("--accept {}", one.name)).collect::<Vec<_>>().join(" ")
    }
}

/// Appends the sites of `theirs` that `book` lacks and the user accepts, except `never`. `place`: the origin of
/// `theirs`, such as `the sites file of site lyon`. `accepted`: the names that the user has accepted already.
pub(crate) fn take(
    book: &mut Book,
    theirs: &Book,
    never: &str,
    place: &str,
    accepted: &[String],
    progress: &mut dyn Progress,
) -> Result<Taken, SetupError> {
    let mut theirs = theirs.clone();
    let left_out = theirs.keep_shared(true);
    let known = book.sites()?;
    let mut taken = Taken::default();
    for site in theirs.sites()?.sites {
        let name = site.name.as_str();
        if name == never || known.site(name).is_some() {
            continue;
        }
        let without: Vec<&str> =
            left_out.iter().filter(|(other, _)| other == name).map(|(_, field)| field.as_str()).collect();
        if !is_accepted(&site, place, accepted, progress) {
            taken.left.push(Newcomer { name: name.to_owned(), description: describe(&site) });
            continue;
        }
        book.append(&theirs, name)?;
        let without = match without.as_slice() {
            [] => String::new(),
            fields => {
                format!(", without {}: add to the file here those of them that you want", printable(&fields.join(", ")))
            }
        };
        taken.notes.push(format!("site {name} taken over from {place}{without}"));
    }
    book.sites()?;
    Ok(taken)
}

/// True if the user accepts a site that is new here.
pub(crate) fn is_accepted(site: &Site, place: &str, accepted: &[String], progress: &mut dyn Progress) -> bool {
    let name = &site.name;
    accepted.contains(name)
        || progress.accepts(&format!(
            "{place} names site {name}, which the one here lacks: {}. Its users could then run jobs with yours. Is it yours?",
            describe(site)
        ))
}

/// A site's key and the addresses of its gateways.
pub(crate) fn describe(site: &Site) -> String {
    let gateways = site.gateways.iter().map(|gateway| match (&gateway.advertise, &gateway.ssh) {
        (Some(address), _) => format!("at {address}"),
        (None, Some(login)) => format!("through ssh to {login}"),
        (None, None) => "dials out".to_owned(),
    });
    let gateways = gateways.collect::<Vec<_>>().join(", ");
    format!("key {}, gateway {}", site.fingerprint, printable(&gateways))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Silent;

    fn entry(name: &str, fields: &str) -> String {
        format!(
            "[[site]]\nname = \"{name}\"\nfingerprint = \"sha256:{}\"\n{fields}\n[[site.gateway]]\nname = \"gw1\"\n\
             advertise = \"{name}:1\"\n[[site.node]]\nname = \"n1\"\n",
            "0".repeat(64)
        )
    }

    fn book(text: &str) -> Book {
        Book::of(Path::new("x"), text).unwrap()
    }

    #[test]
    fn a_login_nodes_file_decides_nothing_here() {
        let hostile = entry(
            "evil",
            "ssh = \"evil@h\"\nfolder = \"/tmp/x\"\nkey = \"../../.ssh/id\"\nlibfabric = \"/tmp/x\"\nfabric = \"tcp\"",
        ) + "page = \"127.0.0.1:1\"\n[site.starter]\nkind = \"ssh\"\noptions = [\"-oProxyCommand=id\"]\n\
               landbridge = \"/tmp/x\"\n[site.run]\ndirectory = \"/tmp\"\nenvironment = { LD_PRELOAD = \"/tmp/x\" }\n";
        let hostile = hostile.replace("page", "\n[[site.gateway]]\nname = \"gw2\"\nadvertise = \"evil:2\"\npage");
        let theirs = book(&(hostile + &entry("lyon", "ssh = \"evil@h\"")));
        let lyon = entry("lyon", "ssh = \"me@lyon\"");
        let mut ours = book(&lyon);
        let taken = take(&mut ours, &theirs, "", "its file", &[], &mut Silent).unwrap();
        assert_eq!(ours.text(), lyon, "nothing without consent");
        assert!(taken.refused().unwrap().contains("site evil (key sha256:00"), "{:?}", taken.refused());
        assert_eq!(taken.flags(), "--accept evil");
        let taken = take(&mut ours, &theirs, "", "its file", &["evil".into()], &mut Silent).unwrap();
        assert_eq!(taken.refused(), None);
        let note = &taken.notes[0];
        for field in
            ["ssh", "folder", "key", "libfabric", "starter.options", "starter.landbridge", "run", "gateway.page"]
        {
            assert!(note.contains(field), "{field}: {note}");
        }
        let sites = ours.sites().unwrap().sites;
        let (lyon, evil) = (&sites[0], &sites[1]);
        assert_eq!(
            (lyon.name.as_str(), lyon.ssh.clone()),
            ("lyon", "me@lyon".parse().ok()),
            "ours comes first and stays"
        );
        assert_eq!((&evil.ssh, &evil.folder, &evil.key), (&None, &None, &None));
        assert_eq!(evil.run, types::sites::RunSettings::default());
        for text in ["evil@h", "ProxyCommand", "/tmp", "LD_PRELOAD", "127.0.0.1", ".ssh"] {
            assert!(!ours.text().contains(text), "{text}: {}", ours.text());
        }
        let template = entry("evil", "") + "[site.starter]\nkind = \"template\"\ncommand = [\"sh\", \"{node}\"]\n";
        let mut ours = book("");
        take(&mut ours, &book(&template), "", "its file", &["evil".into()], &mut Silent).unwrap();
        assert!(!ours.text().contains("command"), "{}", ours.text());
    }

    #[test]
    fn the_user_is_asked_about_each() {
        struct Asks(Vec<String>);
        impl Progress for Asks {
            fn step(&mut self, _: &str, _: &str) {}
            fn accepts(&mut self, question: &str) -> bool {
                self.0.push(question.to_owned());
                self.0.len() == 2
            }
        }
        let theirs = book(&(entry("kyoto", "") + &entry("nancy", "")));
        let (mut ours, mut asks) = (book(""), Asks(Vec::new()));
        let taken = take(&mut ours, &theirs, "", "its file", &[], &mut asks).unwrap();
        assert_eq!((ours.sites().unwrap().names(), taken.left[0].name.as_str()), ("nancy".to_owned(), "kyoto"));
        assert!(asks.0[0].contains("site kyoto") && asks.0[0].contains("at kyoto:1"), "{:?}", asks.0);
    }
}
