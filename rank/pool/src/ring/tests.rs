use std::sync::Arc;

use proptest::prelude::*;
use types::JobId;

use super::*;
use crate::{Region, Shape};

/// A region of two ranks in a file of its own, and the ring from the first to the second.
fn ring() -> (Region, Producer, Consumer) {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::unnamed(folder.path(), Shape { job: JobId(7), first: 0, ranks: 2 }).unwrap();
    let (from, to) = (region.place(0, 0).unwrap(), region.place(1, 0).unwrap());
    let producer = region.producer(from, to).unwrap();
    let consumer = region.consumer(from, to).unwrap();
    (region, producer, consumer)
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn body(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(167) ^ number.wrapping_mul(2_654_435_761) ^ (at >> 8)) as u8).collect()
}

fn put(producer: &mut Producer, bytes: &[u8], kind: RecordKind) -> bool {
    let Some(mut space) = producer.reserve(bytes.len() as u32).unwrap() else { return false };
    let half = bytes.len() / 2;
    space.write(half, &bytes[half..]);
    space.write(0, &bytes[..half]);
    space.publish(kind);
    true
}

fn take(consumer: &mut Consumer, tell: bool) -> Option<(RecordKind, Vec<u8>)> {
    let record = consumer.oldest().unwrap()?;
    let mut bytes = vec![0; record.length as usize];
    consumer.read(&record, 0, &mut bytes);
    consumer.done(record, tell);
    Some((record.kind, bytes))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]
    /// For all lengths, and whichever side is ahead: every record arrives once, whole, in order, across the end of the
    /// ring.
    #[test]
    fn records_arrive_whole_and_in_order(
        seed in 1u64..,
        steps in prop::collection::vec(
            (any::<bool>(), 1u8..40, prop_oneof![Just(1u64), Just(100), Just(40_000)]),
            1..150,
        ),
    ) {
        let (_region, mut producer, mut consumer) = ring();
        let mut random = Random(seed);
        let mut lengths = std::collections::VecDeque::new();
        let (mut sent, mut arrived) = (0, 0);
        for (writes, count, scale) in steps {
            for _ in 0..count {
                if writes {
                    let length = random.below(scale.min(producer.longest().into()) + 1) as usize;
                    if !put(&mut producer, &body(sent, length), RecordKind::Frame) {
                        prop_assert!(lengths.len() >= 2, "refused with {} records in the ring", lengths.len());
                        break;
                    }
                    lengths.push_back(length);
                    sent += 1;
                } else {
                    let Some(length) = lengths.pop_front() else {
                        prop_assert_eq!(take(&mut consumer, false), None);
                        break;
                    };
                    prop_assert_eq!(take(&mut consumer, false), Some((RecordKind::Frame, body(arrived, length))));
                    arrived += 1;
                }
            }
        }
        for length in lengths {
            prop_assert_eq!(take(&mut consumer, false), Some((RecordKind::Frame, body(arrived, length))));
            arrived += 1;
        }
        prop_assert!(put(&mut producer, b"last", RecordKind::Bye), "an empty ring has room");
        prop_assert_eq!(take(&mut consumer, true), Some((RecordKind::Bye, b"last".to_vec())));
        prop_assert_eq!(take(&mut consumer, false), None);
        prop_assert_eq!((producer.consumed().unwrap(), arrived), (producer.written(), sent));
    }
}

/// Two threads at full speed, records of all lengths; a torn or lost record shows in its bytes.
#[test]
fn two_threads_at_full_speed() {
    for seed in [1, 99, 0xDEAD_BEEF] {
        let (region, mut producer, mut consumer) = ring();
        let region = Arc::new(region);
        const COUNT: u64 = 10_000;
        let writer = std::thread::spawn({
            let region = region.clone();
            move || {
                let mut random = Random(seed);
                for number in 0..COUNT {
                    let length = if random.below(50) == 0 { random.below(30_000) } else { random.below(120) } as usize;
                    while !put(&mut producer, &body(number, length), RecordKind::Frame) {
                        std::thread::yield_now();
                    }
                }
                drop(region);
            }
        });
        let mut random = Random(seed);
        for number in 0..COUNT {
            let length = if random.below(50) == 0 { random.below(30_000) } else { random.below(120) } as usize;
            let found = loop {
                match take(&mut consumer, number % 1000 == 0) {
                    Some(found) => break found,
                    None => std::thread::yield_now(),
                }
            };
            assert!(
                found == (RecordKind::Frame, body(number, length)),
                "seed {seed}: record {number} of {length} bytes"
            );
        }
        writer.join().unwrap();
    }
}

#[test]
fn a_full_ring_refuses_until_its_reader_has_told() {
    let (_region, mut producer, mut consumer) = ring();
    let longest = vec![5; producer.longest() as usize];
    let mut count = 0;
    while put(&mut producer, &longest, RecordKind::Frame) {
        count += 1;
    }
    assert!(count >= 3, "{count}");
    assert!(put(&mut producer, &[], RecordKind::Bye) || !put(&mut producer, &longest, RecordKind::Frame));
    assert!(take(&mut consumer, false).is_some());
    while take(&mut consumer, false).is_some() {}
    assert!(put(&mut producer, &longest, RecordKind::Copy), "an empty ring has room for a longest record, told or not");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for header in [9 << 32, (1 << 32) | u64::from(u32::MAX), SKIP << 32, 1 << 40] {
        let (_region, producer, mut consumer) = ring();
        producer.header(0).store(header, Ordering::Release);
        assert_eq!(consumer.oldest(), Err(Corrupt { what: "a header says", value: header }));
    }
    let (_region, mut producer, consumer) = ring();
    consumer.map.word(CONSUMED).store(64, Ordering::Release);
    assert!(producer.consumed().is_err(), "more consumed than written");
}

#[test]
fn permission_reaches_the_writer() {
    let (_region, producer, consumer) = ring();
    assert_eq!(producer.permission(), Permission::Unknown);
    consumer.permit(true);
    assert_eq!(producer.permission(), Permission::Yes);
    consumer.permit(false);
    assert_eq!(producer.permission(), Permission::No);
}
