//! Settings of a member's conversations.

use types::{Identity, JobId};

/// The choice of a gateway for each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Striping {
    /// Frames are striped over all gateways according to the amount that each delivers; after a pause, `first` comes
    /// first.
    Adaptive {
        /// The number of the gateway.
        first: usize,
    },
    /// The first gateway that reaches the peer.
    First,
}

/// Most bytes in flight to one peer. Both ends use the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// The sender uses only as much of this window as keeps the path full.
    Adapting(u32),
    /// The sender uses all of it.
    Fixed(u32),
}

impl Window {
    pub(super) fn bytes(self) -> u32 {
        match self {
            Window::Adapting(bytes) | Window::Fixed(bytes) => bytes,
        }
    }
}

/// A member's identity and its way of sending.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub job: JobId,
    /// The member's identity.
    pub me: Identity,
    /// The choice of a gateway for each frame.
    pub striping: Striping,
    /// Most bytes in flight to one peer.
    pub window: Window,
    /// Attempts to reach a peer that is connected to no gateway, before it counts as lost.
    pub attempts: u32,
}
