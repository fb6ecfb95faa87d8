use serde::{Deserialize, Serialize};

use super::lateness::Lateness;
use super::link::{Counters, LinkSettings};

/// The WAN emulator's report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WanReport {
    /// True if the emulator ran at real-time priority. Without it the lab suits functional tests, not latency
    /// measurements.
    pub realtime: bool,
    /// The system's error message if real-time priority was refused.
    pub realtime_refused: Option<String>,
    /// Seed of loss and jitter.
    pub seed: u64,
    /// The lateness of deliveries.
    pub lateness: Lateness,
    /// Every direction between two sites.
    pub links: Vec<LinkReport>,
    /// Every gateway's attachment.
    pub ports: Vec<PortReport>,
}

impl WanReport {
    /// The direction `from` → `to`.
    #[must_use]
    pub fn link(&self, from: &str, to: &str) -> Option<&LinkReport> {
        self.links.iter().find(|link| link.from == from && link.to == to)
    }
}

/// One direction between two sites.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// Name of the sending site.
    pub from: String,
    /// Name of the receiving site.
    pub to: String,
    /// The settings at the end.
    pub settings: LinkSettings,
    /// The counts of delivered and lost traffic.
    pub counters: Counters,
}

/// The attachment of one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Host name of the gateway.
    pub gateway: String,
    /// Packets received from it.
    pub received: u64,
    /// Packets sent to it.
    pub sent: u64,
    /// Packets that the kernel refused to send to it.
    pub send_errors: u64,
    /// Packets that the kernel dropped because the emulator read too slowly; a benchmark should show 0.
    pub overruns: u64,
    /// Packets that were lost in either direction because the gateway's cable was unplugged.
    pub unplugged_packets: u64,
}
