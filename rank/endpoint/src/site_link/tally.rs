//! Counts of a lane's frames, which show a lane that has stopped delivering.
//!
//! Most providers report frames that they cannot deliver. If a provider does not, or does not notice that its network
//! is cut, its ranks would wait forever while TCP, on another network, works. So each end reports over TCP,
//! occasionally and only if the count has changed, the number of frames that it has put on the lane. A receiver that
//! knows of more frames than have arrived waits for them only for a limited time.

use std::time::Duration;

/// Interval between tallies, and between checks.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// Time limit for frames in flight while nothing arrives on the lane.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end's view of a lane. Counts wrap.
#[derive(Debug)]
pub(super) struct Tally {
    /// Our count that was last reported to the peer.
    told: u32,
    /// The peer's count that was last reported to us.
    sent: u32,
    /// Number of frames that had arrived at our last check.
    arrived: u32,
    patience: Duration,
}

impl Tally {
    pub(super) fn new() -> Tally {
        Tally { told: 0, sent: 0, arrived: 0, patience: PATIENCE }
    }

    /// The count to report to the peer when `made` frames have been put on the lane; `None`: it was already reported.
    pub(super) fn tell(&mut self, made: u32) -> Option<u32> {
        (std::mem::replace(&mut self.told, made) != made).then_some(made)
    }

    /// Records the number of frames that the peer has put on the lane.
    pub(super) fn hear(&mut self, sent: u32) {
        self.sent = sent;
    }

    /// Checks for overdue frames. `arrived` frames have arrived in order so far. `elapsed`: the time for which this
    /// rank has looked for more since the last check.
    ///
    /// # Errors
    /// The number of overdue frames.
    pub(super) fn look(&mut self, arrived: u32, elapsed: Duration) -> Result<(), u32> {
        if std::mem::replace(&mut self.arrived, arrived) != arrived || self.missing() == 0 {
            self.patience = PATIENCE;
            return Ok(());
        }
        self.patience = self.patience.saturating_sub(elapsed);
        if self.patience.is_zero() { Err(self.missing()) } else { Ok(()) }
    }

    /// True if both ends know all counts when `made` frames have been put on the lane.
    pub(super) fn is_settled(&self, made: u32) -> bool {
        self.told == made && self.missing() == 0
    }

    /// Reported frames that have not arrived. Frames that arrive before they are reported do not count.
    fn missing(&self) -> u32 {
        let missing = self.sent.wrapping_sub(self.arrived);
        if missing > u32::MAX / 2 { 0 } else { missing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_arrived_is_not_waited_for() {
        let mut tally = Tally::new();
        assert_eq!((tally.tell(0), tally.tell(3), tally.tell(3), tally.tell(4)), (None, Some(3), None, Some(4)));
        tally.hear(5);
        for _ in 0..100 {
            assert_eq!(tally.look(7, LOOK), Ok(()));
        }
        assert!(tally.is_settled(4) && !tally.is_settled(5));
    }

    #[test]
    fn patience_ends_only_while_nothing_comes() {
        let mut tally = Tally::new();
        tally.hear(100);
        for arrived in 1..99 {
            for _ in 0..19 {
                assert_eq!(tally.look(arrived, LOOK), Ok(()));
            }
        }
        assert!(!tally.is_settled(0));
        // The first of nineteen checks found a frame, so half a second is left twice.
        assert_eq!((tally.look(98, LOOK), tally.look(98, LOOK)), (Ok(()), Err(2)));
    }

    #[test]
    fn counts_wrap() {
        let mut tally = Tally::new();
        tally.hear(2);
        assert_eq!(tally.look(u32::MAX, PATIENCE), Ok(()));
        assert_eq!(tally.look(u32::MAX, PATIENCE), Err(3));
    }
}
