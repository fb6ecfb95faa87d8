//! Joining of a site by a ticket.

use serde::{Deserialize, Serialize};
use types::JobId;

use crate::proof::Secret;

/// Between a gateway and the user who makes a ticket, and between the gateway and the newcomer that presents it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JoiningMessage {
    /// Client → gateway: let a site that presents a ticket join, once.
    Invite {
        /// Validity of the ticket, in seconds.
        seconds: u32,
    },
    /// The answer to [`JoiningMessage::Invite`].
    Invited {
        /// The ticket's number.
        ticket: JobId,
        /// The secret that its holder proves.
        secret: Secret,
    },
    /// A site that has proved a ticket → gateway: add this entry to your sites file.
    Join {
        /// The entry, as a sites file with only this site.
        entry: String,
    },
    /// The answer to [`JoiningMessage::Join`].
    Joined {
        /// The sites file with the new site in it; `None`: it was not added.
        sites: Option<String>,
        /// The reason why it was not added, for the user.
        problem: String,
    },
}
