//! Who judges a site that joins by a ticket.

use thiserror::Error;
use types::sites::Fingerprint;

/// Why a site is not taken into the sites file; shown to the newcomer's user.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct NotTaken(pub String);

/// Takes a site that joins into the sites file.
pub trait Doorkeeper: Send + Sync + std::fmt::Debug {
    /// Judges the entry of a site that has proved a ticket and holds the key of this fingerprint, and writes it down; gives the
    /// sites file as it is then.
    ///
    /// # Errors
    /// Why not, for the newcomer's user.
    fn admit(&self, site: &str, fingerprint: Fingerprint, entry: &str) -> Result<String, NotTaken>;
}
