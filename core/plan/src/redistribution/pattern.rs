//! The positions along an axis that a process holds, and their places in its memory: runs that repeat with a period.
//!
//! A cyclic axis of a billion elements is one run here. The positions that two such axes share repeat with the least
//! common multiple of their periods.

/// Consecutive positions and their local indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first position.
    pub at: u64,
    /// The number of positions, at least 1.
    pub length: u64,
    /// The local index of the first position.
    pub local: i64,
    /// The difference between the local indices of neighbouring positions.
    pub step: i64,
}

impl Run {
    fn end(&self) -> u64 {
        self.at + self.length
    }

    /// The part of the run in `from..to`, or `None` if it is empty.
    fn within(self, from: u64, to: u64) -> Option<Run> {
        let (at, end) = (self.at.max(from), self.end().min(to));
        let local = self.local + self.step * at.saturating_sub(self.at) as i64;
        (at < end).then(|| Run { at, length: end - at, local, step: self.step })
    }

    /// The same run `times` periods later.
    fn later(self, times: u64, period: u64, advance: i64) -> Run {
        Run { at: self.at + times * period, local: self.local + times as i64 * advance, ..self }
    }
}

/// The positions `0..extent` of an axis that one process holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// The runs of the first period, in ascending order.
    runs: Vec<Run>,
    /// The period in positions, at least 1.
    period: u64,
    /// The growth of local indices with each period.
    advance: i64,
    extent: u64,
}

impl Pattern {
    /// A pattern that does not repeat. The runs must be in ascending order and within `0..extent`.
    pub fn once(runs: Vec<Run>, extent: u64) -> Pattern {
        Pattern { runs, period: extent.max(1), advance: 0, extent }
    }

    /// A pattern that repeats these runs up to `extent`: local indices grow by `advance` with each `period`.
    pub fn repeated(runs: Vec<Run>, period: u64, advance: i64, extent: u64) -> Pattern {
        if period >= extent {
            let runs = runs.into_iter().filter_map(|run| run.within(0, extent)).collect();
            return Pattern::once(runs, extent);
        }
        Pattern { runs, period, advance, extent }
    }

    /// The number of positions of the axis, whether this process holds them or not.
    pub fn extent(&self) -> u64 {
        self.extent
    }

    /// The number of positions held.
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|run| repetitions(run.at, run.length, self.period, self.extent)).sum()
    }

    /// All runs, in ascending order.
    pub fn all(&self) -> impl Iterator<Item = Run> + '_ {
        self.within(0, self.extent)
    }

    /// The runs in `from..to`, in ascending order.
    fn within(&self, from: u64, to: u64) -> impl Iterator<Item = Run> + '_ {
        let to = to.min(self.extent);
        let periods = from / self.period..to.div_ceil(self.period);
        periods
            .flat_map(move |times| self.runs.iter().map(move |run| run.later(times, self.period, self.advance)))
            .filter_map(move |run| run.within(from, to))
    }

    /// A range that contains all held positions; its end may lie after the last one.
    fn span(&self) -> Option<(u64, u64)> {
        let (first, last) = (self.runs.first()?, self.runs.iter().map(Run::end).max()?);
        Some((first.at, if self.period < self.extent { self.extent } else { last }))
    }

    /// The only run of a pattern that does not repeat and has no other.
    fn only(&self) -> Option<&Run> {
        match self.runs.as_slice() {
            [run] if self.period >= self.extent => Some(run),
            _ => None,
        }
    }

    /// The first position from `at` on where no run is cut: the end of the run around `at`, if there is one. Periods
    /// that begin there have whole runs, which are copied together; parts of runs are copied one by one.
    fn whole_run_from(&self, at: u64) -> u64 {
        let Some(before) = at.checked_sub(1) else { return at };
        let cut = self.within(before, at.saturating_add(self.period)).find(|run| run.at == before && run.end() > at);
        cut.map_or(at, |run| run.end())
    }

    /// The held positions among `start`, `start + step`, … (`count` of them), renumbered from 0.
    ///
    /// All of these positions must be on the axis, and `step` must not be 0.
    pub fn select(&self, start: u64, step: i64, count: u64) -> Pattern {
        if count == 0 {
            return Pattern::once(Vec::new(), 0);
        }
        let wide = step.unsigned_abs();
        if step > 0 {
            return self.stride(start, wide, count);
        }
        self.stride(start - wide * (count - 1), wide, count).reversed()
    }

    fn stride(&self, start: u64, step: u64, count: u64) -> Pattern {
        let common = gcd(self.period, step);
        let period = (self.period / common).min(count);
        let last = start + step * (period - 1);
        let runs = self.within(start, last + 1).filter_map(|run| {
            let first = (run.at - start).div_ceil(step);
            let end = (run.end() - 1 - start) / step + 1;
            let skipped = (start + step * first).checked_sub(run.at)?;
            (first < end).then(|| Run {
                at: first,
                length: end - first,
                local: run.local + run.step * skipped as i64,
                step: run.step * step as i64,
            })
        });
        Pattern::repeated(runs.collect(), period, self.advance * (step / common) as i64, count)
    }

    /// The positions in reverse order: the last position becomes the first.
    fn reversed(&self) -> Pattern {
        let from = self.extent.saturating_sub(self.period);
        let mut runs: Vec<Run> = self.within(from, self.extent).collect();
        for run in &mut runs {
            let last = run.local + run.step * (run.length - 1) as i64;
            *run = Run { at: self.extent - run.end(), local: last, step: -run.step, ..*run };
        }
        runs.sort_by_key(|run| (run.at, run.local));
        Pattern { runs, advance: -self.advance, ..*self }
    }

    /// A rotation: the position `shift` becomes the first, and the positions before it come last.
    pub fn shifted(&self, shift: u64) -> Pattern {
        let shift = shift.checked_rem(self.extent).unwrap_or(0);
        if shift == 0 {
            return self.clone();
        }
        let end = self.within(shift, self.extent).map(|run| Run { at: run.at - shift, ..run });
        let begin = self.within(0, shift).map(|run| Run { at: run.at + (self.extent - shift), ..run });
        Pattern::once(end.chain(begin).collect(), self.extent)
    }

    /// All local indices at which a position is held.
    pub fn locals(&self, at: u64) -> impl Iterator<Item = i64> + '_ {
        self.within(at, at.saturating_add(1)).map(|run| run.local)
    }
}

/// Consecutive positions that go from one process to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedRun {
    pub at: u64,
    pub length: u64,
    /// The sender's local index of the first position; `from_step` leads from one position to the next.
    pub from: i64,
    pub from_step: i64,
    /// The receiver's local index of the first position; `to_step` leads from one position to the next.
    pub to: i64,
    pub to_step: i64,
}

/// The positions of an axis that go from one process to another, in the order of sending.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedPositions {
    /// The runs before the first period.
    lead: Vec<SharedRun>,
    /// The runs of the first period, which begins at `begin`.
    runs: Vec<SharedRun>,
    period: u64,
    from_advance: i64,
    to_advance: i64,
    begin: u64,
    end: u64,
}

impl SharedPositions {
    /// The positions that `source` holds and `target` wants. The source must hold each position at most once.
    pub fn new(source: &Pattern, target: &Pattern) -> SharedPositions {
        let Some((first, end)) = overlap(source, target) else {
            let (lead, runs) = (Vec::new(), Vec::new());
            return SharedPositions { lead, runs, period: 1, from_advance: 0, to_advance: 0, begin: 0, end: 0 };
        };
        // What one run shares with a pattern repeats as the pattern does, wherever the run begins.
        let (first, begin, period) = match (source.only(), target.only()) {
            (Some(_), _) => (first, target.whole_run_from(first), target.period),
            (_, Some(_)) => (first, source.whole_run_from(first), source.period),
            _ => (0, 0, common_period(source, target)),
        };
        let begin = begin.min(end);
        let lead = shared(source, target, (first, begin));
        let runs = shared(source, target, (begin, end.min(begin.saturating_add(period))));
        let advance = |pattern: &Pattern| match pattern.only() {
            Some(run) => run.step.saturating_mul(period as i64),
            None => pattern.advance.saturating_mul((period / pattern.period) as i64),
        };
        SharedPositions { lead, runs, period, from_advance: advance(source), to_advance: advance(target), begin, end }
    }

    /// True if the source holds any position that the target wants. Does not list the positions.
    pub fn exists(source: &Pattern, target: &Pattern) -> bool {
        let Some((begin, end)) = overlap(source, target) else { return false };
        let end = end.min(begin.saturating_add(common_period(source, target)));
        let (mut held, mut wanted) = (source.within(begin, end).peekable(), target.within(begin, end).peekable());
        while let (Some(run), Some(other)) = (held.peek(), wanted.peek()) {
            if run.end() <= other.at {
                held.next();
            } else if other.end() <= run.at {
                wanted.next();
            } else {
                return true;
            }
        }
        false
    }

    pub fn is_empty(&self) -> bool {
        self.lead.is_empty() && self.runs.is_empty()
    }

    /// The number of positions.
    pub fn count(&self) -> u64 {
        let extent = self.end - self.begin;
        let repeated = self.runs.iter().map(|run| repetitions(run.at - self.begin, run.length, self.period, extent));
        self.lead.iter().map(|run| run.length).chain(repeated).sum()
    }

    /// All runs, in the order of sending.
    pub fn runs(&self) -> impl Iterator<Item = SharedRun> + Clone + '_ {
        let repeated = (0..(self.end - self.begin).div_ceil(self.period)).flat_map(move |times| {
            self.runs.iter().filter_map(move |run| {
                let at = run.at + times * self.period;
                let from = run.from + times as i64 * self.from_advance;
                let to = run.to + times as i64 * self.to_advance;
                let length = run.length.min(self.end.saturating_sub(at));
                (length > 0).then_some(SharedRun { at, length, from, to, ..*run })
            })
        });
        self.lead.iter().copied().chain(repeated)
    }
}

/// The runs in `from..to` that the source holds and the target wants.
fn shared(source: &Pattern, target: &Pattern, (from, to): (u64, u64)) -> Vec<SharedRun> {
    let held: Vec<Run> = source.within(from, to).collect();
    let mut runs = Vec::new();
    for wanted in target.within(from, to) {
        let first = held.partition_point(|run| run.end() <= wanted.at);
        for run in held[first..].iter().take_while(|run| run.at < wanted.end()) {
            let (at, end) = (run.at.max(wanted.at), run.end().min(wanted.end()));
            runs.push(SharedRun {
                at,
                length: end - at,
                from: run.local + run.step * (at - run.at) as i64,
                from_step: run.step,
                to: wanted.local + wanted.step * (at - wanted.at) as i64,
                to_step: wanted.step,
            });
        }
    }
    runs
}

/// The range in which two patterns may share positions; `None` if there is none.
fn overlap(one: &Pattern, other: &Pattern) -> Option<(u64, u64)> {
    let (one_span, other_span) = (one.span()?, other.span()?);
    let end = one_span.1.min(other_span.1).min(one.extent).min(other.extent);
    let begin = one_span.0.max(other_span.0);
    (begin < end).then_some((begin, end))
}

/// The period with which both patterns repeat.
fn common_period(one: &Pattern, other: &Pattern) -> u64 {
    (one.period / gcd(one.period, other.period)).saturating_mul(other.period)
}

/// The number of positions below `extent` among `at..at + length`, repeated with this period.
fn repetitions(at: u64, length: u64, period: u64, extent: u64) -> u64 {
    if at >= extent {
        return 0;
    }
    let last = (extent - 1 - at) / period;
    last * length + length.min(extent - at - last * period)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
