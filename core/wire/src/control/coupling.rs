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

/// Between a side and the gateways of its own site, and between those and the gateways of the coupling's site. Each
/// message may arrive on several ways, or be lost; a side renews its post, and posts again what did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CouplingMessage {
    /// A side is present. Replaces its earlier posts.
    Post {
        coupling: Coupling,
        /// A random number that identifies the side to gateways.
        side: u64,
        /// Number of the post; later ones have higher numbers.
        #[serde(default)]
        revision: u64,
        /// The number of the side that this one has chosen, if any: the one that it wants to hear of.
        #[serde(default)]
        partner: Option<u64>,
        /// True if the side has ended. It only waits until its partner has heard why, and takes nobody's room.
        #[serde(default)]
        ended: bool,
        /// The side's description for the other side.
        about: String,
    },
    /// A side is still present, and this is its latest post. A gateway forgets a side that is silent for
    /// [`SILENCE_S`].
    Renew {
        coupling: Coupling,
        side: u64,
        #[serde(default)]
        revision: u64,
    },
    /// A side has left, or can no longer be reached on this way.
    Leave {
        coupling: Coupling,
        side: u64,
        /// True if the side itself has left: it does not come back on any way.
        #[serde(default)]
        everywhere: bool,
    },
    /// To a side: the other side posted at the gateway `board`, if any: its partner rather than a third one. Sent
    /// whenever that changes.
    Other { coupling: Coupling, side: u64, board: String, other: Option<Posted> },
    /// To a side that renews itself: it is posted at the gateway `board`, together with this other side, if any, and
    /// the revision of that one's post.
    Renewed {
        coupling: Coupling,
        side: u64,
        board: String,
        other: Option<u64>,
        #[serde(default)]
        revision: u64,
    },
    /// To a side that renews itself: its latest post is not at the gateway `board`, for example because the gateway has
    /// restarted.
    Unposted {
        coupling: Coupling,
        side: u64,
        #[serde(default)]
        board: String,
    },
    /// To a side: no gateway of the coupling's site can be reached at present.
    Unreached { coupling: Coupling, side: u64, reason: String },
    /// To a side: this gateway does not take it.
    Refused {
        coupling: Coupling,
        side: u64,
        /// The gateway, if two other sides are posted there. There may be room at others.
        #[serde(default)]
        board: Option<String>,
        /// Milliseconds in which at least one of these two has not renewed itself.
        #[serde(default)]
        silent_ms: Option<u64>,
        reason: String,
    },
}

impl CouplingMessage {
    /// The coupling and the side that the message concerns.
    pub fn about(&self) -> (&Coupling, u64) {
        match self {
            CouplingMessage::Post { coupling, side, .. }
            | CouplingMessage::Renew { coupling, side, .. }
            | CouplingMessage::Leave { coupling, side, .. }
            | CouplingMessage::Other { coupling, side, .. }
            | CouplingMessage::Renewed { coupling, side, .. }
            | CouplingMessage::Unposted { coupling, side, .. }
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
    /// As in [`CouplingMessage::Post`].
    #[serde(default)]
    pub revision: u64,
    pub about: String,
}

/// Seconds after which a gateway forgets a silent side.
pub const SILENCE_S: u64 = 8;
/// Seconds from one [`CouplingMessage::Renew`] to the next.
pub const RENEW_S: u64 = 2;
