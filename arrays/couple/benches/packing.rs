//! Time that a process spends without communication: finding its messages, packing them, and computing their checksums.
//!
//! `cargo bench -p landbridge-couple --bench packing` prints a table. Only ratios within one run mean anything.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::io::Write;
use std::time::Instant;

use couple::Packing;
use plan::redistribution::{Axis, Layout, Mapping, Pick, Transfer};
use twox_hash::XxHash3_64;

const ROUNDS: usize = 11;
const ELEMENT: usize = 8;
/// Sizes in bytes of arrays that fit in a core's own cache, in a shared cache, and in memory only.
const SIZES: [usize; 3] = [512 << 10, 8 << 20, 128 << 20];

fn main() {
    let mut out = std::io::stdout().lock();
    writeln!(out, "runs of bytes, packed and unpacked, of memcpy's speed; the checksum's time, of memcpy's").unwrap();
    writeln!(
        out,
        "{:>10} {:>7} {:>13} {:>6} {:>7} {:>9}",
        "bytes", "run", "memcpy, GB/s", "pack", "unpack", "checksum"
    )
    .unwrap();
    for bytes in SIZES {
        for run in [8, 16, 32, 64, 128, 512, 4096, 65536] {
            let [copy, pack, unpack, checksum] = times(bytes, run);
            let (speed, pack, unpack) = (bytes as f64 / copy / 1e9, copy / pack, copy / unpack);
            writeln!(out, "{bytes:>10} {run:>7} {speed:>13.1} {pack:>6.2} {unpack:>7.2} {:>9.2}", checksum / copy)
                .unwrap();
        }
    }
    writeln!(out, "finding the messages of a process, 65536 x 65536, 32 x 32 of 64 x 64 to 48 x 24 of 48 x 80")
        .unwrap();
    let dealt = |over: [u32; 2], block: [u64; 2]| {
        let axis = |at: usize| Axis::Cyclic { over: over[at], block: block[at], first: 0 };
        Layout::new(vec![65536, 65536], vec![axis(0), axis(1)]).unwrap()
    };
    let (source, target) = (dealt([32, 32], [64, 64]), dealt([48, 24], [48, 80]));
    let all = all(&[65536, 65536]);
    let of = |process: u32| {
        let once = |_| {
            seconds(1, || {
                let transfer = Transfer::new(source.clone(), target.clone(), &all).unwrap();
                black_box((transfer.sends(process).len(), transfer.receives(process).len()));
            })
        };
        median((0..ROUNDS).map(once).collect())
    };
    let slowest = (0..1024).step_by(93).map(of).fold(0.0, f64::max);
    writeln!(out, "{:.3} ms, the slowest of 12 processes", slowest * 1e3).unwrap();
}

/// Times in seconds of copying these bytes, packing them, unpacking them, and computing their checksum.
fn times(bytes: usize, run: usize) -> [f64; 4] {
    let array: Vec<u8> = (0..bytes).map(|at| (at / 3) as u8).collect();
    let (mut buffer, mut back) = (vec![0u8; bytes], vec![0u8; bytes]);
    let repeats = (SIZES[2] / bytes).min(64);
    let packings = packings(bytes, run);
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(seconds(repeats, || buffer.copy_from_slice(black_box(&array))));
        times[1].push(seconds(repeats, || {
            let mut at = 0;
            for packing in &packings {
                // SAFETY: both messages together cover the array, and the buffer is as long.
                unsafe { packing.pack(array.as_ptr(), buffer[at..].as_mut_ptr()) };
                at += packing.bytes();
            }
        }));
        times[2].push(seconds(repeats, || {
            let mut at = 0;
            for packing in &packings {
                // SAFETY: as above.
                unsafe { packing.unpack(buffer[at..].as_ptr(), back.as_mut_ptr()) };
                at += packing.bytes();
            }
        }));
        times[3].push(seconds(repeats, || _ = black_box(XxHash3_64::oneshot(black_box(&buffer)))));
    }
    assert!(back == array, "what was packed has not come back");
    times.map(median)
}

/// The packings of the messages from a process that has the whole array to two processes that have blocks of `run`
/// bytes in turn.
fn packings(bytes: usize, run: usize) -> Vec<Packing> {
    let elements = (bytes / ELEMENT) as u64;
    let source = Layout::new(vec![elements], vec![Axis::Whole]).unwrap();
    let block = (run / ELEMENT) as u64;
    let target = Layout::new(vec![elements], vec![Axis::Cyclic { over: 2, block, first: 0 }]).unwrap();
    let transfer = Transfer::new(source, target, &all(&[elements])).unwrap();
    let packing = |message| Packing::new(message, &[ELEMENT as i64], ELEMENT).unwrap();
    let packings: Vec<Packing> = transfer.sends(0).iter().map(packing).collect();
    assert_eq!(packings.iter().map(Packing::bytes).sum::<usize>(), bytes);
    packings
}

fn all(shape: &[u64]) -> Mapping {
    let picks: Vec<Pick> = shape.iter().map(|extent| Pick::all(*extent)).collect();
    Mapping { from: picks.clone(), to: picks, order: (0..shape.len()).collect(), shifts: vec![0; shape.len()] }
}

/// Mean time of `repeats` calls, in seconds.
fn seconds(repeats: usize, mut work: impl FnMut()) -> f64 {
    let begun = Instant::now();
    (0..repeats).for_each(|_| work());
    begun.elapsed().as_secs_f64() / repeats as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
