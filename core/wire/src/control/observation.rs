//! A gateway's view of itself, for users of its site.

use serde::{Deserialize, Serialize};

use crate::View;

/// Between a user's command and a gateway of its site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ObservationMessage {
    /// Client → gateway: send your view.
    Observe,
    /// The answer to [`ObservationMessage::Observe`].
    Observed {
        /// The whole view.
        view: Box<View>,
    },
    /// Client → gateway: report your standing.
    Status {
        /// First reload the sites file and apply its additions.
        reload: bool,
    },
    /// The answer to [`ObservationMessage::Status`].
    Standing {
        /// Jobs that are open here.
        jobs: u32,
        /// The trunks, in the order of the sites file.
        trunks: Vec<TrunkStanding>,
        /// The reason why the gateway's state does not match its sites file, if it does not; only a restart helps.
        stale: Option<String>,
    },
}

/// The standing of a trunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkStanding {
    /// The site at its other end.
    pub site: String,
    /// True if at least one of its links is up.
    pub up: bool,
    /// The last problem, for the user; empty if there was none.
    pub problem: String,
}
