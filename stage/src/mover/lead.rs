//! What the first mover knows about all: how far each target is.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::TELL;
use super::message::{Event, Order};

/// Task and target.
type Which = (u32, u32);

#[derive(Debug, Default)]
pub(super) struct Lead {
    open: HashSet<Which>,
    progress: HashMap<Which, (u64, u64)>,
    printed: Option<Duration>,
    news: bool,
    over: bool,
}

impl Lead {
    pub(super) fn new(order: &Order) -> Lead {
        let tasks = (0u32..).zip(&order.tasks);
        let open = tasks.flat_map(|(task, found)| (0..found.to.len() as u32).map(move |target| (task, target)));
        Lead { open: open.collect(), ..Lead::default() }
    }

    pub(super) fn progress(&mut self, which: Which, arrived: u64, total: u64) {
        self.news |= self.progress.insert(which, (arrived, total)) != Some((arrived, total));
    }

    /// Returns whether all are.
    pub(super) fn placed(&mut self, which: Which) -> bool {
        self.open.remove(&which);
        self.over |= self.open.is_empty();
        self.open.is_empty()
    }

    /// Returns whether all that were not in place have given up.
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

    /// How far all are, if it is time to tell.
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
