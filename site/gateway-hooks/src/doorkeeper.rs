//! The check of a site that joins by a ticket.

use thiserror::Error;
use types::sites::Fingerprint;

/// Why a site is not added to the sites file; shown to the newcomer's user.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NotTaken(pub String);

/// Adds a site that joins to the sites file.
pub trait Doorkeeper: Send + Sync + std::fmt::Debug {
    /// Checks the entry of a site that has proved a ticket and holds the key with this fingerprint, and adds it;
    /// returns the resulting sites file.
    ///
    /// # Errors
    /// Why it is not added, for the newcomer's user.
    fn admit(&self, site: &str, fingerprint: Fingerprint, entry: &str) -> Result<String, NotTaken>;
}
