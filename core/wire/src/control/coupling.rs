//! Two programs that look for each other to exchange arrays.
//!
//! A coupling is named after a site, and each of its two *sides* posts itself at that site's gateways. Gateways compare
//! names and pass on what sides say about themselves; only the sides read it.

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
    /// A side is there. Replaces what it posted before.
    Post {
        coupling: Coupling,
        /// A random number, by which gateways know it again.
        side: u64,
        /// What the other side must know about it.
        about: String,
    },
    /// A side is still there. One that is silent for [`SILENCE_S`] is forgotten.
    Renew { coupling: Coupling, side: u64 },
    /// A side is no longer there.
    Leave { coupling: Coupling, side: u64 },
    /// To a side: who the other one is at the gateway `board`. Sent when that changes.
    Other { coupling: Coupling, side: u64, board: String, other: Option<Posted> },
    /// To a side that renews itself: it is posted at the gateway `board`, and so is this other side.
    Renewed { coupling: Coupling, side: u64, board: String, other: Option<u64> },
    /// To a side that renews itself: it is not posted here, as after a restart.
    Unposted { coupling: Coupling, side: u64 },
    /// To a side: no gateway of the coupling's site can be reached now.
    Unreached { coupling: Coupling, side: u64, reason: String },
    /// To a side: it cannot take part.
    Refused { coupling: Coupling, side: u64, reason: String },
}

impl CouplingMessage {
    /// Which side of which coupling it is about.
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

    /// Whether a side sends it, rather than a gateway that answers one.
    pub fn is_of_side(&self) -> bool {
        matches!(self, CouplingMessage::Post { .. } | CouplingMessage::Renew { .. } | CouplingMessage::Leave { .. })
    }
}

/// A side as it posted itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Posted {
    pub side: u64,
    /// The site whose user posted it, as the gateway knows from the connection.
    pub home: String,
    pub about: String,
}

/// Seconds after which a gateway forgets a silent side.
pub const SILENCE_S: u64 = 8;
/// Seconds from one [`CouplingMessage::Renew`] to the next.
pub const RENEW_S: u64 = 2;
