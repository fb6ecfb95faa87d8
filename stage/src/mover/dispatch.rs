//! Dispatch of messages from other movers and of the command's lines.

use super::error::MoverError;
use super::message::{Control, Event, MoverMessage, Order, Origin};
use super::peers::Happened;
use super::{Mover, Wanted, check, flow};
use crate::supervise::WorkState;

impl Mover<'_> {
    /// Reads the user's order and controls. Returns true if there were any.
    pub(super) fn listen(&mut self) -> Result<bool, MoverError> {
        let Some(console) = &mut self.console else { return Ok(false) };
        let lines = console.lines()?;
        let (any, deserted) = (!lines.is_empty(), console.is_deserted());
        for line in lines {
            let unreadable = |error: serde_json::Error| MoverError::Order(error.to_string());
            if self.order.is_none() && self.held.is_none() {
                let order: Order = serde_json::from_str(&line).map_err(unreadable)?;
                check(&order, self.peers.size())?;
                self.held = Some(order);
            } else {
                let control: Control = serde_json::from_str(&line).map_err(unreadable)?;
                for rank in 0..self.peers.size() {
                    self.peers.send(rank, &MoverMessage::Control(control))?;
                }
            }
        }
        // The command is gone, so no result can be reported. Arrived blocks are kept for the next attempt.
        if deserted && !self.lead.is_over() {
            self.lead.over();
            self.end_all()?;
        }
        Ok(any)
    }

    pub(super) fn control(&mut self, control: Control) -> Result<(), MoverError> {
        match control {
            Control::Pause | Control::Resume => {
                self.paused = control == Control::Pause;
                self.receiving.values_mut().for_each(|receiving| receiving.pause(self.paused));
            }
            Control::Rate(rate) => self.limit = Some(rate),
            Control::Cancel => self.cancel()?,
        }
        Ok(())
    }

    /// Gives up the targets of this node that are not in place.
    fn cancel(&mut self) -> Result<(), MoverError> {
        self.cancelled = true;
        let me = self.peers.me();
        let tasks = self.order.iter().flat_map(|order| (0..).zip(&order.tasks));
        let mine: Vec<(u32, u32)> = tasks
            .flat_map(|(task, found)| (0..).zip(&found.to).map(move |(target, spot)| (task, target, spot.rank)))
            .filter(|(task, _, rank)| *rank == me && !self.placed.contains(task))
            .map(|(task, target, _)| (task, target))
            .collect();
        for (task, target) in mine {
            if let Some(receiving) = self.receiving.remove(&task) {
                receiving.evict()?;
            }
            self.peers.send(0, &MoverMessage::Cancelled { task, target })?;
        }
        Ok(())
    }

    /// Processes messages that arrived too early.
    pub(super) fn hear_early(&mut self, shared: &WorkState) -> Result<(), MoverError> {
        for (from, message) in std::mem::take(&mut self.early) {
            self.handle_message(from, message, shared)?;
        }
        Ok(())
    }

    pub(super) fn happened(&mut self, happened: Happened, shared: &WorkState) -> Result<(), MoverError> {
        match happened {
            Happened::Told(from, message) => self.handle_message(from, message, shared),
            Happened::Read(context, bytes) => match self.wanted.remove(&context) {
                Some(Wanted::Order) => {
                    let order: Order =
                        postcard::from_bytes(&bytes).map_err(|error| MoverError::Order(error.to_string()))?;
                    check(&order, self.peers.size())?;
                    self.peers.send(0, &MoverMessage::Begun)?;
                    self.order = Some(order);
                    Ok(())
                }
                _ if self.failed.is_some() => Ok(()),
                Some(Wanted::Manifest { task, from }) => self.begin_target(task, &from, &bytes, shared),
                Some(Wanted::Block { task, block }) => self.arrived(task, block, bytes, shared.has_time()),
                Some(Wanted::Pushed { task, block }) => self.came(task, block, bytes, shared.has_time()),
                None => Ok(()),
            },
        }
    }

    fn handle_message(&mut self, from: u32, message: MoverMessage, shared: &WorkState) -> Result<(), MoverError> {
        match message {
            MoverMessage::Order { key, length } => self.want(from, key, length, Wanted::Order),
            MoverMessage::End => {
                self.ended = true;
                Ok(())
            }
            MoverMessage::Progress { task, target, arrived, total } => {
                self.lead.progress((task, target), arrived, total);
                Ok(())
            }
            MoverMessage::Placed { task, target, report } => self.lead_placed(task, target, report),
            MoverMessage::Cancelled { task, target } => {
                if self.lead.cancelled((task, target)) {
                    self.end(Event::Cancelled)?;
                }
                Ok(())
            }
            MoverMessage::Failed { text } => self.end(Event::Failed { text }),
            MoverMessage::Absent { task } => self.lead_absent(task),
            MoverMessage::Looked { look, found } => self.lead_looked(look, found),
            MoverMessage::Busy(busy) => {
                self.muster.heard(from, busy);
                Ok(())
            }
            MoverMessage::Begun => {
                self.begun += 1;
                if self.ending { self.end_all() } else { Ok(()) }
            }
            _ if self.failed.is_some() => Ok(()),
            // The order is read from the first mover's memory, and another mover may have read it sooner.
            MoverMessage::Manifest { .. } | MoverMessage::Control(_) if self.order.is_none() => {
                self.early.push((from, message));
                Ok(())
            }
            MoverMessage::Manifest { task, key, length, host, identity, name } => {
                let origin = Origin { host, identity, name };
                self.want(from, key, length, Wanted::Manifest { task, from: origin })
            }
            MoverMessage::Fetch { task, block } => self.fetch(from, task, block),
            MoverMessage::Ready { task, block, hash, key, length } => {
                self.offered(from, task, flow::Offer { block, hash, key, length })
            }
            MoverMessage::Release { task, block } => {
                self.released(from, task, block);
                Ok(())
            }
            MoverMessage::Full { task } => self.full(from, task),
            MoverMessage::Place { task } => self.place(task, shared),
            MoverMessage::Control(control) => self.control(control),
            MoverMessage::Take { task, take } => self.take(from, task, take),
        }
    }
}
