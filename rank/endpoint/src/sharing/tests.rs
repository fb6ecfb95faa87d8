//! A root and two receivers at the level of the protocol. The test does the work of a gateway link by hand.

use std::net::SocketAddr;

use memory::Regions;
use types::{Address, Slot};

use super::*;
use crate::config::EndpointLimits;
use crate::link::Sink;
use crate::protocol::Protocol;

fn address(site: u16, rank: u32) -> Address {
    let identity = Identity { site: SiteId(site), slot: Slot(rank << 8) };
    Address { socket: SocketAddr::from(([10, 0, 0, 1], 7)), job: 1, identity }
}

/// An end that gives each peer this credit and has the same at each peer.
fn with_credit(credit: u64, site: u16) -> Protocol {
    Protocol::new(EndpointLimits::default(), credit, SiteId(site), Arc::new(Regions::default()))
}

/// An end that accepts no share before it awaits it.
fn protocol(site: u16) -> Protocol {
    with_credit(0, site)
}

fn user(context: usize) -> UserData {
    UserData { context, flags: 0 }
}

/// A share from site 0 to sites 1 and 2.
fn op(to: &[PeerId], length: usize) -> ShareOp {
    let edges = vec![(SiteId(0), SiteId(1)), (SiteId(1), SiteId(2))];
    let trees = vec![member::ShareTree { edges, weight: 1.0 }];
    ShareOp {
        key: 5,
        to: to.to_vec(),
        buffer: Buffer::owned((0..length).map(|at| at as u8).collect()),
        trees,
        user: user(1),
    }
}

/// Takes a piece of a share.
fn take(end: &mut Protocol, from: PeerId, offset: u64, total: u64, bytes: &[u8]) -> Result<(), Misbehaved> {
    let message = Message::Share { key: 5, offset, total };
    let mut place = end.begin(from, message, bytes.len() as u32)?;
    end.put(&mut place, bytes);
    end.end(place);
    Ok(())
}

#[test]
fn a_share_begins_when_all_are_ready_and_arrives_piece_by_piece() {
    let (mut root, mut receiver) = (protocol(0), protocol(1));
    let to = [root.intern(address(1, 1)), root.intern(address(2, 2))];
    let from = receiver.intern(address(0, 0));
    // One receiver is ready before the root begins, and one becomes ready later.
    receiver.receive_share(from, 5, Buffer::owned(vec![0; 10]), user(2)).unwrap();
    let (_, item) = receiver.outbox.pop_front().unwrap();
    assert_eq!(item.head, Some(Message::Ready { key: 5, bytes: 10 }));
    root.begin(to[0], item.head.unwrap(), 0).unwrap();
    root.share(op(&to, 10)).unwrap();
    assert!(root.sharing.begin.is_empty() && !root.is_idle());
    root.begin(to[1], Message::Ready { key: 5, bytes: 10 }, 0).unwrap();
    let (number, begun) = root.sharing.begin.pop().unwrap();
    assert_eq!(begun.to, to);
    // One receiver gets the rest alone: the buffer is in use until both ways are done.
    root.alone(number);
    root.sent(crate::link::Sent::Share(number));
    assert!(root.sharing.completions.is_empty());
    root.sent(crate::link::Sent::Share(number));
    let done = root.sharing.completions.pop_front().unwrap();
    assert_eq!((done.kind, done.user, done.length, done.result), (OperationKind::Share, user(1), 10, Ok(())));
    assert!(root.is_idle());

    take(&mut receiver, from, 0, 10, &[0, 1, 2, 3]).unwrap();
    assert_eq!(receiver.sharing.arrived(user(2)), Some(4));
    assert!(take(&mut receiver, from, 5, 10, &[5]).is_err(), "out of order");
    assert!(take(&mut receiver, from, 4, 11, &[4]).is_err(), "another length");
    assert!(take(&mut receiver, from, 4, 10, &[4; 7]).is_err(), "beyond the end");
    take(&mut receiver, from, 4, 10, &[4, 5, 6, 7, 8, 9]).unwrap();
    assert_eq!(receiver.sharing.arrived(user(2)), None);
    let done = receiver.sharing.completions.pop_front().unwrap();
    assert_eq!((done.result, done.from, done.length), (Ok(()), Some(from), 10));
    assert_eq!(done.buffer.unwrap().to_vec(0..10), (0..10).collect::<Vec<u8>>());
    let late = take(&mut receiver, from, 0, 10, &[1]);
    assert_eq!(late, Err(Misbehaved::Protocol("a share that nobody awaits and that exceeds its credit")));
}

#[test]
fn a_share_begins_at_once_where_receivers_have_room() {
    const CREDIT: u64 = 3 * (ENVELOPE + 10);
    let (mut root, mut receiver) = (with_credit(2 * CREDIT, 0), with_credit(CREDIT, 1));
    let to = [root.intern(address(1, 1)), root.intern(address(2, 2))];
    let from = receiver.intern(address(0, 0));
    let keyed = |key| ShareOp { key, ..op(&to, 10) };
    for key in [5, 6, 7] {
        root.share(keyed(key)).unwrap();
        assert_eq!(root.sharing.begin.pop().map(|(_, begun)| begun.to), Some(to.to_vec()));
    }
    // Until receivers are ready, only half of the credit and one share of each key may be in use.
    root.share(keyed(8)).unwrap();
    assert!(root.sharing.begin.is_empty());
    for peer in to {
        root.begin(peer, Message::Ready { key: 6, bytes: 10 }, 0).unwrap();
    }
    root.share(keyed(5)).unwrap();
    assert!(root.sharing.begin.is_empty());
    root.share(keyed(9)).unwrap();
    assert_eq!(root.sharing.begin.len(), 1);

    // The first share is awaited within its second piece, the second one when it is complete.
    take(&mut receiver, from, 0, 10, &[0, 1, 2]).unwrap();
    let mut place = receiver.begin(from, Message::Share { key: 5, offset: 3, total: 10 }, 7).unwrap();
    receiver.put(&mut place, &[3, 4]);
    assert!(!receiver.sharing.is_awaited());
    receiver.receive_share(from, 5, Buffer::owned(vec![0; 10]), user(2)).unwrap();
    assert!(receiver.sharing.is_awaited() && receiver.sharing.completions.is_empty());
    assert_eq!(receiver.receive_share(from, 5, Buffer::empty(), user(3)), Err(NotBegun::Again));
    receiver.put(&mut place, &[5, 6, 7, 8, 9]);
    receiver.end(place);
    let done = receiver.sharing.completions.pop_front().unwrap();
    assert_eq!((done.result, done.user, done.length), (Ok(()), user(2), 10));
    assert_eq!(done.buffer.unwrap().to_vec(0..10), (0..10).collect::<Vec<u8>>());
    take(&mut receiver, from, 0, 10, &[1; 10]).unwrap();
    assert!(receiver.sharing.completions.is_empty());
    receiver.receive_share(from, 5, Buffer::owned(vec![0; 4]), user(4)).unwrap();
    let done = receiver.sharing.completions.pop_front().unwrap();
    assert_eq!(done.result, Err(Failure::Truncated { total: 10, kept: 4 }));
    assert_eq!(done.buffer.unwrap().to_vec(0..4), [1; 4]);

    // A share is charged until it is awaited, and forgotten with its sender.
    for key in [11, 12, 13] {
        receiver
            .begin(from, Message::Share { key, offset: 0, total: 10 }, 10)
            .map(|place| receiver.end(place))
            .unwrap();
    }
    let more = |receiver: &mut Protocol| receiver.begin(from, Message::Share { key: 14, offset: 0, total: 0 }, 0);
    assert!(more(&mut receiver).is_err());
    receiver.receive_share(from, 12, Buffer::owned(vec![0; 10]), user(5)).unwrap();
    more(&mut receiver).unwrap();
    receiver.lost(from, Some("gone".into()));
    assert!(!receiver.sharing.is_awaited());
}

#[test]
fn an_empty_share_and_one_that_is_too_long_end_too() {
    let mut receiver = protocol(1);
    let from = receiver.intern(address(0, 0));
    receiver.receive_share(from, 5, Buffer::empty(), user(2)).unwrap();
    take(&mut receiver, from, 0, 0, &[]).unwrap();
    assert_eq!(receiver.sharing.completions.pop_front().unwrap().result, Ok(()));
    receiver.receive_share(from, 5, Buffer::owned(vec![0; 3]), user(2)).unwrap();
    assert_eq!(receiver.receive_share(from, 5, Buffer::empty(), user(3)), Err(NotBegun::Again));
    take(&mut receiver, from, 0, 8, &[1; 8]).unwrap();
    let done = receiver.sharing.completions.pop_front().unwrap();
    assert_eq!(done.result, Err(Failure::Truncated { total: 8, kept: 3 }));
    assert_eq!(done.buffer.unwrap().to_vec(0..3), [1; 3]);
}

#[test]
fn losses_fail_and_name_the_peer() {
    let names = |done: &Completion, address: Address| {
        assert!(matches!(&done.result, Err(Failure::PeerLost { address: lost, .. }) if *lost == address), "{done:?}");
    };
    let (mut root, mut receiver) = (protocol(0), protocol(1));
    let to = [root.intern(address(1, 1)), root.intern(address(2, 2))];
    root.share(op(&to, 10)).unwrap();
    root.begin(to[0], Message::Ready { key: 5, bytes: 10 }, 0).unwrap();
    // The other receiver is lost before it is ready. The first gets the share all the same.
    root.lost(to[1], Some("gone".into()));
    let (number, begun) = root.sharing.begin.pop().unwrap();
    assert_eq!(begun.to, [to[0]]);
    root.sent(crate::link::Sent::Share(number));
    names(&root.sharing.completions.pop_front().unwrap(), address(2, 2));
    // No receiver is left.
    root.lost(to[0], Some("gone".into()));
    root.share(op(&to, 10)).unwrap();
    names(&root.sharing.completions.pop_front().unwrap(), address(1, 1));

    let from = receiver.intern(address(0, 0));
    receiver.receive_share(from, 5, Buffer::owned(vec![0; 10]), user(2)).unwrap();
    take(&mut receiver, from, 0, 10, &[1; 4]).unwrap();
    receiver.lost(from, Some("gone".into()));
    names(&receiver.sharing.completions.pop_front().unwrap(), address(0, 0));
    receiver.receive_share(from, 6, Buffer::owned(vec![0; 10]), user(3)).unwrap();
    names(&receiver.sharing.completions.pop_front().unwrap(), address(0, 0));
}

#[test]
fn trees_that_do_not_lead_to_the_receivers_are_refused() {
    let mut root = protocol(0);
    let to = [root.intern(address(1, 1)), root.intern(address(2, 2))];
    let own = root.intern(address(0, 3));
    let with = |edges: &[(u16, u16)], to: &[PeerId]| {
        let edges = edges.iter().map(|(a, b)| (SiteId(*a), SiteId(*b))).collect();
        ShareOp { trees: vec![member::ShareTree { edges, weight: 1.0 }], ..op(to, 1) }
    };
    for (edges, to) in [
        (&[(0, 1)][..], &to[..]),
        (&[(1, 2), (0, 1)], &to),
        (&[(0, 1), (0, 2), (1, 2)], &to),
        (&[(0, 1), (0, 2)], &[own]),
        (&[(0, 1)], &[]),
        (&[(0, 1), (0, 2)], &[to[0], to[1], to[0]]),
    ] {
        assert!(matches!(root.share(with(edges, to)), Err(NotBegun::Tree(_))), "{edges:?}");
    }
    assert_eq!(root.share(with(&[(0, 1)], &[PeerId(9)])), Err(NotBegun::UnknownPeer));
    // The number of shares for which a peer can be ready is limited.
    let ready = || Message::Ready { key: 1, bytes: 0 };
    for _ in 0..MOST_READY {
        root.begin(to[0], ready(), 0).unwrap();
    }
    assert!(root.begin(to[0], ready(), 0).is_err());
}
