//! A member of a job (rank, agent, launcher) as its peers and gateways know it: reliable conversations with peers behind
//! the gateways of its site. No sockets, no clocks, no threads: whoever does the I/O calls in and carries out.
//!
//! [`Conversations`] is what a member has in flight with all its peers; [`Post`] is the same for whole messages between the
//! launcher and agents. A *route* is a gateway of the member's own site. Start reading at [`Conversations`] for what is done about
//! a loss, at [`Stripe`] for which gateway a frame takes, at [`Budget`] for how much is in flight in all.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod budget;
mod conversation;
mod conversations;
pub mod handshake;
mod post;
pub mod pulse;
mod routes;
mod stripe;

pub use budget::Budget;
pub use channel::{ChannelError, Route};
pub use conversation::{Conversation, Queue};
pub use conversations::{Carrier, Conversations, Settings, Striping, Window};
pub use post::{Post, PostError};
pub use pulse::{Beat, Pulse};
pub use routes::Routes;
pub use stripe::Stripe;

use thiserror::Error;
use wire::WireError;

/// Most gateways of a site that a member connects to.
pub const MAX_GATEWAYS: usize = wire::receipt::MAX_ROUTES;

/// Most bytes in flight from one rank to another, headers included: half a second at 1 Gbit/s. Senders use what their path
/// holds of it, and gateways have memory for. Both ends use this constant.
pub const RANK_WINDOW: u32 = 64 << 20;

/// A peer broke the rules of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Misbehaved {
    /// Those of its channel.
    #[error("{0}")]
    Channel(#[from] ChannelError),
    /// Those of its frames.
    #[error("{0}")]
    Wire(#[from] WireError),
}
