//! Bytes waiting for a socket, in chunks, counted by the memory they really occupy.

use std::collections::VecDeque;
use std::io::IoSlice;

use crate::counters::Counters;

const LEAST_CHUNK: usize = 4 << 10;
const CHUNK: usize = 64 << 10;

/// A queue of bytes. The memory it occupies is counted as held.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that have been consumed.
    start: usize,
    length: usize,
}

impl ByteQueue {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8], counters: &Counters) {
        self.length += bytes.len();
        while !bytes.is_empty() {
            let room = self.chunks.back().map_or(0, |chunk| chunk.capacity() - chunk.len());
            if room == 0 {
                let chunk = Vec::with_capacity(bytes.len().clamp(LEAST_CHUNK, CHUNK));
                counters.hold(chunk.capacity() as u64);
                self.chunks.push_back(chunk);
                continue;
            }
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            if let Some(chunk) = self.chunks.back_mut() {
                chunk.extend_from_slice(now);
            }
            bytes = later;
        }
    }

    /// The first bytes, in as many slices as fit.
    pub(crate) fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slot, chunk) in into.iter_mut().zip(&self.chunks) {
            let skip = if count == 0 { self.start } else { 0 };
            *slot = IoSlice::new(&chunk[skip..]);
            count += 1;
        }
        count
    }

    /// Drops the first bytes.
    pub(crate) fn consume(&mut self, mut bytes: usize, counters: &Counters) {
        self.length -= bytes.min(self.length);
        while let Some(chunk) = self.chunks.front() {
            let left = chunk.len() - self.start;
            if bytes < left {
                self.start += bytes;
                return;
            }
            bytes -= left;
            self.start = 0;
            counters.release(chunk.capacity() as u64);
            self.chunks.pop_front();
        }
    }

    pub(crate) fn clear(&mut self, counters: &Counters) {
        self.consume(self.length, counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn bytes_come_out_as_they_went_in(steps in prop::collection::vec((0usize..150_000, 0usize..150_000), 1..20)) {
            let counters = Counters::default();
            let (mut queue, mut model, mut next) = (ByteQueue::default(), VecDeque::new(), 0u8);
            for (push, take) in steps {
                let bytes: Vec<u8> = (0..push).map(|_| { next = next.wrapping_add(1); next }).collect();
                queue.push(&bytes, &counters);
                model.extend(bytes);
                prop_assert_eq!(queue.len(), model.len());
                prop_assert!(counters.held() >= queue.len() as u64);
                let mut slices = [IoSlice::new(&[]); 8];
                let count = queue.slices(&mut slices);
                let mut seen = 0;
                for slice in &slices[..count] {
                    prop_assert!(slice.iter().eq(model.iter().skip(seen).take(slice.len())));
                    seen += slice.len();
                }
                let take = take.min(seen);
                queue.consume(take, &counters);
                model.drain(..take);
            }
            queue.clear(&counters);
            prop_assert_eq!((queue.len(), counters.held()), (0, 0));
        }
    }
}
