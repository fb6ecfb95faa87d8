//! Distributes the user's sites file after an edit, and detects that this was not done.

use serde::Serialize;
use types::SitesFile;
use types::sites::Site;

use crate::book::Book;
use crate::company::{Company, whereabouts};
use crate::message::{Reply, SiteRequest};
use crate::newcomers;
use crate::release::Release;
use crate::{Progress, SetupError};

/// The result at one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Applied {
    pub site: String,
    /// The gateway's action on the file.
    pub done: Option<String>,
    /// The reason why the gateway does not follow the file yet, and the remedy.
    pub problem: Option<String>,
}

/// Gives every site the sites file and has its gateway reload it. A gateway is restarted only if it cannot take up the
/// change while it runs, and never while jobs are open there. `accept`: sites that another machine's file may add.
///
/// # Errors
/// The file makes no sense. A failure at one site is in that site's entry and does not stop the others.
pub async fn apply(
    book: &mut Book,
    accept: &[String],
    asking: bool,
    progress: &mut dyn Progress,
) -> Result<Vec<Applied>, SetupError> {
    let sites = book.sites()?.sites;
    let mut company = Company::new(Release::read(None)?, asking);
    let mut all: Vec<Applied> =
        sites.iter().map(|site| Applied { site: site.name.clone(), ..Applied::default() }).collect();
    // Read the sites' own files first: a site that joined at one of them with a ticket must not be lost.
    for (site, applied) in sites.iter().zip(&mut all) {
        let asked = async {
            let Some(place) = whereabouts(site)? else {
                return Err(SetupError::site(
                    &site.name,
                    "joined by itself and cannot be reached from here: change its own sites file there",
                ));
            };
            company.reach(&site.name, &place, site.folder.as_deref(), progress).await?;
            company.read_sites(&site.name).await
        };
        match asked.await {
            Ok(Some(text)) => {
                let theirs = Book::of(format!("sites file of site {}", site.name).as_ref(), &text)?;
                let taken = newcomers::take(book, &theirs, "", "its sites file", accept, progress)?;
                taken.notes.iter().for_each(|note| progress.step(&site.name, note));
                applied.problem = taken.refused().map(|refused| {
                    format!(
                        "its sites file names {refused}, which the one here lacks: `landbridge sites apply {}` takes it over \
                         if you know it; until then that file stays as it is",
                        taken.flags()
                    )
                });
            }
            Ok(None) => {}
            Err(error) => applied.problem = Some(error.to_string()),
        }
    }
    book.save()?;
    let text = book.text();
    for applied in all.iter_mut().filter(|applied| applied.problem.is_none()) {
        let site = applied.site.clone();
        let done = async {
            book.check()?;
            company.ask(&site, &SiteRequest::WriteSites { text: Some(text.clone()) }).await?;
            match company.ask(&site, &SiteRequest::Reload { site: site.clone() }).await? {
                Reply::Gateway { note, .. } => Ok(note),
                _ => Err(SetupError::site(&site, "an answer to another question")),
            }
        };
        match done.await {
            Ok(note) => applied.done = Some(note),
            Err(error) => applied.problem = Some(error.to_string()),
        }
    }
    Ok(all)
}

/// Difference between the sites file `theirs` of another machine and the user's own, with a remedy. `None`: they agree
/// on the sites that both name. Each machine has its own settings for reaching sites and for the folders of copies.
pub(crate) fn difference(own: &SitesFile, theirs: &str) -> Option<String> {
    let remedy = "`landbridge sites apply` hands the one here out";
    let Ok(theirs) = SitesFile::parse(theirs, "theirs") else {
        return Some(format!("its sites file makes no sense: {remedy}"));
    };
    let plain = |site: &Site| Site { ssh: None, folder: None, key: None, ..site.clone() };
    let other = |site: &&Site| theirs.site(&site.name).is_none_or(|(_, there)| plain(there) != plain(site));
    let differing: Vec<&str> = own.sites.iter().filter(other).map(|site| site.name.as_str()).collect();
    let names = |sites: &SitesFile| sites.sites.iter().map(|site| site.name.clone()).collect::<Vec<_>>();
    if let [first, ..] = differing[..] {
        return Some(format!("its sites file is not the one here, beginning with site {first}: {remedy}"));
    }
    let (here, mut there) = (names(own), names(&theirs));
    there.retain(|name| here.contains(name));
    (here != there).then(|| format!("its sites file has the sites in another order: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_both_must_agree_on_counts() {
        let text = |name: &str, port: u16| {
            format!(
                "[[site]]\nname = \"{name}\"\nfingerprint = \"sha256:{}\"\n[[site.gateway]]\nname = \"gw1\"\nadvertise = \"h:{port}\"\n\
                 [[site.node]]\nname = \"n\"\n",
                "0".repeat(64)
            )
        };
        let (a, b) = (text("a", 1), text("b", 2));
        let own = SitesFile::parse(&format!("{a}{b}"), "x").unwrap();
        assert_eq!(difference(&own, &format!("{a}{b}")), None);
        assert_eq!(difference(&own, &format!("# mine\n{a}{b}{}", text("joined", 3))), None);
        let reached = a.replace("[[site.gateway]]", "ssh = \"me@a\"\n[[site.gateway]]");
        assert_eq!(difference(&own, &format!("{reached}{b}")), None);
        for theirs in [format!("{a}{}", text("b", 9)), a.clone(), format!("{b}{a}"), "nonsense".to_owned()] {
            assert!(difference(&own, &theirs).unwrap().contains("landbridge sites apply"), "{theirs}");
        }
    }
}
