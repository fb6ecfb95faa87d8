//! A gateway's metrics in Prometheus' text exposition format 0.0.4: a pure function of a [`View`].
//!
//! Every sample names its gateway, so that collections from several gateways need no labels of their own. Counters
//! start at zero when the gateway's program starts, those of a link when the link comes up.

use std::fmt::{Display, Write};

use wire::View;
use wire::view::{JobView, LinkView, PairView, TrunkView};

/// All metrics of a gateway.
pub(crate) fn text(view: &View) -> String {
    let own = labels(&[("site", &view.site), ("gateway", &view.gateway)]);
    let mut text = Text(String::with_capacity(8 << 10));
    of_gateway(&mut text, view, &own);
    of_trunks(&mut text, view, &own);
    of_links(&mut text, view, &own);
    of_pairs(&mut text, view, &own);
    of_jobs(&mut text, view, &own);
    text.0
}

fn of_gateway(text: &mut Text, view: &View, own: &str) {
    let version = format!("{own},{}", labels(&[("version", &view.version)]));
    text.one(Gauge, "build_info", "Always 1; the labels name the running version.", &version, 1);
    text.one(
        Gauge,
        "uptime_seconds",
        "Time since the gateway's program was started.",
        own,
        seconds(view.uptime_ms, 1e3),
    );
    let (memory, totals) = (&view.memory, &view.totals);
    for (name, help, value) in [
        ("memory_limit_bytes", "Memory for frames in flight that the sites file allows.", memory.limit),
        ("memory_held_bytes", "Memory held by frames in flight.", memory.held),
        ("memory_high_water_bytes", "The most memory ever held by frames in flight.", memory.high_water),
        ("memory_granted_bytes", "Memory promised to open jobs for their members' initial windows.", memory.granted),
        ("unadmitted_connections", "Connections waiting for admission.", totals.unadmitted),
        ("jobs", "Jobs that are open.", view.jobs.len() as u64),
    ] {
        text.one(Gauge, name, help, own, value);
    }
    for (name, help, value) in [
        ("relayed_frames_total", "Frames relayed.", totals.frames),
        ("relayed_bytes_total", "Bytes of frames relayed, headers included.", totals.bytes),
        (
            "undeliverable_frames_total",
            "Frames dropped because their destination is not connected.",
            totals.undeliverable,
        ),
        ("refused_connections_total", "Connections refused before admission.", totals.refused),
        ("violations_total", "Connections closed after admission because they broke the rules.", totals.violations),
    ] {
        text.one(Counter, name, help, own, value);
    }
}

fn of_trunks(text: &mut Text, view: &View, own: &str) {
    let trunks: Vec<_> = view.trunks.iter().map(|trunk| (trunk_labels(own, trunk), trunk)).collect();
    let mut family = |kind, name, help, value: fn(&TrunkView) -> u64| {
        text.family(kind, name, help);
        trunks.iter().for_each(|(labels, trunk)| text.sample(name, labels, value(trunk)));
    };
    family(Gauge, "trunk_up", "1 if a link of the trunk is up.", |trunk| trunk.up.into());
    family(Gauge, "trunk_links", "Number of links of the trunk that are up.", |trunk| trunk.links.len() as u64);
    family(Gauge, "trunk_links_wanted", "Links that the trunk should have.", |trunk| trunk.links_wanted.into());
    family(Counter, "trunk_link_losses_total", "Number of times a link of the trunk was lost.", |trunk| trunk.losses);
    family(Counter, "trunk_sent_bytes_total", "Bytes of frames sent over the trunk.", |trunk| trunk.sent);
    family(Counter, "trunk_received_bytes_total", "Bytes of frames received over the trunk.", |trunk| trunk.received);
}

fn of_links(text: &mut Text, view: &View, own: &str) {
    let links = view.trunks.iter().flat_map(|trunk| {
        let of = trunk_labels(own, trunk);
        trunk.links.iter().map(move |link| {
            // Without the address: a gateway that dials this one has another port in each connection, which would begin
            // a new series.
            (format!("{of},{}", labels(&[("link", &link.index.to_string())])), link)
        })
    });
    let links: Vec<(String, &LinkView)> = links.collect();
    let mut family = |kind, name, help, value: fn(&LinkView) -> u64| {
        text.family(kind, name, help);
        links.iter().for_each(|(labels, link)| text.sample(name, labels, value(link)));
    };
    family(Counter, "link_sent_bytes_total", "Bytes of frames sent over the link.", |link| link.sent);
    family(Counter, "link_received_bytes_total", "Bytes of frames received over the link.", |link| link.received);
    family(Gauge, "link_queued_bytes", "Bytes waiting to be sent over the link.", |link| link.queued);
    let again = "Segments of the link that the kernel retransmitted.";
    family(Counter, "link_retransmitted_segments_total", again, |link| link.retransmissions);
    let mut seconds_family = |name, help, value: fn(&LinkView) -> f64| {
        text.family(Gauge, name, help);
        links.iter().for_each(|(labels, link)| text.sample(name, labels, value(link)));
    };
    let trip = "The link's round-trip time as the kernel measures it, smoothed.";
    seconds_family("link_round_trip_seconds", trip, |link| seconds(link.rtt_us, 1e6));
    seconds_family("link_uptime_seconds", "Time since the link came up.", |link| seconds(link.up_ms, 1e3));
}

/// Pairs of sites, including pairs of other sites, so that a collector gets all of them from the gateways of one site.
fn of_pairs(text: &mut Text, view: &View, own: &str) {
    let pair_labels =
        |pair: &PairView| format!("{own},{}", labels(&[("from_site", &pair.from), ("to_site", &pair.to)]));
    let pairs: Vec<_> = view.pairs.iter().map(|pair| (pair_labels(pair), pair)).collect();
    let mut family = |name, help, value: fn(&PairView) -> Option<f64>| {
        text.family(Gauge, name, help);
        for (labels, pair) in &pairs {
            if let Some(value) = value(pair) {
                text.sample(name, labels, value);
            }
        }
    };
    let trip = "Round trip between two sites without queueing.";
    family("pair_round_trip_seconds", trip, |pair| pair.rtt_us.map(|trip| seconds(trip, 1e6)));
    let rate = "Rate of the path from one site to another.";
    family("pair_rate_bytes_per_second", rate, |pair| pair.rate.map(|rate| rate as f64));
    let age = "Time since the rate from one site to another was measured.";
    family("pair_rate_age_seconds", age, |pair| pair.age_ms.map(|age| seconds(age, 1e3)));
}

fn of_jobs(text: &mut Text, view: &View, own: &str) {
    let job_labels = |job: &JobView| {
        let id = job.job.to_string();
        format!("{own},{}", labels(&[("job", &id), ("home", &job.home)]))
    };
    let jobs: Vec<_> = view.jobs.iter().map(|job| (job_labels(job), job)).collect();
    let mut family = |kind, name, help, value: fn(&JobView) -> u64| {
        text.family(kind, name, help);
        jobs.iter().for_each(|(labels, job)| text.sample(name, labels, value(job)));
    };
    family(Gauge, "job_leads", "1 if this gateway leads the job at its site.", |job| job.leads.into());
    family(Gauge, "job_members", "Members of the job that are connected to this gateway.", |job| job.members.into());
    family(
        Gauge,
        "job_window_bytes",
        "Bytes that each member of the job may have in flight to all peers together, initially.",
        |job| job.window,
    );
    family(Gauge, "job_queued_bytes", "Bytes of the job's frames queued at this gateway.", |job| job.queued);
    let sent = "Bytes of the job's frames from this site's ranks into trunks.";
    family(Counter, "job_sent_bytes_total", sent, |job| job.traffic.sent);
    let received = "Bytes of the job's frames from trunks to this site's ranks.";
    family(Counter, "job_received_bytes_total", received, |job| job.traffic.received);
    let local = "Bytes of the job's frames between members of this site, through the gateway.";
    family(Counter, "job_local_bytes_total", local, |job| job.traffic.local);
    text.family(Gauge, "job_ranks", "Ranks of the job at each of its sites.");
    for (of, job) in &jobs {
        for part in &job.ranks {
            let labels = format!("{of},{}", labels(&[("ranks_site", &part.site)]));
            text.sample("job_ranks", &labels, part.ranks);
        }
    }
}

fn trunk_labels(own: &str, trunk: &TrunkView) -> String {
    format!("{own},{}", labels(&[("peer_site", &trunk.site), ("peer_gateway", &trunk.gateway)]))
}

#[derive(Clone, Copy)]
enum MetricKind {
    Counter,
    Gauge,
}
use MetricKind::{Counter, Gauge};

/// The text as it grows. Writing to a `String` cannot fail.
struct Text(String);

impl Text {
    /// Begins a metric; its samples must follow.
    fn family(&mut self, kind: MetricKind, name: &str, help: &str) {
        let kind = match kind {
            Counter => "counter",
            Gauge => "gauge",
        };
        let _ = writeln!(self.0, "# HELP landbridge_{name} {help}\n# TYPE landbridge_{name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "landbridge_{name}{{{labels}}} {value}");
    }

    /// A metric with one sample.
    fn one(&mut self, kind: MetricKind, name: &str, help: &str, labels: &str, value: impl Display) {
        self.family(kind, name, help);
        self.sample(name, labels, value);
    }
}

/// `name="value",…`, escaped as the format requires.
fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text
}

fn seconds(count: u64, a_second: f64) -> f64 {
    count as f64 / a_second
}

#[cfg(test)]
mod tests;
