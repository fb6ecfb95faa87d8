//! Buffers that pieces keep from one run to the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::PIECE;
use crate::beside::{Beside, LEAST};

/// Memory for pieces, reused by later runs.
#[derive(Debug)]
pub struct Buffers {
    /// Bytes of each.
    pub(super) piece: usize,
    /// Minimum bytes of a lent piece.
    pub(super) least: usize,
    pub(super) spare: Mutex<Spare>,
    pub(super) beside: Arc<Beside>,
}

#[derive(Debug, Default)]
pub(super) struct Spare {
    buffers: Vec<Vec<u8>>,
    /// Maximum number of buffers kept.
    most: usize,
}

impl Buffers {
    /// Buffers for runs whose ranks lend each other memory through `beside`.
    pub fn new(beside: Arc<Beside>) -> Buffers {
        Buffers { piece: PIECE, least: LEAST, spare: Mutex::default(), beside }
    }

    /// Raises the limit of kept buffers to at least this many bytes.
    pub(super) fn keep(&self, bytes: usize) {
        let mut spare = self.lock();
        spare.most = spare.most.max(bytes / self.piece + 1);
    }

    /// A buffer with room for at least this many bytes.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        match bytes <= self.piece {
            true => self.lock().buffers.pop().unwrap_or_else(|| Vec::with_capacity(self.piece)),
            false => Vec::with_capacity(bytes),
        }
    }

    pub(super) fn give(&self, buffer: Vec<u8>) {
        let mut spare = self.lock();
        if buffer.capacity() == self.piece && spare.buffers.len() < spare.most {
            spare.buffers.push(buffer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Spare> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
