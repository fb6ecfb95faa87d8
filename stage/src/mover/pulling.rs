//! Blocks that receivers pull: requests, offers and releases. Part of [`Mover`].

use memory::Pages;

use super::Mover;
use super::error::MoverError;
use super::flow::Offer;
use super::message::MoverMessage;

impl Mover<'_> {
    /// Serves a rank's request for a block.
    pub(super) fn fetch(&mut self, from: u32, task: u32, block: u32) -> Result<(), MoverError> {
        let ready = match (self.feeding.get_mut(&task), self.receiving.get_mut(&task)) {
            // If both the source and a target are on this node, the source feeds.
            (Some(feeding), _) => Some(feeding.read(from, block, &mut self.peers)?),
            (None, Some(receiving)) => receiving.read(from, block, &mut self.peers)?,
            (None, None) => {
                self.early.push((from, MoverMessage::Fetch { task, block }));
                None
            }
        };
        match ready {
            Some(ready) => self.peers.send(from, &ready),
            None => Ok(()),
        }
    }

    /// A feeder has read a block that this mover requested.
    pub(super) fn offered(&mut self, from: u32, task: u32, offer: Offer) -> Result<(), MoverError> {
        let Some(receiving) = self.receiving.get_mut(&task) else { return Ok(()) };
        let block = offer.block;
        match receiving.offered(from, offer) {
            true => Ok(()),
            false => Err(MoverError::Message(format!("{}: block {block} unasked", self.peers.place(from)))),
        }
    }

    /// A block that this mover has read from its feeder.
    pub(super) fn arrived(&mut self, task: u32, block: u32, bytes: Pages, at_once: bool) -> Result<(), MoverError> {
        let Some(receiving) = self.receiving.get_mut(&task) else { return Ok(()) };
        let feeder = receiving.feeder();
        self.peers.send(feeder, &MoverMessage::Release { task, block })?;
        for (to, ready) in receiving.arrived(block, bytes, at_once, &mut self.peers)? {
            self.peers.send(to, &ready)?;
        }
        self.if_full(task)
    }

    /// A rank has read a block from this mover's memory.
    pub(super) fn released(&mut self, from: u32, task: u32, block: u32) {
        if let Some(feeding) = self.feeding.get_mut(&task) {
            feeding.released(from, block, &mut self.peers);
        }
        if let Some(receiving) = self.receiving.get_mut(&task) {
            receiving.released(from, block, &mut self.peers);
        }
    }
}
