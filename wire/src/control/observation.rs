//! What a gateway shows of itself to users of its site.

use serde::{Deserialize, Serialize};

use crate::View;

/// Between a user's command and a gateway of its site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObservationMessage {
    /// Client → gateway: what do you see?
    Observe,
    /// The answer to [`ObservationMessage::Observe`].
    Observed {
        /// All that it shows.
        view: Box<View>,
    },
    /// Client → gateway: how do you stand?
    Status {
        /// First read the sites file again, and take up sites that were added to it.
        reload: bool,
    },
    /// The answer to [`ObservationMessage::Status`].
    Standing {
        /// Jobs that are open here.
        jobs: u32,
        /// The trunks, in the order of the sites file.
        trunks: Vec<TrunkStanding>,
        /// Why the gateway does not do what its sites file says now, if so: only a restart helps.
        stale: Option<String>,
    },
}

/// How a trunk stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkStanding {
    /// The site at its other end.
    pub site: String,
    /// Whether a link of it is up.
    pub up: bool,
    /// What went wrong last, for the user; empty when nothing did.
    pub problem: String,
}
