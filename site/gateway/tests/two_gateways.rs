//! Two real gateways on loopback addresses: jobs, frames, refusals and losses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use client::{Client, ClientError, Role};
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use types::{Identity, JobId, NodeId, SiteId, Slot};
use wire::control::JobMessage;
use wire::frame::HEADER_LEN;
use wire::{FrameKind, Secret};

const ROSTER: &str = "a:n1*2;b:n1*2";

#[tokio::test]
async fn frames_cross_both_ways_and_the_job_is_counted_and_closed() {
    for links in [1, 3] {
        let sites = start(&Plan { links, ..Plan::default() });
        let mut job = open(&sites[0], "a", 7, ROSTER).await;
        let orders = sites[1].agents.orders();
        assert_eq!((orders[0].node.as_str(), orders[0].site_id, orders[0].home), ("n1", SiteId(1), SiteId(0)));
        let (a, b) = (rank(0, 0), rank(1, 2));
        let mut at_a = sites[0].member(&job, a).await;
        let mut at_b = sites[1].member(&job, b).await;
        let mut bytes = 0;
        for (number, length) in [0usize, 1, 100, 16_384, 5000].into_iter().enumerate() {
            let payload: Vec<u8> = (0..length).map(|i| (i * 7 + number) as u8).collect();
            at_a.send(data(&job, a, b, number as u32), &payload).await.unwrap();
            let frame = receive(&mut at_b).await;
            assert_eq!((frame.header.from, frame.header.to, frame.header.sequence), (a, b, number as u32));
            assert_eq!(frame.payload, payload);
            at_b.send(data(&job, b, a, number as u32), &frame.payload).await.unwrap();
            assert_eq!(receive(&mut at_a).await.payload, payload);
            bytes += 32 + length as u64;
        }
        // Launcher and agent of the other site.
        let agent = Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() };
        let mut at_agent = sites[1].member(&job, agent).await;
        at_agent.send(data(&job, agent, launcher(0), 0), b"hello").await.unwrap();
        let frame = receive(&mut job.launcher).await;
        assert_eq!((frame.header.from, frame.payload.as_slice()), (agent, b"hello".as_slice()));
        job.launcher.send(data(&job, launcher(0), agent, 0), b"there").await.unwrap();
        assert_eq!(receive(&mut at_agent).await.payload, b"there");

        job.close().await;
        let error = within("goodbye", hear(&mut at_b)).await.unwrap_err();
        assert!(error.to_string().contains("is closed"), "{error}");
        let mut closed = Vec::new();
        for _ in 0..2 {
            let JobMessage::Closed { site, traffic, .. } = job.news().await else { panic!() };
            assert_eq!((traffic.sent, traffic.received), (bytes, bytes), "site {site}");
            closed.push(site);
        }
        closed.sort();
        assert_eq!(closed, ["a", "b"]);
        assert!(within("bye", job.launcher.receive()).await.unwrap().is_none());
        // The agents did not end by themselves.
        assert_eq!((sites[0].agents.killed(), sites[1].agents.killed()), (1, 1));
        assert_eq!((sites[0].agents.running(), sites[1].agents.running()), (0, 0));
    }
}

#[tokio::test]
async fn many_frames_stay_whole_and_in_order() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 7, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));
    let (_, mut sender) = sites[0].member(&job, a).await.split();
    let (mut receiver, keep) = sites[1].member(&job, b).await.split();
    let header = data(&job, a, b, 0);
    const COUNT: u32 = 3000;
    // Many times the window in total, but never more than the window in flight: a receiver may be slow for a moment.
    let window = sender.welcome().window.min(keep.welcome().window);
    let room = Arc::new(Semaphore::new(window as usize));
    let taken = room.clone();
    let sending = tokio::spawn(async move {
        for number in 0..COUNT {
            let payload = vec![number as u8; (number as usize * 37) % 16_385];
            let cost = (HEADER_LEN + payload.len()) as u32;
            taken.acquire_many(cost).await.unwrap().forget();
            sender.send(wire::FrameHeader { sequence: number, ..header }, &payload).await.unwrap();
        }
        sender
    });
    for number in 0..COUNT {
        if number % 500 == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let frame = loop {
            let frame = within("frame", receiver.receive()).await.unwrap().unwrap();
            if frame.header.kind != FrameKind::Links {
                break frame;
            }
        };
        assert_eq!(frame.header.sequence, number);
        assert_eq!(frame.payload.len(), (number as usize * 37) % 16_385);
        assert!(frame.payload.iter().all(|byte| *byte == number as u8));
        room.add_permits(HEADER_LEN + frame.payload.len());
    }
    sending.await.unwrap();
}

#[tokio::test]
async fn no_frame_crosses_jobs_and_no_secret_opens_another() {
    let sites = start(&Plan::default());
    let mut one = open(&sites[0], "a", 1, ROSTER).await;
    let two = open(&sites[0], "a", 2, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));

    let stolen = Role::Member { job: one.id, secret: two.secret.clone(), identity: a };
    let error = Client::connect(&sites[0].plain(), &stolen).await.unwrap_err().to_string();
    assert!(error.contains("it does not know our secret"), "{error}");
    let unknown = Role::Member { job: JobId(99), secret: two.secret.clone(), identity: a };
    let error = Client::connect(&sites[0].plain(), &unknown).await.unwrap_err().to_string();
    assert!(error.contains("job 00000063 is not open at site a"), "{error}");
    let elsewhere = Role::Member { job: one.id, secret: one.secret.clone(), identity: b };
    let error = Client::connect(&sites[0].plain(), &elsewhere).await.unwrap_err().to_string();
    assert!(error.contains("does not belong to site a"), "{error}");
    let absent = Role::Member { job: one.id, secret: one.secret.clone(), identity: rank(0, 3) };
    let error = Client::connect(&sites[0].plain(), &absent).await.unwrap_err().to_string();
    assert!(error.contains("rank 3 is not at site a"), "{error}");
    let user = Role::Client { secret: Secret::new([9; 32]) };
    let error = Client::connect(&sites[0].gateway, &user).await.unwrap_err().to_string();
    assert!(error.contains("it does not know our secret"), "{error}");

    // Both jobs have a rank 2 at b; a member of one can neither reach the other's nor impersonate it.
    let mut receiver = sites[1].member(&two, b).await;
    let mut sender = sites[0].member(&one, a).await;
    let again = Role::Member { job: one.id, secret: one.secret.clone(), identity: a };
    let error = Client::connect(&sites[0].plain(), &again).await.unwrap_err().to_string();
    assert!(error.contains("already connected"), "{error}");
    sender.send(data(&two, a, b, 0), b"stray").await.unwrap();
    let error = within("goodbye", hear(&mut sender)).await.unwrap_err();
    assert!(matches!(error, ClientError::Closed { .. }), "{error}");
    let JobMessage::MemberLost { member, reason, .. } = one.news().await else { panic!() };
    assert_eq!(member, a);
    assert!(reason.contains("a frame of job 00000002"), "{reason}");
    let mut sender = sites[0].member(&one, a).await;
    sender.send(data(&one, rank(0, 1), b, 0), b"forged").await.unwrap();
    within("goodbye", hear(&mut sender)).await.unwrap_err();
    assert_eq!(sites[0].counters.snapshot().violations, 2);
    let nothing = tokio::time::timeout(Duration::from_millis(200), hear(&mut receiver)).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

#[tokio::test]
async fn an_absent_member_is_reported_to_the_sender() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let (a, b) = (rank(0, 0), rank(1, 2));
    let mut sender = sites[0].member(&job, a).await;
    for number in 0..3 {
        sender.send(data(&job, a, b, number), b"anybody?").await.unwrap();
    }
    // Checks every frame: a notice may be lost with a link, and the frames it was about are retransmitted.
    for _ in 0..3 {
        let frame = receive(&mut sender).await;
        assert_eq!((frame.header.kind, frame.header.from), (FrameKind::Undeliverable, b));
        assert!(String::from_utf8_lossy(&frame.payload).contains("rank 2 is not connected"), "{frame:?}");
    }
    let mut receiver = sites[1].member(&job, b).await;
    sender.send(data(&job, a, b, 3), b"you").await.unwrap();
    assert_eq!(receive(&mut receiver).await.payload, b"you");
    let nothing = tokio::time::timeout(Duration::from_millis(100), hear(&mut sender)).await;
    assert!(nothing.is_err(), "{nothing:?}");
    assert_eq!(sites[1].counters.snapshot().undeliverable, 3);
}

#[tokio::test]
async fn losses_reach_the_launcher() {
    let mut sites = start(&Plan::default());
    let mut job = open(&sites[0], "a", 1, "a:n1*2;b:n1*2,n2*1").await;
    drop(sites[1].member(&job, rank(1, 3)).await);
    let JobMessage::MemberLost { member, .. } = job.news().await else { panic!() };
    assert_eq!(member, rank(1, 3));
    sites[1].agents.end(job.id, NodeId(1));
    let JobMessage::AgentLost { site, node, reason, .. } = job.news().await else { panic!() };
    assert_eq!((site.as_str(), node.as_str(), reason.as_str()), ("b", "n2", "exit status 3"));
    let agents = sites[0].agents.clone();
    let mut other = sites.remove(1);
    let stopping = std::thread::spawn(move || other.stop());
    let JobMessage::SiteLost { site, reason, .. } = job.news().await else { panic!() };
    assert_eq!(site, "b");
    assert!(reason.contains("stopping"), "{reason}");
    drop(job);
    within("agents", agents.all_gone()).await;
    stopping.join().unwrap();
}

#[tokio::test]
async fn a_launcher_that_goes_takes_its_job_along() {
    let sites = start(&Plan::default());
    let job = open(&sites[1], "b", 1, ROSTER).await;
    let other = open(&sites[0], "a", 2, ROSTER).await;
    assert_eq!((sites[0].agents.running(), sites[1].agents.running()), (2, 2));
    drop(job);
    for site in &sites {
        within("agents of the first job", async {
            while site.agents.running() > 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
    // The other job continues.
    let (a, b) = (rank(0, 1), rank(1, 3));
    let (mut at_a, mut at_b) = (sites[0].member(&other, a).await, sites[1].member(&other, b).await);
    at_a.send(data(&other, a, b, 0), b"still here").await.unwrap();
    assert_eq!(receive(&mut at_b).await.payload, b"still here");
    assert_eq!((sites[0].agents.running(), sites[1].agents.running()), (1, 1));
}

#[tokio::test]
async fn refusals_name_site_and_reason() {
    let sites = start(&Plan { names: vec!["a", "b", "c"], absent: vec!["c"], ..Plan::default() });
    let mut job = ask(&sites[0], "a", 1, "a:n1*1;c:n1*1").await;
    let JobMessage::Refused { site, reason, .. } = job.news().await else { panic!() };
    assert_eq!(site, "c");
    assert!(reason.contains(&sites[2].inside) && reason.contains("refused"), "{reason}");
    let error = sites[0].client().await.probe("c").await.unwrap_err().to_string();
    assert!(error.contains("site c: gateway gw1 at") && error.contains(&sites[2].inside), "{error}");
    assert!(sites[0].client().await.probe("b").await.unwrap() < Duration::from_secs(1));

    for (id, roster, names, text) in [
        (2, "a:n1*1;x:n1*1", "x", "has no site x"),
        (3, "a:n1*1;b:n9*1", "b", "no node n9; it has: n1, n2"),
        (4, "a:n1*1200;b:n1*1200", "a", "raise `memory`"),
        (5, "b:n1*1", "a", "not in the roster"),
    ] {
        let mut job = ask(&sites[0], "a", id, roster).await;
        loop {
            match job.news().await {
                JobMessage::Refused { site, reason, .. } => {
                    assert_eq!(site, names, "{reason}");
                    assert!(reason.contains(text), "{reason}");
                    break;
                }
                JobMessage::Opened { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    sites[1].agents.refuse("no such program");
    let mut job = ask(&sites[0], "a", 6, ROSTER).await;
    loop {
        if let JobMessage::Refused { site, reason, .. } = job.news().await {
            assert_eq!(site, "b");
            assert!(reason.contains("agent of node n1: no such program"), "{reason}");
            break;
        }
    }
}

#[tokio::test]
async fn wrong_fingerprints_are_named_at_both_ends() {
    // First the dialling side (a) has the wrong fingerprint, then the accepting side (b).
    for (wrong, prober, at) in [(("b", "a"), 0, "b"), (("a", "b"), 1, "a")] {
        let sites = start(&Plan { wrong: Some(wrong), ..Plan::default() });
        let error = sites[prober].client().await.probe(at).await.unwrap_err().to_string();
        assert!(error.contains(&format!("site {at}: gateway gw1 at")), "{error}");
        assert!(
            error.contains("presented fingerprint sha256:") && error.contains("the sites file has sha256:"),
            "{error}"
        );
        let other = 1 - prober;
        let error = sites[other].client().await.probe(if at == "a" { "b" } else { "a" }).await.unwrap_err();
        assert!(error.to_string().contains("sha256:"), "{error}");
    }
}

#[tokio::test]
async fn strangers_are_turned_away_and_change_nothing() {
    let sites = start(&Plan::default());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let mut seed = 12345u32;
    let mut next = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let mut hostile: Vec<Vec<u8>> = (0..40).map(|i| (0..i * 40 + 1).map(|_| next()).collect()).collect();
    hostile.push(b"GET / HTTP/1.1\r\n\r\n".to_vec());
    hostile.push([&[0x16, 3, 1, 0xff, 0xff][..], &vec![7; 70_000]].concat());
    hostile.push(vec![0x16, 3, 1, 2, 0, 1, 0, 1]);
    hostile.push(b"LBRIDGE\x07".to_vec());
    hostile.push([b"LBRIDGE".as_slice(), &[wire::VERSION], &[255; 100]].concat());
    hostile.push([b"LBRIDGE".as_slice(), &[wire::VERSION], &1024u32.to_le_bytes(), &[1; 1024]].concat());
    let mut open_ends = Vec::new();
    for bytes in &hostile {
        let mut stream = TcpStream::connect(&sites[0].inside).await.unwrap();
        // The connection may be closed in the middle.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        open_ends.push(stream);
    }
    for mut stream in open_ends {
        let mut answer = Vec::new();
        let _ = within("end of stranger", stream.read_to_end(&mut answer)).await;
    }
    // A peer that sends nothing at all is given up after the time limit of a handshake.
    let mut silent = TcpStream::connect(&sites[0].inside).await.unwrap();
    let ended = within("end of silence", silent.read_u8()).await;
    assert!(ended.is_err());
    let counters = sites[0].counters.snapshot();
    assert!(counters.refused as usize >= hostile.len(), "{counters:?}");
    // An oversized frame after admission.
    let a = rank(0, 0);
    let mut greedy = sites[0].member(&job, a).await;
    greedy.send(data(&job, a, rank(1, 2), 0), &vec![0; 20_000]).await.unwrap();
    let error = within("goodbye", hear(&mut greedy)).await.unwrap_err().to_string();
    assert!(error.contains("20000 bytes; at most 16384"), "{error}");
    let mut fresh = sites[0].member(&job, a).await;
    let mut peer = sites[1].member(&job, rank(1, 2)).await;
    fresh.send(data(&job, a, rank(1, 2), 0), b"unharmed").await.unwrap();
    assert_eq!(receive(&mut peer).await.payload, b"unharmed");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let key = client::key::SiteKey::random().unwrap();
    let text = format!(
        "[[site]]\nname = \"a\"\nfingerprint = \"{}\"\n[[site.gateway]]\nname = \"gw1\"\ninside = \"{address}\"\n\
         listen = \"{address}\"\n[[site.node]]\nname = \"n1\"\n",
        key.fingerprint()
    );
    let sites = types::SitesFile::parse(&text, "sites.toml").unwrap();
    let config = gateway::GatewayConfig::with_key(sites, "a", None, key).unwrap();
    let starter = std::sync::Arc::new(Starter(Default::default()));
    let error = gateway::serve_until(config, starter, std::future::pending()).unwrap_err().to_string();
    assert!(error.contains(&address) && error.contains("another program has this port"), "{error}");
}
