//! A mover's target: opening, room, checks, placing.

use super::error::MoverError;
use super::message::{MoverMessage, Origin};
use super::receiving::Receiving;
use super::{Mover, Wanted};
use crate::supervise::WorkState;

impl Mover<'_> {
    pub(super) fn begin_target(
        &mut self,
        number: u32,
        origin: &Origin,
        bytes: &[u8],
        shared: &WorkState,
    ) -> Result<(), MoverError> {
        if self.cancelled {
            return Ok(());
        }
        let order = self.order.as_ref();
        let task = order.and_then(|order| Some((order.tasks.get(number as usize)?, order.options)));
        let Some((task, options)) = task else { return Ok(()) };
        let mut receiving = Receiving::open(number, task, &options, origin, bytes, &self.peers)?;
        receiving.pause(self.paused);
        self.introduce(number, &receiving)?;
        receiving.tell(self.began.elapsed(), true, &mut self.peers)?;
        if receiving.is_full() {
            receiving.tell_full(number, &mut self.peers)?;
        }
        self.receiving.insert(number, receiving);
        self.hear_early(shared)
    }

    pub(super) fn if_full(&mut self, task: u32) -> Result<(), MoverError> {
        let now = self.now();
        if let Some(receiving) = self.receiving.get_mut(&task)
            && receiving.is_full()
        {
            receiving.tell(now, true, &mut self.peers)?;
            receiving.tell_full(task, &mut self.peers)?;
        }
        Ok(())
    }

    /// Compares a block whose comparison was deferred. Returns true if there was one.
    pub(super) fn check(&mut self, has_time: bool) -> Result<bool, MoverError> {
        let found = self.receiving.iter_mut().find(|(_, receiving)| receiving.may_check(has_time));
        let Some((&task, receiving)) = found else { return Ok(false) };
        receiving.check()?;
        self.if_full(task)?;
        Ok(true)
    }

    /// A rank that this node feeds is complete.
    pub(super) fn full(&mut self, from: u32, task: u32) -> Result<(), MoverError> {
        if let Some(feeding) = self.feeding.get_mut(&task) {
            if feeding.full()? {
                for rank in feeding.targets().to_vec() {
                    self.peers.send(rank, &MoverMessage::Place { task })?;
                }
            }
        } else if let Some(receiving) = self.receiving.get_mut(&task) {
            receiving.follower_is_full();
            if receiving.is_full() {
                receiving.tell_full(task, &mut self.peers)?;
            }
        } else {
            self.early.push((from, MoverMessage::Full { task }));
        }
        Ok(())
    }

    pub(super) fn place(&mut self, task: u32, shared: &WorkState) -> Result<(), MoverError> {
        let Some(receiving) = self.receiving.remove(&task) else { return Ok(()) };
        self.placed.insert(task);
        self.before += receiving.volume().0;
        let (target, report) = receiving.place(&shared.overlap())?;
        self.peers.send(0, &MoverMessage::Placed { task, target, report })
    }

    pub(super) fn want(&mut self, from: u32, key: u64, length: u64, what: Wanted) -> Result<(), MoverError> {
        let length = usize::try_from(length).map_err(|_| MoverError::Message(format!("{length} bytes")))?;
        let context = self.wants(what);
        self.peers.read(from, key, length, context)
    }

    /// Registers an awaited transfer. Returns its context.
    pub(super) fn wants(&mut self, what: Wanted) -> usize {
        self.next_context += 1;
        self.wanted.insert(self.next_context, what);
        self.next_context
    }
}
