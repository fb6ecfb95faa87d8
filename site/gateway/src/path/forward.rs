//! The path of frames: from the bytes of one read to their destination connections, in one pass.
//!
//! Only bytes that a socket does not accept at once are copied. Frames of one read with the same destination are sent
//! together.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use channel::ChannelError;
use tokio::time::Instant;
use types::{Identity, JobId, Slot};
use wire::control::{AllocationMessage, JobMessage};
use wire::frame::{HEADER_LEN, MAX_PAYLOAD};
use wire::many::ASTRAY_LEN;
use wire::receipt::MAX_RECEIPT;
use wire::{Control, FrameHeader, FrameKind};

use crate::counters::Counters;
use crate::gateway::Gateway;
use crate::log::short;
use crate::path::copies::Item;
use crate::path::member::Member;
use crate::table::error::{Refused, Violation};
use crate::table::{Origin, Route};
use crate::trunks::link::Link;

/// The longest payload of a frame between members, in bytes.
pub(crate) const MAX_DATA: u32 = 16 << 10;
/// Most bytes per read.
pub(crate) const READ: usize = 128 << 10;
/// Bytes of scratch space: the remainder that one read may leave (a control message), plus the next read.
pub(crate) const SCRATCH: usize = HEADER_LEN + MAX_PAYLOAD as usize + 2 * READ;
/// Capacity that a connection keeps for the start of a frame.
const LASTING: usize = 4 * MAX_DATA as usize;
/// The longest ping from a member, and the longest reply. Between gateways, pings may be as long as data, to measure
/// the rate of a trunk.
const MAX_PING: u32 = 64;

/// Reasons why a connection is no longer read.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The peer sent a goodbye with this text.
    Goodbye(String),
    /// The connection broke.
    Lost(String),
    /// The peer broke the rules.
    Violation(String),
}

impl Stop {
    /// The peer closed the connection without a goodbye.
    pub(crate) fn closed() -> Stop {
        Stop::Lost("connection closed without goodbye".into())
    }
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Stop {
        Stop::Violation(violation.to_string())
    }
}

impl From<ChannelError> for Stop {
    fn from(error: ChannelError) -> Stop {
        Stop::Violation(format!("control messages: {error}"))
    }
}

/// A connection that frames arrive from or go to.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Member(Rc<Member>),
    Link(Rc<Link>),
}

impl Target {
    pub(super) fn pending(&self) -> &RefCell<Vec<Item>> {
        match self {
            Target::Member(member) => &member.pending,
            Target::Link(link) => &link.pending,
        }
    }

    /// Sends the frames gathered for this target from the bytes of `source`.
    fn send_pending(&self, gateway: &Gateway, bytes: &[u8], source: &Target) {
        match self {
            Target::Member(member) => member.send_pending(gateway, bytes),
            Target::Link(link) => link.send_pending(gateway, bytes, source.job()),
        }
    }

    /// The job of the frames from this connection. A link carries frames of all jobs, but only for members, except for
    /// copies.
    fn job(&self) -> JobId {
        match self {
            Target::Member(member) => member.job.get(),
            Target::Link(_) => JobId::default(),
        }
    }

    /// Returns true if members of a job should stop sending to this target for now.
    fn is_backed_up(&self, job: JobId) -> bool {
        match self {
            Target::Member(member) => member.outlet.is_backed_up(),
            Target::Link(link) => link.is_backed_up(job),
        }
    }

    /// Waits until this target accepts more frames of a job.
    pub(crate) async fn drained(&self, job: JobId) {
        match self {
            Target::Member(member) => member.outlet.drained().await,
            Target::Link(link) => link.drained(job).await,
        }
    }

    fn send_own(&self, gateway: &Gateway, header: FrameHeader, payload: &[u8]) {
        match self {
            Target::Member(member) => member.send_own(gateway, header, payload),
            Target::Link(link) if header.kind == FrameKind::Undeliverable => link.notice(gateway, header, payload),
            Target::Link(link) => link.answer(gateway, header, payload),
        }
    }
}

/// Approximate time for which a connection that always has bytes to read keeps the thread before others get their turn.
const FAIR: Duration = Duration::from_millis(2);

/// A connection's share of the thread's time.
#[derive(Debug, Default)]
pub(crate) struct Share(Option<Instant>);

impl Share {
    /// Records the result of a read. A connection with nothing more to read has already yielded the thread.
    pub(crate) fn of<T>(&mut self, come: Poll<T>) -> Poll<T> {
        if come.is_pending() {
            self.0 = None;
        }
        come
    }

    /// Yields to others if the share is used up. Call it after each read, with the current time.
    pub(crate) async fn taken(&mut self, now: Instant) {
        if now - *self.0.get_or_insert(now) > FAIR {
            self.0 = None;
            tokio::task::yield_now().await;
        }
    }
}

/// The start of a frame whose rest has not arrived. Counted as held.
#[derive(Debug)]
pub(crate) struct Partial {
    bytes: Vec<u8>,
    counters: std::sync::Arc<Counters>,
}

impl Partial {
    pub(crate) fn new(counters: std::sync::Arc<Counters>) -> Partial {
        Partial { bytes: Vec::new(), counters }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Puts the bytes back at the front of the scratch space.
    pub(crate) fn restore(&mut self, scratch: &mut [u8]) {
        scratch[..self.bytes.len()].copy_from_slice(&self.bytes);
        self.save(&[]);
    }

    pub(crate) fn save(&mut self, bytes: &[u8]) {
        self.counters.release(self.bytes.len() as u64);
        self.bytes.clear();
        if self.bytes.capacity() > LASTING {
            // Frees the memory of control messages, which are rare.
            self.bytes = Vec::new();
        }
        self.bytes.extend_from_slice(bytes);
        self.counters.hold(bytes.len() as u64);
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        self.counters.release(self.bytes.len() as u64);
    }
}

impl Gateway {
    /// Forwards all whole frames in `bytes`; returns their total length.
    pub(crate) fn forward(&self, source: &Target, bytes: &[u8]) -> Result<usize, Stop> {
        let mut touched = self.path.touched.take();
        let (mut at, mut frames, mut relayed) = (0, 0, 0);
        let result = loop {
            let rest = &bytes[at..];
            if rest.len() < HEADER_LEN {
                break Ok(());
            }
            let header = match FrameHeader::decode(rest, MAX_PAYLOAD) {
                Ok(header) => header,
                Err(error) => break Err(Stop::Violation(error.to_string())),
            };
            if let Err(stop) = may_send(source, &header) {
                break Err(stop);
            }
            let end = at + HEADER_LEN + header.length as usize;
            if end > bytes.len() {
                break Ok(());
            }
            let gathered = match (header.kind, source) {
                (FrameKind::Many, _) => Some(self.copy(source, &header, at..end, bytes, &mut touched)),
                (FrameKind::Astray, Target::Link(link)) => {
                    Some(self.pass_astray(link, &header, &bytes[at + HEADER_LEN..end]))
                }
                _ if is_relayed(source, &header) => Some(self.gather(source, &header, at..end, &mut touched)),
                _ => None,
            };
            if let Some(gathered) = gathered {
                match gathered {
                    Ok(0) => {}
                    Ok(length) => {
                        frames += 1;
                        relayed += length as u64;
                    }
                    Err(stop) => break Err(stop),
                }
            } else {
                // Messages already sent must arrive before the effects of this one.
                self.send_touched(source, &mut touched, bytes);
                if let Err(stop) = self.handle(source, &header, &bytes[at + HEADER_LEN..end]) {
                    break Err(stop);
                }
            }
            at = end;
        };
        self.send_touched(source, &mut touched, bytes);
        self.path.touched.replace(touched);
        self.counters.relayed(frames, relayed);
        result.map(|()| at)
    }

    /// Notes a frame for its destination; returns its length, or 0 if it has no destination.
    fn gather(
        &self,
        source: &Target,
        header: &FrameHeader,
        range: Range<usize>,
        touched: &mut Vec<Target>,
    ) -> Result<usize, Stop> {
        let origin = match source {
            Target::Member(_) => Origin::Member,
            Target::Link(link) => Origin::Trunk(link.trunk),
        };
        let length = range.len();
        let fate = self.route(origin, header, |route| match route {
            Route::Member(member) if self.is_too_slow(member) => Fate::Refused,
            Route::Member(member) => {
                note(&member.pending, range, touched, || Target::Member(member.clone()));
                Fate::Noted
            }
            Route::Trunk(trunk) => match self.trunks.get(trunk).link(header.from, header.to) {
                Some(link) => {
                    note(&link.pending, range, touched, || Target::Link(link.clone()));
                    Fate::Noted
                }
                None => Fate::Undeliverable(None),
            },
            Route::Nowhere { notice } => Fate::Undeliverable(notice),
            Route::Violation(reason) => Fate::Violation(reason),
        });
        match fate {
            Fate::Noted => return Ok(length),
            Fate::Violation(reason) => return Err(Stop::Violation(reason)),
            Fate::Refused => {
                self.counters.undeliverable();
                // The sender keeps data frames. Other kinds are requested again by the peer that needs them.
                if header.kind == FrameKind::Data {
                    let back = FrameHeader::plain(FrameKind::Refused, header.job, header.to, header.from);
                    source.send_own(self, back, &[]);
                }
            }
            Fate::Undeliverable(notice) => {
                self.counters.undeliverable();
                // Undeliverable acknowledgements are reported too: the sender believes that they arrived, and must stop
                // using the route.
                if let Some(reason) = notice.filter(|_| header.kind.acknowledges()) {
                    tracing::debug!(job = %header.job, from = %header.from, to = %header.to, reason, "undeliverable");
                    let back = FrameHeader::plain(FrameKind::Undeliverable, header.job, header.to, header.from);
                    source.send_own(self, back, reason.as_bytes());
                }
            }
        }
        Ok(0)
    }

    pub(super) fn send_touched(&self, source: &Target, touched: &mut Vec<Target>, bytes: &[u8]) {
        for target in touched.drain(..) {
            target.send_pending(self, bytes, source);
            debug_assert!(target.pending().borrow().is_empty());
            if let Target::Member(member) = source
                && target.is_backed_up(member.job.get())
            {
                member.waits_for.replace(Some(target));
            }
        }
        self.path.copies.clear();
    }

    /// Handles a frame addressed to the gateway itself.
    fn handle(&self, source: &Target, header: &FrameHeader, payload: &[u8]) -> Result<(), Stop> {
        match header.kind {
            FrameKind::Ping => {
                if matches!(source, Target::Link(_)) && header.job != JobId::default() {
                    self.trunks.survey.receives(self.path.now());
                }
                let back = FrameHeader::plain(FrameKind::Pong, header.job, header.to, header.from);
                source.send_own(self, back, &payload[..payload.len().min(MAX_PING as usize)]);
                Ok(())
            }
            FrameKind::Pong => {
                match source {
                    Target::Link(link) if header.job == JobId::default() => link.pong(payload),
                    Target::Link(_) => self.trunks.measuring.acknowledged(header.job, self.path.now()),
                    Target::Member(_) => {}
                }
                Ok(())
            }
            FrameKind::Bye => Err(Stop::Goodbye(String::from_utf8_lossy(payload).into_owned())),
            FrameKind::Control => {
                let message = Control::decode(payload).map_err(|e| Stop::Violation(e.to_string()))?;
                match source {
                    Target::Member(member) => self.control_from_member(member, message),
                    Target::Link(link) => {
                        let trunk = self.trunks.get(link.trunk);
                        let ready = trunk.control_came(self, header, message)?;
                        ready.into_iter().try_for_each(|message| self.control_from_trunk(link, message))
                    }
                }
            }
            FrameKind::Ack => match source {
                Target::Link(link) => Ok(self.trunks.get(link.trunk).control_acknowledged(self, header.ack)?),
                Target::Member(_) => Ok(()),
            },
            FrameKind::Data
            | FrameKind::Ask
            | FrameKind::Again
            | FrameKind::Answer
            | FrameKind::Refused
            | FrameKind::Undeliverable
            | FrameKind::Introduction
            | FrameKind::Passage
            | FrameKind::Tally
            | FrameKind::Many
            | FrameKind::Astray
            | FrameKind::Links => Ok(()),
        }
    }

    fn control_from_trunk(&self, link: &Link, message: Control) -> Result<(), Stop> {
        let trunk = link.trunk;
        let begins = |message: &Control| {
            matches!(
                message,
                Control::Job(JobMessage::Open { .. }) | Control::Allocation(AllocationMessage::Ask { .. })
            )
        };
        if begins(&message) {
            self.trunks.kick();
        }
        let result = match message {
            Control::Job(message) => self.change(|table| table.job_from_trunk(trunk, message)),
            Control::Allocation(message) => self.change(|table| table.allocation_from_trunk(trunk, message)),
            Control::Meeting(message) => {
                self.meeting_from_trunk(trunk, message);
                return Ok(());
            }
            Control::Measurement(message) => self.measurement_from_trunk(trunk, message),
            Control::Links(message) => self.links_from_trunk(trunk, message),
            Control::Coupling(message) => self.coupling_from_trunk(trunk, message),
            Control::Observation(_) | Control::Joining(_) => {
                Err(Violation(format!("site {} may not send a message for users", self.trunks.get(trunk).site)))
            }
        };
        Ok(result?)
    }

    fn control_from_member(&self, member: &Rc<Member>, message: Control) -> Result<(), Stop> {
        let result = match message {
            Control::Job(message) => self.job_from_member(member, message),
            Control::Allocation(message) => self.allocation_from_member(member, message),
            Control::Measurement(message) => self.measurement_from_member(member, message),
            Control::Observation(message) => self.observation_from_member(member, message),
            Control::Joining(message) => self.joining_from_member(member, message),
            Control::Links(message) => self.links_from_member(member, message),
            Control::Coupling(message) => self.coupling_from_member(member, message),
            Control::Meeting(_) => Err("only gateways may send meeting messages".into()),
        };
        Ok(result?)
    }

    fn job_from_member(&self, member: &Rc<Member>, message: JobMessage) -> Result<(), Violation> {
        let job = member.job.get();
        match message {
            JobMessage::Open { job: new, part, .. } if job == new && !part.leads() => {
                self.change(|table| table.job_from_launcher(job, &message))
            }
            JobMessage::Open { .. } if job != JobId::default() => {
                Err(Violation(format!("this connection already belongs to job {job}")))
            }
            JobMessage::Open { job: new, secret, roster, home, part } => {
                self.trunks.kick();
                let opened = self.change(|table| {
                    let identity = table.open(new, secret, roster, &home, part, member.clone())?;
                    // Must happen before anything is sent to the member.
                    member.becomes(new, identity);
                    Ok(())
                });
                if let Err(Refused { site, why }) = opened {
                    let reason = why.to_string();
                    tracing::warn!(peer = %member.address, job = %new, site, reason = short(&reason), "job refused");
                    member.send_control(self, JobMessage::Refused { job: new, site, reason });
                }
                Ok(())
            }
            JobMessage::Close { job: unopened, .. } if job == JobId::default() => {
                if !self.change(|table| table.abandoned_by(unopened, member)) {
                    // The job was refused, or lost its nodes, after the launcher sent this.
                    member.dismiss(&format!("job {unopened} is not open at site {}", self.site));
                }
                Ok(())
            }
            JobMessage::Stopped { job: own, stopped } if own == job && member.identity.get().slot == Slot::LAUNCHER => {
                member.stops(stopped);
                member.send_control(self, JobMessage::Stopped { job, stopped });
                Ok(())
            }
            message => self.change(|table| table.job_from_launcher(job, &message)),
        }
    }
}

/// The fate of a frame.
enum Fate {
    /// It is sent together with the other noted frames.
    Noted,
    /// Its receiver reads too slowly.
    Refused,
    /// There is no route to its receiver. The reason, if the sender is to be notified.
    Undeliverable(Option<String>),
    /// Its sender breaks the rules.
    Violation(String),
}

/// Notes the range of a frame for this destination in the current bytes.
fn note(pending: &RefCell<Vec<Item>>, range: Range<usize>, touched: &mut Vec<Target>, target: impl FnOnce() -> Target) {
    let mut pending = pending.borrow_mut();
    match pending.last_mut() {
        Some(Item::Frames(last)) if last.end == range.start => last.end = range.end,
        Some(_) => pending.push(Item::Frames(range)),
        None => {
            pending.push(Item::Frames(range));
            touched.push(target());
        }
    }
}

/// Checks that this peer may send such a frame at all, before waiting for the frame's payload.
fn may_send(source: &Target, header: &FrameHeader) -> Result<(), Stop> {
    let limit = match header.kind {
        FrameKind::Data | FrameKind::Undeliverable | FrameKind::Bye => MAX_DATA,
        FrameKind::Ack | FrameKind::Ask | FrameKind::Again | FrameKind::Answer => MAX_RECEIPT,
        FrameKind::Introduction | FrameKind::Tally | FrameKind::Passage | FrameKind::Links | FrameKind::Refused => 0,
        FrameKind::Many => MAX_DATA,
        FrameKind::Astray => ASTRAY_LEN,
        FrameKind::Ping if matches!(source, Target::Link(_)) => MAX_DATA,
        FrameKind::Ping | FrameKind::Pong => MAX_PING,
        FrameKind::Control => MAX_PAYLOAD,
    };
    if header.length > limit {
        let text = format!("a {:?} frame of {} bytes; at most {limit} are allowed", header.kind, header.length);
        return Err(Stop::Violation(text));
    }
    if matches!(header.kind, FrameKind::Introduction | FrameKind::Tally) {
        return Err(Stop::Violation("introductions go between ranks, not to a gateway".into()));
    }
    if matches!(header.kind, FrameKind::Passage | FrameKind::Links) {
        return Err(Stop::Violation("only gateways send passages and link tables, and only to their members".into()));
    }
    if header.relayed {
        return Err(Stop::Violation("only gateways mark frames, and only for their own members".into()));
    }
    let Target::Member(member) = source else { return Ok(()) };
    let (job, identity) = (member.job.get(), member.identity.get());
    match header.kind {
        kind if is_members(kind) && job == JobId::default() => {
            Err(Stop::Violation("a frame for a member before a job was opened".into()))
        }
        kind if is_members(kind) && (header.job != job || header.from != identity) => Err(Stop::Violation(format!(
            "a frame of job {} from {}, but this connection is {identity} of job {job}",
            header.job, header.from
        ))),
        FrameKind::Control if !member.client => Err(Stop::Violation("only launchers send control messages".into())),
        FrameKind::Undeliverable | FrameKind::Refused | FrameKind::Astray => {
            Err(Stop::Violation("only gateways report undeliverable frames".into()))
        }
        _ => Ok(()),
    }
}

/// Returns true if members send such frames to others.
fn is_members(kind: FrameKind) -> bool {
    kind.acknowledges() || kind == FrameKind::Many
}

/// Returns true if a frame is addressed to something other than this gateway.
fn is_relayed(source: &Target, header: &FrameHeader) -> bool {
    let of_trunk = matches!(source, Target::Link(_)) && header.to == GATEWAY;
    matches!(header.kind, FrameKind::Undeliverable | FrameKind::Refused) || (header.kind.acknowledges() && !of_trunk)
}

/// A gateway's identity in frames that concern no particular job.
pub(crate) const GATEWAY: Identity = Identity { site: types::SiteId(0), slot: Slot::GATEWAY };
