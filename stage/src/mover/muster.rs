//! Before the order is sent: collects the nodes on which an application computes. Pure; time is an argument.
//!
//! If several nodes of a site get the same files, each forwards them to the next one, and the last one forwards
//! nothing. So nodes without a computing application come first.

use std::time::Duration;

use super::message::{Order, Task};

/// Time that the order waits for all reports. A rank that has not reported by then counts as busy.
const LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Muster {
    /// By rank; `None`: no report yet.
    busy: Vec<Option<bool>>,
}

impl Muster {
    pub(super) fn new(ranks: u32) -> Muster {
        Muster { busy: vec![None; ranks as usize] }
    }

    /// Records a rank's report.
    pub(super) fn heard(&mut self, rank: u32, busy: bool) {
        if let Some(place) = self.busy.get_mut(rank as usize) {
            *place = Some(busy);
        }
    }

    /// Returns true if enough is known for this order.
    pub(super) fn is_enough(&self, order: &Order, now: Duration) -> bool {
        let known = |task: &Task| task.to.iter().all(|spot| self.of(spot.rank).is_some());
        now >= LIMIT || order.tasks.iter().all(|task| task.to.len() < 2 || known(task))
    }

    /// Sorts the targets of each task into the order in which they feed each other.
    pub(super) fn arrange(&self, order: &mut Order) {
        for task in &mut order.tasks {
            task.to.sort_by_key(|spot| self.of(spot.rank).unwrap_or(true));
        }
    }

    fn of(&self, rank: u32) -> Option<bool> {
        self.busy.get(rank as usize).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::{Settings, Spot};

    fn order(ranks: &[u32]) -> Order {
        let spot = |rank: &u32| Spot { rank: *rank, node: String::new(), path: b"to".to_vec(), typed: String::new() };
        let to = ranks.iter().map(spot).collect();
        let task = Task { from: spot(&0), to, into: false, optional: false, layouts: None };
        Order { tasks: vec![task], looks: Vec::new(), options: Settings::default() }
    }

    fn ranks(order: &Order) -> Vec<u32> {
        order.tasks[0].to.iter().map(|spot| spot.rank).collect()
    }

    #[test]
    fn nodes_on_which_nothing_computes_come_first() {
        let (mut muster, mut several) = (Muster::new(5), order(&[1, 2, 3, 4]));
        for (rank, busy) in [(1, true), (2, false), (3, true), (9, false)] {
            assert!(!muster.is_enough(&several, Duration::ZERO));
            muster.heard(rank, busy);
        }
        assert!(muster.is_enough(&several, LIMIT) && muster.is_enough(&order(&[4]), Duration::ZERO));
        muster.arrange(&mut several);
        assert_eq!(ranks(&several), [2, 1, 3, 4]);
        muster.heard(4, false);
        assert!(muster.is_enough(&several, Duration::ZERO));
        muster.arrange(&mut several);
        assert_eq!(ranks(&several), [2, 4, 1, 3]);
    }
}
