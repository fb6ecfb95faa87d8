//! Two programs that look for each other to exchange arrays.
//!
//! A coupling is named after a site, and each of its two *sides* posts itself at that site's gateways. Gateways compare
//! names and pass the sides' descriptions on; only the sides read those.

use serde::{Deserialize, Serialize};

/// A coupling: a name, and the site at whose gateways its sides find each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Coupling {
    pub name: String,
    pub site: String,
}

impl std::fmt::Display for Coupling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.name, self.site)
    }
}

/// Between a side and a gateway of its own site, and between that and the gateways of the coupling's site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CouplingMessage {
    /// A side is present. Replaces its earlier post.
    Post {
        coupling: Coupling,
        /// A random number that identifies the side to gateways.
        side: u64,
        /// The side's description for the other side.
        about: String,
    },
    /// A side is still present. A gateway forgets a side that is silent for [`SILENCE_S`].
    Renew { coupling: Coupling, side: u64 },
    /// A side has left.
    Leave { coupling: Coupling, side: u64 },
    /// To a side: the other side posted at the gateway `board`, if any. Sent whenever that changes.
    Other { coupling: Coupling, side: u64, board: String, other: Option<Posted> },
    /// To a side that renews itself: it is posted at the gateway `board`, together with this other side, if any.
    Renewed { coupling: Coupling, side: u64, board: String, other: Option<u64> },
    /// To a side that renews itself: it is not posted here, for example because the gateway has restarted.
    Unposted { coupling: Coupling, side: u64 },
    /// To a side: no gateway of the coupling's site can be reached at present.
    Unreached { coupling: Coupling, side: u64, reason: String },
    /// To a side: it cannot take part.
    Refused { coupling: Coupling, side: u64, reason: String },
}

impl CouplingMessage {
    /// The coupling and the side that the message concerns.
    pub fn about(&self) -> (&Coupling, u64) {
        match self {
            CouplingMessage::Post { coupling, side, .. }
            | CouplingMessage::Renew { coupling, side }
            | CouplingMessage::Leave { coupling, side }
            | CouplingMessage::Other { coupling, side, .. }
            | CouplingMessage::Renewed { coupling, side, .. }
            | CouplingMessage::Unposted { coupling, side }
            | CouplingMessage::Unreached { coupling, side, .. }
            | CouplingMessage::Refused { coupling, side, .. } => (coupling, *side),
        }
    }

    /// Returns true if a side sends it, false if a gateway does.
    pub fn is_of_side(&self) -> bool {
        matches!(self, CouplingMessage::Post { .. } | CouplingMessage::Renew { .. } | CouplingMessage::Leave { .. })
    }
}

/// A side's post.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    pub side: u64,
    /// The site of the user who posted it; the gateway knows it from the connection.
    pub home: String,
    pub about: String,
}

/// Seconds after which a gateway forgets a silent side.
pub const SILENCE_S: u64 = 8;
/// Seconds from one [`CouplingMessage::Renew`] to the next.
pub const RENEW_S: u64 = 2;
