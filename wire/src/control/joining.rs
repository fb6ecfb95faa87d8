//! How a site joins by a ticket.

use serde::{Deserialize, Serialize};
use types::JobId;

use crate::Secret;

/// Between a gateway and its user, who makes a ticket; between the gateway and the newcomer, who shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoiningMessage {
    /// Client → gateway: let a site that shows a ticket join, once.
    Invite {
        /// How long the ticket is good, in seconds.
        seconds: u32,
    },
    /// The answer to [`JoiningMessage::Invite`].
    Invited {
        /// The ticket's number.
        ticket: JobId,
        /// What its holder proves.
        secret: Secret,
    },
    /// A site that has proved a ticket → gateway: take this entry into your sites file.
    Join {
        /// The entry, as a sites file with this site alone.
        entry: String,
    },
    /// The answer to [`JoiningMessage::Join`].
    Joined {
        /// The sites file, with the new site in it; `None`: it was not taken in.
        sites: Option<String>,
        /// Why not, for the user.
        problem: String,
    },
}
