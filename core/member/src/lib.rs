//! The conversations of a member of a job (rank, agent, launcher) with peers behind the gateways of its site: reliable
//! and in order. No sockets, no clocks, no threads: the code that does the I/O calls this crate.
//!
//! [`Conversations`] holds all that a member has in flight with its peers; [`Post`] does the same for whole messages
//! between the launcher and agents. A *route* is a gateway of the member's own site. Start reading at [`Conversations`]
//! for the recovery from losses, at [`Stripe`] for the choice of a gateway, at [`Budget`] for the limit on all bytes in
//! flight.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod budget;
mod conversation;
mod conversations;
pub mod handshake;
pub mod last_route;
mod post;
pub mod pulse;
mod routes;
mod share;
mod stripe;

pub use budget::Budget;
pub use channel::{ChannelError, Route};
pub use conversation::{Conversation, PeerQueue};
pub use conversations::{ATTEMPTS, ATTEMPTS_AT_A_LATE_PEER, Carrier, Conversations, Settings, Striping, Window};
pub use post::{Post, PostError};
pub use pulse::{Beat, Pulse};
pub use routes::Routes;
pub use share::{ShareId, ShareSource, ShareTree};
pub use stripe::Stripe;

use thiserror::Error;
use wire::WireError;

/// Most gateways of a site that a member connects to.
pub const MAX_GATEWAYS: usize = wire::receipt::MAX_ROUTES;

/// Most bytes in flight from one rank to another, headers included: half a second at 1 Gbit/s. Senders use only as much
/// of it as the path and the gateways' memory can hold. Both ends use this constant.
pub const RANK_WINDOW: u32 = 64 << 20;

/// A peer violated the rules of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misbehaved {
    /// The rules of its channel.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// The rules of its frames.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// A gateway delivered a copy for several receivers to a member that accepts none.
    #[error("a copy of a frame for several receivers, which only ranks get")]
    Copy,
}
