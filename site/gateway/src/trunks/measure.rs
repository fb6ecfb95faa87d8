//! Measuring the path to another site: its round trip and its rate.
//!
//! A user's command asks a gateway of its own site, which passes the order to a gateway of the sending site. That
//! gateway pings over its trunk, then sends frames that the other end acknowledges one by one, and times the
//! acknowledgements. The frames count as a job of their own and take turns with other jobs on the links, so running
//! jobs lose no more to them than to another job. Only gateways may ask gateways, and a gateway runs one measurement at
//! a time. Each is bounded by its [`Extent`], by [`LONGEST`], and by [`AHEAD`] bytes queued here for each link.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use types::JobId;
use types::roster::is_name;
use wire::control::{Measurement, MeasurementMessage};
use wire::frame::HEADER_LEN;
use wire::{FrameHeader, FrameKind};

use crate::path::limits::{GATEWAY, MAX_DATA};
use crate::path::member::Member;
use crate::table::TrunkId;
use crate::table::error::Violation;
use crate::trunks::error::TrunkError;
use crate::trunks::list::TrunkList;
use crate::trunks::trunk::Trunk;

/// The extent of a transfer for a user's command.
const ASKED: Extent = Extent { bytes: 8 << 20, lasts: Duration::from_millis(500) };
/// Number of round trips that a transfer lasts longer than on a short path, up to [`LONGEST`] in all. On a long path
/// TCP needs some round trips to reach full speed.
const ROUND_TRIPS: u32 = 10;
const LONGEST: Duration = Duration::from_secs(2);
/// Bytes of a transfer that may be sent before one is acknowledged. After that, twice the acknowledged bytes may be
/// sent in addition. So the transfer does not fill a slow path long after its end, and on a long path TCP does not wait
/// for the gateway, because TCP starts with less.
const FIRST: u64 = 64 << 10;
/// No frames are added while this many bytes of a transfer are queued for a link.
const AHEAD: usize = 256 << 10;
/// Interval at which the queues of links are checked, because links do not report that they drain.
const LOOK: Duration = Duration::from_millis(2);
/// Bytes of one frame of a transfer.
const FRAME: u64 = HEADER_LEN as u64 + MAX_DATA as u64;

/// Time limit of a probe for a trunk that is not up; [`PROBE_PING`] is its limit for the reply to its ping.
pub(crate) const PROBE_UP: Duration = Duration::from_millis(3000);
/// The same limit through ssh, which has to log in first.
const PROBE_UP_SSH: Duration = Duration::from_secs(8);
const PROBE_PING: Duration = Duration::from_secs(2);
/// Time limit of a measurement for a trunk that is down.
const UP: Duration = Duration::from_secs(1);
/// Time limit for the first ping.
const PING: Duration = Duration::from_secs(2);
/// Number of further pings; the shortest counts.
const PINGS: usize = 2;
/// Time limit for an order to another gateway, which needs `UP`, the pings and `LONGEST`.
const ORDER: Duration = Duration::from_millis(6000);

/// Limits of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Most bytes of frames.
    pub bytes: u64,
    /// Time limit on a short path.
    pub lasts: Duration,
}

/// The one measurement that a gateway makes or has ordered.
pub(crate) struct Measuring {
    list: Rc<TrunkList>,
    busy: Cell<bool>,
    order: RefCell<Option<MeasurementOrder>>,
    transfer: RefCell<Option<TimedTransfer>>,
    /// Notified when a frame of the transfer is acknowledged.
    acknowledged: Notify,
}

/// A measurement ordered from another gateway.
#[derive(Debug)]
struct MeasurementOrder {
    trunk: TrunkId,
    from: String,
    to: String,
    answer: oneshot::Sender<Measurement>,
}

/// The state of a transfer: frames sent and acknowledged.
#[derive(Debug)]
struct TimedTransfer {
    job: JobId,
    /// Most bytes of frames that it sends.
    most: u64,
    sent: u64,
    acknowledged: u64,
    /// Times of acknowledgements, with the number of frames acknowledged until then; frames acknowledged at the same
    /// instant share one entry.
    marks: Vec<(Instant, u64)>,
}

impl TimedTransfer {
    fn new(job: JobId, most: u64, now: Instant) -> TimedTransfer {
        TimedTransfer { job, most, sent: 0, acknowledged: 0, marks: vec![(now, 0)] }
    }

    fn acknowledged(&mut self, now: Instant) {
        if self.acknowledged == self.sent {
            // Acknowledges a frame that was never sent.
            return;
        }
        self.acknowledged += 1;
        match self.marks.last_mut() {
            Some((last, count)) if *last >= now => *count = self.acknowledged,
            _ => self.marks.push((now, self.acknowledged)),
        }
    }

    /// Bytes, and the time in which they were acknowledged. Counts at least the later half, because TCP is still
    /// speeding up in the earlier.
    fn rate(&self) -> Option<(u64, Duration)> {
        let (end, all) = *self.marks.last()?;
        let (begin, before) = *self.marks.iter().rev().find(|(_, count)| count * 2 <= all)?;
        let bytes = (all - before) * FRAME;
        (bytes > 0 && end > begin).then(|| (bytes, end - begin))
    }
}

impl Measuring {
    /// `list`: the trunks to measure.
    pub(crate) fn new(list: Rc<TrunkList>) -> Measuring {
        Measuring {
            list,
            busy: Cell::default(),
            order: RefCell::default(),
            transfer: RefCell::default(),
            acknowledged: Notify::new(),
        }
    }

    /// Notes that a frame of a transfer was acknowledged.
    pub(crate) fn acknowledged(&self, job: JobId, now: Instant) {
        if let Some(transfer) = self.transfer.borrow_mut().as_mut().filter(|transfer| transfer.job == job) {
            transfer.acknowledged(now);
            self.acknowledged.notify_one();
        }
    }

    /// Takes another gateway's result. A result that nobody waits for is ignored.
    fn measured(&self, trunk: TrunkId, from: &str, to: &str, found: Measurement) {
        let asked = |order: &mut MeasurementOrder| order.trunk == trunk && order.from == from && order.to == to;
        if let Some(order) = self.order.borrow_mut().take_if(asked) {
            // The receiver is gone if the caller has stopped waiting.
            let _ = order.answer.send(found);
        }
    }

    /// The permission to measure, if no other measurement is in progress.
    pub(crate) fn turn(&self) -> Option<MeasuringTurn<'_>> {
        (!self.busy.replace(true)).then(|| MeasuringTurn(self))
    }
}

/// Held by the one measurement in progress.
pub(crate) struct MeasuringTurn<'a>(&'a Measuring);

impl Drop for MeasuringTurn<'_> {
    fn drop(&mut self) {
        self.0.order.replace(None);
        self.0.transfer.replace(None);
        self.0.busy.set(false);
    }
}

impl Measuring {
    /// Probes a trunk for a user's command and replies.
    fn probe_later(self: &Rc<Self>, member: Rc<Member>, site: String) {
        let measuring = self.clone();
        tokio::task::spawn_local(async move {
            let (problem, rtt) = match measuring.probe(&site).await {
                Ok(rtt) => (None, rtt),
                Err(error) => (Some(error.to_string()), Duration::ZERO),
            };
            let rtt_ns = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
            member.send_control(&measuring.list.path, MeasurementMessage::Probed { site, problem, rtt_ns });
        });
    }

    async fn probe(&self, site: &str) -> Result<Duration, TrunkError> {
        if site == self.list.sites.site {
            return Ok(Duration::ZERO);
        }
        let through_ssh = self.list.path.table.read().lead_trunk(site).is_some_and(|id| self.list.get(id).through_ssh);
        let limit = if through_ssh { PROBE_UP_SSH } else { PROBE_UP };
        self.list.up_to(site, limit).await?.ping(&self.list.path, PROBE_PING).await
    }

    /// Measures for a user's command, or orders the measurement from a gateway of the sending site, and replies.
    fn measure_later(self: &Rc<Self>, member: Rc<Member>, from: String, to: String, transfer: bool) {
        let measuring = self.clone();
        tokio::task::spawn_local(async move {
            let found = match measuring.turn() {
                None => Ok(Measurement::Busy),
                Some(_turn) if from == measuring.list.sites.site => measuring.measure(&to, transfer).await,
                Some(_turn) => measuring.order(&from, &to, transfer).await,
            };
            let found = found.unwrap_or_else(|error| Measurement::Failed { problem: error.to_string() });
            member.send_control(&measuring.list.path, MeasurementMessage::Measured { from, to, found });
        });
    }

    /// Handles a measurement message from a member.
    ///
    /// # Errors
    /// A member may not send this message: close its connection.
    pub(crate) fn handle_member_message(
        self: &Rc<Self>,
        member: &Rc<Member>,
        message: MeasurementMessage,
    ) -> Result<(), Violation> {
        match message {
            MeasurementMessage::Probe { site } => self.probe_later(member.clone(), site),
            MeasurementMessage::Measure { from, to, transfer } => {
                self.measure_later(member.clone(), from, to, transfer);
            }
            MeasurementMessage::Probed { .. } | MeasurementMessage::Measured { .. } => {
                return Err("a gateway asks no user to measure".into());
            }
        }
        Ok(())
    }

    /// Handles a measurement message from a trunk.
    ///
    /// # Errors
    /// No gateway that follows the protocol sends it: close the link.
    pub(crate) fn handle_trunk_message(
        self: &Rc<Self>,
        trunk: TrunkId,
        message: MeasurementMessage,
    ) -> Result<(), Violation> {
        match message {
            MeasurementMessage::Measure { from, to, .. } if ![&from, &to].into_iter().all(|name| is_name(name)) => {
                let site = &self.list.get(trunk).site;
                return Err(Violation(format!("site {site} asks for a measurement between sites without names")));
            }
            // A request during a measurement is answered without a task, so that a flood of requests takes no memory.
            MeasurementMessage::Measure { from, to, .. } if self.busy.get() => {
                let busy = MeasurementMessage::Measured { from, to, found: Measurement::Busy };
                self.list.get(trunk).send_control(&self.list.path, busy);
            }
            MeasurementMessage::Measure { from, to, transfer } => self.measure_asked(trunk, from, to, transfer),
            MeasurementMessage::Measured { from, to, found } => self.measured(trunk, &from, &to, found),
            MeasurementMessage::Probe { .. } | MeasurementMessage::Probed { .. } => {
                let site = &self.list.get(trunk).site;
                return Err(Violation(format!("site {site} may not send a message for users")));
            }
        }
        Ok(())
    }

    /// Measures for another gateway and replies.
    fn measure_asked(self: &Rc<Self>, asker: TrunkId, from: String, to: String, transfer: bool) {
        let measuring = self.clone();
        tokio::task::spawn_local(async move {
            let found = match measuring.turn() {
                None => Ok(Measurement::Busy),
                Some(_) if from != measuring.list.sites.site => {
                    Err(TrunkError::OtherSite(measuring.list.sites.site.clone()))
                }
                Some(_turn) => measuring.measure(&to, transfer).await,
            };
            let found = found.unwrap_or_else(|error| Measurement::Failed { problem: error.to_string() });
            measuring
                .list
                .get(asker)
                .send_control(&measuring.list.path, MeasurementMessage::Measured { from, to, found });
        });
    }

    /// Orders a measurement from a gateway of another site.
    async fn order(&self, from: &str, to: &str, transfer: bool) -> Result<Measurement, TrunkError> {
        let trunk = self.list.up_to(from, UP).await?;
        let (answer, answered) = oneshot::channel();
        let order = MeasurementOrder { trunk: trunk.id, from: from.to_owned(), to: to.to_owned(), answer };
        self.order.replace(Some(order));
        trunk.send_control(
            &self.list.path,
            MeasurementMessage::Measure { from: from.to_owned(), to: to.to_owned(), transfer },
        );
        match timeout(ORDER, answered).await {
            Ok(Ok(found)) => Ok(found),
            _ => {
                let (site, gateway, seconds) = (from.to_owned(), trunk.gateway.clone(), ORDER.as_secs());
                Err(TrunkError::NotMeasured { site, gateway, seconds })
            }
        }
    }

    /// Measures the path from this gateway.
    async fn measure(&self, to: &str, transfer: bool) -> Result<Measurement, TrunkError> {
        let trunk = self.list.up_to(to, UP).await?;
        let mut rtt = trunk.ping(&self.list.path, PING).await?;
        for _ in 0..PINGS {
            rtt = trunk.ping(&self.list.path, rtt * 3 + LOOK).await.map_or(rtt, |again| again.min(rtt));
        }
        let (bytes, lasted) =
            if transfer { self.transfer(&trunk, rtt, ASKED, || false).await? } else { (0, Duration::ZERO) };
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(Measurement::Done { rtt_ns: nanoseconds(rtt), bytes, transfer_ns: nanoseconds(lasted) })
    }

    /// Sends for a moment as fast as the trunk accepts frames. Returns the number of bytes that arrived, and the time
    /// they took. The caller holds the turn.
    ///
    /// # Errors
    /// The trunk is down, nothing arrived in time, or the transfer was `disturbed`.
    pub(crate) async fn transfer(
        &self,
        trunk: &Trunk,
        rtt: Duration,
        extent: Extent,
        disturbed: impl Fn() -> bool,
    ) -> Result<(u64, Duration), TrunkError> {
        // A number that no job has, so that no member can send or receive frames of it.
        let job = loop {
            let job = JobId(getrandom::u32().map_err(TrunkError::Random)?);
            if job != JobId::default() && !self.list.path.table.read().jobs.contains_key(&job) {
                break job;
            }
        };
        let header = FrameHeader::plain(FrameKind::Ping, job, GATEWAY, GATEWAY);
        let frame = header.with_payload(&[0; MAX_DATA as usize])?;
        let limit = (extent.lasts + rtt * ROUND_TRIPS).min(LONGEST);
        let end = self.list.path.tick() + limit;
        self.transfer.replace(Some(TimedTransfer::new(job, extent.bytes, self.list.path.now())));
        loop {
            self.fill(trunk, job, &frame)?;
            let now = Instant::now();
            let all = self.progress().is_some_and(|(_, acknowledged)| acknowledged * FRAME >= extent.bytes);
            if all || now >= end {
                break;
            }
            if disturbed() {
                return Err(TrunkError::Disturbed(trunk.site.clone()));
            }
            tokio::select! {
                () = self.acknowledged.notified() => {}
                () = sleep_until((now + LOOK).min(end)) => {}
            }
        }
        let transfer = self.transfer.borrow_mut().take();
        transfer.and_then(|transfer| transfer.rate()).ok_or_else(|| {
            let (site, gateway) = (trunk.site.clone(), trunk.gateway.clone());
            TrunkError::NothingArrived { site, gateway, limit }
        })
    }

    /// Queues frames on the links that have room.
    fn fill(&self, trunk: &Trunk, job: JobId, frame: &[u8]) -> Result<(), TrunkError> {
        let links = trunk.up_links();
        if links.is_empty() {
            return Err(TrunkError::Down(trunk.problem()));
        }
        // Other tasks run before more bytes are queued than the limit for all links.
        let most = links.len() * AHEAD / frame.len();
        for link in links.iter().cycle().take(most) {
            let Some((sent, acknowledged)) = self.progress() else { return Ok(()) };
            let most = self.transfer.borrow().as_ref().map_or(0, |transfer| transfer.most);
            if sent * FRAME >= most.min(FIRST + 2 * acknowledged * FRAME) || self.list.path.is_memory_short() {
                return Ok(());
            }
            if link.queued_of(job) < AHEAD {
                link.send(&self.list.path, job, frame);
                self.transfer.borrow_mut().iter_mut().for_each(|transfer| transfer.sent += 1);
            }
        }
        Ok(())
    }

    /// Numbers of frames of the transfer that were sent, and acknowledged.
    fn progress(&self) -> Option<(u64, u64)> {
        self.transfer.borrow().as_ref().map(|transfer| (transfer.sent, transfer.acknowledged))
    }
}

#[cfg(test)]
mod tests;
