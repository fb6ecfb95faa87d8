//! Controls the transfer rate and the scheduling priority of the moving thread, so that an application on the same node
//! is slowed down no more than the user accepts. Pure; time and measurements are arguments.
//!
//! The pressure on the application is the share of time that its threads were runnable but did not run. The base is the
//! pressure without the transfer; the excess is harm. Above the accepted harm the rate falls by a quarter, below it the
//! rate rises by a part of the goal (additive increase, multiplicative decrease). A deadline overrides the harm: the
//! closer it comes, the more the rate it requires prevails, and if a thread of low priority does not reach that rate,
//! its priority is raised.

use std::time::Duration;

/// The user's limits for a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// Upper limit in bytes per second.
    pub rate: Option<u64>,
    /// Deadline for the whole transfer, measured from its start.
    pub deadline: Option<Duration>,
    /// The accepted loss of an application, as a share of its time.
    pub harm: f64,
}

impl Aim {
    /// The initial level. A starved thread at the idle level cannot even hand its work over.
    fn first(&self) -> Level {
        if self.waits() { Level::Idle } else { Level::Low }
    }

    /// Returns true if the transfer uses idle cores only, however long it takes.
    pub(crate) fn waits(&self) -> bool {
        self.deadline.is_none() && self.harm <= NO_HARM
    }
}

/// Scheduling priority of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Runs only on idle cores.
    Idle = 0,
    /// Below other threads.
    Low = 1,
    /// Equal to other threads.
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

/// Measurements since the previous sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time since the start.
    pub now: Duration,
    /// Bytes arrived so far, and bytes in total; 0: not known yet.
    pub arrived: u64,
    pub total: u64,
    /// The share of its time that the application was kept from running; `None`: there is no application.
    pub pressure: Option<f64>,
    /// The same share for the moving thread.
    pub held_up: f64,
    /// True if there is work to do.
    pub busy: bool,
}

/// Settings until the next sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Bytes per second; `None`: no limit.
    pub rate: Option<u64>,
    pub level: Level,
}

/// Initial rate if there is no limit, in bytes per second.
const FIRST: f64 = 64e6;
/// Floor of the rate, as a part of its goal: below it a transfer would never end, and would do no less harm.
const LEAST: f64 = 0.05;
/// Up to this harm, the transfer uses idle cores only, and its rate may fall below the floor.
const NO_HARM: f64 = 0.01;
/// Safety margin for a deadline.
const SPARE: f64 = 1.08;
/// Below this share of the goal, the transfer is too slow.
const SLOW: f64 = 0.93;
/// A thread held up for more than this share of its time would gain from a higher level.
const HELD_UP: f64 = 0.15;
/// A thread held up for less than this share of its time would not notice a lower level.
const LEFT_ALONE: f64 = 0.06;
/// Time below the goal before the level rises, and time above it before the level falls.
const PATIENCE: Duration = Duration::from_millis(200);
const EASE: Duration = Duration::from_secs(2);
/// Averaging time of the measurements, in seconds.
const MEMORY: f64 = 0.5;

/// Chooses rate and level; see the module docs.
#[derive(Clone, Debug)]
pub struct Controller {
    aim: Aim,
    /// Pressure without the transfer.
    base: Option<f64>,
    /// Smoothed pressure; `None`: not measured yet.
    recent: Option<f64>,
    /// Smoothed speed in bytes per second.
    speed: f64,
    allowed: f64,
    level: Level,
    last: Option<Sample>,
    slow_since: Option<Duration>,
    easy_since: Option<Duration>,
    /// Delay before the next lower level is tried; doubles each time a lower level proves too low.
    ease: Duration,
    /// True if the last change was to a lower level.
    lowered: bool,
    /// Sums for the report: pressure above the base times its duration, and the duration.
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

    /// Changes the rate limit of a running transfer.
    pub fn set_rate(&mut self, rate: Option<u64>) {
        self.aim.rate = rate;
        self.allowed = rate.map_or(self.allowed, |rate| rate as f64);
    }

    /// The average share of its time that the application lost to the transfer. `None`: there was no application.
    pub fn harm(&self) -> Option<f64> {
        (self.caused.1 > 0.0).then(|| self.caused.0 / self.caused.1)
    }

    /// Processes a sample, about ten times a second. The first sample must precede the first moved byte.
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
            // The application's load varies: its base is never above the present pressure.
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

    /// The rate the deadline requires from now on. Infinite while the total is unknown: finding it takes a core too.
    fn needed(&self, sample: Sample) -> f64 {
        let Some(deadline) = self.aim.deadline else { return 0.0 };
        if sample.total == 0 {
            return f64::INFINITY;
        }
        let left = sample.total.saturating_sub(sample.arrived) as f64;
        let time = deadline.saturating_sub(sample.now).as_secs_f64().max(0.1);
        left / time * SPARE
    }

    /// The target rate: the deadline's rate, or else the rate that the accepted harm allows. If almost no harm is
    /// accepted, the target is 0 and the transfer uses idle cores.
    fn goal(&self, needed: f64) -> f64 {
        match self.aim.deadline {
            Some(_) => needed,
            None if self.aim.harm > NO_HARM => self.allowed,
            None => 0.0,
        }
    }

    fn choose_level(&mut self, sample: Sample, needed: f64) {
        if !sample.busy {
            // The remaining work is not urgent.
            self.level = if sample.total == 0 { self.aim.first() } else { Level::Idle };
            (self.slow_since, self.easy_since, self.lowered) = (None, None, false);
            return;
        }
        let goal = self.goal(needed);
        let slow = self.speed < SLOW * goal && sample.held_up > HELD_UP;
        if slow {
            self.easy_since = None;
            let since = *self.slow_since.get_or_insert(sample.now);
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
            // Other threads want the same cores: at a lower level this one would starve, and the controller would
            // notice late.
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
mod tests;
