//! Forwarding a frame for several receivers: a copy to each member here, and one over each trunk that leads to others.

use std::ops::Range;

use wire::FrameHeader;
use wire::frame::HEADER_LEN;
use wire::many::{Astray, Why};

use crate::path::Path;
use crate::path::copies::Noted;
use crate::path::link::Link;
use crate::path::neighbour::Neighbour;
use crate::path::reading::Stop;
use crate::table::spread::{Hop, Lost};
use crate::table::{Origin, Route, TrunkId};

impl Path {
    /// Notes the copies of a frame for several receivers. Copies that get no further are reported to the frame's root
    /// or, without a route to the root, to their receivers here. `range`: the frame in `bytes`. Returns the frame's
    /// length, or 0 if no copy got further.
    pub(super) fn copy(
        &self,
        source: &Neighbour,
        header: &FrameHeader,
        range: Range<usize>,
        bytes: &[u8],
        touched: &mut Vec<Neighbour>,
    ) -> Result<usize, Stop> {
        let (origin, from_trunk) = match source {
            Neighbour::Member(_) => (Origin::Member, false),
            Neighbour::Link(link) => (Origin::Trunk(link.trunk), true),
        };
        let copies = &self.copies;
        let payload = &bytes[range.start + HEADER_LEN..range.end];
        let (mut body, mut count) = (None, 0);
        let lost = self.table.spread(origin, header, payload, &mut |hop, data| {
            let length = data.len();
            let (target, header, block) = match &hop {
                Hop::Member(member, _, _) if self.is_too_slow(member) => return Err(Why::Refused),
                Hop::Member(member, site, receiver) => {
                    let header = header.data_of_many(*site, *receiver, length);
                    (Neighbour::Member((*member).clone()), header, &[][..])
                }
                Hop::Trunk(trunk, site, block) => {
                    let header = header.onward(*site, block.bytes().len() + length);
                    let link = self.link(*trunk, header.from, header.to).ok_or(Why::Away)?;
                    // Members of this site are paused instead.
                    if from_trunk && self.is_link_too_slow(&link) {
                        return Err(Why::Refused);
                    }
                    (Neighbour::Link(link), header, block.bytes())
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
        if copies.with(Noted::is_full) {
            self.send_touched(source, touched, bytes);
        }
        self.report_lost(&lost, header, payload, from_trunk);
        Ok(if count > 0 { range.len() } else { 0 })
    }

    /// Reports copies that get no further to the frame's root or, without a route to the root, to their receivers here.
    fn report_lost(&self, lost: &[Lost], header: &FrameHeader, payload: &[u8], from_trunk: bool) {
        let mut unsaid = false;
        for Lost { receiver, sequence, astray } in lost {
            self.counters.undeliverable();
            tracing::debug!(job = %header.job, root = %header.from, %receiver, ?astray, "astray");
            // A report by this gateway breaks no rule.
            let sent = self.send_report(None, &header.astray(*receiver, *sequence), *astray).unwrap_or(0);
            unsaid |= sent == 0 && from_trunk;
        }
        if unsaid {
            self.table.change(|table| table.unsaid(header, payload));
        }
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
        self.table.astray(by, header, astray, |route| match route {
            Route::Member(member) => {
                member.send_own(self, *header, &payload);
                Ok(sent)
            }
            Route::Trunk(trunk) => match self.link(trunk, header.from, header.to) {
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
