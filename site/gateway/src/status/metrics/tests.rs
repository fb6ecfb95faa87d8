use std::collections::{HashMap, HashSet};

use types::JobId;
use wire::control::Traffic;
use wire::view::{MemoryView, PairView, RanksView, Totals};

use super::*;

fn view() -> View {
    let link = |index| LinkView {
        index,
        address: "198.51.100.7:7700".into(),
        up_ms: 1500,
        sent: 10,
        received: 20,
        queued: 30,
        rtt_us: 20_125,
        retransmissions: 4,
    };
    let trunk = |site: &str, links: Vec<LinkView>| TrunkView {
        site: site.into(),
        gateway: "gw1".into(),
        up: !links.is_empty(),
        links_wanted: 2,
        losses: 3,
        sent: 1 << 60,
        received: 7,
        links,
        ..TrunkView::default()
    };
    let job = |id| JobView {
        job: JobId(id),
        home: "lyon".into(),
        leads: true,
        ranks: vec![RanksView { site: "lyon".into(), ranks: 4 }, RanksView { site: "kyoto".into(), ranks: 2 }],
        members: 5,
        window: 65536,
        queued: 11,
        traffic: Traffic { sent: 1, received: 2, local: 3 },
        ..JobView::default()
    };
    let pair = |rate: Option<u64>| PairView {
        from: "lyon".into(),
        to: "kyoto".into(),
        rtt_us: Some(20_125),
        rate,
        age_ms: rate.map(|_| 1500),
        ..PairView::default()
    };
    View {
        site: "lyon".into(),
        gateway: "gw1".into(),
        version: "1.2.3".into(),
        uptime_ms: 61_500,
        memory: MemoryView { limit: 100, held: 1, high_water: 2, granted: 3 },
        totals: Totals { frames: 1, bytes: 2, undeliverable: 3, refused: 4, violations: 5, unadmitted: 6 },
        trunks: vec![trunk("kyoto", vec![link(0), link(1)]), trunk("nancy", vec![])],
        jobs: vec![job(0xab), job(2)],
        pairs: vec![pair(Some(12_500_000)), PairView { from: "nancy".into(), ..pair(None) }],
        ..View::default()
    }
}

#[test]
fn what_is_counted_is_told_with_names_labels_and_units() {
    let text = text(&view());
    for line in [
        "landbridge_build_info{site=\"lyon\",gateway=\"gw1\",version=\"1.2.3\"} 1",
        "landbridge_uptime_seconds{site=\"lyon\",gateway=\"gw1\"} 61.5",
        "landbridge_memory_high_water_bytes{site=\"lyon\",gateway=\"gw1\"} 2",
        "landbridge_violations_total{site=\"lyon\",gateway=\"gw1\"} 5",
        "landbridge_jobs{site=\"lyon\",gateway=\"gw1\"} 2",
        "# TYPE landbridge_trunk_sent_bytes_total counter",
        "landbridge_trunk_sent_bytes_total{site=\"lyon\",gateway=\"gw1\",peer_site=\"kyoto\",peer_gateway=\"gw1\"} \
         1152921504606846976",
        "landbridge_trunk_up{site=\"lyon\",gateway=\"gw1\",peer_site=\"nancy\",peer_gateway=\"gw1\"} 0",
        "landbridge_link_round_trip_seconds{site=\"lyon\",gateway=\"gw1\",peer_site=\"kyoto\",peer_gateway=\"gw1\",link=\"1\"} 0.020125",
        "landbridge_pair_round_trip_seconds{site=\"lyon\",gateway=\"gw1\",from_site=\"nancy\",to_site=\"kyoto\"} 0.020125",
        "landbridge_pair_rate_bytes_per_second{site=\"lyon\",gateway=\"gw1\",from_site=\"lyon\",to_site=\"kyoto\"} 12500000",
        "landbridge_pair_rate_age_seconds{site=\"lyon\",gateway=\"gw1\",from_site=\"lyon\",to_site=\"kyoto\"} 1.5",
        "landbridge_job_ranks{site=\"lyon\",gateway=\"gw1\",job=\"000000ab\",home=\"lyon\",ranks_site=\"kyoto\"} 2",
        "landbridge_job_local_bytes_total{site=\"lyon\",gateway=\"gw1\",job=\"00000002\",home=\"lyon\"} 3",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n  is not in\n{text}");
    }
}

#[test]
fn each_metric_is_described_once_and_its_samples_follow() {
    let text = text(&view());
    assert!(text.ends_with('\n'));
    let mut kinds = HashMap::new();
    let (mut current, mut seen) = (String::new(), HashSet::new());
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').unwrap();
            assert!(words.ends_with('.'), "{line}");
            current = name.into();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, current);
            assert!(kinds.insert(current.clone(), kind.to_owned()).is_none(), "{name} comes twice");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        } else {
            assert_eq!(line.split('{').next().unwrap(), current, "{line}");
            assert!(line.rsplit_once("} ").unwrap().1.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(line.rsplit_once(' ').unwrap().0.to_owned()), "{line} comes twice");
        }
    }
    assert!(
        kinds.len() > 28 && !text.contains("rate_bytes_per_second{site=\"lyon\",gateway=\"gw1\",from_site=\"nancy\"")
    );
}

#[test]
fn what_would_end_a_label_is_escaped() {
    let mut view = view();
    view.jobs[0].home = "a\\b\"c\nd".into();
    assert!(text(&view).contains("home=\"a\\\\b\\\"c\\nd\"} "));
}

#[test]
fn an_idle_gateway_has_metrics_too() {
    let text = text(&View::default());
    assert!(text.contains("landbridge_jobs{site=\"\",gateway=\"\"} 0\n"), "{text}");
    assert!(!text.contains("landbridge_trunk_up{"));
}
