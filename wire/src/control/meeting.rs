//! Meetings: how two gateways that nobody can dial get a link, at a gateway of a third site.

use serde::{Deserialize, Serialize};
use types::JobId;

use crate::Secret;

/// Between two gateways and the gateway where they meet, their place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeetingMessage {
    /// Gateway that nobody can dial → one that it has dialled: let me meet this one, which nobody can dial either.
    Ask {
        /// The site of the one to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// For which link of the trunk between the two, from 0.
        link: u16,
    },
    /// The answer, to both: dial me for [`Purpose::Meet`](crate::handshake::Purpose::Meet).
    Call {
        /// The site of the one to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// For which link of the trunk between the two.
        link: u16,
        /// The meeting's number.
        meeting: JobId,
        /// What the receiver of this message proves there; the other has another one.
        secret: Secret,
    },
    /// The answer to the one that asked: why not.
    Refused {
        /// The site of the one to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// For which link of the trunk between the two.
        link: u16,
        /// Why, for the user.
        reason: String,
    },
    /// The other gateway of such a trunk, when it has dialled the place → the place → the one that asks: it can come now.
    CanCome {
        /// On the way to the place: the site of the one that asks. From there: the site of the one that can come.
        site: String,
        /// Its gateway's name.
        gateway: String,
    },
}
