//! Harm that must not happen: a slow or silent peer affects others longer than their patience allows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::Client;
use support::played::{Key, Link};
use support::*;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use types::{Identity, JobId, NodeId, SiteId, Slot};
use wire::control::{JobMessage, Part};
use wire::{Control, FrameHeader, FrameKind, Secret};

const MEMORY: u64 = 16 << 20;
/// Ranks 0 and 1 at a, 2 and 3 at b.
const ROSTER: &str = "a:n1*2;b:n1*2";

/// Echoes one frame after another between two members.
async fn echo(job: &Job, one: &mut (Client, Identity), two: &mut (Client, Identity), rounds: u32) {
    for number in 0..rounds {
        one.0.send(data(job, one.1, two.1, number), &[7; 1000]).await.unwrap();
        assert_eq!(receive(&mut two.0).await.payload.len(), 1000);
        two.0.send(data(job, two.1, one.1, number), &[8; 1000]).await.unwrap();
        assert_eq!(receive(&mut one.0).await.payload.len(), 1000);
    }
}

#[tokio::test]
async fn a_flood_to_a_member_that_never_reads_stays_under_the_bound_and_harms_nobody_else() {
    let sites = start(&Plan { memory: "16MiB", ..Plan::default() });
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let (flooder, victim) = (rank(0, 0), rank(1, 2));
    let mut reads_late = sites[1].member(&job, victim).await;
    let mut sender = sites[0].member(&job, flooder).await;
    let header = data(&job, flooder, victim, 0);
    // The flooder respects no window: it sends four times the memory in a row.
    let flood: JoinHandle<Client> = tokio::spawn(async move {
        for number in 0..(4 * MEMORY / 16_384) as u32 {
            sender.send(wire::FrameHeader { sequence: number, ..header }, &[1; 16_384]).await.unwrap();
        }
        sender
    });
    let (a, b) = (rank(0, 1), rank(1, 3));
    let (mut one, mut two) = ((sites[0].member(&job, a).await, a), (sites[1].member(&job, b).await, b));
    echo(&job, &mut one, &mut two, 200).await;
    let mut flooder = within("the flood", flood).await.unwrap();
    // Frames without memory for them are refused, and the victim is not to blame.
    assert_eq!(receive(&mut flooder).await.header.kind, FrameKind::Refused);
    echo(&job, &mut one, &mut two, 10).await;
    for number in 0..32 {
        let frame = receive(&mut reads_late).await;
        assert_eq!((frame.header.sequence, frame.payload.len()), (number, 16_384));
    }
    echo(&job, &mut one, &mut two, 10).await;
    for site in &sites {
        let counters = site.counters.snapshot();
        assert!(counters.high_water < MEMORY, "{counters:?}");
    }
    assert!(sites[1].counters.snapshot().high_water > 0);
}

#[tokio::test]
async fn a_member_that_never_reads_within_its_window_is_left_alone() {
    let sites = start(&Plan { memory: "16MiB", ..Plan::default() });
    let mut job = ask(&sites[0], "a", 1, ROSTER).await;
    let mut window = u32::MAX;
    for _ in 0..2 {
        let JobMessage::Opened { window: granted, .. } = job.news().await else { panic!() };
        window = window.min(granted);
    }
    let lazy = rank(1, 2);
    let mut late = sites[1].member(&job, lazy).await;
    let mut sent = 0;
    for from in [rank(0, 0), rank(0, 1)] {
        let mut sender = sites[0].member(&job, from).await;
        for number in 0..window / (16_384 + 32) {
            sender.send(data(&job, from, lazy, number), &[1; 16_384]).await.unwrap();
            sent += 1;
        }
        sender.send(data(&job, from, rank(1, 3), 0), b"nobody there").await.unwrap();
        assert_eq!(receive(&mut sender).await.header.kind, FrameKind::Undeliverable);
    }
    // All frames are there when it finally reads.
    for _ in 0..sent {
        assert_eq!(receive(&mut late).await.payload.len(), 16_384);
    }
    assert!(sites[1].counters.snapshot().high_water < MEMORY);
    tokio::time::timeout(Duration::from_secs(5), async {
        while sites[1].counters.snapshot().held > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("still held: {:?}", sites[1].counters.snapshot()));
}

#[test]
fn a_job_that_its_home_has_forgotten_is_not_kept() {
    let key = Key::new();
    let played = Some(("m", key.fingerprint()));
    let plan = Plan { names: vec!["m", "a"], absent: vec!["m"], hidden: vec!["m"], played, ..Plan::default() };
    let sites = start(&plan);
    let mut home = Link::dial(&sites[1], &key, "m", 1);
    let roster = "m:n1*1;a:n1*2".parse().unwrap();
    let part = Part::Lead.relay(1 << 20);
    let job = JobId(1);
    assert!(home.tell(JobMessage::Open { job, secret: Secret::new([1; 32]), roster, home: "m".into(), part }));
    let open = Control::Job(JobMessage::Here { job, whole: false });
    assert_eq!(home.hear_control().as_ref(), Some(&open));
    // The home sends nothing more about the job, and its trunk stays up. Nobody connects.
    let next = std::iter::from_fn(|| home.hear_control()).find(|answer| *answer != open);
    assert_eq!(next, Some(Control::Job(JobMessage::Wanted { job })));
    assert!(home.tell(JobMessage::close(job)));
    let Some(Control::Job(JobMessage::Closed { job: closed, site, .. })) = home.hear_control() else { panic!() };
    assert_eq!((closed, site.as_str()), (job, "a"));
}

#[tokio::test]
async fn an_acknowledgement_that_cannot_be_delivered_is_reported() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let (here, away) = (rank(0, 0), rank(1, 2));
    let mut member = sites[0].member(&job, here).await;
    for kind in [FrameKind::Ack, FrameKind::Answer, FrameKind::Ask, FrameKind::Again] {
        member.send(FrameHeader { kind, ..data(&job, here, away, 0) }, b"").await.unwrap();
        let back = receive(&mut member).await.header;
        assert_eq!((back.kind, back.from), (FrameKind::Undeliverable, away), "{kind:?}");
    }
}

#[tokio::test]
async fn an_agent_that_hangs_is_lost_and_a_rank_that_computes_is_not() {
    let sites = start(&Plan::default());
    let mut job = open(&sites[0], "a", 1, ROSTER).await;
    let (computes, hangs) = (rank(1, 2), Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() });
    // Neither sends anything, nor answers pings.
    let mut silent = sites[1].member(&job, computes).await;
    let _agent = sites[1].member(&job, hangs).await;
    let JobMessage::MemberLost { member, reason, .. } = job.news().await else { panic!() };
    assert_eq!(member, hangs);
    assert!(reason.contains("no sign of life for 6 s"), "{reason}");
    let from = rank(0, 0);
    let mut sender = sites[0].member(&job, from).await;
    sender.send(data(&job, from, computes, 0), b"still there").await.unwrap();
    assert_eq!(receive(&mut silent).await.payload, b"still there");
}

/// Relays connections until it is switched to swallow everything.
struct Detour {
    task: JoinHandle<()>,
    frozen: Arc<AtomicBool>,
}

impl Detour {
    async fn start(from: &str, to: &str) -> Detour {
        let listener = TcpListener::bind(from).await.unwrap();
        let (to, frozen) = (to.to_owned(), Arc::new(AtomicBool::new(false)));
        let freeze = frozen.clone();
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let (to, freeze) = (to.clone(), freeze.clone());
                open.spawn(async move {
                    let Ok(mut far) = TcpStream::connect(&to).await else { return };
                    let frozen = async {
                        while !freeze.load(Ordering::Relaxed) {
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    };
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => return,
                        () = frozen => {}
                    }
                    std::future::pending::<()>().await;
                });
            }
        });
        Detour { task, frozen }
    }
}

#[tokio::test]
async fn a_trunk_that_breaks_or_falls_silent_is_a_lost_site_at_both_ends() {
    for silent in [false, true] {
        let sites = start(&Plan { detour: Some("b"), ..Plan::default() });
        let detour = Detour::start(&sites[1].advertise, &sites[1].inside).await;
        let mut job = open(&sites[0], "a", 1, ROSTER).await;
        if silent {
            detour.frozen.store(true, Ordering::Relaxed);
        } else {
            detour.task.abort();
        }
        let JobMessage::SiteLost { site, reason, .. } = job.news().await else { panic!() };
        assert_eq!(site, "b");
        assert!(reason.contains("site b: gateway gw1 at"), "{reason}");
        assert_eq!(reason.contains("no sign of life"), silent, "{reason}");
        // The other side ends its own part without a message.
        within("agents of b", sites[1].agents.all_gone()).await;
        detour.task.abort();
    }
}

#[tokio::test]
async fn a_trunk_comes_back_and_serves_new_jobs() {
    let sites = start(&Plan { detour: Some("b"), links: 2, ..Plan::default() });
    let detour = Detour::start(&sites[1].advertise, &sites[1].inside).await;
    let mut job = open(&sites[0], "a", 1, ROSTER).await;
    detour.task.abort();
    assert!(matches!(job.news().await, JobMessage::SiteLost { .. }));
    // Its listener is gone as soon as the task is.
    let _ = detour.task.await;
    let again = Detour::start(&sites[1].advertise, &sites[1].inside).await;
    within("trunk", async { sites[0].client().await.probe("b").await }).await.unwrap();
    let other = open(&sites[0], "a", 2, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));
    let (mut one, mut two) = ((sites[0].member(&other, a).await, a), (sites[1].member(&other, b).await, b));
    echo(&other, &mut one, &mut two, 3).await;
    again.task.abort();
}
