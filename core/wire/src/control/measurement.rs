//! Probes of the network to another site: reachability, round trip and rate.

use serde::{Deserialize, Serialize};

/// Between a user's command and a gateway, and between gateways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MeasurementMessage {
    /// Client → gateway: probe a trunk to this site.
    Probe { site: String },
    /// The answer to a probe.
    Probed {
        site: String,
        /// The problem, for the user; `None` when the trunk works.
        problem: Option<String>,
        /// Round trip over the trunk, in nanoseconds, if it works.
        rtt_ns: u64,
    },
    /// Client → a gateway of its site → a gateway of `from`: measure the network between two sites.
    Measure {
        /// The sending site.
        from: String,
        /// The receiving site.
        to: String,
        /// True to measure the rate too, by a short transfer; otherwise only the round trip.
        transfer: bool,
    },
    /// The answer to [`MeasurementMessage::Measure`].
    Measured {
        /// The sending site.
        from: String,
        /// The receiving site.
        to: String,
        /// The result.
        found: Measurement,
    },
}

/// The result of measuring the network between two sites.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measurement {
    /// Round trip and rate.
    Done {
        /// Round trip over the trunk, in nanoseconds.
        rtt_ns: u64,
        /// Bytes of frames that arrived; 0 if no transfer was requested.
        bytes: u64,
        /// Duration of the transfer in nanoseconds.
        transfer_ns: u64,
    },
    /// The gateway is busy with another measurement: try again soon.
    Busy,
    /// There is no route, or the measurement failed.
    Failed {
        /// The reason, for the user.
        problem: String,
    },
}
