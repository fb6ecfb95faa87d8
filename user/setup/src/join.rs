//! Joining of a site that no other machine can reach: an existing site issues a ticket, and the user types one command
//! at the new site.

use std::path::PathBuf;

use client::Invitation;
use gateway_tasks::{Doorkeeper, NotTaken};
use types::sites::Fingerprint;

use crate::add::{Outcome, Wish};
use crate::book::Book;
use crate::company::{Company, whereabouts};
use crate::here::finding;
use crate::here::folders::Folders;
use crate::message::{Reply, SiteRequest};
use crate::newcomers;
use crate::release::Release;
use crate::ticket::Ticket;
use crate::{Progress, SetupError, add};

/// Makes a ticket at the named site, or at the first site that can be both reached and dialled.
///
/// # Errors
/// There is no such site, no site can be dialled, or its gateway is not running.
pub async fn invite(
    book: &Book,
    at: Option<&str>,
    seconds: u32,
    asking: bool,
    progress: &mut dyn Progress,
) -> Result<(String, Ticket), SetupError> {
    let sites = book.sites()?;
    let mut named = sites.sites.iter().filter(|site| at.is_none_or(|at| site.name == at));
    let found = named.find_map(|site| Some((site, site.gateways[0].advertise.clone()?, whereabouts(site).ok()??)));
    let Some((site, address, place)) = found else {
        return Err(SetupError::Request(match at {
            Some(at) if sites.site(at).is_none() => {
                format!("unknown site `{at}`: the sites file has {}", sites.names())
            }
            Some(at) => {
                format!("site {at} cannot be reached from here, or advertises no address")
            }
            None => "no site that can be reached from here and dialled: a newcomer needs one".to_owned(),
        }));
    };
    let mut company = Company::new(Release::read(None)?, asking);
    let machine = company.reach(&site.name, &place, site.folder.as_deref(), progress).await?;
    match machine.ask(&SiteRequest::Invite { site: site.name.clone(), seconds }).await? {
        Reply::Invited { ticket, secret } => {
            let invitation = Invitation { address, fingerprint: site.fingerprint, ticket, secret };
            Ok((site.name.clone(), Ticket(invitation)))
        }
        _ => Err(SetupError::site(&site.name, "an answer to another question")),
    }
}

/// Makes this machine a site with a ticket. Repairs the site if run again with a new ticket.
///
/// # Errors
/// The wish or the ticket makes no sense, the ticket's gateway cannot be dialled or refuses, or this site's gateway
/// does not start.
pub async fn join(wish: Wish, ticket: &Ticket, progress: &mut dyn Progress) -> Result<Outcome, SetupError> {
    let name = wish.name.clone();
    let folders = Folders::of_user()?;
    let here = Book::change(&folders.sites_file(), progress).await?;
    let known = here.sites()?.site(&name).map(|(_, site)| site.clone());
    let dial_out = wish.advertise.is_none() && known.is_none();
    let wish = Wish { place: None, dial_out, ..wish };
    let folder = wish.folder.clone().or_else(|| known.as_ref().and_then(|site| site.folder.clone()));
    let (mut company, newcomer, entry, findings) = add::describe_here(&wish, known.as_ref(), progress).await?;
    let key = client::key::load(&folders.key(&name)).map_err(|e| SetupError::site(&name, e.to_string()))?;
    progress.step(&name, &format!("joining at {}", ticket.0.address));
    let text = client::join(&ticket.0, &key, &name, &newcomer.text()).await;
    let text = text.map_err(|e| SetupError::site(&name, e.to_string()))?;
    let mut own = here;
    match known {
        Some(_) => add::write_entry(&mut own, &wish, true, &entry)?,
        None => own.add(&name, &entry)?,
    }
    own.identify(&name, &key.fingerprint(), None, folder.as_deref())?;
    let mut notes = Vec::new();
    let joined = merge(&own, &text, &wish, ticket, progress, &mut notes)?;
    let mut outcome = Outcome { site: name.clone(), ok: true, findings, notes };
    own.check()?;
    for request in [
        SiteRequest::WriteSites { text: Some(joined.text()) },
        SiteRequest::Gateway { site: name.clone() },
        SiteRequest::Check { site: name.clone() },
    ] {
        match company.ask(&name, &request).await? {
            Reply::Gateway { note, .. } => progress.step(&name, &format!("gateway {note}")),
            Reply::Findings(findings) => outcome.findings.extend(findings),
            _ => {}
        }
    }
    outcome.findings.push(finding(&name, "joined", format!("at {}", ticket.0.address)));
    // Other sites may not know this one yet; the site that issued the ticket does.
    let host = joined
        .sites()?
        .sites
        .iter()
        .find(|site| site.fingerprint == ticket.0.fingerprint)
        .map(|site| site.name.clone());
    let counts = |site: &str| site == name || Some(site) == host.as_deref();
    outcome.ok = outcome.findings.iter().all(|finding| finding.ok || !counts(&finding.site));
    outcome.notes.push(
        "other sites learn of it when `landbridge sites add SITE` is typed for one of them where you add sites"
            .to_owned(),
    );
    Ok(outcome)
}

/// Builds the sites file of a site that has joined. First come the sites in the inviting site's file, whose order
/// decides which site dials which, then further sites that were here. Existing entries stay as they are. The ticket
/// vouches for the site that made it; the user accepts the others.
fn merge(
    own: &Book,
    text: &str,
    wish: &Wish,
    ticket: &Ticket,
    progress: &mut dyn Progress,
    notes: &mut Vec<String>,
) -> Result<Book, SetupError> {
    let mut joined = Book::of(own.path(), text)?;
    joined.keep_shared(true);
    let (ours, place) = (own.sites()?, "the sites file of the site that has invited this one");
    for site in joined.sites()?.sites {
        let (name, vouched) = (&site.name, site.fingerprint == ticket.0.fingerprint);
        if ours.site(name).is_some() {
            joined.replace(own, name)?;
        } else if !vouched && !newcomers::is_accepted(&site, place, &wish.accept, progress) {
            joined.remove(name)?;
            notes.push(format!(
                "site {name} ({}) was left out: if you know it, join again with a new ticket and --accept {name}",
                newcomers::describe(&site)
            ));
        }
    }
    for site in ours.sites {
        if joined.sites()?.site(&site.name).is_none() {
            joined.append(own, &site.name)?;
            if site.name != wish.name {
                progress.step(&wish.name, &format!("site {} was in the sites file here already and stays", site.name));
            }
        }
    }
    joined.sites()?;
    Ok(joined)
}

/// Adds newcomers to a gateway's sites file.
#[derive(Debug)]
pub struct Doorman {
    file: PathBuf,
}

impl Doorman {
    /// Makes a doorman for the gateway that uses this sites file.
    pub fn new(file: PathBuf) -> Doorman {
        Doorman { file }
    }
}

impl Doorkeeper for Doorman {
    fn admit(&self, site: &str, fingerprint: Fingerprint, entry: &str) -> Result<String, NotTaken> {
        let told = Book::of(&PathBuf::from("its entry"), entry).map_err(not_taken)?;
        let sites = told.sites().map_err(not_taken)?.sites;
        let [newcomer] = sites.as_slice() else {
            return Err(NotTaken(format!("its entry has {} sites", sites.len())));
        };
        if newcomer.name != site || newcomer.fingerprint != fingerprint {
            return Err(not_taken("its entry is of another site or key than it shows"));
        }
        let mut shared = told.clone();
        let own: Vec<String> = shared.keep_shared(false).into_iter().map(|(_, field)| field).collect();
        if !own.is_empty() {
            return Err(NotTaken(format!(
                "its entry may not say {}: that is for the sites file of its own site; leave it out, and write it there when the site \
                 has joined",
                own.join(", ")
            )));
        }
        let mut book = Book::open(&self.file).map_err(not_taken)?;
        match book.sites().map_err(not_taken)?.site(site) {
            Some((_, known)) if known.fingerprint != fingerprint => {
                Err(NotTaken(format!("the name {site} is taken: choose another")))
            }
            // A known site joins again to be repaired.
            Some(_) => Ok(book.text()),
            None => {
                book.append(&shared, site).map_err(not_taken)?;
                book.save().map_err(not_taken)?;
                Ok(book.text())
            }
        }
    }
}

fn not_taken(why: impl ToString) -> NotTaken {
    NotTaken(why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, print: u8) -> String {
        let print = format!("{print:02x}").repeat(32);
        format!(
            "[[site]]\nname = \"{name}\"\nfingerprint = \"sha256:{print}\"\n[[site.gateway]]\nname = \"gw1\"\ninside = \"h:1\"\n\
             [[site.node]]\nname = \"n1\"\n"
        )
    }

    #[test]
    fn a_hostile_inviter_changes_nothing_that_is_here() {
        let starter = "[site.starter]\nkind = \"ssh\"\noptions = [\"-v\"]\n";
        let mine = format!("# mine\n{}{starter}{}", entry("kyoto", 2), entry("nancy", 3));
        let own = Book::of("x".as_ref(), &mine).unwrap();
        let hostile = "[site.starter]\nkind = \"template\"\ncommand = [\"sh\", \"-c\", \"id\", \"{node}\"]\n";
        let with = |entry: String| entry.replace("[[site.gateway]]", "ssh = \"evil@h\"\n[[site.gateway]]") + hostile;
        let reply: String = [("lyon", 1), ("kyoto", 2), ("evil", 9), ("nancy", 7)]
            .map(|(name, print)| with(entry(name, print)))
            .concat();
        let ticket = Ticket(Invitation {
            address: "h:1".into(),
            fingerprint: Fingerprint([1; 32]),
            ticket: types::JobId(1),
            secret: wire::Secret::new([7; 32]),
        });
        let merged = |accept: &[&str]| {
            let accept = accept.iter().map(|&name| name.to_owned()).collect();
            let (wish, mut notes) = (Wish { name: "kyoto".into(), accept, ..Wish::default() }, Vec::new());
            (merge(&own, &reply, &wish, &ticket, &mut crate::Silent, &mut notes).unwrap(), notes)
        };
        let (book, notes) = merged(&[]);
        let text = book.text();
        for field in ["evil", "template", "command", "\"id\""] {
            assert!(!text.contains(field), "{field}: {text}");
        }
        let sites = book.sites().unwrap();
        assert_eq!(sites.names(), "lyon, kyoto, nancy");
        assert_eq!(sites.sites[1], own.sites().unwrap().sites[0], "its own entry is as it was");
        assert_eq!(sites.sites[2].fingerprint, Fingerprint([3; 32]), "nor does another site change");
        assert!(notes[0].contains("site evil") && notes[0].contains("--accept evil"), "{notes:?}");
        let (book, notes) = merged(&["evil"]);
        assert_eq!((book.sites().unwrap().names().as_str(), notes.len()), ("lyon, kyoto, evil, nancy", 0));
        assert!(!book.text().contains("evil@h") && !book.text().contains("template"), "{}", book.text());
    }

    #[test]
    fn newcomers_are_judged_by_what_they_show() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sites.toml");
        std::fs::write(&path, format!("# mine\n{}", entry("lyon", 1))).unwrap();
        let door = Doorman::new(path.clone());
        let admit = |name: &str, print: u8, entry: &str| door.admit(name, Fingerprint([print; 32]), entry);
        let with = |fields: &str| entry("kyoto", 2).replace("[[site.gateway]]", &format!("{fields}\n[[site.gateway]]"));
        for (name, print, entry, problem) in [
            ("kyoto", 2, "nonsense".to_owned(), "its entry"),
            ("kyoto", 2, String::new(), "0 sites"),
            ("kyoto", 2, entry("kyoto", 2) + &entry("nancy", 3), "2 sites"),
            ("kyoto", 2, entry("nancy", 2), "another site or key"),
            ("kyoto", 2, entry("kyoto", 3), "another site or key"),
            ("lyon", 2, entry("lyon", 2), "the name lyon is taken"),
            ("kyoto", 2, with("ssh = \"evil@h\""), "may not say ssh:"),
            (
                "kyoto",
                2,
                with("folder = \"/tmp/evil\"\nlibfabric = \"/tmp/x\"\nfabric = \"tcp\""),
                "say fabric, folder, libfabric:",
            ),
            ("kyoto", 2, with("key = \"../../.ssh/id_ed25519\""), "say key, in a folder:"),
            ("kyoto", 2, with("run.directory = \"/tmp\""), "say run:"),
            ("kyoto", 2, with("starter = { kind = \"template\", command = [\"sh\"] }"), "say starter.command:"),
            (
                "kyoto",
                2,
                with("starter = { kind = \"ssh\", options = [\"-oProxyCommand=id\"] }"),
                "say starter.options:",
            ),
            (
                "kyoto",
                2,
                entry("kyoto", 2) + "[site.starter]\nkind = \"ssh\"\nlandbridge = \"/tmp/x\"\n",
                "starter.landbridge:",
            ),
            (
                "kyoto",
                2,
                entry("kyoto", 2) + "[[site.gateway]]\nname = \"gw2\"\ninside = \"h:2\"\npage = \"127.0.0.1:1\"",
                "gateway.page:",
            ),
        ] {
            let error = admit(name, print, &entry).unwrap_err();
            assert!(error.0.contains(problem), "{error}");
            assert!(!std::fs::read_to_string(&path).unwrap().contains("kyoto"));
        }
        let plain = entry("kyoto", 2) + "[site.starter]\nkind = \"local\"\n";
        let text = admit("kyoto", 2, &plain).unwrap();
        assert!(text.starts_with("# mine\n") && text == std::fs::read_to_string(&path).unwrap());
        assert_eq!(admit("kyoto", 2, &entry("kyoto", 2)).unwrap(), text, "once");
    }
}
