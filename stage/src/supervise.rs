//! Moving beside an application: one thread works, at the level that the [`Controller`] chooses, and this one measures.
//!
//! A thread that has given up its right to a core gets it back only with privileges, so each change of level is a
//! change of threads: the work is handed over after a block.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::control::{Aim, Controller, Level, Sample};
use crate::pressure::{Applications, Whose, of_thread};
use crate::sys;

/// How often it is measured.
const EVERY: Duration = Duration::from_millis(100);
/// From this share of its time on, a thread that was held up says that nothing was left over for it.
const STARVED: f64 = 0.5;
/// A shorter transfer than this, in seconds, says nothing about it.
const NOTICED: f64 = 2.0;

/// Something that is done in small steps.
pub(crate) trait Work: Send {
    type Error: Send;

    /// Does a step, or waits for a while. Returns whether it goes on.
    fn turn(&mut self, shared: &Shared) -> Result<bool, Self::Error>;
}

/// What the working thread and the measuring one know of each other.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    level: AtomicU8,
    /// Bytes per second; 0: as fast as it goes.
    rate: AtomicU64,
    arrived: AtomicU64,
    total: AtomicU64,
    busy: AtomicBool,
    thread: AtomicU32,
    /// The user's limit of late, and whether it is new.
    limit: AtomicU64,
    limited: AtomicBool,
    /// Parts of a million of its time that an application has lost to us; [`NONE`]: there was none.
    harm: AtomicU32,
    starved: AtomicBool,
    /// Nothing computes beside it.
    alone: AtomicBool,
}

const NONE: u32 = u32::MAX;

impl Shared {
    pub(crate) fn new(rate: Option<u64>) -> Shared {
        let shared = Shared { harm: NONE.into(), ..Shared::default() };
        shared.rate.store(rate.unwrap_or(0), Ordering::Relaxed);
        shared
    }

    /// Bytes per second that all together may arrive with; `None`: as fast as it goes.
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// Whether cores are idle: then what can wait need not.
    pub(crate) fn has_time(&self) -> bool {
        self.level() == Level::Idle || self.alone.load(Ordering::Relaxed)
    }

    /// Bytes that have arrived so far, bytes in all, and whether there is something to do.
    pub(crate) fn tell(&self, arrived: u64, total: u64, busy: bool) {
        self.arrived.store(arrived, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// The user has another limit.
    pub(crate) fn limit(&self, rate: Option<u64>) {
        self.limit.store(rate.unwrap_or(0), Ordering::Relaxed);
        self.limited.store(true, Ordering::Release);
    }

    /// What moving was to the application, up to now.
    pub(crate) fn overlap(&self) -> Overlap {
        let harm = Some(self.harm.load(Ordering::Relaxed)).filter(|harm| *harm != NONE);
        Overlap { harm: harm.map(|harm| f64::from(harm) / 1e6), starved: self.starved.load(Ordering::Relaxed) }
    }

    fn level(&self) -> Level {
        Level::of(self.level.load(Ordering::Relaxed))
    }
}

/// What moving was to the application beside it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlap {
    /// The share of its time that it lost, above what it lost without us; `None`: there was none.
    pub harm: Option<f64>,
    /// Nothing was left over for us, and we took nothing.
    pub starved: bool,
}

/// A first look at what runs beside the work, from before there is any: what an application loses without us.
pub(crate) struct Before {
    began: Instant,
    applications: Applications,
    /// The pressure on them, once it is known; `None` in it: nothing computes.
    pressure: Option<Option<f64>>,
}

impl Before {
    /// `whose`: who must not notice.
    pub(crate) fn look(whose: Whose) -> Before {
        let mut applications = Applications::new(whose);
        applications.sample(Duration::ZERO);
        Before { began: Instant::now(), applications, pressure: None }
    }

    /// Whether an application computes here, as soon as that can be known.
    pub(crate) fn is_busy(&mut self) -> Option<bool> {
        let now = self.began.elapsed();
        (now >= EVERY).then(|| self.measured(now).is_some())
    }

    fn measured(&mut self, now: Duration) -> Option<f64> {
        *self.pressure.get_or_insert_with(|| self.applications.sample(now))
    }
}

/// Does all of the work. `alone`: all processes of this session belong to the work.
pub(crate) fn supervise<W: Work>(
    work: &mut W,
    shared: &Shared,
    aim: Aim,
    alone: bool,
    mut before: Before,
) -> Result<(), W::Error> {
    let began = before.began;
    std::thread::sleep(EVERY.saturating_sub(began.elapsed()));
    let first = before.measured(began.elapsed());
    let (mut sensor, waits) = (Sensor::new(aim, before.applications), aim.waits());
    sensor.decide(began.elapsed(), first, shared);
    shared.busy.store(true, Ordering::Relaxed);
    loop {
        let level = shared.level();
        if alone {
            sys::lower_session(level, waits);
        }
        let finished = std::thread::scope(|scope| {
            let (tell, told) = channel();
            let work = &mut *work;
            let worker = scope.spawn(move || {
                // First, because with less rights it may not run for long.
                shared.thread.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
                sys::take_level(level);
                let result = loop {
                    match work.turn(shared) {
                        Ok(true) if shared.level() == level => {}
                        Ok(goes_on) => break Ok(!goes_on),
                        Err(error) => break Err(error),
                    }
                };
                // The other end is gone only if it has panicked.
                let _ = tell.send(());
                result
            });
            while told.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                sensor.measure(began.elapsed(), shared);
                // A thread that starves would take long to come to the end of its block.
                if alone && shared.level() > level {
                    sys::lower_session(shared.level(), waits);
                }
            }
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        if finished {
            return Ok(());
        }
    }
}

struct Sensor {
    controller: Controller,
    applications: Applications,
    /// The working thread, and its times at the last measurement.
    thread: Option<(u32, u64, u64)>,
    measured: Duration,
    /// Seconds in which there was something to do, and those of them in which the thread was held up.
    held_up: (f64, f64),
    lowest: bool,
}

impl Sensor {
    fn new(aim: Aim, applications: Applications) -> Sensor {
        let controller = Controller::new(aim);
        Sensor { controller, applications, thread: None, measured: Duration::ZERO, held_up: (0.0, 0.0), lowest: true }
    }

    fn measure(&mut self, now: Duration, shared: &Shared) {
        let pressure = self.applications.sample(now);
        self.decide(now, pressure, shared);
    }

    fn decide(&mut self, now: Duration, pressure: Option<f64>, shared: &Shared) {
        if shared.limited.swap(false, Ordering::Acquire) {
            self.controller.set_rate(Some(shared.limit.load(Ordering::Relaxed)).filter(|rate| *rate > 0));
        }
        let passed = now.saturating_sub(self.measured).as_secs_f64();
        self.measured = now;
        let thread = shared.thread.load(Ordering::Relaxed);
        let mut held_up = 0.0;
        if let Some((ran, waited, runnable)) = of_thread(thread) {
            let before = self.thread.replace((thread, ran, waited)).filter(|(known, ..)| *known == thread);
            if let Some((_, ran_before, waited_before)) = before {
                let share = |now: u64, before: u64| now.saturating_sub(before) as f64 / 1e9 / passed.max(1e-3);
                let not_run = if runnable { 1.0 - share(ran, ran_before) } else { 0.0 };
                held_up = share(waited, waited_before).max(not_run).clamp(0.0, 1.0);
            }
        }
        let busy = shared.busy.load(Ordering::Relaxed);
        if busy {
            self.held_up.0 += passed;
            self.held_up.1 += held_up * passed;
        }
        shared.alone.store(pressure.is_none(), Ordering::Relaxed);
        let decision = self.controller.sample(Sample {
            now,
            arrived: shared.arrived.load(Ordering::Relaxed),
            total: shared.total.load(Ordering::Relaxed),
            pressure,
            held_up,
            busy,
        });
        self.lowest &= decision.level == Level::Idle;
        shared.rate.store(decision.rate.unwrap_or(0), Ordering::Relaxed);
        shared.level.store(decision.level as u8, Ordering::Relaxed);
        let harm = self.controller.harm().map_or(NONE, |harm| (harm * 1e6) as u32);
        shared.harm.store(harm, Ordering::Relaxed);
        let starved = self.lowest && self.held_up.0 > NOTICED && self.held_up.1 / self.held_up.0 > STARVED;
        shared.starved.store(starved, Ordering::Relaxed);
    }
}
