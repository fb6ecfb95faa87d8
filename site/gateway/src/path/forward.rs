//! The path of frames: from the bytes of one read to their destination connections, in one pass.
//!
//! Only bytes that a socket does not accept at once are copied. Frames of one read with the same destination are sent
//! together.

use std::cell::RefCell;
use std::ops::Range;

use types::JobId;
use wire::frame::{HEADER_LEN, MAX_PAYLOAD};
use wire::many::ASTRAY_LEN;
use wire::receipt::MAX_RECEIPT;
use wire::{FrameHeader, FrameKind};

use crate::path::Path;
use crate::path::copies::Item;
use crate::path::limits::{GATEWAY, MAX_DATA, MAX_PING};
use crate::path::neighbour::Neighbour;
use crate::path::reading::Stop;
use crate::table::{Origin, Route};

impl Path {
    /// Forwards all whole frames in `bytes`, and passes those for the gateway itself to `own`. Returns their total
    /// length.
    pub(super) fn forward(
        &self,
        source: &Neighbour,
        bytes: &[u8],
        own: impl Fn(&FrameHeader, &[u8]) -> Result<(), Stop>,
    ) -> Result<usize, Stop> {
        let mut touched = self.touched.take();
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
                (FrameKind::Astray, Neighbour::Link(link)) => {
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
                if let Err(stop) = own(&header, &bytes[at + HEADER_LEN..end]) {
                    break Err(stop);
                }
            }
            at = end;
        };
        self.send_touched(source, &mut touched, bytes);
        self.touched.replace(touched);
        self.counters.relayed(frames, relayed);
        result.map(|()| at)
    }

    /// Notes a frame for its destination; returns its length, or 0 if it has no destination.
    fn gather(
        &self,
        source: &Neighbour,
        header: &FrameHeader,
        range: Range<usize>,
        touched: &mut Vec<Neighbour>,
    ) -> Result<usize, Stop> {
        let origin = match source {
            Neighbour::Member(_) => Origin::Member,
            Neighbour::Link(link) => Origin::Trunk(link.trunk),
        };
        let length = range.len();
        let fate = self.table.route(origin, header, |route| match route {
            Route::Member(member) if self.is_too_slow(member) => Fate::Refused,
            Route::Member(member) => {
                note(&member.pending, range, touched, || Neighbour::Member(member.clone()));
                Fate::Noted
            }
            Route::Trunk(trunk) => match self.link(trunk, header.from, header.to) {
                Some(link) => {
                    note(&link.pending, range, touched, || Neighbour::Link(link.clone()));
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

    pub(super) fn send_touched(&self, source: &Neighbour, touched: &mut Vec<Neighbour>, bytes: &[u8]) {
        for target in touched.drain(..) {
            target.send_pending(self, bytes, source);
            debug_assert!(target.pending().borrow().is_empty());
            if let Neighbour::Member(member) = source
                && target.is_backed_up(member.job.get())
            {
                member.waits_for.replace(Some(target));
            }
        }
        self.copies.clear();
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
fn note(
    pending: &RefCell<Vec<Item>>,
    range: Range<usize>,
    touched: &mut Vec<Neighbour>,
    target: impl FnOnce() -> Neighbour,
) {
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
fn may_send(source: &Neighbour, header: &FrameHeader) -> Result<(), Stop> {
    let limit = match header.kind {
        FrameKind::Data | FrameKind::Undeliverable | FrameKind::Bye => MAX_DATA,
        FrameKind::Ack | FrameKind::Ask | FrameKind::Again | FrameKind::Answer => MAX_RECEIPT,
        FrameKind::Introduction | FrameKind::Tally | FrameKind::Passage | FrameKind::Links | FrameKind::Refused => 0,
        FrameKind::Many => MAX_DATA,
        FrameKind::Astray => ASTRAY_LEN,
        FrameKind::Ping if matches!(source, Neighbour::Link(_)) => MAX_DATA,
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
    let Neighbour::Member(member) = source else { return Ok(()) };
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
fn is_relayed(source: &Neighbour, header: &FrameHeader) -> bool {
    let of_trunk = matches!(source, Neighbour::Link(_)) && header.to == GATEWAY;
    matches!(header.kind, FrameKind::Undeliverable | FrameKind::Refused) || (header.kind.acknowledges() && !of_trunk)
}
