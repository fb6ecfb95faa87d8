//! How fast to move, and with what right to a core, so that the application beside it is not slowed down more than the
//! user accepts. Pure; time and measurements are arguments.
//!
//! The pressure on the application is the share of time that its threads could have run and did not. Its base is what
//! there is without us; what exceeds it is ours. Above the accepted harm the rate falls by a quarter, below it rises by
//! a part of the goal (additive increase, multiplicative decrease). A deadline is a goal that cannot be undercut: as it
//! comes nearer, the rate that it needs is kept whatever the harm, and where a thread of low priority does not get
//! that, one of a higher priority does the work.

use std::time::Duration;

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// Bytes per second that are not exceeded.
    pub rate: Option<u64>,
    /// When all should be there, from the beginning.
    pub deadline: Option<Duration>,
    /// The share of its time that an application may lose.
    pub harm: f64,
}

impl Aim {
    /// What to begin with. A thread that has given up its rights and starves cannot even hand its work over.
    fn first(&self) -> Level {
        if self.waits() { Level::Idle } else { Level::Low }
    }

    /// Whether only what is left over is taken, however long it takes.
    pub(crate) fn waits(&self) -> bool {
        self.deadline.is_none() && self.harm <= NO_HARM
    }
}

/// A thread's right to a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Only when nothing else wants to run.
    Idle = 0,
    /// Less than others.
    Low = 1,
    /// As others.
    Normal = 2,
}

impl Level {
    pub fn of(number: u8) -> Level {
        match number {
            0 => Level::Idle,
            1 => Level::Low,
            _ => Level::Normal,
        }
    }

    fn above(self) -> Level {
        Level::of(self as u8 + 1)
    }

    fn below(self) -> Level {
        Level::of((self as u8).saturating_sub(1))
    }
}

/// What was measured since the last time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Since the beginning.
    pub now: Duration,
    /// Bytes that have arrived, and all; 0: not known yet.
    pub arrived: u64,
    pub total: u64,
    /// Share of its time that the application was kept from running; `None`: there is no application.
    pub pressure: Option<f64>,
    /// The same of the moving thread.
    pub held_up: f64,
    /// Whether there is something to do.
    pub busy: bool,
}

/// What to do until the next time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Bytes per second; `None`: as fast as it goes.
    pub rate: Option<u64>,
    pub level: Level,
}

/// Without a limit the rate is found from here, in bytes per second.
const FIRST: f64 = 64e6;
/// A rate is not lowered below this part of its goal: less would never end, and harm no less.
const LEAST: f64 = 0.05;
/// Up to this harm only what others leave idle is used, and the rate may fall below that part.
const NO_HARM: f64 = 0.01;
/// A deadline is aimed at with this much to spare.
const SPARE: f64 = 1.08;
/// Below this share of the goal it is too slow.
const SLOW: f64 = 0.93;
/// Above this share of its time a thread is held up by others, and more rights would help.
const HELD_UP: f64 = 0.15;
/// Up to this share of its time a thread that is held up would not notice if it had less rights.
const LEFT_ALONE: f64 = 0.06;
/// How long it is too slow, before it gets more rights; and how long it has more than it needs before it gets less.
const PATIENCE: Duration = Duration::from_millis(200);
const EASE: Duration = Duration::from_secs(2);
/// Averages are over about this time.
const MEMORY: f64 = 0.5;

/// See the module docs.
#[derive(Clone, Debug)]
pub struct Controller {
    aim: Aim,
    /// Pressure without us.
    base: Option<f64>,
    /// Pressure of late; `None`: none has been measured yet.
    recent: Option<f64>,
    /// Bytes per second, of late.
    speed: f64,
    allowed: f64,
    level: Level,
    last: Option<Sample>,
    slow_since: Option<Duration>,
    easy_since: Option<Duration>,
    /// How long it is left alone after a lower level turned out to be too low; doubles each time.
    ease: Duration,
    /// Whether the last change was to a lower level.
    lowered: bool,
    /// Sums for the report: pressure above the base, and its weight.
    caused: (f64, f64),
}

impl Controller {
    pub fn new(aim: Aim) -> Controller {
        Controller {
            aim,
            base: None,
            recent: None,
            speed: 0.0,
            allowed: aim.rate.map_or(FIRST, |rate| rate as f64),
            level: aim.first(),
            last: None,
            slow_since: None,
            easy_since: None,
            ease: EASE,
            lowered: false,
            caused: (0.0, 0.0),
        }
    }

    /// Changes the limit while it goes on.
    pub fn set_rate(&mut self, rate: Option<u64>) {
        self.aim.rate = rate;
        self.allowed = rate.map_or(self.allowed, |rate| rate as f64);
    }

    /// The share of its time that the application lost to us, on average. `None`: there was none.
    pub fn harm(&self) -> Option<f64> {
        (self.caused.1 > 0.0).then(|| self.caused.0 / self.caused.1)
    }

    /// Takes a measurement, some ten times a second. The first one is from before anything is moved.
    pub fn sample(&mut self, sample: Sample) -> Decision {
        let Some(last) = self.last.replace(sample) else {
            (self.recent, self.base) = (sample.pressure, sample.pressure);
            return self.decision(sample);
        };
        let passed = sample.now.saturating_sub(last.now).as_secs_f64();
        if passed <= 0.0 {
            return self.decision(sample);
        }
        let weight = (passed / MEMORY).min(1.0);
        let speed = sample.arrived.saturating_sub(last.arrived) as f64 / passed;
        self.speed += (speed - self.speed) * weight;
        let needed = self.needed(sample);
        if let Some(pressure) = sample.pressure {
            let before = self.recent.unwrap_or(pressure);
            let recent = before + (pressure - before) * weight;
            // Work of the application comes and goes: its base is never above what there is now.
            let base = self.base.map_or(recent, |base| base.min(recent));
            (self.recent, self.base) = (Some(recent), Some(base));
            let harm = recent - base;
            if sample.busy {
                self.caused.0 += (pressure - base).max(0.0) * passed;
                self.caused.1 += passed;
            }
            let goal = self.aim.rate.map_or(self.allowed.max(FIRST), |rate| rate as f64);
            match harm > self.aim.harm {
                true => self.allowed *= 1.0 - 0.25 * weight,
                false => self.allowed += goal * 0.1 * passed.min(1.0),
            }
            let least = if self.aim.harm <= NO_HARM { LEAST / 10.0 } else { LEAST };
            self.allowed = self.allowed.max(least * goal);
        } else {
            let unlimited = self.allowed.max(FIRST).max(2.0 * self.speed);
            self.allowed = self.aim.rate.map_or(unlimited, |rate| rate as f64);
        }
        if let Some(rate) = self.aim.rate {
            self.allowed = self.allowed.min(rate as f64);
        }
        self.choose_level(sample, needed);
        self.decision(sample)
    }

    /// The rate that the deadline needs from now on. To learn how much there is takes a core too.
    fn needed(&self, sample: Sample) -> f64 {
        let Some(deadline) = self.aim.deadline else { return 0.0 };
        if sample.total == 0 {
            return f64::INFINITY;
        }
        let left = sample.total.saturating_sub(sample.arrived) as f64;
        let time = deadline.saturating_sub(sample.now).as_secs_f64().max(0.1);
        left / time * SPARE
    }

    /// What it should be at: what the deadline needs, else what the accepted harm allows. Where that is next to none,
    /// it takes what is left over.
    fn goal(&self, needed: f64) -> f64 {
        match self.aim.deadline {
            Some(_) => needed,
            None if self.aim.harm > NO_HARM => self.allowed,
            None => 0.0,
        }
    }

    fn choose_level(&mut self, sample: Sample, needed: f64) {
        if !sample.busy {
            // What is left to do can wait.
            self.level = if sample.total == 0 { self.aim.first() } else { Level::Idle };
            (self.slow_since, self.easy_since, self.lowered) = (None, None, false);
            return;
        }
        let goal = self.goal(needed);
        let slow = self.speed < SLOW * goal && sample.held_up > HELD_UP;
        if slow {
            self.easy_since = None;
            let since = *self.slow_since.get_or_insert(sample.now);
            // A lower level that was tried and is too low is left at once.
            let patience = if self.lowered { PATIENCE / 2 } else { PATIENCE };
            if sample.now >= since + patience && self.level < Level::Normal {
                if std::mem::take(&mut self.lowered) {
                    self.ease = (self.ease * 2).min(Duration::from_secs(60));
                }
                self.level = self.level.above();
                self.slow_since = None;
            }
            return;
        }
        self.slow_since = None;
        if self.level == Level::Idle {
            return;
        }
        if sample.held_up > LEFT_ALONE {
            // Others want the same cores: with less rights it would starve, and take long to say so.
            self.easy_since = None;
            return;
        }
        let since = *self.easy_since.get_or_insert(sample.now);
        if sample.now >= since + self.ease {
            if self.lowered {
                // The last step down was right.
                self.ease = EASE;
            }
            self.level = self.level.below();
            self.lowered = true;
            self.easy_since = None;
        }
    }

    fn decision(&self, sample: Sample) -> Decision {
        let needed = self.needed(sample);
        let limit = self.aim.rate.map_or(f64::INFINITY, |rate| rate as f64);
        let alone = sample.pressure.is_none();
        let rate = match (alone, self.aim.deadline) {
            // Nobody is there to be harmed.
            (true, _) => limit,
            // As slowly as the deadline allows.
            (false, Some(_)) if needed > 0.0 => needed.min(limit),
            (false, Some(_)) => limit,
            (false, None) => self.allowed.min(limit),
        };
        let rate = rate.is_finite().then_some(rate.max(1.0) as u64);
        Decision { rate, level: self.level }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node on which an application computes: what a mover gets and what it costs, by its level and its rate.
    struct Node {
        /// Bytes per second that each level gets at most.
        gets: [f64; 3],
        /// Share of the application's time that is lost for each byte per second, by level.
        costs: [f64; 3],
        base: f64,
    }

    /// Both cores busy: a thread of idle class starves, and what runs is taken from the application.
    const BUSY: Node = Node { gets: [5e6, 60e6, 1e9], costs: [1e-11, 3e-10, 5e-10], base: 0.01 };
    /// A core is idle.
    const HALF: Node = Node { gets: [800e6, 900e6, 1e9], costs: [1e-11, 1e-11, 1e-11], base: 0.0 };

    struct Outcome {
        took: f64,
        harm: f64,
        levels: [f64; 3],
    }

    fn run(node: &Node, aim: Aim, total: u64) -> Outcome {
        let mut controller = Controller::new(aim);
        let (mut arrived, mut now) = (0.0f64, 0.0f64);
        let (mut harm, mut held_up, mut levels) = (0.0, 0.0, [0.0; 3]);
        let mut pressure = node.base;
        while arrived < total as f64 && now < 1000.0 {
            let sample = Sample {
                now: Duration::from_secs_f64(now),
                arrived: arrived as u64,
                total,
                pressure: Some(pressure),
                held_up,
                busy: true,
            };
            let decision = controller.sample(sample);
            let level = decision.level as usize;
            let wanted = decision.rate.map_or(f64::INFINITY, |rate| rate as f64);
            let rate = wanted.min(node.gets[level]);
            held_up = if rate < wanted { 0.9 } else { 0.05 };
            pressure = node.base + rate * node.costs[level];
            harm += (pressure - node.base) * 0.1;
            levels[level] += 0.1;
            arrived += rate * 0.1;
            now += 0.1;
        }
        Outcome { took: now, harm: harm / now, levels }
    }

    const RATE: u64 = 120 << 20;

    #[test]
    fn a_rate_is_kept_on_a_busy_node() {
        let outcome = run(&BUSY, Aim { rate: Some(RATE), deadline: None, harm: 0.08 }, 4 * RATE);
        assert!(outcome.took < 4.0 * 1.3, "{}", outcome.took);
    }

    #[test]
    fn without_a_rate_the_accepted_harm_decides() {
        let outcome = run(&BUSY, Aim { rate: None, deadline: None, harm: 0.05 }, 20 * RATE);
        assert!((0.02..0.065).contains(&outcome.harm) && outcome.took < 60.0, "{} {}", outcome.harm, outcome.took);
    }

    #[test]
    fn an_idle_core_needs_no_rights() {
        let outcome = run(&HALF, Aim { rate: Some(RATE), deadline: None, harm: 0.08 }, 10 * RATE);
        let [_, low, normal] = outcome.levels;
        assert!(outcome.took < 10.5 && low < 2.5 && normal == 0.0, "{:?}", outcome.levels);
    }

    #[test]
    fn a_deadline_is_kept_and_a_later_one_harms_less() {
        let mut before = f64::INFINITY;
        for times in [1.3, 2.0, 4.0] {
            let deadline = Duration::from_secs_f64(10.0 * times);
            let aim = Aim { rate: Some(RATE), deadline: Some(deadline), harm: 0.08 };
            let outcome = run(&BUSY, aim, 10 * RATE);
            assert!(outcome.took <= deadline.as_secs_f64() + 0.2, "{} of {deadline:?}", outcome.took);
            assert!(outcome.harm < before, "{times}: {} after {before}", outcome.harm);
            before = outcome.harm;
        }
    }

    #[test]
    fn no_harm_keeps_to_what_is_left_over() {
        let aim = Aim { rate: Some(RATE), deadline: None, harm: 0.0 };
        let outcome = run(&BUSY, aim, RATE);
        assert!(outcome.levels[1] + outcome.levels[2] == 0.0 && outcome.harm < 0.001, "{}", outcome.harm);
    }

    #[test]
    fn harm_stays_near_what_is_accepted() {
        for harm in [0.02, 0.03] {
            let aim = Aim { rate: Some(RATE), deadline: None, harm };
            let outcome = run(&BUSY, aim, 20 * RATE);
            assert!(outcome.harm < harm * 1.3, "{harm}: {}", outcome.harm);
            assert!(outcome.took < 1000.0);
        }
    }

    #[test]
    fn who_starves_before_it_knows_how_much_there_is_gets_more_rights() {
        for rate in [None, Some(RATE)] {
            let mut controller = Controller::new(Aim { rate, deadline: Some(Duration::from_secs(5)), harm: 0.03 });
            let levels = (0..20).map(|tenth| {
                let now = Duration::from_millis(100 * tenth);
                let (pressure, busy) = (Some(0.5), tenth > 1);
                controller.sample(Sample { now, arrived: 0, total: 0, pressure, held_up: 1.0, busy }).level
            });
            assert_eq!(levels.max(), Some(Level::Normal));
        }
    }

    #[test]
    fn without_an_application_nothing_is_held_back() {
        let mut controller = Controller::new(Aim { rate: None, deadline: None, harm: 0.03 });
        let sample = Sample {
            now: Duration::from_millis(100),
            arrived: 0,
            total: 1 << 40,
            pressure: None,
            held_up: 0.0,
            busy: true,
        };
        assert_eq!(controller.sample(sample).rate, None);
    }
}
