//! One frame for several receivers: copied along the tree that it names, and reported where it gets no further. A peer
//! whose frame breaks a rule loses its connection, and nobody else loses anything.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{Client, Frame};
use support::played::{GATEWAY, Key, Link};
use support::*;
use types::{Identity, Instance, JobId, NodeId, Rank, SiteId, Slot};
use wire::control::{JobMessage, Part};
use wire::many::{Astray, Tree, Why};
use wire::{Control, FrameHeader, FrameKind, Secret};

/// Ranks 0 and 1 at a, 2 and 3 at b, 4 at c.
const ROSTER: &str = "a:n1*2;b:n1*2;c:n1*1";

fn three() -> Plan {
    Plan { names: vec!["a", "b", "c"], ..Plan::default() }
}

fn slot(number: u32) -> Slot {
    Slot::rank(Rank(number), Instance(0)).unwrap()
}

fn leaf(slots: &[Slot]) -> Tree {
    Tree { receivers: slots.to_vec(), branches: vec![] }
}

fn below(branches: Vec<(u16, Tree)>) -> Vec<(SiteId, Tree)> {
    branches.into_iter().map(|(site, tree)| (SiteId(site), tree)).collect()
}

/// From a to ranks 2 and 3 at b, and from there to rank 4 at c.
fn chain() -> Tree {
    let at_b = Tree { receivers: vec![slot(2), slot(3)], branches: below(vec![(2, leaf(&[slot(4)]))]) };
    Tree { receivers: vec![], branches: below(vec![(1, at_b)]) }
}

/// The payload of a frame whose numbers begin with `sequence`.
fn payload(tree: &Tree, root: u16, sequence: u32, data: &[u8]) -> Vec<u8> {
    let mut template = tree.template(SiteId(root)).unwrap();
    [template.fill(sequence..), data].concat()
}

fn many(job: JobId, root: Identity) -> FrameHeader {
    let to = Identity { slot: Slot::GATEWAY, ..root };
    FrameHeader { route: 70, ..FrameHeader::plain(FrameKind::Many, job, root, to) }
}

/// The next frame except notices about routes to sites, which a trunk that is slow to come up causes.
async fn news(member: &mut Client) -> Frame {
    loop {
        let frame = receive(member).await;
        if frame.header.kind != FrameKind::Passage {
            return frame;
        }
    }
}

async fn gets(member: &mut Client, root: Identity, sequence: u32, data: &[u8]) {
    let Frame { header, payload } = news(member).await;
    assert_eq!((header.kind, header.from, header.sequence, header.route), (FrameKind::Data, root, sequence, 70));
    assert!(header.relayed && header.ack == 0 && payload == data, "{header:?}");
}

#[tokio::test]
async fn copies_follow_the_tree() {
    let sites = start(&three());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let root = rank(0, 0);
    let mut sender = sites[0].member(&job, root).await;
    let mut receivers = Vec::new();
    for (site, number) in [(1, 2), (1, 3), (2, 4)] {
        receivers.push(sites[site].member(&job, rank(site as u16, number)).await);
    }
    for number in 0..200 {
        let data = vec![number as u8; 1 + 80 * number as usize];
        sender.send(many(job.id, root), &payload(&chain(), 0, 10 * number, &data)).await.unwrap();
        // Frames for one receiver keep their places among the copies.
        let direct = FrameHeader { sequence: 7, ..data_header(&job, root, rank(1, 2)) };
        sender.send(direct, b"direct").await.unwrap();
    }
    for number in 0..200 {
        let data = vec![number as u8; 1 + 80 * number as usize];
        for (at, receiver) in receivers.iter_mut().enumerate() {
            gets(receiver, root, 10 * number + at as u32, &data).await;
        }
        assert_eq!(news(&mut receivers[0]).await.payload, b"direct");
    }
    // Site b has paid for its copies to c, site a for one copy to b.
    let held: Vec<u64> = sites.iter().map(|site| site.counters.snapshot().violations).collect();
    assert_eq!(held, [0, 0, 0]);
}

fn data_header(job: &Job, from: Identity, to: Identity) -> FrameHeader {
    data(job, from, to, 0)
}

#[tokio::test]
async fn a_copy_that_gets_no_further_is_reported() {
    let mut sites = start(&three());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let root = rank(0, 0);
    let mut sender = sites[0].member(&job, root).await;
    let mut two = sites[1].member(&job, rank(1, 2)).await;
    sender.send(many(job.id, root), &payload(&chain(), 0, 5, b"data")).await.unwrap();
    gets(&mut two, root, 5, b"data").await;
    let mut reports = Vec::new();
    for _ in 0..2 {
        let Frame { header, payload } = news(&mut sender).await;
        assert_eq!((header.kind, header.to, header.route), (FrameKind::Astray, root, 70));
        reports.push((header.from, header.sequence, Astray::decode(&payload).unwrap()));
    }
    reports.sort_by_key(|(receiver, ..)| receiver.site);
    let absent = |site| Astray { at: SiteId(site), towards: SiteId(site), why: Why::Absent };
    assert_eq!(reports, [(rank(1, 3), 6, absent(1)), (rank(2, 4), 7, absent(2))]);
    // Site c is gone: b has no way there.
    sites[2].stop();
    let report = within("a report", async {
        loop {
            sender.send(many(job.id, root), &payload(&chain(), 0, 8, b"data")).await.unwrap();
            let Frame { header, payload } = receive(&mut sender).await;
            match Astray::decode(&payload) {
                Ok(astray) if header.kind == FrameKind::Astray && astray.why == Why::Away => {
                    break (header.from, astray);
                }
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await;
    assert_eq!(report, (rank(2, 4), Astray { at: SiteId(1), towards: SiteId(2), why: Why::Away }));
}

#[tokio::test]
async fn a_member_that_breaks_a_rule_loses_its_own_connection() {
    let sites = start(&three());
    let job = open(&sites[0], "a", 1, ROSTER).await;
    let root = rank(0, 0);
    let agent = Slot::agent(NodeId(0)).unwrap();
    let to = |tree: Vec<(u16, Tree)>| Tree { receivers: vec![], branches: below(tree) };
    let good = payload(&chain(), 0, 0, b"data");
    let frame = |tree: &Tree| (many(job.id, root), payload(tree, 0, 0, b"data"));
    let cases = [
        ("no rank of that site", frame(&to(vec![(1, leaf(&[slot(9)]))]))),
        ("no rank of that site", frame(&to(vec![(1, leaf(&[slot(4)]))]))),
        ("no rank of that site", frame(&to(vec![(1, leaf(&[agent]))]))),
        ("no rank of that site", frame(&to(vec![(1, leaf(&[Slot::LAUNCHER]))]))),
        ("no rank of that site", frame(&to(vec![(9, leaf(&[slot(2)]))]))),
        ("truncated", (many(job.id, root), good[..7].to_vec())),
        ("without receivers", (many(job.id, root), vec![0, 0, 1])),
        ("receiver at the root's own site", (many(job.id, root), [&[1, 0][..], &[0; 8]].concat())),
        ("but this connection is", (many(job.id, rank(0, 1)), good.clone())),
        ("but this connection is", (many(JobId(2), root), good.clone())),
        ("not for the gateway", (FrameHeader { to: rank(1, 2), ..many(job.id, root) }, good.clone())),
        ("only gateways mark", (FrameHeader { relayed: true, ..data_header(&job, root, rank(1, 2)) }, vec![1])),
        ("only gateways report", (FrameHeader { kind: FrameKind::Astray, ..many(job.id, root) }, vec![0; 5])),
    ];
    let count = cases.len() as u64;
    let (innocent, other) = (rank(0, 1), rank(1, 3));
    let mut ends = (sites[0].member(&job, innocent).await, sites[1].member(&job, other).await);
    for (expected, (header, payload)) in cases {
        let mut bad = sites[0].member(&job, root).await;
        bad.send(header, &payload).await.unwrap();
        let goodbye = within("a goodbye", async {
            loop {
                match bad.receive().await {
                    Ok(Some(frame)) if frame.header.kind == FrameKind::Pong => {}
                    other => break format!("{other:?}"),
                }
            }
        })
        .await;
        assert!(goodbye.contains(expected), "{expected}: {goodbye}");
        ends.0.send(data_header(&job, innocent, other), b"goes on").await.unwrap();
        assert_eq!(news(&mut ends.1).await.payload, b"goes on");
    }
    let violations = sites.iter().map(|site| site.counters.snapshot().violations).collect::<Vec<_>>();
    assert_eq!(violations, [count, 0, 0]);
    // An agent is a member, but may send only to one receiver at a time.
    let from = Identity { site: SiteId(0), slot: agent };
    let mut bad = sites[0].member(&job, from).await;
    bad.send(many(job.id, from), &good).await.unwrap();
    let goodbye = within("a goodbye", bad.receive()).await;
    assert!(format!("{goodbye:?}").contains("no rank of that site"), "{goodbye:?}");
}

/// Site m is played: rank 0 there, ranks 1 and 2 at a, 3 at b, 4 at c.
const PLAYED: &str = "m:x*1;a:n1*2;b:n1*1;c:n1*1";
const MEMORY: u64 = 16 << 20;

struct Play {
    sites: Vec<Running>,
    /// To a, b and c.
    links: Vec<Link>,
    job: Job,
}

/// Real sites a, b and c, with a job of the played site m.
async fn play() -> (Play, Key) {
    let key = Key::new();
    let played = Some(("m", key.fingerprint()));
    let (names, memory) = (vec!["m", "a", "b", "c"], "16MiB");
    let plan = Plan { names, memory, absent: vec!["m"], hidden: vec!["m"], played, ..Plan::default() };
    let sites = start(&plan);
    let (job, secret) = (JobId(9), Secret::new([3; 32]));
    let mut links = Vec::new();
    for site in &sites[1..] {
        // The real sites' trunks are up when a user can ask for the others.
        for other in ["a", "b", "c"].into_iter().filter(|other| *other != site.gateway.site) {
            within("trunk", async { site.client().await.probe(other).await }).await.unwrap();
        }
        links.push(Link::dial(site, &key, "m", 1));
    }
    let open = |part| {
        let roster = PLAYED.parse().unwrap();
        Control::Job(JobMessage::Open { job, secret: secret.clone(), roster, home: "m".into(), part })
    };
    for link in &mut links {
        assert!(link.tell(open(Part::Lead)));
    }
    for link in &mut links {
        while !matches!(link.hear_control(), Some(Control::Job(JobMessage::Opened { .. }))) {}
        assert!(link.tell(JobMessage::Here { job, whole: true }));
    }
    let launcher = sites[1].client().await;
    let job = Job {
        id: job,
        secret,
        launcher: Launcher::new(launcher),
        identity: Identity { site: SiteId(0), slot: Slot::LAUNCHER },
    };
    (Play { sites, links, job }, key)
}

/// From b, by way of a, to m and c.
fn relayed() -> Tree {
    let at_a = Tree { receivers: vec![slot(1)], branches: below(vec![(0, leaf(&[slot(0)])), (3, leaf(&[slot(4)]))]) };
    Tree { receivers: vec![], branches: below(vec![(1, at_a)]) }
}

#[tokio::test]
async fn a_site_that_does_not_read_costs_the_relaying_gateway_no_more_than_its_bound() {
    let (Play { sites, links, job }, _) = play().await;
    let root = rank(2, 3);
    let (mut at_a, mut at_c) = (sites[1].member(&job, rank(1, 1)).await, sites[3].member(&job, rank(3, 4)).await);
    // The played site sends signs of life, and reads nothing.
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let lives = std::thread::spawn(move || {
        let mut links = links;
        let pong = FrameHeader::plain(FrameKind::Pong, JobId::default(), GATEWAY, GATEWAY).encode();
        while !stopped.load(Ordering::Relaxed) {
            links.iter_mut().for_each(|link| assert!(link.write_only(&pong), "a link is closed"));
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let mut sender = sites[2].member(&job, root).await;
    // Four times the memory of the relaying gateway. The receivers that read get one window at a time.
    let (frames, window, data) = ((4 * MEMORY / 16_000) as u32, 32, vec![5; 16_000]);
    for begin in (0..frames).step_by(window) {
        let burst = begin..(begin + window as u32).min(frames);
        for number in burst.clone() {
            sender.send(many(job.id, root), &payload(&relayed(), 2, 3 * number, &data)).await.unwrap();
        }
        for number in burst {
            gets(&mut at_a, root, 3 * number, &data).await;
            gets(&mut at_c, root, 3 * number + 2, &data).await;
        }
    }
    // A copy without memory for it is reported, for each receiver beyond.
    let Frame { header, payload } = news(&mut sender).await;
    let astray = Astray { at: SiteId(1), towards: SiteId(0), why: Why::Refused };
    assert_eq!((header.kind, header.from, Astray::decode(&payload).unwrap()), (FrameKind::Astray, rank(0, 0), astray));
    for site in &sites[1..] {
        let counters = site.counters.snapshot();
        assert!(counters.high_water < MEMORY && counters.violations == 0, "{counters:?}");
    }
    stop.store(true, Ordering::Relaxed);
    lives.join().unwrap();
}

#[tokio::test]
async fn receivers_hear_of_losses_that_nobody_can_report_to_the_root() {
    let (Play { mut sites, mut links, job }, _) = play().await;
    let root = rank(2, 3);
    let mut receiver = sites[1].member(&job, rank(1, 1)).await;
    sites[2].stop();
    let passage = |frame: &Frame| (frame.header.from, wire::Passage::decode(&frame.payload).unwrap());
    let site_b = Identity { site: SiteId(2), slot: Slot::GATEWAY };
    loop {
        let frame = receive(&mut receiver).await;
        assert_eq!(frame.header.kind, FrameKind::Passage);
        if matches!(passage(&frame), (site, wire::Passage::Away(_)) if site == site_b) {
            break;
        }
    }
    // Site m relays a frame that had left b: for rank 1, who is here, and rank 2, who is not.
    let tree = Tree { receivers: vec![], branches: below(vec![(1, leaf(&[slot(1), slot(2)]))]) };
    let to = Identity { site: SiteId(1), slot: Slot::GATEWAY };
    let bytes = tree.template(SiteId(2)).unwrap().fill(5..)[6..].to_vec();
    let header = FrameHeader { to, ..many(JobId(9), root) };
    assert!(links[0].write(&header.with_payload(&bytes).unwrap()));
    let frame = receive(&mut receiver).await;
    assert_eq!(frame.header.kind, FrameKind::Passage);
    assert_eq!(passage(&frame), (site_b, wire::Passage::Broken));
    gets(&mut receiver, root, 5, &[]).await;
}

#[tokio::test]
async fn a_relaying_site_that_breaks_a_rule_loses_its_link() {
    let forged = |tree: &Tree, root: Identity, to: u16| {
        let header = FrameHeader { to: Identity { site: SiteId(to), slot: Slot::GATEWAY }, ..many(JobId(9), root) };
        let bytes = tree.template(root.site).unwrap().fill(0..).to_vec();
        (header, bytes)
    };
    let at_a = |tree: Tree| {
        // As it would arrive at a.
        let rooted = Tree { receivers: vec![], branches: vec![(SiteId(1), tree)] };
        let (header, bytes) = forged(&rooted, rank(2, 3), 1);
        (header, bytes[6..].to_vec())
    };
    let of_b = |tree: Tree, from: Identity| {
        let (header, bytes) = at_a(tree);
        (FrameHeader { from, ..header }, bytes)
    };
    let one = || leaf(&[slot(1)]);
    let agent = Identity { site: SiteId(2), slot: Slot::agent(NodeId(0)).unwrap() };
    let report = |from, at, to| {
        let header = FrameHeader { kind: FrameKind::Astray, to, ..many(JobId(9), from) };
        (header, Astray { at: SiteId(at), towards: SiteId(3), why: Why::Away }.encode().to_vec())
    };
    let cases = [
        ("which is no rank of that site", of_b(one(), agent)),
        ("which is no rank of that site", of_b(one(), rank(2, 0))),
        ("of this site came from site m", of_b(one(), rank(1, 2))),
        ("which is no rank of that site", at_a(leaf(&[slot(3)]))),
        ("which is no rank of that site", at_a(Tree { branches: below(vec![(3, leaf(&[slot(9)]))]), ..one() })),
        ("not for the gateway of site a", {
            let (header, bytes) = at_a(one());
            (FrameHeader { to: rank(1, 1), ..header }, bytes)
        }),
        ("site #1 twice", {
            let (header, _) = at_a(one());
            (header, [&[0, 1, 1, 0, 10, 0, 1, 0][..], &[0; 8]].concat())
        }),
        ("only gateways mark", {
            let (header, _) = at_a(one());
            (FrameHeader { kind: FrameKind::Data, relayed: true, to: rank(1, 1), ..header }, vec![])
        }),
        ("from site #2 came from site m", report(rank(3, 4), 2, rank(1, 1))),
        ("is about", report(rank(1, 2), 0, rank(1, 1))),
        ("for", report(rank(3, 4), 0, rank(2, 3))),
    ];
    let (Play { sites, mut links, job }, key) = play().await;
    let (innocent, other) = (rank(2, 3), rank(3, 4));
    let mut ends = (sites[2].member(&job, innocent).await, sites[3].member(&job, other).await);
    let mut receiver = sites[1].member(&job, rank(1, 1)).await;
    // A frame that site m may relay arrives, although it may be forged.
    let (header, bytes) = at_a(one());
    assert!(links[0].write(&FrameHeader { length: bytes.len() as u32, ..header }.encode()) && links[0].write(&bytes));
    gets(&mut receiver, rank(2, 3), 0, &[]).await;
    for (expected, (header, bytes)) in cases {
        let frame = header.with_payload(&bytes).unwrap();
        assert!(links[0].write(&frame));
        let words = links[0].last_words();
        assert!(words.contains(expected), "{expected}: {words}");
        ends.0.send(data_header(&job, innocent, other), b"goes on").await.unwrap();
        assert_eq!(news(&mut ends.1).await.payload, b"goes on");
        links[0] = Link::dial(&sites[1], &key, "m", 1);
    }
    assert_eq!(sites[2].counters.snapshot().violations + sites[3].counters.snapshot().violations, 0);
}
