//! Removes a site: its gateway ends, its copies are removed, the other sites remove it from their files.

use serde::Serialize;
use types::SitesFile;
use types::sites::Site;

use crate::access;
use crate::book::Book;
use crate::company::{Company, whereabouts};
use crate::here::folders;
use crate::message::{Reply, SiteRequest};
use crate::place::MachinePlace;
use crate::release::Release;
use crate::{Progress, SetupError};

/// The result of removing a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removal {
    pub site: String,
    /// The completed steps.
    pub done: Vec<String>,
    /// The failed steps, with remedies.
    pub left: Vec<String>,
}

/// Removes a site from the sites file and from all other sites. `force`: even if jobs are open there or it cannot be
/// reached.
///
/// After the step for the site's own gateway, the sites file is always written. Failures at other sites are reported.
///
/// # Errors
/// There is no such site. Or it cannot be reached or has open jobs, and `force` is not set.
pub async fn remove(
    mut book: Book,
    name: &str,
    force: bool,
    asking: bool,
    progress: &mut dyn Progress,
) -> Result<Removal, SetupError> {
    let sites = book.sites()?;
    let Some((_, site)) = sites.site(name) else {
        let known = if sites.sites.is_empty() { "none".to_owned() } else { sites.names() };
        return Err(SetupError::Request(format!("unknown site `{name}`: {} has {known}", book.path().display())));
    };
    let mut removal = Removal { site: name.to_owned(), ..Removal::default() };
    let mut company = Company::new(Release::read(None)?, asking);
    let (run, kept) = (book.run_of(name), book.kept_run(name));
    book.remove(name)?;
    match whereabouts(site)? {
        Some(place) => match forget_at(&mut company, site, &place, force, progress).await {
            Ok(text) => {
                progress.step(name, &text);
                removal.done.push(text);
            }
            Err(error) if force => removal.left.push(format!("{error}; the files there stay")),
            Err(error) => {
                return Err(SetupError::Request(format!("{error}\nto take it out of the sites file anyway: --force")));
            }
        },
        None => removal.left.push(format!(
            "site {name} joined by itself: its files stay there until `landbridge sites remove {name}` is typed there"
        )),
    }
    // A site on this machine has the same file, and the last one there takes it away.
    let text = book.text();
    book.expect("");
    for other in sites.sites.iter().filter(|site| site.name != name) {
        book.check()?;
        book.expect(&text);
        match spread_to(&mut company, &sites, name, other, text.clone(), progress).await {
            Ok(Reply::Gateway { note, .. }) => {
                progress.step(&other.name, &format!("gateway {note}"));
                removal.done.push(format!("site {} has forgotten it", other.name));
            }
            Ok(_) => removal.left.push(format!("site {}: an answer to another question", other.name)),
            Err(error) => removal.left.push(format!("{error}; until it is told, it still trusts {name}'s key")),
        }
    }
    if let Some(run) = run {
        folders::write(&kept, &run).map_err(|e| SetupError::SitesFile(Box::new(e)))?;
        let kept = kept.display();
        removal.done.push(match &site.ssh {
            Some(place) => {
                format!("its [site.run] is kept in {kept}: `landbridge sites add {name} {place}` puts it back")
            }
            None => format!("its [site.run] is kept in {kept}, for the next site of this name"),
        });
    }
    book.save()?;
    Ok(removal)
}

/// Stops the site's gateway and removes the site's files from its machine. Returns the steps for the user.
async fn forget_at(
    company: &mut Company,
    site: &Site,
    place: &MachinePlace,
    force: bool,
    progress: &mut dyn Progress,
) -> Result<String, SetupError> {
    let machine = company.reach(&site.name, place, site.folder.as_deref(), progress).await?;
    let base = machine.facts.base.raw().to_owned();
    let stop = SiteRequest::StopGateway { site: site.name.clone(), force };
    let mut notes = Vec::new();
    for request in [stop, SiteRequest::Forget { site: site.name.clone(), base }] {
        if let Reply::Done { note } = machine.ask(&request).await? {
            notes.push(note);
        }
    }
    Ok(format!("gateway {}", notes.join("; ")))
}

/// Gives another site the sites file without the removed site `name`, and has its gateway load it. `sites`: the sites
/// before.
async fn spread_to(
    company: &mut Company,
    sites: &SitesFile,
    name: &str,
    other: &Site,
    text: String,
    progress: &mut dyn Progress,
) -> Result<Reply, SetupError> {
    let Some(place) = whereabouts(other)? else {
        let text = format!("cannot be told from here: type `landbridge sites remove {name}` where you add sites");
        return Err(SetupError::site(&other.name, text));
    };
    company.reach(&other.name, &place, other.folder.as_deref(), progress).await?;
    access::forget(company, sites, name, &other.name).await?;
    let machine = company.machine(&other.name)?;
    machine.ask(&SiteRequest::WriteSites { text: Some(text) }).await?;
    machine.ask(&SiteRequest::Gateway { site: other.name.clone() }).await
}
