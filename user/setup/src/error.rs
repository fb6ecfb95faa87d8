//! Errors in setting up a site.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use types::sites::{LoginError, SitesError};

use crate::here::error::HereError;
use crate::nodes::NodesError;

/// Reasons for a failed setup of a site. Each names the site or the file, and the next step.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The user's request makes no sense.
    #[error("{0}")]
    Request(String),
    /// A site's machine could not be reached.
    #[error("site {site}: {place}: {problem}")]
    Reach {
        site: String,
        /// The address of the machine.
        place: String,
        /// The message of ssh, and the remedy.
        problem: String,
    },
    /// Something failed at a site.
    #[error("site {site}: {problem}")]
    Site {
        site: String,
        /// The failure, and the remedy.
        problem: String,
    },
    /// A file on this machine cannot be read or written.
    #[error("{path}: {source}")]
    File {
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The sites file makes no sense.
    #[error(transparent)]
    Sites(#[from] SitesError),
    /// The sites file cannot be read or written.
    #[error("sites file {0}")]
    SitesFile(#[source] Box<HereError>),
    /// Another process has changed the sites file, or may do so, since this command read it.
    #[error("{path}: {problem}. Nothing was written there: type this command again", path = path.display())]
    TakenOver {
        path: PathBuf,
        /// The way in which this command noticed it.
        problem: &'static str,
    },
    /// The user's own account on this machine has a problem.
    #[error(transparent)]
    Here(Box<HereError>),
    /// The machine that the user typed makes no sense.
    #[error(transparent)]
    Place(#[from] LoginError),
    /// The list of nodes that the user typed makes no sense.
    #[error(transparent)]
    Nodes(#[from] NodesError),
}

impl From<HereError> for SetupError {
    fn from(error: HereError) -> SetupError {
        SetupError::Here(Box::new(error))
    }
}

impl SetupError {
    pub(crate) fn site(site: &str, problem: impl Into<String>) -> SetupError {
        SetupError::Site { site: site.to_owned(), problem: problem.into() }
    }
}
