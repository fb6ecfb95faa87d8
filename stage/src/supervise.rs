//! Moves data beside an application: one thread works, at the level that the [`Controller`] chooses, and this one
//! measures.
//!
//! An unprivileged thread cannot raise its priority again after lowering it. So each change of level is a change of
//! threads: after a block, the old thread hands the work to a new one.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::control::{Aim, Controller, Level, Sample};
use crate::pressure::{Applications, Whose, of_thread};
use crate::sys;

/// Interval between measurements.
const EVERY: Duration = Duration::from_millis(100);
/// A thread held up for more than this share of its time counts as starved.
const STARVED: f64 = 0.5;
/// Shorter transfers, in seconds, are never reported as starved.
const NOTICED: f64 = 2.0;

/// Work that is done in small steps.
pub(crate) trait Work: Send {
    type Error: Send;

    /// Does a step, or waits for a while. Returns true while work remains.
    fn turn(&mut self, shared: &WorkState) -> Result<bool, Self::Error>;
}

/// State shared by the working and the measuring thread.
#[derive(Debug, Default)]
pub(crate) struct WorkState {
    level: AtomicU8,
    /// Bytes per second; 0: no limit.
    rate: AtomicU64,
    arrived: AtomicU64,
    total: AtomicU64,
    busy: AtomicBool,
    thread: AtomicU32,
    /// The user's latest limit, and whether it is new.
    limit: AtomicU64,
    limited: AtomicBool,
    /// Harm to the application in millionths of its time; [`NONE`]: there was no application.
    harm: AtomicU32,
    starved: AtomicBool,
    /// True while no application computes on this node.
    alone: AtomicBool,
}

const NONE: u32 = u32::MAX;

impl WorkState {
    pub(crate) fn new(rate: Option<u64>) -> WorkState {
        let shared = WorkState { harm: NONE.into(), ..WorkState::default() };
        shared.rate.store(rate.unwrap_or(0), Ordering::Relaxed);
        shared
    }

    /// Total rate limit in bytes per second; `None`: no limit.
    pub(crate) fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0)
    }

    /// Returns true if optional work costs an application nothing: this thread runs on idle cores only, or nothing
    /// computes.
    pub(crate) fn has_time(&self) -> bool {
        self.level() == Level::Idle || self.alone.load(Ordering::Relaxed)
    }

    /// Publishes the bytes arrived so far, the bytes in total, and whether there is work to do.
    pub(crate) fn tell(&self, arrived: u64, total: u64, busy: bool) {
        self.arrived.store(arrived, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Sets a new limit by the user.
    pub(crate) fn limit(&self, rate: Option<u64>) {
        self.limit.store(rate.unwrap_or(0), Ordering::Relaxed);
        self.limited.store(true, Ordering::Release);
    }

    /// The effect of the transfer on the application so far.
    pub(crate) fn overlap(&self) -> Overlap {
        let harm = Some(self.harm.load(Ordering::Relaxed)).filter(|harm| *harm != NONE);
        Overlap { harm: harm.map(|harm| f64::from(harm) / 1e6), starved: self.starved.load(Ordering::Relaxed) }
    }

    fn level(&self) -> Level {
        Level::of(self.level.load(Ordering::Relaxed))
    }
}

/// The effect of a transfer on the application beside it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlap {
    /// The share of its time that it lost to the transfer, above its base; `None`: there was no application.
    pub harm: Option<f64>,
    /// The transfer found no idle core time, and took none from the application.
    pub starved: bool,
}

/// A measurement from before the work starts: the pressure on applications without the transfer.
pub(crate) struct Before {
    began: Instant,
    applications: Applications,
    /// The pressure, once it is known; the inner `None`: nothing computes.
    pressure: Option<Option<f64>>,
}

impl Before {
    /// `whose`: the users whose applications are watched.
    pub(crate) fn look(whose: Whose) -> Before {
        let mut applications = Applications::new(whose);
        applications.sample(Duration::ZERO);
        Before { began: Instant::now(), applications, pressure: None }
    }

    /// Returns true if an application computes here. `None`: not known yet.
    pub(crate) fn is_busy(&mut self) -> Option<bool> {
        let now = self.began.elapsed();
        (now >= EVERY).then(|| self.measured(now).is_some())
    }

    fn measured(&mut self, now: Duration) -> Option<f64> {
        *self.pressure.get_or_insert_with(|| self.applications.sample(now))
    }
}

/// Does all of the work. `alone`: this process's session contains no other work.
pub(crate) fn supervise<W: Work>(
    work: &mut W,
    shared: &WorkState,
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
                // Must come first: at a low level the thread may not run again for a long time.
                shared.thread.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
                sys::take_level(level);
                let result = loop {
                    match work.turn(shared) {
                        Ok(true) if shared.level() == level => {}
                        Ok(goes_on) => break Ok(!goes_on),
                        Err(error) => break Err(error),
                    }
                };
                // The receiver is gone only if it has panicked.
                let _ = tell.send(());
                result
            });
            while told.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                sensor.measure(began.elapsed(), shared);
                // A starved thread would take long to finish its block.
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
    /// Seconds with work to do, and the part of them in which the thread was held up.
    held_up: (f64, f64),
    lowest: bool,
}

impl Sensor {
    fn new(aim: Aim, applications: Applications) -> Sensor {
        let controller = Controller::new(aim);
        Sensor { controller, applications, thread: None, measured: Duration::ZERO, held_up: (0.0, 0.0), lowest: true }
    }

    fn measure(&mut self, now: Duration, shared: &WorkState) {
        let pressure = self.applications.sample(now);
        self.decide(now, pressure, shared);
    }

    fn decide(&mut self, now: Duration, pressure: Option<f64>, shared: &WorkState) {
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
