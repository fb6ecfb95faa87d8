//! Whether another site can be reached, how far it is, and what the way to it carries.

use serde::{Deserialize, Serialize};

/// Between a user's command and a gateway, and between gateways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeasurementMessage {
    /// Client → gateway: try a trunk to this site.
    Probe { site: String },
    /// The answer to a probe.
    Probed {
        site: String,
        /// What went wrong, for the user; `None` when the trunk works.
        problem: Option<String>,
        /// Round trip over the trunk, in nanoseconds, when it works.
        rtt_ns: u64,
    },
    /// Client → a gateway of its site → a gateway of `from`: measure the way between two sites.
    Measure {
        /// The site that sends.
        from: String,
        /// The site that is sent to.
        to: String,
        /// How much it carries too, by a short transfer; else only the round trip.
        transfer: bool,
    },
    /// The answer to [`MeasurementMessage::Measure`].
    Measured {
        /// The site that sent.
        from: String,
        /// The site that was sent to.
        to: String,
        /// What was found.
        found: Measurement,
    },
}

/// What a measurement of the way between two sites found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measurement {
    /// How far it is, and what it carries.
    Done {
        /// Round trip over the trunk, in nanoseconds.
        rtt_ns: u64,
        /// Bytes of frames that arrived; 0 if there was to be no transfer.
        bytes: u64,
        /// In so many nanoseconds.
        transfer_ns: u64,
    },
    /// The gateway measures something else at the moment: try again soon.
    Busy,
    /// There is no way, or it could not be measured.
    Failed {
        /// Why, for the user.
        problem: String,
    },
}
