//! Starts only a site's gateway again: no other site is contacted, and a running gateway is left alone.

use types::sites::Site;

use crate::company::{Company, whereabouts};
use crate::message::{Reply, SiteRequest};
use crate::release::Release;
use crate::{Progress, SetupError};

/// Starts the gateway of a site unless it runs. Returns the action taken, for the user.
///
/// # Errors
/// The site cannot be reached from here, or its gateway does not start.
pub async fn start(site: &Site, asking: bool, progress: &mut dyn Progress) -> Result<String, SetupError> {
    let name = &site.name;
    let Some(place) = whereabouts(site)? else {
        return Err(SetupError::site(
            name,
            format!(
                "cannot be reached from here: type `landbridge sites start {name}` on its own machine, or \
                 `landbridge gateway --site {name}` there, if `sites add` did not make the site"
            ),
        ));
    };
    let mut company = Company::new(Release::read(None)?, asking);
    company.reach(name, &place, site.folder.as_deref(), progress).await?;
    match company.ask(name, &SiteRequest::Start { site: name.clone() }).await? {
        Reply::Gateway { note, .. } => Ok(format!("gateway {note}")),
        _ => Err(SetupError::site(name, "an answer to another question")),
    }
}
