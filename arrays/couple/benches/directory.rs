//! Memory use of one of 1,000 processes that redistribute 10⁸ float64 elements to 1,000 processes, where any process
//! may have any run of elements: its parts, its part of the directory, its plan, and its messages.
//!
//! `cargo bench -p landbridge-couple --bench directory` prints a table. The share of a process is its part of the
//! source and its part of the target.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use couple::Packing;
use plan::redistribution::compact::{Spans, write};
use plan::redistribution::directory::{Part, Segment, Span, matched};

const PROCESSES: u32 = 1000;
const ELEMENTS: u64 = 100_000_000;
const ELEMENT: usize = 8;

/// An allocator that counts the allocated bytes and their peak.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{:>10} {:>12} {:>12} {:>14}", "elements", "share, MB", "plan, MB", "with messages").unwrap();
    writeln!(out, "{:>10} {:>12} {:>12} {:>14}", "of a run", "", "of the share", "of the share").unwrap();
    for run in [1, 2, 4, 16, 64, 1024] {
        let (share, plan, all) = one(run);
        let of = |bytes: usize| bytes as f64 / share as f64;
        writeln!(out, "{run:>10} {:>12.2} {:>12.2} {:>14.2}", share as f64 / 1e6, of(plan), of(all)).unwrap();
    }
}

/// Bytes of process 0: its share, the peak while planning, and the peak with messages.
fn one(run: u64) -> (usize, usize, usize) {
    let runs = ELEMENTS / run;
    let owner = |number: u64, side: u64| (mixed(number * 2 + side) % u64::from(PROCESSES)) as u32;
    // Segments of process 0 on each side, and the reports to keeper 0, as other processes would send them.
    let segments = |side: u64| {
        let mut local = 0;
        let own = (0..runs).filter(|number| owner(*number, side) == 0);
        // A caller knows the number of its segments.
        let mut all = Vec::with_capacity(own.clone().count());
        all.extend(own.map(|number| {
            local += run;
            Segment { start: number * run, length: run, local: local - run }
        }));
        all
    };
    let each = ELEMENTS / u64::from(PROCESSES);
    let heard = |side: u64| {
        let mut told: Vec<(u32, Spans)> = (0..PROCESSES).map(|process| (process, Spans::default())).collect();
        for number in 0..each.div_ceil(run) {
            let (start, end) = (number * run, (number * run + run).min(each));
            told[owner(number, side) as usize].1.push(Span { layer: 0, start, length: end - start });
        }
        told
    };
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let parts = [0, 1].map(|side| Part::new(segments(side), ELEMENTS).unwrap());
    let share = parts.iter().map(|part| part.count() as usize * ELEMENT).sum();
    for part in &parts {
        drop(part.spans_of_keepers(PROCESSES));
    }
    // The keeper's answers to the processes of each side: elements, and the peer of each.
    let mut answers = vec![[Spans::default(), Spans::default()]; PROCESSES as usize];
    let mut peers = vec![[Vec::new(), Vec::new()]; PROCESSES as usize];
    matched(&heard(0), &heard(1), &mut |source, target, span| {
        for (at, own, peer) in [(0, source, target), (1, target, source)] {
            answers[own as usize][at].push(span);
            write(&mut peers[own as usize][at], peer.into());
        }
    })
    .unwrap();
    drop((answers, peers));
    // The keepers' answers about process 0's messages, and the packings of these messages.
    let plan: Vec<Vec<(usize, Packing)>> = [0, 1]
        .into_iter()
        .map(|side: u64| {
            let mut peers: Vec<Spans> = vec![Spans::default(); PROCESSES as usize];
            for number in (0..runs).filter(|number| owner(*number, side) == 0) {
                peers[owner(number, 1 - side) as usize].push(Span { layer: 0, start: number * run, length: run });
            }
            let shape = [parts[side as usize].count()];
            let packing = |spans: Spans| {
                let places = parts[side as usize].places(&spans, side == 0);
                let packing = Packing::of_places(&places, &shape, &[ELEMENT as i64], ELEMENT).unwrap();
                (packing.bytes(), packing)
            };
            peers.into_iter().filter(|spans| !spans.is_empty()).map(packing).collect()
        })
        .collect();
    let most = MOST.load(Relaxed) - before;
    // The arrays, and all messages in their packed form.
    let arrays: Vec<Vec<u8>> = parts.iter().map(|part| vec![0; part.count() as usize * ELEMENT]).collect();
    let messages: Vec<Vec<u8>> = plan.iter().flatten().map(|(bytes, _)| vec![0; *bytes]).collect();
    assert_eq!(messages.iter().map(Vec::len).sum::<usize>(), share);
    let all = MOST.load(Relaxed) - before;
    drop((arrays, messages));
    (share, most, all.max(most))
}

/// A hash of a number.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
