//! Rates of a trunk in the last minute, one value per round.

use std::collections::VecDeque;
use std::time::Duration;

/// Age limit of values.
const MINUTE: Duration = Duration::from_secs(60);
/// Maximum length of the line, in characters.
const WIDTH: usize = 20;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Values of one trunk, oldest first.
#[derive(Clone, Debug)]
pub(super) struct History {
    values: VecDeque<f64>,
    /// Number of values kept.
    most: usize,
}

impl History {
    /// An empty history that gets one value per `interval`.
    pub(super) fn new(interval: Duration) -> History {
        let most = (MINUTE.as_secs_f64() / interval.as_secs_f64()).ceil().clamp(1.0, 10_000.0) as usize;
        History { values: VecDeque::new(), most }
    }

    /// Adds a value; values older than a minute are dropped.
    pub(super) fn push(&mut self, value: Option<f64>) {
        self.values.push_back(value.filter(|value| value.is_finite()).unwrap_or(0.0));
        while self.values.len() > self.most {
            self.values.pop_front();
        }
    }

    /// Replaces the newest value.
    pub(super) fn replace(&mut self, value: Option<f64>) {
        self.values.pop_back();
        self.push(value);
    }

    /// A line of blocks that ends at the present. Each block stands for the highest value of its interval, relative to
    /// the highest value of all.
    pub(super) fn line(&self) -> String {
        let width = WIDTH.min(self.most);
        let highest = self.values.iter().copied().fold(0.0, f64::max);
        let empty = self.most - self.values.len();
        let column = |at: usize| {
            let (from, to) = (at * self.most / width, (at + 1) * self.most / width);
            let value =
                (from..to).filter_map(|place| self.values.get(place.checked_sub(empty)?).copied()).fold(0.0, f64::max);
            if value <= 0.0 { ' ' } else { LEVELS[((value / highest * 8.0).ceil() as usize).clamp(1, 8) - 1] }
        };
        (0..width).map(column).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_at_the_right_and_the_highest_is_full() {
        let mut history = History::new(Duration::from_secs(1));
        assert_eq!(history.line(), " ".repeat(20));
        history.push(Some(4.0));
        assert_eq!(history.line(), " ".repeat(19) + "█");
        (0..3).for_each(|_| history.push(Some(1.0)));
        assert_eq!(history.line(), " ".repeat(18) + "█▂");
        history.push(None);
        (0..59).for_each(|_| history.push(Some(0.0)));
        assert_eq!(history.line(), " ".repeat(20), "every value is older than a minute");
        assert_eq!(history.values.len(), 60);
    }

    #[test]
    fn long_intervals_have_a_column_each() {
        let mut history = History::new(Duration::from_secs(20));
        [Some(2.0), Some(1.0), None].into_iter().for_each(|value| history.push(value));
        assert_eq!(history.line(), "█▄ ");
        let mut history = History::new(Duration::from_secs(3600));
        history.push(Some(f64::INFINITY));
        assert_eq!(history.line(), " ");
    }
}
