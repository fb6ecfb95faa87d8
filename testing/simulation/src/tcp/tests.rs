use super::{Receiver, Segment, Sender, TcpSettings};
use crate::random::Random;
use crate::time::Time;

const MSS: u64 = 1460;

fn at(seconds: f64) -> Time {
    Time::from_seconds(seconds)
}

fn all(sender: &mut Sender, now: Time) -> Vec<u64> {
    std::iter::from_fn(|| sender.next_segment(now)).map(|segment| segment.start / MSS).collect()
}

/// A sender with 100 segments to send, which has sent its first ten at time 0.
fn started() -> Sender {
    let mut sender = Sender::new(TcpSettings { window_bytes: 1 << 20, ..TcpSettings::default() });
    sender.write(100 * MSS);
    assert_eq!(all(&mut sender, Time::ZERO), (0..10).collect::<Vec<_>>());
    sender
}

#[test]
fn slow_start_sends_two_segments_for_each_acknowledged() {
    let mut sender = started();
    sender.acknowledged(MSS, Time::ZERO, at(0.1));
    assert_eq!(all(&mut sender, at(0.1)), [10, 11]);
    sender.acknowledged(2 * MSS, Time::ZERO, at(0.1));
    assert_eq!(all(&mut sender, at(0.1)), [12, 13]);
}

#[test]
fn third_duplicate_resends_and_halves() {
    let mut sender = started();
    sender.acknowledged(MSS, Time::ZERO, at(0.1));
    assert_eq!(all(&mut sender, at(0.1)), [10, 11]);
    // Limited transmit: a new segment for each of the first two duplicates.
    for expected in [vec![12], vec![13], vec![1]] {
        sender.acknowledged(MSS, Time::ZERO, at(0.1));
        assert_eq!(all(&mut sender, at(0.1)), expected);
    }
    // 13 in flight, so the threshold is 6.5 segments, and the window is inflated by each duplicate.
    for _ in 0..3 {
        sender.acknowledged(MSS, Time::ZERO, at(0.11));
        assert!(all(&mut sender, at(0.11)).is_empty());
    }
    // The rest of the first flight arrives: the window of 9.5 + 5 segments allows one more segment.
    for _ in 0..2 {
        sender.acknowledged(MSS, Time::ZERO, at(0.12));
    }
    assert_eq!(all(&mut sender, at(0.12)), [14]);
    // A full acknowledgement ends the recovery at the threshold, at most one segment above the bytes in flight.
    sender.acknowledged(14 * MSS, at(0.1), at(0.2));
    assert_eq!(all(&mut sender, at(0.2)), [15]);
    assert_eq!(sender.losses(), (0, 1));
}

#[test]
fn a_partial_acknowledgement_resends_the_next_hole_at_once() {
    let mut sender = started();
    for _ in 0..3 {
        sender.acknowledged(0, Time::ZERO, at(0.1));
    }
    assert_eq!(all(&mut sender, at(0.1))[0], 0);
    sender.acknowledged(4 * MSS, at(0.1), at(0.2));
    assert_eq!(all(&mut sender, at(0.2))[0], 4);
    assert_eq!(sender.losses(), (0, 2));
}

#[test]
fn a_timeout_starts_again_from_the_first_hole_with_one_segment_and_backs_off() {
    let mut sender = started();
    let due = sender.deadline().unwrap();
    assert_eq!(due, at(1.0));
    sender.timed_out(due);
    assert_eq!(all(&mut sender, due), [0]);
    assert_eq!(sender.deadline(), Some(at(3.0)));
    sender.timed_out(at(3.0));
    assert_eq!(sender.deadline(), Some(at(7.0)));
    // The receiver has the rest: the acknowledgement jumps, and nothing else is retransmitted.
    assert_eq!(all(&mut sender, at(3.0)), [0]);
    sender.acknowledged(10 * MSS, at(3.0), at(3.1));
    assert_eq!(all(&mut sender, at(3.1)), [10, 11]);
    assert_eq!(sender.losses(), (2, 2));
}

#[test]
fn duplicates_of_what_was_sent_before_a_timeout_start_no_recovery() {
    let mut sender = started();
    sender.timed_out(at(1.0));
    assert_eq!(all(&mut sender, at(1.0)), [0]);
    sender.acknowledged(MSS, at(1.0), at(1.1));
    assert_eq!(all(&mut sender, at(1.1)), [1, 2]);
    for _ in 0..4 {
        sender.acknowledged(MSS, at(1.0), at(1.2));
    }
    assert!(!all(&mut sender, at(1.2)).contains(&1));
}

#[test]
fn the_timeout_follows_the_round_trip() {
    let mut sender = started();
    sender.acknowledged(MSS, Time::ZERO, at(0.4));
    // RFC 6298: 0.4 + 4 × 0.2.
    assert_eq!(sender.deadline(), Some(at(0.4 + 1.2)));
    all(&mut sender, at(0.4));
    for number in 2..=10 {
        sender.acknowledged(number * MSS, at(0.3), at(0.4));
    }
    let deadline = sender.deadline().unwrap().seconds() - 0.4;
    assert!((0.2..1.2).contains(&deadline), "{deadline}");
}

#[test]
fn a_pause_brings_the_first_window_back() {
    let mut sender = started();
    let sent: usize = (1..=10)
        .map(|number| {
            sender.acknowledged(number * MSS, Time::ZERO, at(0.1));
            all(&mut sender, at(0.1)).len()
        })
        .sum();
    assert_eq!(sent, 20);
    sender.acknowledged(30 * MSS, at(0.1), at(0.2));
    assert_eq!(sender.deadline(), None);
    assert_eq!(all(&mut sender, at(10.0)).len(), 10);
}

#[test]
fn a_receiver_puts_any_order_right() {
    for seed in 0..200 {
        let mut random = Random::new(seed, 0);
        let cuts: Vec<Segment> = (0..40).map(|number| Segment { start: number * 100, bytes: 100 }).collect();
        let mut receiver = Receiver::default();
        let mut order = random.choose(&cuts, 40);
        // Repetitions and overlaps, as go-back-N makes them.
        for _ in 0..20 {
            let start = random.below(3900) as u64;
            order.insert(random.below(order.len()), Segment { start, bytes: 100 });
        }
        let mut has = vec![false; 4000];
        for segment in order {
            receiver.arrived(segment);
            let end = segment.start as usize + segment.bytes as usize;
            has[segment.start as usize..end].fill(true);
            let expected = has.iter().position(|&is_there| !is_there).unwrap_or(4000) as u64;
            assert_eq!(receiver.next(), expected, "seed {seed}");
        }
        assert_eq!(receiver.next(), 4000);
    }
}
