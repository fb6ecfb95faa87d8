//! Measuring the network between sites: the peers that may, the limits, and the messages when it is not possible.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::*;
use types::JobId;
use wire::control::{Measurement, MeasurementMessage};
use wire::{FrameHeader, FrameKind};

const ROSTER: &str = "a:n1*2;b:n1*2";
/// Most bytes of a transfer, with its headers.
const MOST: u64 = (8 << 20) + (32 << 10);

fn three(absent: Vec<&'static str>) -> Vec<Running> {
    start(&Plan { names: vec!["a", "b", "c"], absent, ..Plan::default() })
}

async fn measure(gateway: &Running, from: &str, to: &str, transfer: bool) -> Measurement {
    within("measuring", gateway.client().await.measure(from, to, transfer)).await.unwrap()
}

fn problem(found: Measurement) -> String {
    match found {
        Measurement::Failed { problem } => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_pair_is_measured_by_way_of_the_own_gateway() {
    let sites = three(vec![]);
    for from in ["a", "b", "c"] {
        for to in ["a", "b", "c"].into_iter().filter(|to| *to != from) {
            let found = measure(&sites[0], from, to, true).await;
            let Measurement::Done { rtt_ns, bytes, transfer_ns } = found else { panic!("{from} to {to}: {found:?}") };
            assert!(rtt_ns > 0 && transfer_ns > 0 && bytes > 0 && bytes <= MOST, "{from} to {to}: {found:?}");
        }
    }
    // The gateway holds nothing of the transfer any more.
    let mut looking = sites[1].client().await;
    let view = within("nothing held", async {
        loop {
            let view = looking.observe().await.unwrap();
            if view.memory.held == 0 {
                return view;
            }
        }
    })
    .await;
    assert!(view.jobs.is_empty() && view.totals.violations == 0, "{view:?}");
    assert!(view.trunks.iter().all(|trunk| trunk.losses == 0 && trunk.sent <= 3 * MOST), "{view:?}");
}

#[tokio::test]
async fn without_a_transfer_only_the_round_trip_is_measured() {
    let sites = three(vec![]);
    let found = measure(&sites[0], "b", "c", false).await;
    assert!(matches!(found, Measurement::Done { rtt_ns: 1.., bytes: 0, transfer_ns: 0 }), "{found:?}");
    let view = sites[1].client().await.observe().await.unwrap();
    assert!(view.trunks.iter().all(|trunk| trunk.sent < 10_000), "{view:?}");
}

#[tokio::test]
async fn several_links_are_used_together() {
    let sites = start(&Plan { links: 3, ..Plan::default() });
    let mut looking = sites[0].client().await;
    within("all links", async { while looking.observe().await.unwrap().trunks[0].links.len() < 3 {} }).await;
    let found = measure(&sites[0], "a", "b", true).await;
    assert!(matches!(found, Measurement::Done { bytes: 1.., .. }), "{found:?}");
    let links = looking.observe().await.unwrap().trunks[0].links.clone();
    assert!(links.iter().all(|link| link.sent > 64 << 10), "{links:?}");
    assert!(links.iter().map(|link| link.sent).sum::<u64>() <= MOST, "{links:?}");
}

#[tokio::test]
async fn what_cannot_be_measured_is_told() {
    let sites = three(vec!["c"]);
    assert!(matches!(measure(&sites[0], "a", "b", false).await, Measurement::Done { .. }));
    for (from, to, named) in [
        ("a", "c", "site c: "),
        ("b", "c", "site c: "),
        ("c", "b", "site c: "),
        ("a", "x", "no site x"),
        ("x", "a", "no site x"),
        ("b", "x", "no site x"),
        ("a", "a", "no route to itself"),
        ("b", "b", "no route to itself"),
    ] {
        let problem = problem(measure(&sites[0], from, to, true).await);
        assert!(problem.contains(named), "{from} to {to}: {problem}");
    }
}

#[tokio::test]
async fn one_measurement_is_under_way_at_a_time() {
    let sites = three(vec!["c"]);
    assert!(matches!(measure(&sites[0], "a", "b", false).await, Measurement::Done { .. }));
    // A measurement waits for the trunk to c. Further requests meanwhile get "busy", at this gateway and at the other.
    let mut first = sites[0].client().await;
    for other in &sites[..2] {
        let mut second = other.client().await;
        let told = async {
            loop {
                let waiting = first.measure("a", "c", false);
                let asking = second.measure("a", "b", false);
                let (waited, asked) = tokio::join!(waiting, asking);
                // Either may have been the first.
                if asked.unwrap() == Measurement::Busy {
                    return problem(waited.unwrap());
                }
            }
        };
        let problem = within("being told", told).await;
        assert!(problem.contains("site c"), "{problem}");
        let after = measure(other, "a", "b", true).await;
        assert!(matches!(after, Measurement::Done { bytes: 1.., .. }), "{after:?}");
    }
}

#[tokio::test]
async fn a_job_beside_a_transfer_gets_its_frames_through() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 7, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));
    let mut at_a = sites[0].member(&job, a).await;
    let mut at_b = sites[1].member(&job, b).await;
    let mut user = sites[0].client().await;
    let exchanging = async {
        for sequence in 0..200 {
            at_a.send(data(&job, a, b, sequence), &[3; 1000]).await.unwrap();
            assert_eq!(receive(&mut at_b).await.payload, [3; 1000]);
        }
    };
    let both = async { tokio::join!(user.measure("a", "b", true), exchanging).0 };
    let found = within("both", both).await.unwrap();
    assert!(matches!(found, Measurement::Done { bytes: 1.., .. }), "{found:?}");
    let view = user.observe().await.unwrap();
    assert_eq!(view.jobs[0].traffic.sent, 200 * 1032, "measurements do not count as traffic");
}

#[tokio::test]
async fn members_measure_nothing() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 7, ROSTER).await;
    let message = MeasurementMessage::Measure { from: "a".into(), to: "b".into(), transfer: true };
    let mut asking = sites[0].member(&job, rank(0, 0)).await;
    asking.send_control(rank(0, 0), message).await.unwrap();
    let closed = within("refusal", asking.receive()).await.unwrap_err().to_string();
    assert!(closed.contains("only launchers"), "{closed}");
    // Members cannot flood with pings either: their length stays limited.
    let mut pinging = sites[0].member(&job, rank(0, 1)).await;
    let header = FrameHeader::plain(FrameKind::Ping, JobId(7), rank(0, 1), rank(1, 2));
    pinging.send(header, &[0; 64]).await.unwrap();
    assert_eq!(receive(&mut pinging).await.payload, [0; 64]);
    pinging.send(header, &[0; 65]).await.unwrap();
    let closed = within("refusal", pinging.receive()).await.unwrap_err().to_string();
    assert!(closed.contains("at most 64"), "{closed}");
    // The gateway itself may measure its links at any time, so the trunk's sent bytes prove nothing.
    let view = sites[0].client().await.observe().await.unwrap();
    assert_eq!(view.totals.violations, 2, "{view:?}");
}
