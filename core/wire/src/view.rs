//! A gateway's view of itself at one moment: for `landbridge top`, its page and metrics collectors.
//!
//! Counters increase monotonically from the start of the gateway's program; bytes are bytes of frames, headers
//! included.

use serde::{Deserialize, Serialize};
use types::JobId;

use crate::control::Traffic;

/// A gateway and everything it serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub site: String,
    /// Its name.
    pub gateway: String,
    /// Fingerprint of the site's key.
    pub fingerprint: String,
    /// The version of its program.
    pub version: String,
    /// Milliseconds since its start.
    pub uptime_ms: u64,
    /// Its memory for frames.
    pub memory: MemoryView,
    /// Its counters.
    pub totals: Totals,
    /// All sites of its sites file, in that order, including its own.
    pub sites: Vec<SiteView>,
    /// Its trunks, in the order of the sites file.
    pub trunks: Vec<TrunkView>,
    /// The jobs that are open here, the oldest first.
    pub jobs: Vec<JobView>,
    /// The figures of each ordered pair of sites in the sites file, in that order, including pairs of other sites.
    #[serde(default)]
    pub pairs: Vec<PairView>,
}

/// Memory for frames in flight, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryView {
    /// The limit in the sites file.
    pub limit: u64,
    /// Bytes held now.
    pub held: u64,
    /// The most bytes ever held.
    pub high_water: u64,
    /// Bytes promised to open jobs for their members' initial windows.
    pub granted: u64,
}

/// A gateway's counters since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Frames relayed.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames dropped because their destination is not connected.
    pub undeliverable: u64,
    /// Connections refused before admission.
    pub refused: u64,
    /// Connections closed after admission because the peer broke a rule.
    pub violations: u64,
    /// Connections not yet admitted, now.
    pub unadmitted: u64,
}

/// A site of the sites file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteView {
    pub name: String,
    /// The names of its gateways.
    pub gateways: Vec<String>,
}

/// A trunk to one gateway of another site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrunkView {
    /// The site at its other end.
    pub site: String,
    /// The gateway there.
    pub gateway: String,
    /// True if this side dials.
    pub dials: bool,
    /// True if at least one of its links is up.
    pub up: bool,
    /// The reason why it is not up, for the user; empty when it is.
    pub problem: String,
    /// Number of links that it should have.
    pub links_wanted: u32,
    /// Number of times that one of its links was lost.
    pub losses: u64,
    /// Bytes of frames sent over it, on all its links since the start.
    pub sent: u64,
    /// Bytes of frames received over it, likewise.
    pub received: u64,
    /// The links that are up.
    pub links: Vec<LinkView>,
}

/// One TCP connection of a trunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// Index among the trunk's links, from 0.
    pub index: u32,
    /// The other end's `address:port`.
    pub address: String,
    /// Milliseconds since it came up.
    pub up_ms: u64,
    /// Bytes of frames sent over it.
    pub sent: u64,
    /// Bytes of frames received over it.
    pub received: u64,
    /// Bytes queued here for it.
    pub queued: u64,
    /// The kernel's smoothed round trip of the connection, in microseconds.
    pub rtt_us: u64,
    /// Segments that the kernel retransmitted.
    pub retransmissions: u64,
}

/// A job that is open at this gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    pub job: JobId,
    /// The site of its launcher.
    pub home: String,
    /// True if this gateway leads the job at its site.
    pub leads: bool,
    /// It is being closed.
    pub closing: bool,
    /// Its ranks at each of its sites, in the order of its roster.
    pub ranks: Vec<RanksView>,
    /// Members (ranks, agents, the launcher) that are connected to this gateway.
    pub members: u32,
    /// Bytes that each member may initially have in flight to all peers.
    pub window: u64,
    /// Bytes of its frames queued here.
    pub queued: u64,
    /// Its counters at this gateway.
    pub traffic: Traffic,
}

/// Figures of the path from one site to another, over all its gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairView {
    /// The site that sends.
    pub from: String,
    /// The site that receives.
    pub to: String,
    /// Round trip without queueing, in microseconds, if it is known.
    pub rtt_us: Option<u64>,
    /// Rate of the path, in bytes per second, if it is known.
    pub rate: Option<u64>,
    /// Milliseconds since the rate was measured.
    pub age_ms: Option<u64>,
    /// The rate was measured by a transfer for this purpose, rather than derived from the traffic of jobs.
    pub active: bool,
    /// The rate is unknown or too old to rely on.
    pub stale: bool,
}

/// A site's part of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RanksView {
    pub site: String,
    /// Number of the job's ranks there.
    pub ranks: u32,
}
