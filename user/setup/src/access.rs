//! Logins of gateways at other sites: a site whose trunks go through ssh lets in the gateways of all other sites and
//! nobody else.

use types::sites::SitesFile;

use crate::company::Company;
use crate::error::SetupError;
use crate::message::{Reply, SiteRequest};

/// Permission for one site's gateways to log in at another site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The site that lets them in.
    at: String,
    /// The site whose gateways are let in.
    of: String,
    /// The address that they may reach there.
    to: String,
}

/// Lets gateways log in at every site of the file that is reached through ssh and whose machine is connected. Appends
/// each new grant to `granted`.
pub(crate) async fn grant(
    company: &mut Company,
    sites: &SitesFile,
    granted: &mut Vec<Grant>,
) -> Result<(), SetupError> {
    let reached = company.names();
    for site in sites.sites.iter().filter(|site| reached.contains(&site.name)) {
        let Some(gateway) = site.gateways.iter().find(|gateway| gateway.ssh.is_some()) else { continue };
        for of in reached.iter().filter(|of| **of != site.name) {
            let Reply::TrunkKey { public } = company.ask(of, &SiteRequest::TrunkKey { site: of.clone() }).await? else {
                return Err(SetupError::site(of, "an answer to another question"));
            };
            let (at, of, to) = (site.name.clone(), of.clone(), gateway.inside.clone());
            let grant = Grant { at, of, to };
            if set(company, &grant, Some(public)).await? {
                granted.push(grant);
            }
        }
    }
    Ok(())
}

/// Revokes a grant.
pub(crate) async fn withdraw(company: &mut Company, grant: &Grant) -> Result<(), SetupError> {
    set(company, grant, None).await.map(|_| ())
}

/// Revokes the permission of site `of` to log in at site `at`.
pub(crate) async fn forget(company: &mut Company, sites: &SitesFile, of: &str, at: &str) -> Result<(), SetupError> {
    let gateway = sites.site(at).and_then(|(_, site)| site.gateways.iter().find(|gateway| gateway.ssh.is_some()));
    match gateway {
        Some(gateway) => {
            let (at, of, to) = (at.to_owned(), of.to_owned(), gateway.inside.clone());
            withdraw(company, &Grant { at, of, to }).await
        }
        None => Ok(()),
    }
}

async fn set(company: &mut Company, grant: &Grant, key: Option<String>) -> Result<bool, SetupError> {
    let Grant { at, of, to } = grant.clone();
    match company.ask(&grant.at, &SiteRequest::LetIn { site: at.clone(), of, to, key }).await? {
        Reply::LetIn { changed } => Ok(changed),
        _ => Err(SetupError::site(&at, "an answer to another question")),
    }
}
