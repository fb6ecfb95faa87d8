//! Sent blocks: the feeder's side, and the receiver's side.
//!
//! A parcel is a block followed by its hash, so that one message carries both.

use std::sync::Arc;
use std::time::Duration;

use memory::Pages;

use super::error::MoverError;
use super::message::{Mode, MoverMessage, Take};
use super::peers::BlockId;
use super::pushing::{Act, Pushing};
use super::receiving::Receiving;
use super::{Mover, Wanted};
use crate::blocks::Hash;
use crate::error::StageError;

/// Length of the hash after a block, in bytes.
pub(super) const HASH: usize = size_of::<Hash>();

/// Splits a parcel into the block and its hash as computed by the sender. `None`: it is too short.
pub(super) fn split(parcel: &[u8]) -> Option<(&[u8], Hash)> {
    parcel.split_last_chunk().map(|(bytes, hash)| (bytes, *hash))
}

/// Buffers of parcels, reused once they have been sent.
#[derive(Debug, Default)]
pub(super) struct Parcels(Vec<Arc<Pages>>);

impl Parcels {
    /// Builds a parcel: `read` fills the buffer and returns the hash.
    pub(super) fn fill(
        &mut self,
        read: impl FnOnce(&mut Pages) -> Result<Hash, StageError>,
    ) -> Result<Arc<Pages>, StageError> {
        let free = self.0.iter_mut().position(|parcel| Arc::get_mut(parcel).is_some());
        let free = free.map(|place| self.0.swap_remove(place));
        let mut bytes = free.and_then(|parcel| Arc::try_unwrap(parcel).ok()).unwrap_or_default();
        let hash = read(&mut bytes)?;
        let end = bytes.len();
        bytes.resize(end + HASH);
        bytes[end..].copy_from_slice(&hash);
        let parcel = Arc::new(bytes);
        self.0.push(parcel.clone());
        Ok(parcel)
    }
}

/// A feeder by sends: a source, or a target that feeds the next node of its site.
pub(super) trait Supply {
    fn pushing(&mut self) -> &mut Pushing;

    fn next(&mut self, now: Duration) -> Act;

    /// The parcel of a block for this number of readers. `None`: the block was found damaged here, and is received
    /// again.
    fn parcel(&mut self, block: u32, readers: usize) -> Result<Option<Arc<Pages>>, MoverError>;
}

impl Mover<'_> {
    /// If both the source and a target are on this node, the source feeds.
    fn supply(&mut self, task: u32) -> Option<&mut dyn Supply> {
        match (self.feeding.get_mut(&task), self.receiving.get_mut(&task)) {
            (Some(feeding), _) => Some(feeding),
            (None, Some(receiving)) => Some(receiving),
            (None, None) => None,
        }
    }

    /// Processes a message from a target that this node feeds.
    pub(super) fn take(&mut self, from: u32, task: u32, take: Take) -> Result<(), MoverError> {
        let Some(supply) = self.supply(task) else {
            self.early.push((from, MoverMessage::Take { task, take }));
            return Ok(());
        };
        match supply.pushing().take(from, &take) {
            true => Ok(()),
            false => Err(MoverError::Message(format!("from {}: {take:?}", self.peers.place(from)))),
        }
    }

    /// For each task, sends a block that is due.
    pub(super) fn push(&mut self, now: Duration, wake: &mut Duration) -> Result<(), MoverError> {
        if self.cancelled {
            return Ok(());
        }
        let mut tasks: Vec<u32> = self.feeding.keys().chain(self.receiving.keys()).copied().collect();
        tasks.sort_unstable();
        tasks.dedup();
        for task in tasks {
            let Some(supply) = self.supply(task) else { continue };
            match supply.next(now) {
                Act::Push { block, to } => {
                    match supply.parcel(block, to.len())? {
                        Some(parcel) => {
                            let block = self.block_id(task, block);
                            self.peers.send_block(block, &parcel, &to)?;
                        }
                        None => to.iter().for_each(|rank| {
                            supply.pushing().take(*rank, &Take::Credit { block });
                        }),
                    }
                    // Another block may be due; process events first.
                    *wake = Duration::ZERO;
                }
                Act::Sleep(until) => *wake = (*wake).min(until.saturating_sub(now)),
                Act::Wait => {}
            }
        }
        Ok(())
    }

    fn block_id(&self, task: u32, block: u32) -> BlockId {
        let order = self.order.as_ref();
        let mode = order.and_then(|order| Some(order.options.mode_of(order.tasks.get(task as usize)?)));
        BlockId { task, block, shared: mode == Some(Mode::Bcast) }
    }

    /// Sends the list of missing blocks to a feeder that sends.
    pub(super) fn introduce(&mut self, task: u32, receiving: &Receiving) -> Result<(), MoverError> {
        if receiving.mode() == Mode::Pull {
            return Ok(());
        }
        for take in receiving.lacks() {
            self.peers.send(receiving.feeder(), &MoverMessage::Take { task, take })?;
        }
        Ok(())
    }

    /// Sends a changed rate to a feeder that sends.
    pub(super) fn tell_pace(&mut self, task: u32) -> Result<(), MoverError> {
        let Some(receiving) = self.receiving.get_mut(&task) else { return Ok(()) };
        match receiving.new_pace() {
            Some(take) => self.peers.send(receiving.feeder(), &MoverMessage::Take { task, take }),
            None => Ok(()),
        }
    }

    /// Posts a receive for a block, and announces it to the feeder.
    pub(super) fn await_block(&mut self, task: u32, block: u32) -> Result<(), MoverError> {
        let id = self.block_id(task, block);
        let Some(receiving) = self.receiving.get_mut(&task) else { return Ok(()) };
        let (feeder, length) = (receiving.feeder(), receiving.parcel_length(block));
        let context = self.wants(Wanted::Pushed { task, block });
        self.peers.await_block(feeder, id, length, context)?;
        self.peers.send(feeder, &MoverMessage::Take { task, take: Take::Credit { block } })
    }

    /// Processes a received block.
    pub(super) fn came(&mut self, task: u32, block: u32, parcel: Pages, at_once: bool) -> Result<(), MoverError> {
        let Some(receiving) = self.receiving.get_mut(&task) else { return Ok(()) };
        if parcel.len() != receiving.parcel_length(block) {
            let place = self.peers.place(receiving.feeder());
            return Err(MoverError::Message(format!("from {place}: block {block} with {} bytes", parcel.len())));
        }
        receiving.came(block, parcel, at_once, &mut self.peers)?;
        self.if_full(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parcel_is_filled_again_when_it_has_been_sent() {
        let mut parcels = Parcels::default();
        let mut fill = |byte: u8| {
            let read = |bytes: &mut Pages| {
                bytes.resize(1);
                bytes[0] = byte;
                Ok([byte; HASH])
            };
            parcels.fill(read).unwrap()
        };
        let first = fill(1);
        assert_eq!(split(&first), Some((&[1][..], [1; HASH])));
        let (second, place) = (fill(2), first.as_ptr());
        drop(first);
        let third = fill(3);
        assert_eq!(
            (third.as_ptr(), split(&second), split(&third[1..])),
            (place, Some((&[2][..], [2; HASH])), Some((&[][..], [3; HASH])))
        );
        assert_eq!(split(&third[2..]), None);
    }
}
