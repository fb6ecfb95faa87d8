//! The first mover's view of all targets: the progress of each.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::Mover;
use super::error::MoverError;
use super::message::TELL;
use super::message::{Event, Look, MoverMessage, Order, Placed};
use crate::look::Found;

/// Numbers of task and target.
type Which = (u32, u32);

#[derive(Debug, Default)]
pub(super) struct Lead {
    open: HashSet<Which>,
    /// Checks of places without an answer.
    looks: HashSet<u32>,
    progress: HashMap<Which, (u64, u64)>,
    printed: Option<Duration>,
    news: bool,
    over: bool,
}

impl Lead {
    pub(super) fn new(order: &Order) -> Lead {
        let tasks = (0u32..).zip(&order.tasks);
        let open = tasks.flat_map(|(task, found)| (0..found.to.len() as u32).map(move |target| (task, target)));
        Lead { open: open.collect(), looks: (0..order.looks.len() as u32).collect(), ..Lead::default() }
    }

    pub(super) fn progress(&mut self, which: Which, arrived: u64, total: u64) {
        self.news |= self.progress.insert(which, (arrived, total)) != Some((arrived, total));
    }

    /// Marks a target as placed. Returns true if all targets are.
    pub(super) fn placed(&mut self, which: Which) -> bool {
        self.open.remove(&which);
        self.over |= self.open.is_empty();
        self.open.is_empty()
    }

    /// Marks a check as answered. Returns true if all checks are.
    pub(super) fn looked(&mut self, look: u32) -> bool {
        self.looks.remove(&look);
        self.over |= self.looks.is_empty();
        self.looks.is_empty()
    }

    /// A target has given up. Returns true if all targets have given up or are in place.
    pub(super) fn cancelled(&mut self, which: Which) -> bool {
        self.open.remove(&which);
        self.open.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn over(&mut self) {
        self.over = true;
    }

    /// Total progress, if a report is due.
    pub(super) fn due(&mut self, now: Duration) -> Option<Event> {
        let due = self.news && self.printed.is_none_or(|printed| now >= printed + TELL);
        due.then(|| {
            (self.news, self.printed) = (false, Some(now));
            let (arrived, total) =
                self.progress.values().fold((0, 0), |(a, t), (arrived, total)| (a + arrived, t + total));
            Event::Progress { arrived, total }
        })
    }
}

/// The first mover's other duties: it reports to the user, and ends the job.
impl Mover<'_> {
    pub(super) fn lead_placed(&mut self, task: u32, target: u32, report: Placed) -> Result<(), MoverError> {
        let Some(order) = &self.order else { return Ok(()) };
        let Some(found) = order.tasks.get(task as usize) else { return Ok(()) };
        let to = found.to.get(target as usize).map_or(String::new(), |spot| spot.typed.clone());
        let event = Event::Placed { from: found.from.typed.clone(), to, report };
        self.write(&event)?;
        if self.lead.placed((task, target)) {
            self.end_all()?;
        }
        Ok(())
    }

    pub(super) fn lead_absent(&mut self, task: u32) -> Result<(), MoverError> {
        let found = self.order.as_ref().and_then(|order| order.tasks.get(task as usize));
        let Some(found) = found.filter(|found| found.optional) else { return Ok(()) };
        let (from, targets) = (found.from.typed.clone(), found.to.len() as u32);
        self.write(&Event::Absent { from })?;
        for target in 0..targets {
            if self.lead.placed((task, target)) {
                self.end_all()?;
            }
        }
        Ok(())
    }

    pub(super) fn lead_looked(&mut self, look: u32, found: Found) -> Result<(), MoverError> {
        let Some(order) = &self.order else { return Ok(()) };
        let Some(Look { at, role }) = order.looks.get(look as usize) else { return Ok(()) };
        let event = Event::Looked { place: at.typed.clone(), role: *role, found };
        self.write(&event)?;
        if self.lead.looked(look) { self.end_all() } else { Ok(()) }
    }

    pub(super) fn end(&mut self, event: Event) -> Result<(), MoverError> {
        if !self.lead.is_over() {
            self.lead.over();
            self.write(&event)?;
            self.end_all()?;
        }
        Ok(())
    }

    /// Ends the job once all movers have read the order: a mover that is still reading it needs this mover's memory.
    pub(super) fn end_all(&mut self) -> Result<(), MoverError> {
        self.ending = self.order_lent.is_some() && self.begun + 1 < self.peers.size();
        if self.ending {
            return Ok(());
        }
        for rank in 0..self.peers.size() {
            self.peers.send(rank, &MoverMessage::End)?;
        }
        Ok(())
    }

    pub(super) fn print(&mut self) -> Result<(), MoverError> {
        let now = self.now();
        match self.lead.due(now) {
            Some(event) => self.write(&event),
            None => Ok(()),
        }
    }

    pub(super) fn write(&mut self, event: &Event) -> Result<(), MoverError> {
        match &mut self.console {
            Some(console) => console.write(event),
            None => Ok(()),
        }
    }
}
