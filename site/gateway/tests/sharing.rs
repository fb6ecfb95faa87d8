//! Sharing of a trunk by jobs in turns, and a gateway's view of it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const ROSTER: &str = "a:n1*2;b:n1*2";
const FRAME: usize = 16 << 10;

/// A connection to a gateway that has little bandwidth and little buffer.
async fn narrow_way(listen: String, to: String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    socket.bind(listen.parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    loop {
        let (near, _) = listener.accept().await.unwrap();
        // The gateway there may not be listening yet; the one here dials again.
        let Ok(far) = TcpStream::connect(&to).await else { continue };
        let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
        tokio::spawn(async move { tokio::io::copy(&mut far_in, &mut near_out).await });
        tokio::spawn(async move {
            let mut some = vec![0; 16 << 10];
            while let Ok(count @ 1..) = near_in.read(&mut some).await {
                if far_out.write_all(&some[..count]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}

#[tokio::test]
async fn a_job_with_little_to_say_does_not_wait_behind_one_with_much() {
    let sites = start(&Plan { detour: Some("b"), ..Plan::default() });
    tokio::spawn(narrow_way(sites[1].advertise.clone(), sites[1].inside.clone()));
    let (much, little) = (open(&sites[0], "a", 1, ROSTER).await, open(&sites[0], "a", 2, ROSTER).await);
    let (a, b) = (rank(0, 0), rank(1, 2));
    let mut much_at_b = sites[1].member(&much, b).await;
    let mut little_at_b = sites[1].member(&little, b).await;
    let mut little_at_a = sites[0].member(&little, a).await;
    let (_, mut much_at_a) = sites[0].member(&much, a).await.split();
    let arrived = Arc::new(AtomicUsize::new(0));
    let count = arrived.clone();
    let receiving = tokio::spawn(async move {
        while let Ok(Some(frame)) = hear(&mut much_at_b).await {
            count.fetch_add(frame.payload.len(), Ordering::Relaxed);
        }
    });
    let header = data(&much, a, b, 0);
    let sending = tokio::spawn(async move {
        for sequence in 0..4000 {
            let header = wire::FrameHeader { sequence, ..header };
            if much_at_a.send(header, &[1; FRAME]).await.is_err() {
                return;
            }
        }
    });
    // Until the trunk is full and the gateway holds as much as one job may queue there.
    let mut looking = sites[0].client().await;
    within("a queue", async {
        while looking.observe().await.unwrap().jobs[0].queued < 1 << 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let before = arrived.load(Ordering::Relaxed);
    little_at_a.send(data(&little, a, b, 0), b"here").await.unwrap();
    assert_eq!(receive(&mut little_at_b).await.payload, b"here");
    let ahead = arrived.load(Ordering::Relaxed) - before;
    let view = looking.observe().await.unwrap();
    assert!(view.jobs[0].queued >= 1 << 19, "the other job had nothing queued: {view:?}");
    assert!(ahead < 1 << 20, "{ahead} bytes of another job went before");
    sending.abort();
    receiving.abort();
}

#[tokio::test]
async fn a_gateway_shows_sites_trunks_and_jobs_and_counts_both_ways() {
    let sites = start(&Plan { links: 2, ..Plan::default() });
    let mut job = open(&sites[0], "a", 7, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));
    let mut at_a = sites[0].member(&job, a).await;
    let mut at_b = sites[1].member(&job, b).await;
    for sequence in 0..10 {
        at_a.send(data(&job, a, b, sequence), &[3; FRAME]).await.unwrap();
        assert_eq!(receive(&mut at_b).await.payload.len(), FRAME);
    }
    let mut looking = sites[0].client().await;
    let view = within("both links", async {
        loop {
            let view = looking.observe().await.unwrap();
            if view.trunks[0].links.len() == 2 {
                return view;
            }
        }
    })
    .await;
    assert_eq!((view.site.as_str(), view.gateway.as_str(), view.memory.limit), ("a", "gw1", 64 << 20));
    assert_eq!(view.sites.iter().map(|site| site.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let trunk = &view.trunks[0];
    assert!(trunk.up && trunk.problem.is_empty() && trunk.links_wanted == 2, "{trunk:?}");
    assert!(trunk.sent >= 10 * FRAME as u64 && trunk.received < FRAME as u64, "{trunk:?}");
    assert!(trunk.links.iter().all(|link| link.rtt_us > 0), "{trunk:?}");
    let shown = &view.jobs[0];
    assert_eq!((shown.job, shown.home.as_str(), shown.leads, shown.members), (job.id, "a", true, 2));
    assert_eq!(shown.ranks.iter().map(|site| site.ranks).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(shown.traffic.sent, 10 * (FRAME as u64 + 32));
    let mut there = sites[1].client().await;
    let other = there.observe().await.unwrap();
    assert_eq!(other.jobs[0].traffic.received, shown.traffic.sent);
    assert!(other.trunks[0].received >= shown.traffic.sent, "{other:?}");
    job.close().await;
}
