//! Routes of the copies of a frame for several receivers, and the rules for its sender. Part of [`Table`].
//!
//! A frame that a site relays for another names a sender that is not behind its trunk. So only a rank may send it, to
//! ranks of an open job in which both sites take part, and every receiver must be of the site under which it is named.
//! Every gateway checks all of these rules, because the connection that brings a bad frame is closed.

use types::{Identity, SiteId, Slot};
use wire::frame::HEADER_LEN;
use wire::many::{Astray, Block, BlockReceiver, Why};
use wire::{FrameHeader, Passage};

use crate::table::error::Violation;
use crate::table::job::{Job, is_rank};
use crate::table::{Effect, Origin, Route, Table, TrunkId};

/// The next hop of a part of a frame.
pub(crate) enum Hop<'a, 'b, M> {
    /// It becomes a data frame for a member of this site, whose number is given.
    Member(&'a M, SiteId, BlockReceiver),
    /// It goes on over a trunk to a site.
    Trunk(TrunkId, SiteId, Block<'b>),
}

/// Takes a part of a frame and the data, or returns the reason for not taking it.
pub(crate) type Take<'t, 'b, M> = dyn FnMut(Hop<'_, 'b, M>, &'b [u8]) -> Result<(), Why> + 't;

/// A copy that gets no further, and the report to its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub receiver: Identity,
    pub sequence: u32,
    pub astray: Astray,
}

impl<M: Clone + PartialEq> Table<M> {
    /// Checks a frame for several receivers and calls `take` with each of its parts and the data. If `take` does not
    /// take a part, it returns the reason. Returns the copies that get no further; none if the job is not open, as
    /// after its end.
    ///
    /// # Errors
    /// The frame breaks a rule: nothing was taken, and the connection it came by must be closed.
    pub(crate) fn spread<'b>(
        &mut self,
        origin: Origin,
        header: &FrameHeader,
        payload: &'b [u8],
        take: &mut Take<'_, 'b, M>,
    ) -> Result<Vec<Lost>, Violation> {
        let Some(job) = self.jobs.get_mut(&header.job) else { return Ok(Vec::new()) };
        let (at, root) = (job.own, header.from);
        let peer = match origin {
            Origin::Member => None,
            Origin::Trunk(trunk) => Some(self.trunks[trunk.0].site.as_str()),
        };
        job.check_many(peer, header, &self.site)?;
        let bad = |what: String| bad_many(header, &what);
        let (block, data) = Block::split(payload, at, root.site).map_err(|error| bad(error.to_string()))?;
        block.each(at, &mut |site, receiver| {
            let to = Identity { site, slot: receiver.slot };
            if job.has_rank(to) { Ok(()) } else { Err(bad(format!("to {to}, which is no rank of that site"))) }
        })?;
        let mut lost = Vec::new();
        let bytes = |block: &Block<'_>| (HEADER_LEN + block.bytes().len() + data.len()) as u64;
        if matches!(origin, Origin::Trunk(_)) {
            job.traffic.received += bytes(&block);
        }
        for receiver in block.receivers() {
            let found = job.members.get(&receiver.slot).ok_or(Why::Absent);
            if let Err(why) = found.and_then(|member| take(Hop::Member(member, at, receiver), data)) {
                let astray = Astray { at, towards: at, why };
                let receiver_id = Identity { site: at, slot: receiver.slot };
                lost.push(Lost { receiver: receiver_id, sequence: receiver.sequence, astray });
            }
        }
        for (site, below) in block.branches() {
            let state = job.sites.get_mut(usize::from(site.0));
            let trunk = state.and_then(|state| state.route(|route| self.trunks[route.0].up)).ok_or(Why::Away);
            match trunk.and_then(|trunk| take(Hop::Trunk(trunk, site, below), data)) {
                Ok(()) => job.traffic.sent += bytes(&below),
                Err(why) => {
                    let astray = Astray { at, towards: site, why };
                    let add = &mut |site, receiver: BlockReceiver| -> Result<(), Violation> {
                        let receiver_id = Identity { site, slot: receiver.slot };
                        lost.push(Lost { receiver: receiver_id, sequence: receiver.sequence, astray });
                        Ok(())
                    };
                    below.each(site, add)?;
                }
            }
        }
        Ok(lost)
    }

    /// Handles copies that got no further and cannot be reported to their root from here. The root may reach this site
    /// by another gateway, and then hears of no loss. So the receivers here are notified that the route to the root is
    /// broken, and ask it to retransmit the frames that went through this site. Receivers that are not connected ask
    /// when they connect.
    pub(crate) fn unsaid(&mut self, header: &FrameHeader, payload: &[u8]) {
        let Some(job) = self.jobs.get(&header.job) else { return };
        let Ok((block, _)) = Block::split(payload, job.own, header.from.site) else { return };
        for member in block.receivers().filter_map(|receiver| job.members.get(&receiver.slot)) {
            self.effects.push(Effect::Passage(member.clone(), header.from.site, Passage::Broken));
        }
    }

    /// The route of the report about a lost copy. `by`: the trunk it came by; `None`: this gateway makes it.
    pub(crate) fn astray(&mut self, by: Option<TrunkId>, header: &FrameHeader, astray: Astray) -> Route<'_, M> {
        let Some(job) = self.jobs.get_mut(&header.job) else { return Route::Nowhere { notice: None } };
        let violation = |what: &str| {
            let text = format!("a report about a lost copy of job {} {what}", header.job);
            Route::Violation(text)
        };
        if let Some(trunk) = by {
            let peer = &self.trunks[trunk.0].site;
            if job.roster.site(astray.at).is_none_or(|site| site.name != *peer) {
                return violation(&format!("from site #{} came from site {peer}", astray.at.0));
            }
            if header.to.site != job.own || !job.has_rank(header.to) {
                return violation(&format!("for {} arrived at site {}", header.to, self.site));
            }
            if header.from.site == job.own || !job.has_rank(header.from) {
                return violation(&format!("is about {}", header.from));
            }
        }
        if header.to.site == job.own {
            return match job.members.get(&header.to.slot) {
                Some(member) => Route::Member(member),
                None => Route::Nowhere { notice: None },
            };
        }
        let site = job.sites.get_mut(usize::from(header.to.site.0));
        match site.and_then(|site| site.route(|route| self.trunks[route.0].up)) {
            Some(trunk) => Route::Trunk(trunk),
            None => Route::Nowhere { notice: None },
        }
    }
}

/// A violation by a frame for several receivers.
fn bad_many(header: &FrameHeader, what: &str) -> Violation {
    Violation(format!("a frame of job {} for several receivers {what}", header.job))
}

impl<M> Job<M> {
    /// Checks the sender and the address of a frame for several receivers. `peer`: the site whose gateway sent it;
    /// `None`: a member of this site, `here`, did.
    fn check_many(&self, peer: Option<&str>, header: &FrameHeader, here: &str) -> Result<(), Violation> {
        let root = header.from;
        let bad = |what: String| Err(bad_many(header, &what));
        match peer {
            None if root.site != self.own => return bad(format!("from {root}, who is of another site")),
            None => {}
            Some(peer) if !self.has_site(peer) => {
                return bad(format!("came from site {peer}, which takes no part"));
            }
            Some(peer) if root.site == self.own => {
                return bad(format!("from {root} of this site came from site {peer}"));
            }
            Some(_) => {}
        }
        if !self.has_rank(root) {
            return bad(format!("from {root}, which is no rank of that site"));
        }
        if header.to != (Identity { site: self.own, slot: Slot::GATEWAY }) {
            return bad(format!("is for {}, not for the gateway of site {here}", header.to));
        }
        Ok(())
    }

    fn has_site(&self, name: &str) -> bool {
        self.roster.sites().iter().any(|site| site.name == name)
    }

    /// Returns true if the roster has this rank at this site.
    fn has_rank(&self, who: Identity) -> bool {
        let span = self.spans.get(usize::from(who.site.0));
        is_rank(who.slot) && span.is_some_and(|(first, beyond)| (*first..*beyond).contains(&(who.slot.0 >> 8)))
    }
}
