//! Two ends in virtual time.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::{Arrival, ChannelError, Inbound, Outbound, Route};

const ONE: Route = Route(0);

#[test]
fn what_breaks_the_rules_is_refused() {
    let mut inn = Inbound::<()>::new(100);
    assert_eq!(inn.received(0, 10), Ok(Arrival::Next));
    assert_eq!(inn.received(0, 10), Ok(Arrival::Again));
    assert_eq!(inn.received(200, 10), Err(ChannelError::OutOfSequence { got: 200, expected: 1 }));
    assert_eq!(inn.received(1, 60), Ok(Arrival::Next));
    assert!(matches!(inn.received(2, 60), Err(ChannelError::WindowExceeded { bytes: 130, .. })));
    let mut out = Outbound::new(100);
    out.sent(ONE, 10, ());
    assert_eq!(out.acknowledged(2), Err(ChannelError::AckOfUnsent { ack: 2, sent: 1 }));
    out.acknowledged(1).unwrap();
    out.acknowledged(0).unwrap();
    assert_eq!(out.in_flight(), 0);
}

#[test]
fn early_frames_count_until_they_are_acknowledged() {
    let mut inn = Inbound::new(100);
    for sequence in 1..=10 {
        assert_eq!(inn.received(sequence, 10), Ok(Arrival::Early));
        inn.keep(sequence, 10, sequence);
    }
    assert!(!inn.ack_is_due());
    // An acknowledgement without new frames frees no room.
    assert_eq!(inn.acknowledge(), 0);
    assert!(matches!(inn.received(11, 10), Err(ChannelError::WindowExceeded { bytes: 110, .. })));
    assert_eq!(inn.received(5, 10), Ok(Arrival::Again));
}

#[test]
fn numbers_wrap() {
    let mut out = Outbound::starting_at(100, u32::MAX);
    let mut inn = Inbound::starting_at(100, u32::MAX);
    let numbers: Vec<u32> = (0..3).map(|n| out.sent(ONE, 20, n)).collect();
    assert_eq!(inn.received(numbers[2], 20), Ok(Arrival::Early));
    inn.keep(numbers[2], 20, 2);
    assert_eq!(inn.received(numbers[0], 20), Ok(Arrival::Next));
    assert_eq!(inn.next_early(), None);
    assert_eq!(inn.received(numbers[1], 20), Ok(Arrival::Next));
    assert_eq!(inn.next_early(), Some(2));
    out.acknowledged(inn.acknowledge()).unwrap();
    assert_eq!((out.in_flight(), out.next()), (0, 2));
}

#[test]
fn what_was_lost_goes_again_first_and_only_once() {
    let mut out = Outbound::new(1000);
    for n in 0..4 {
        out.sent(Route(n % 2), 10, n);
    }
    assert!(out.lost(Route(1)));
    assert!(!out.lost(Route(1)), "lost already");
    assert!(!out.may_send(1), "retransmissions go first");
    assert_eq!([out.resend(Route(0)).copied(), out.resend(Route(0)).copied()], [Some(1), Some(3)]);
    assert_eq!(out.resend(Route(0)), None);
    assert!(out.lost(Route(0)));
    out.acknowledged(2).unwrap();
    assert_eq!(out.resend(Route(1)), Some(&2), "acknowledged frames are not retransmitted");
}

#[test]
fn an_answer_tells_what_was_lost_before_the_question() {
    for start in [0, u32::MAX - 2] {
        let mut out = Outbound::starting_at(1000, start);
        let number = |n: u32| start.wrapping_add(n);
        for n in 0..6 {
            out.sent(Route(n % 2), 10, n);
        }
        assert_eq!(out.routes_in_flight(), 0b11);
        let asked = out.sends();
        out.sent(Route(0), 10, 6);
        // Everything before frame 2 has arrived. On route 0, frames 2 and 4 were sent before the request, frame 6 after
        // it.
        assert_eq!(out.answered(Route(0), asked, number(2)), None);
        assert_eq!([out.resend(Route(1)).copied(), out.resend(Route(1)).copied()], [Some(2), Some(4)]);
        assert_eq!(out.resend(Route(1)), None);
        assert_eq!(out.answered(Route(1), asked, number(2)), None);
        assert!(!out.has_missing(), "they went again after the request");
    }
}

#[test]
fn what_may_have_arrived_early_is_not_sent_again() {
    for is_lost in [false, true] {
        let mut out = Outbound::new(1000);
        for n in 0..6 {
            out.sent(Route(n % 2), 10, n);
        }
        let asked = out.sends();
        // Frame 1 is late on route 1. On route 0, frames 2 and 4 have arrived or are lost.
        assert_eq!(out.answered(Route(0), asked, 1), Some(Route(1)));
        assert_eq!(out.answered(Route(0), asked, 1), Some(Route(1)));
        assert!(!out.has_missing());
        out.acknowledged(if is_lost { 2 } else { 3 }).unwrap();
        let again: Vec<u8> = std::iter::from_fn(|| out.resend(Route(1)).copied()).collect();
        assert_eq!(again, if is_lost { vec![2, 4] } else { vec![] });
        // Frames that have arrived but are not acknowledged yet are not lost.
        assert_eq!(out.answered(Route(1), out.sends(), 6), None);
        assert!(!out.has_missing());
    }
}

#[test]
fn what_was_lost_behind_a_route_goes_again() {
    let mut out = Outbound::new(1000);
    for n in 0..6u64 {
        out.sent_through(Some(Route(n as u8 % 2)), n % 3, 10, n);
    }
    assert_eq!(out.answered(Route(1), 0, 0), None, "nothing was sent before the request");
    assert_eq!(out.answered(Route(1), out.sends(), 0), Some(Route(0)), "frame 3 went through nothing else");
    assert!(!out.has_missing(), "frame 0 may be late");
    assert_eq!(out.answered(Route(0), out.sends(), 0), None);
    assert_eq!(out.resend(Route(0)), Some(&0));
    out.acknowledged(1).unwrap();
    assert_eq!(out.answered(Route(1), out.sends(), 3), None);
    assert_eq!(out.resend(Route(0)), Some(&3));
    assert_eq!(out.answered(Route(1), out.sends(), 4), None);
    assert!(!out.has_missing(), "frames 1, 2, 4 and 5 may still be on the way");
    assert!(out.lost_through(|route, through| route == Route(0) && through & 2 != 0));
    assert_eq!(out.resend(Route(1)), Some(&2));
    assert_eq!(out.resend(Route(1)), None);
    assert!(!out.lost_through(|_, through| through & 2 != 0 && through & 1 != 0));
    assert!(out.lost_through(|_, _| true), "frames 1, 4 and 5; 2 went again");
    let again: Vec<u64> = std::iter::from_fn(|| out.resend(ONE).copied()).collect();
    assert_eq!(again, [1, 4, 5]);
    // A frame that never had a route.
    out.sent_through(None, 4, 10, 6);
    assert!(out.has_missing() && !out.may_send(1) && !out.lost_through(|_, _| true));
    assert_eq!(out.resend(ONE), Some(&6));
    out.acknowledged(7).unwrap();
    assert_eq!((out.in_flight(), out.has_missing()), (0, false));
}

/// Small, fast, seeded: splitmix64.
struct SplitMix64(u64);

impl SplitMix64 {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// The frames in flight on a route: in order, each with its time of arrival.
struct Flight {
    up: bool,
    forward: VecDeque<(u64, u32, u32)>,
    back: VecDeque<(u64, u32)>,
}

/// A channel over several routes that break, lose the frames on them and come back. For any seed, everything must
/// arrive once, in order and within the window.
fn storm(seed: u64) {
    let mut random = SplitMix64(seed);
    let window = 64 + random.below(5000) as u32;
    let sizes: Vec<u32> = (0..1 + random.below(200)).map(|_| 1 + random.below(2000) as u32).collect();
    let routes = 1 + random.below(4) as usize;
    let breaks = random.below(60);
    let start = if random.below(4) == 0 { u32::MAX - random.below(50) as u32 } else { 0 };
    let (mut out, mut inn) = (Outbound::starting_at(window, start), Inbound::starting_at(window, start));
    let mut flights: Vec<Flight> =
        (0..routes).map(|_| Flight { up: true, forward: VecDeque::new(), back: VecDeque::new() }).collect();
    let (mut now, mut next) = (0u64, 0usize);
    let mut arrived: Vec<(u32, u32)> = Vec::new();
    while arrived.len() < sizes.len() {
        now += 1;
        assert!(now < 1_000_000, "seed {seed}: stalled, {} of {} arrived", arrived.len(), sizes.len());
        // A route breaks: the frames on it are lost, and both ends are notified. Or a route comes back.
        let at = random.below(routes as u64) as usize;
        if random.below(1000) < breaks {
            let flight = &mut flights[at];
            flight.up = !flight.up;
            flight.forward.clear();
            flight.back.clear();
            out.lost(Route(at as u8));
            inn.ack_lost();
        } else if !flights[at].up && random.below(30) == 0 {
            flights[at].up = true;
        }
        let due = now + 1 + random.below(50);
        if let Some(at) = Some(random.below(routes as u64) as usize).filter(|at| flights[*at].up) {
            let route = Route(at as u8);
            let mut put = |sequence, size| {
                let last = flights[at].forward.back().map_or(0, |(at, _, _)| *at);
                flights[at].forward.push_back((due.max(last), sequence, size));
            };
            if let Some((sequence, size)) = out.resend(route) {
                put(*sequence, *size);
            } else if next < sizes.len() && out.may_send(sizes[next]) {
                let sequence = out.next();
                assert_eq!(out.sent(route, sizes[next], (sequence, sizes[next])), sequence);
                put(sequence, sizes[next]);
                next += 1;
            }
            if inn.ack_is_due() {
                let last = flights[at].back.back().map_or(0, |(at, _)| *at);
                flights[at].back.push_back((due.max(last), inn.acknowledge()));
            }
        }
        for flight in &mut flights {
            while flight.forward.front().is_some_and(|(at, _, _)| *at <= now) {
                let (_, sequence, size) = flight.forward.pop_front().unwrap();
                match inn.received(sequence, size).unwrap() {
                    Arrival::Next => {
                        arrived.push((sequence, size));
                        while let Some(early) = inn.next_early() {
                            arrived.push(early);
                        }
                    }
                    Arrival::Early => inn.keep(sequence, size, (sequence, size)),
                    Arrival::Again => {}
                }
            }
            while flight.back.front().is_some_and(|(at, _)| *at <= now) {
                out.acknowledged(flight.back.pop_front().unwrap().1).unwrap();
            }
        }
        let lone = sizes.iter().copied().max().unwrap_or(0);
        assert!(out.in_flight() <= u64::from(window.max(window / 4 + lone)), "seed {seed}: beyond the window");
    }
    let expected: Vec<(u32, u32)> =
        sizes.iter().enumerate().map(|(n, size)| (start.wrapping_add(n as u32), *size)).collect();
    assert_eq!(arrived, expected, "seed {seed}");
}

#[test]
fn a_long_frame_that_is_acknowledged_leaves_room_for_those_around_it() {
    let mut inn = Inbound::new(191);
    assert_eq!(inn.received(2, 1), Ok(Arrival::Early));
    inn.keep(2, 1, 1);
    assert_eq!(inn.received(0, 743), Ok(Arrival::Next));
    assert_eq!((inn.next_early(), inn.acknowledge()), (None, 1));
    assert_eq!(inn.received(1, 191), Ok(Arrival::Next));
}

#[test]
fn storms_of_five_thousand_seeds() {
    (0..5000).for_each(storm);
}

proptest! {
    #[test]
    fn any_storm(seed: u64) {
        storm(seed);
    }

    #[test]
    fn any_frames_are_taken_or_refused(
        window in 1u32..10_000, frames in prop::collection::vec((0u32..300, 1u32..3000), 1..300),
    ) {
        let mut inn = Inbound::new(window);
        let mut held = 0u64;
        for (sequence, bytes) in frames {
            match inn.received(sequence, bytes) {
                Ok(Arrival::Early) => {
                    inn.keep(sequence, bytes, bytes);
                    held += u64::from(bytes);
                }
                Ok(Arrival::Next) => while let Some(bytes) = inn.next_early() { held -= u64::from(bytes) },
                Ok(Arrival::Again) => {}
                Err(_) => break,
            }
            prop_assert!(held <= u64::from(window) + 3000);
            if inn.ack_is_due() {
                inn.acknowledge();
            }
        }
    }
}
