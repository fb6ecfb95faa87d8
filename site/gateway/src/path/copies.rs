//! Copies of one frame for several receivers: their heads differ, their bytes are kept once.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use types::JobId;
use wire::FrameHeader;
use wire::frame::HEADER_LEN;
use wire::many::{Astray, Why};

use crate::counters::Counters;
use crate::gateway::Gateway;
use crate::path::forward::{Stop, Target};
use crate::table::spread::{Hop, Lost};
use crate::table::{Origin, Route, TrunkId};
use crate::trunks::link::Link;

/// Noted copies are sent once they amount to this many bytes. Until then they are not counted as held.
const NOTED: usize = 1 << 20;

/// Something to be sent out of the bytes of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Frames as they were received.
    Frames(Range<usize>),
    /// A copy. [`Copies`] has its head and the place of its body. Unlike other frames for a link, it may come from a
    /// link, which carries frames of all jobs.
    Copy { job: JobId, head: Range<usize>, body: usize },
}

/// The copies that were noted and not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Copies(RefCell<Noted>);

#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Headers and blocks of the copies.
    heads: Vec<u8>,
    bodies: Vec<(Range<usize>, Option<Rc<Body>>)>,
    /// Bytes of all copies.
    bytes: usize,
}

/// Bytes that several queues hold. Counted as held once.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Box<[u8]>,
    counters: Arc<Counters>,
}

impl Body {
    pub(crate) fn new(bytes: &[u8], counters: &Arc<Counters>) -> Body {
        counters.hold(bytes.len() as u64);
        Body { bytes: bytes.into(), counters: counters.clone() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.counters.release(self.bytes.len() as u64);
    }
}

impl Copies {
    /// Forgets the noted copies, which have all been sent.
    pub(super) fn clear(&self) {
        let mut noted = self.0.borrow_mut();
        if noted.bytes > 0 {
            noted.heads.clear();
            noted.bodies.clear();
            noted.bytes = 0;
        }
    }

    /// Gives access to the noted copies while they are being sent.
    pub(crate) fn with<R>(&self, with: impl FnOnce(&Noted) -> R) -> R {
        with(&self.0.borrow())
    }

    /// Gives mutable access to the noted copies, to put them into queues.
    pub(crate) fn with_mut<R>(&self, with: impl FnOnce(&mut Noted) -> R) -> R {
        with(&mut self.0.borrow_mut())
    }
}

impl Noted {
    fn add_body(&mut self, range: Range<usize>) -> usize {
        self.bodies.push((range, None));
        self.bodies.len() - 1
    }

    fn add(&mut self, header: FrameHeader, block: &[u8], body: usize) -> Item {
        let start = self.heads.len();
        self.heads.extend_from_slice(&header.encode());
        self.heads.extend_from_slice(block);
        self.bytes += HEADER_LEN + header.length as usize;
        Item::Copy { job: header.job, head: start..self.heads.len(), body }
    }

    /// The slices of an item. `bytes`: the read that the item was noted from.
    pub(crate) fn slices<'a>(&'a self, item: &Item, bytes: &'a [u8]) -> [&'a [u8]; 2] {
        match item {
            Item::Frames(range) => [&bytes[range.clone()], &[]],
            Item::Copy { head, body, .. } => [&self.heads[head.clone()], &bytes[self.bodies[*body].0.clone()]],
        }
    }

    /// Returns the body of a copy in a form that several queues can hold.
    pub(crate) fn kept(&mut self, body: usize, bytes: &[u8], counters: &Arc<Counters>) -> Rc<Body> {
        let (range, kept) = &mut self.bodies[body];
        kept.get_or_insert_with(|| Rc::new(Body::new(&bytes[range.clone()], counters))).clone()
    }
}

impl Gateway {
    /// Notes the copies of a frame for several receivers. Copies that get no further are reported to the frame's root
    /// or, without a route to the root, to their receivers here. `range`: the frame in `bytes`. Returns the frame's
    /// length, or 0 if no copy got further.
    pub(super) fn copy(
        &self,
        source: &Target,
        header: &FrameHeader,
        range: Range<usize>,
        bytes: &[u8],
        touched: &mut Vec<Target>,
    ) -> Result<usize, Stop> {
        let (origin, from_trunk) = match source {
            Target::Member(_) => (Origin::Member, false),
            Target::Link(link) => (Origin::Trunk(link.trunk), true),
        };
        let copies = &self.path.copies;
        let payload = &bytes[range.start + HEADER_LEN..range.end];
        let (mut body, mut count) = (None, 0);
        let lost = self.spread(origin, header, payload, &mut |hop, data| {
            let length = data.len();
            let (target, header, block) = match &hop {
                Hop::Member(member, _, _) if self.is_too_slow(member) => return Err(Why::Refused),
                Hop::Member(member, site, receiver) => {
                    let header = header.data_of_many(*site, *receiver, length);
                    (Target::Member((*member).clone()), header, &[][..])
                }
                Hop::Trunk(trunk, site, block) => {
                    let header = header.onward(*site, block.bytes().len() + length);
                    let link = self.trunks.get(*trunk).link(header.from, header.to).ok_or(Why::Away)?;
                    // Members of this site are paused instead.
                    if from_trunk && self.is_link_too_slow(&link) {
                        return Err(Why::Refused);
                    }
                    (Target::Link(link), header, block.bytes())
                }
            };
            let item = copies.with_mut(|copies| {
                let body = *body.get_or_insert_with(|| copies.add_body(range.end - length..range.end));
                copies.add(header, block, body)
            });
            count += 1;
            let mut pending = target.pending().borrow_mut();
            let is_first = pending.is_empty();
            pending.push(item);
            drop(pending);
            if is_first {
                touched.push(target);
            }
            Ok(())
        })?;
        if copies.with(|copies| copies.bytes) > NOTED {
            self.send_touched(source, touched, bytes);
        }
        let mut unsaid = false;
        for lost in lost {
            self.counters.undeliverable();
            let Lost { receiver, sequence, astray } = lost;
            tracing::debug!(job = %header.job, root = %header.from, %receiver, ?astray, "astray");
            // A report by this gateway breaks no rule.
            let sent = self.send_report(None, &header.astray(receiver, sequence), astray).unwrap_or(0);
            unsaid |= sent == 0 && from_trunk;
        }
        if unsaid {
            self.change(|table| table.unsaid(header, payload));
        }
        Ok(if count > 0 { range.len() } else { 0 })
    }

    /// Forwards a report about a lost copy, which came over a trunk. Returns its length, or 0 if it has no route.
    pub(super) fn pass_astray(&self, link: &Link, header: &FrameHeader, payload: &[u8]) -> Result<usize, Stop> {
        let astray = Astray::decode(payload).map_err(|error| Stop::Violation(error.to_string()))?;
        self.send_report(Some(link.trunk), header, astray)
    }

    /// Sends a report about a lost copy to the root of its frame. Returns its length, or 0 if there is no route.
    fn send_report(&self, by: Option<TrunkId>, header: &FrameHeader, astray: Astray) -> Result<usize, Stop> {
        let payload = astray.encode();
        let sent = HEADER_LEN + payload.len();
        self.astray(by, header, astray, |route| match route {
            Route::Member(member) => {
                member.send_own(self, *header, &payload);
                Ok(sent)
            }
            Route::Trunk(trunk) => match self.trunks.get(trunk).link(header.from, header.to) {
                Some(link) => {
                    link.notice(self, *header, &payload);
                    Ok(sent)
                }
                None => Ok(0),
            },
            Route::Nowhere { .. } => Ok(0),
            Route::Violation(reason) => Err(Stop::Violation(reason)),
        })
    }
}
