//! The check of a site that joins by a ticket.

use thiserror::Error;
use types::sites::Fingerprint;

/// The reason for not adding a site to the sites file; shown to the newcomer's user.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NotTaken(pub String);

/// Adds a joining site to the sites file.
pub trait Doorkeeper: Send + Sync + std::fmt::Debug {
    /// Checks and adds the entry of a site that has proved a ticket and holds the key with this fingerprint; returns
    /// the resulting sites file.
    ///
    /// # Errors
    /// The reason for not adding it, for the newcomer's user.
    fn admit(&self, site: &str, fingerprint: Fingerprint, entry: &str) -> Result<String, NotTaken>;
}
