//! A gateway's counters, readable from any thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one gateway, since its start. One thread writes.
#[derive(Debug, Default)]
pub struct Counters {
    held: AtomicU64,
    high_water: AtomicU64,
    frames: AtomicU64,
    bytes: AtomicU64,
    undeliverable: AtomicU64,
    refused: AtomicU64,
    violations: AtomicU64,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Bytes held in queues now.
    pub held: u64,
    /// The most bytes ever held in queues.
    pub high_water: u64,
    /// Frames relayed.
    pub frames: u64,
    /// Bytes relayed, headers included.
    pub bytes: u64,
    /// Frames dropped because their destination is not connected.
    pub undeliverable: u64,
    /// Connections refused before admission.
    pub refused: u64,
    /// Connections closed after admission because they broke the rules.
    pub violations: u64,
}

// With a single writer, a load and a store suffice; no locked instruction is needed.
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl Counters {
    /// All counters.
    pub fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            held: get(&self.held),
            high_water: get(&self.high_water),
            frames: get(&self.frames),
            bytes: get(&self.bytes),
            undeliverable: get(&self.undeliverable),
            refused: get(&self.refused),
            violations: get(&self.violations),
        }
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub(crate) fn hold(&self, bytes: u64) {
        add(&self.held, bytes);
        self.high_water.store(self.high_water.load(Ordering::Relaxed).max(self.held()), Ordering::Relaxed);
    }

    pub(crate) fn release(&self, bytes: u64) {
        add(&self.held, bytes.wrapping_neg());
    }

    pub(crate) fn relayed(&self, frames: u64, bytes: u64) {
        add(&self.frames, frames);
        add(&self.bytes, bytes);
    }

    pub(crate) fn undeliverable(&self) {
        add(&self.undeliverable, 1);
    }

    pub(crate) fn refused(&self) {
        add(&self.refused, 1);
    }

    pub(crate) fn violation(&self) {
        add(&self.violations, 1);
    }
}
