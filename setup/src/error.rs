//! Why a site could not be set up.

use std::io;
use std::path::PathBuf;

use thiserror::Error;
use types::sites::{LoginError, SitesError};

use crate::here::HereError;
use crate::nodes::NodesError;

/// Why a site could not be set up. Names the site or the file, and says what to do next.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SetupError {
    /// What the user asked for makes no sense.
    #[error("{0}")]
    Request(String),
    /// A site's machine could not be reached.
    #[error("site {site}: {place}: {problem}")]
    Reach {
        /// The site.
        site: String,
        /// Where it was looked for.
        place: String,
        /// What ssh said, and what to do.
        problem: String,
    },
    /// Something did not work at a site.
    #[error("site {site}: {problem}")]
    Site {
        /// The site.
        site: String,
        /// What, and what to do.
        problem: String,
    },
    /// A file here.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The sites file.
    #[error(transparent)]
    Sites(#[from] SitesError),
    /// The sites file cannot be read or written.
    #[error("sites file {0}")]
    SitesFile(#[source] Box<HereError>),
    /// The user's own account on this machine.
    #[error(transparent)]
    Here(Box<HereError>),
    /// The machine that the user typed.
    #[error(transparent)]
    Place(#[from] LoginError),
    /// The list of nodes that the user typed.
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
