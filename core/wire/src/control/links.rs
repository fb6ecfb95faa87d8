//! Gateways' reports about their trunks: round trips and rates, so that each gateway learns the figures of all pairs of
//! sites.

use serde::{Deserialize, Serialize};

/// Between gateways, and from a user's command to a gateway of its site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinksMessage {
    /// Gateway → gateway: changed figures. A gateway reports only on its own trunks: on the direction in which it
    /// sends, and, to other gateways of the site at a trunk's far end, also on the direction from that site.
    Figures {
        /// Increases with each message of the sender's process.
        version: u64,
        /// At most [`MAX_ROWS`].
        rows: Vec<LinkRow>,
    },
    /// Client → gateway of its site → gateways of other sites: for the next seconds, measure stale figures as if a job
    /// needed them.
    Measure {
        /// Duration, at most [`MAX_MEASURE_S`].
        seconds: u32,
    },
    /// Answers a client's [`LinksMessage::Measure`].
    Measuring {
        /// Time until each pair of sites has had its turn.
        seconds: u32,
    },
}

/// Most rows of a message.
pub const MAX_ROWS: usize = 1024;
/// The longest duration of a request to measure.
pub const MAX_MEASURE_S: u32 = 600;

/// Figures of a trunk in one direction. Integers, so that no figure is infinite or not a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRow {
    /// The sender of the measured traffic.
    pub from: GatewayName,
    /// Its receiver.
    pub to: GatewayName,
    /// Round trip in microseconds, if it is known.
    pub rtt_us: Option<u64>,
    /// Bytes per second, if they are known.
    pub rate: Option<RateRow>,
}

/// A rate and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateRow {
    /// Bytes per second.
    pub bytes_s: u64,
    /// Milliseconds since it was measured.
    pub age_ms: u64,
    /// Measured by a transfer for this purpose, rather than derived from the traffic of jobs.
    pub active: bool,
}

/// Names a gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GatewayName {
    pub site: String,
    /// Its name within the site.
    pub gateway: String,
}
