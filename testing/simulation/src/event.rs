use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::packet::NetworkEvent;
use crate::time::Time;

/// Bits of a heap entry for the slot; the event's number is above them, its time on top.
const SLOT_BITS: u32 = 24;
const NUMBER_BITS: u32 = 40;

/// Events ordered by time; events with equal times in the order of adding.
///
/// The heap orders one integer per event; the events themselves do not move. At most 2²⁴ events wait at once, and 2⁴⁰
/// fit in a run, which would take days.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventQueue {
    heap: BinaryHeap<Reverse<u128>>,
    slots: Vec<NetworkEvent>,
    free: Vec<u32>,
    added: u64,
}

impl EventQueue {
    pub(crate) fn add(&mut self, at: Time, event: NetworkEvent) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = event;
                slot
            }
            None => {
                self.slots.push(event);
                self.slots.len() as u32 - 1
            }
        };
        assert!(slot >> SLOT_BITS == 0, "more than {} events wait", 1 << SLOT_BITS);
        let time = u128::from(at.nanoseconds()) << (SLOT_BITS + NUMBER_BITS);
        self.heap.push(Reverse(time | u128::from(self.added) << SLOT_BITS | u128::from(slot)));
        self.added += 1;
    }

    /// The next event, if it is due by `until`.
    pub(crate) fn pop(&mut self, until: Time) -> Option<(Time, NetworkEvent)> {
        let entry = self.heap.peek()?.0;
        let at = Time::from_nanoseconds((entry >> (SLOT_BITS + NUMBER_BITS)) as u64);
        if at > until {
            return None;
        }
        self.heap.pop();
        let slot = slot_of(entry);
        self.free.push(slot);
        Some((at, self.slots[slot as usize]))
    }

    /// The number of events ever added.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    pub(crate) fn packets_in_flight(&self) -> u64 {
        let is_packet = |entry: u128| matches!(self.slots[slot_of(entry) as usize], NetworkEvent::Arrival(_));
        self.heap.iter().filter(|entry| is_packet(entry.0)).count() as u64
    }
}

fn slot_of(entry: u128) -> u32 {
    (entry & ((1 << SLOT_BITS) - 1)) as u32
}
