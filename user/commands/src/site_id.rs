//! The number of a job or a transfer, with its site if the user is elsewhere: `lyon/3`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use launcher::Sites;
use thiserror::Error;
use types::sites::Site;

use crate::error::{Context, Result, refusal};
use crate::{carried, sites_file};

/// A number assigned by this machine or by a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteId {
    /// `None`: assigned by this machine.
    pub site: Option<String>,
    pub number: u32,
}

/// A text is not an id.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("`{0}` is neither a number nor SITE/NUMBER, such as 3 or lyon/3")]
pub struct SiteIdError(String);

impl FromStr for SiteId {
    type Err = SiteIdError;

    fn from_str(text: &str) -> Result<SiteId, SiteIdError> {
        let (site, number) = match text.rsplit_once('/') {
            Some((site, number)) => (Some(site.to_owned()).filter(|site| !site.is_empty()), number),
            None => (None, text),
        };
        let wrong = || SiteIdError(text.to_owned());
        if text.starts_with('/') {
            return Err(wrong());
        }
        Ok(SiteId { site, number: number.parse().map_err(|_| wrong())? })
    }
}

impl fmt::Display for SiteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.site {
            Some(site) => write!(f, "{site}/{}", self.number),
            None => write!(f, "{}", self.number),
        }
    }
}

impl SiteId {
    /// The id as shown to the user: with the site, if the user is elsewhere. `from`: the site given by `--from`.
    pub fn shown(number: u32, from: Option<&str>) -> SiteId {
        SiteId { site: from.map(str::to_owned).filter(|_| carried::is_carried()), number }
    }
}

/// The site that a command about jobs or transfers is carried to, with its sites file. `named`: the site in an id.
/// `None`: the command is for this machine, or there is no sites file.
pub fn far(file: Option<&Path>, named: Option<&str>) -> Result<Option<(Sites, Site)>> {
    let Some(path) = sites_file::find(file)? else {
        return named.map_or(Ok(None), |site| {
            Err(refusal!("site {site}: there is no sites file here: `landbridge sites add {site} [USER@]HOST`"))
        });
    };
    let sites = sites_file::read(&path)?;
    if let Some(name) = named {
        sites.site(name)?;
    }
    let site = carried::destination(&sites, named).cloned();
    if let Some(name) = named.filter(|_| site.is_none()) {
        let own = sites.site(name)?;
        sites.client_secret(own).with_context(|| {
            format!("site {name}: neither is its key here nor does ssh reach it: type this at the site")
        })?;
    }
    Ok(site.map(|site| (sites, site)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_may_name_its_site() {
        for (text, site, number) in [("3", None, 3), ("lyon/12", Some("lyon"), 12)] {
            let id: SiteId = text.parse().unwrap();
            assert_eq!((id.site.as_deref(), id.number, id.to_string()), (site, number, text.to_owned()));
        }
        for text in ["", "x", "lyon/", "/3", "lyon/x", "-1"] {
            assert!(text.parse::<SiteId>().unwrap_err().to_string().contains("lyon/3"), "{text}");
        }
    }
}
