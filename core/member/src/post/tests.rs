use super::*;
use proptest::prelude::*;
use types::{NodeId, SiteId, Slot};

const GATEWAY: Route = Route(0);
const OTHER: Route = Route(1);
const LAUNCHER: Identity = Identity { site: SiteId(0), slot: Slot::LAUNCHER };

fn agent() -> Identity {
    Identity { site: SiteId(1), slot: Slot::agent(NodeId(0)).unwrap() }
}

fn carry(from: &mut Post, to: &mut Post) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    while let Some((route, header, payload)) = from.next_frame(0) {
        got.extend(to.take::<Vec<u8>>(route, &header, &payload, 0).unwrap());
    }
    got
}

/// Passes on a gateway's notice about a correspondent.
fn notice(post: &mut Post, kind: FrameKind, about: Identity, payload: &[u8]) {
    let header = FrameHeader::plain(kind, JobId(1), about, about);
    assert_eq!(post.take::<()>(GATEWAY, &header, payload, 0), Ok(Vec::new()));
}

fn pair() -> (Post, Post) {
    let (mut a, mut b) = (Post::new(JobId(1), agent(), 1000), Post::new(JobId(1), LAUNCHER, 1000));
    a.route_open(GATEWAY);
    b.route_open(GATEWAY);
    (a, b)
}

#[test]
fn a_sender_stops_when_the_receiver_holds() {
    let (mut a, mut b) = pair();
    let mut sent = 0u64;
    for _ in 0..1000 {
        if a.has_room(LAUNCHER) {
            a.send(LAUNCHER, &vec![7u8; 900]).unwrap();
            sent += 900;
        }
        for message in carry(&mut a, &mut b) {
            b.hold(agent(), message.len() as u64);
        }
        carry(&mut b, &mut a);
    }
    assert!(sent < u64::from(WINDOW), "{sent} bytes sent without an end");
    assert!(!a.has_room(LAUNCHER));
    b.release(agent(), u64::MAX);
    carry(&mut b, &mut a);
    assert!(a.has_room(LAUNCHER));
}

#[test]
fn garbage_is_refused() {
    let (mut a, mut b) = pair();
    a.send(LAUNCHER, &vec![1u8; 5]).unwrap();
    let (_, header, mut payload) = a.next_frame(0).unwrap();
    payload[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let refused = b.take::<Vec<u8>>(GATEWAY, &header, &payload, 0);
    assert!(matches!(refused, Err(PostError::TooLong { .. })));
    let unknown = FrameHeader::plain(FrameKind::Passage, JobId(1), agent(), LAUNCHER);
    assert!(matches!(b.take::<Vec<u8>>(GATEWAY, &unknown, &[9], 0), Err(PostError::Wire { .. })));
    let beyond = FrameHeader { sequence: WINDOW * 2, ..header };
    assert!(matches!(b.take::<Vec<u8>>(GATEWAY, &beyond, &[], 0), Err(PostError::Channel { .. })));
}

#[test]
fn another_gateway_takes_over() {
    let (mut a, mut b) = pair();
    a.route_open(OTHER);
    b.route_open(OTHER);
    let sent: Vec<Vec<u8>> = (0..3).map(|n| vec![n; 2500]).collect();
    let mut got = Vec::new();
    a.send(LAUNCHER, &sent[0]).unwrap();
    got.extend(carry(&mut a, &mut b));
    a.send(LAUNCHER, &sent[1]).unwrap();
    // The gateway dies with the frames that it has in both directions.
    b.send(agent(), &vec![9u8; 10]).unwrap();
    while a.next_frame(0).is_some() {}
    while b.next_frame(0).is_some() {}
    a.route_lost(GATEWAY);
    got.extend(carry(&mut a, &mut b));
    // b has not noticed, but is requested to retransmit; its frames through the same gateway do not arrive.
    assert!(b.next_frame(0).is_some_and(|(route, _, _)| route == GATEWAY));
    while b.next_frame(0).is_some() {}
    notice(&mut b, FrameKind::Undeliverable, agent(), b"");
    let back = std::iter::from_fn(|| b.next_frame(0));
    let back: Vec<_> = back.collect();
    assert!(back.iter().all(|(route, _, _)| *route == OTHER));
    let heard: Vec<Vec<u8>> = back
        .iter()
        .flat_map(|(route, header, payload)| a.take::<Vec<u8>>(*route, header, payload, 0).unwrap())
        .collect();
    assert_eq!(heard, [vec![9u8; 10]]);
    a.send(LAUNCHER, &sent[2]).unwrap();
    got.extend(carry(&mut a, &mut b));
    assert_eq!(got, sent);
}

#[test]
fn what_a_broken_way_took_arrives_once() {
    let (mut a, mut b) = pair();
    let sent: Vec<Vec<u8>> = (0..40).map(|n| vec![n; 2500]).collect();
    let mut got = Vec::new();
    for (n, message) in sent.iter().enumerate() {
        a.send(LAUNCHER, message).unwrap();
        match n % 4 {
            // Frames that are sent and never arrive.
            1 => {
                while a.next_frame(0).is_some() {}
                notice(&mut a, FrameKind::Passage, LAUNCHER, &Passage::Away("a blackout".into()).encode());
                notice(&mut b, FrameKind::Passage, agent(), &Passage::Away("a blackout".into()).encode());
                assert!(a.next_frame(0).is_none() && b.next_frame(0).is_none());
            }
            3 => {
                notice(&mut a, FrameKind::Passage, LAUNCHER, &Passage::Open.encode());
                notice(&mut b, FrameKind::Passage, agent(), &Passage::Open.encode());
                // Frames that arrive and are retransmitted nevertheless.
                got.extend(carry(&mut a, &mut b));
                notice(&mut a, FrameKind::Passage, LAUNCHER, &Passage::Broken.encode());
                notice(&mut b, FrameKind::Passage, agent(), &Passage::Broken.encode());
                got.extend(carry(&mut a, &mut b));
                carry(&mut b, &mut a);
            }
            _ => got.extend(carry(&mut a, &mut b)),
        }
    }
    assert_eq!(got, sent);
    assert_eq!(a.backlog(LAUNCHER), 0, "acknowledged, although it was sent when the route was broken");
}

proptest! {
    #[test]
    fn messages_arrive_whole_and_in_order(sizes in prop::collection::vec(0usize..60_000, 1..12)) {
        let (mut a, mut b) = pair();
        let sent: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(n, size)| vec![n as u8; *size]).collect();
        for message in &sent {
            a.send(LAUNCHER, message).unwrap();
        }
        let mut got = Vec::new();
        for _ in 0..1000 {
            got.extend(carry(&mut a, &mut b));
            carry(&mut b, &mut a);
        }
        prop_assert_eq!(got, sent);
    }
}
