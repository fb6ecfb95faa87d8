//! Meetings: two gateways that cannot be dialled get a link through a gateway of a third site.

use serde::{Deserialize, Serialize};
use types::JobId;

use crate::proof::Secret;

/// Between two gateways and the host, the gateway where they meet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeetingMessage {
    /// A gateway that cannot be dialled → the host, which it has dialled: let me meet this gateway, which cannot be
    /// dialled either.
    Ask {
        /// The site of the gateway to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// The link of the trunk between the two, from 0.
        link: u16,
    },
    /// The answer, to both: dial me for [`Purpose::Meet`](crate::handshake::Purpose::Meet).
    Call {
        /// The site of the gateway to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// The link of the trunk between the two.
        link: u16,
        /// The meeting's number.
        meeting: JobId,
        /// The secret that the receiver of this message proves to the host; the other gateway has a different one.
        secret: Secret,
    },
    /// The answer to the gateway that asked: the meeting is refused.
    Refused {
        /// The site of the gateway to be met.
        site: String,
        /// Its name.
        gateway: String,
        /// The link of the trunk between the two.
        link: u16,
        /// The reason, for the user.
        reason: String,
    },
    /// The other gateway of such a trunk, once it has dialled the host → the host → the asking gateway: it can come
    /// now.
    CanCome {
        /// Towards the host: the site of the asking gateway. From the host: the site of the gateway that can come.
        site: String,
        /// Its gateway's name.
        gateway: String,
    },
}
