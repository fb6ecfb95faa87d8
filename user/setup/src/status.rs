//! The status of all sites: each site reports on its own gateway.

use std::path::Path;

use serde::Serialize;
use types::sites::Site;

use crate::apply::difference;
use crate::book::Book;
use crate::company::{Company, whereabouts};
use crate::message::{Reply, SiteRequest, Standing};
use crate::place::MachinePlace;
use crate::release::Release;
use crate::remedy::remedy;
use crate::{Progress, SetupError};

/// The status of one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SiteStatus {
    pub site: String,
    /// Its machine, as text.
    pub place: String,
    /// True if its gateway runs, answers, has all trunks up and follows the current sites file.
    pub ok: bool,
    /// The problem, and the remedy.
    pub problem: Option<String>,
    /// Its machine's answer.
    pub gateway: Option<Standing>,
}

/// Asks every site for its status.
///
/// # Errors
/// The sites file makes no sense. A site that does not answer gets a status, not an error.
pub async fn status(book: &Book, asking: bool, progress: &mut dyn Progress) -> Result<Vec<SiteStatus>, SetupError> {
    let mut company = Company::new(Release::read(None)?, asking);
    let mut all = Vec::new();
    let own = book.sites()?;
    let at_a_site = own.sites.iter().any(|site| matches!(whereabouts(site), Ok(Some(MachinePlace::Here))));
    for site in &own.sites {
        let place = whereabouts(site)?;
        if place.is_none() && at_a_site {
            // This site only needs its trunk to the other site, and its own gateway reports that trunk.
            all.push(SiteStatus {
                site: site.name.clone(),
                place: "asked where it lives".to_owned(),
                ok: true,
                problem: None,
                gateway: None,
            });
            continue;
        }
        let asked = async {
            let Some(place) = &place else {
                let text = "the sites file has no way to its machine: `landbridge sites check` tests its gateways from \
                            here. If the site joined by itself, type `landbridge sites status` there";
                return Err(SetupError::site(&site.name, text));
            };
            progress.step(&site.name, "asking its machine");
            let machine = company.reach(&site.name, place, site.folder.as_deref(), progress).await?;
            match machine.ask(&SiteRequest::Status { site: site.name.clone() }).await? {
                Reply::Status(standing) => Ok((standing, company.read_sites(&site.name).await?)),
                _ => Err(SetupError::site(&site.name, "an answer to another question")),
            }
        };
        let (gateway, problem) = match asked.await {
            Ok((standing, theirs)) => {
                let edited = || difference(&own, theirs.as_deref().unwrap_or_default());
                let problem = judge(site, book.path(), &standing).or_else(edited);
                (Some(standing), problem)
            }
            Err(error) => (None, Some(error.to_string())),
        };
        all.push(SiteStatus {
            site: site.name.clone(),
            place: place.map_or("unknown from here".to_owned(), |place| place.to_string()),
            ok: problem.is_none(),
            problem,
            gateway,
        });
    }
    Ok(all)
}

fn judge(site: &Site, file: &Path, standing: &Standing) -> Option<String> {
    if standing.process.is_none() {
        return Some(format!("its gateway does not run: {}; {} is its log", remedy(site, file), standing.log));
    }
    if let Some(problem) = &standing.problem {
        return Some(format!("{problem}: `landbridge sites add {}` repairs it", site.name));
    }
    if let Some(unread) = &standing.unread {
        return Some(format!("{unread}: `landbridge sites apply`, typed where it was edited, hands it out"));
    }
    if standing.other_release {
        return Some(format!(
            "its gateway runs another release, {}: `landbridge sites add {}` restarts it when no job is open there",
            standing.release, site.name
        ));
    }
    let down: Vec<_> = standing.trunks.iter().filter(|trunk| !trunk.up).map(|trunk| trunk.problem.as_str()).collect();
    (!down.is_empty()).then(|| down.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::control::TrunkStanding;

    #[test]
    fn what_is_wrong_comes_with_what_to_do() {
        let text = format!(
            "[[site]]\nname = \"lyon\"\nfingerprint = \"sha256:{}\"\nssh = \"me@lyon\"\n[[site.gateway]]\nname = \"gw1\"\n\
             advertise = \"h:1\"\n[[site.node]]\nname = \"n\"\n",
            "0".repeat(64)
        );
        let lyon = types::SitesFile::parse(&text, "x").unwrap().sites.remove(0);
        let judge = |standing: &Standing| judge(&lyon, Path::new("/x"), standing);
        assert!(judge(&Standing::default()).is_some_and(|text| text.contains("`landbridge sites start lyon")));
        let trunk = |up| TrunkStanding { site: "kyoto".into(), up, problem: "refused".into() };
        let running = |up| Standing { process: Some(7), trunks: vec![trunk(up)], ..Standing::default() };
        assert_eq!(judge(&running(true)), None);
        let old = Standing { other_release: true, release: "/home/me/0.1.0-abc".into(), ..running(true) };
        assert!(
            judge(&old).is_some_and(|text| text.contains("0.1.0-abc") && text.contains("`landbridge sites add lyon`"))
        );
        assert_eq!(judge(&running(false)).as_deref(), Some("refused"));
    }
}
