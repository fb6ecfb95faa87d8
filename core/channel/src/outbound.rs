//! The sender's half of a channel.

use std::collections::VecDeque;

use crate::room::Room;
use crate::{ChannelError, Route, quarter};

/// The sender's half; see [the crate](crate). `F` is a frame in a form that the caller can retransmit.
#[derive(Debug)]
pub struct Outbound<F> {
    window: u32,
    /// Its estimate of the path, if it adapts.
    room: Option<Room>,
    /// The last time passed in by the caller.
    now_ns: u64,
    next: u32,
    in_flight: u64,
    /// All unacknowledged frames; the last has number `next - 1`.
    kept: VecDeque<Kept<F>>,
    /// Number of kept frames to retransmit, and a lower bound on the position of the first.
    missing: usize,
    first_missing: usize,
    /// Number of transmissions, including retransmissions.
    sends: u64,
    /// The receiver's last report: it has every frame before this number.
    expected: u32,
    /// For each route: every frame sent on it before this many transmissions has arrived or is lost.
    passed: Vec<(Route, u64)>,
}

#[derive(Debug)]
struct Kept<F> {
    bytes: u32,
    /// Number of transmissions before its last one.
    sends: u64,
    /// The route of its last transmission; `None`: it was lost and waits for retransmission.
    route: Option<Route>,
    /// The caller's mark for its path behind that route; 0: it depends on the route alone.
    through: u64,
    frame: F,
}

impl<F> Kept<F> {
    /// Returns true if it was last sent on this route alone, before this many transmissions.
    fn went(&self, route: Route, before: u64) -> bool {
        self.route == Some(route) && self.through == 0 && self.sends < before
    }
}

impl<F> Outbound<F> {
    /// A channel that uses all of this window in bytes.
    pub fn new(window: u32) -> Outbound<F> {
        Outbound {
            window,
            room: None,
            now_ns: 0,
            next: 0,
            in_flight: 0,
            kept: VecDeque::new(),
            missing: 0,
            first_missing: 0,
            sends: 0,
            expected: 0,
            passed: Vec::new(),
        }
    }

    /// A channel that uses only as much of this window in bytes as keeps the path full. Pass the time in with
    /// [`Outbound::at`].
    pub fn adapting(window: u32) -> Outbound<F> {
        Outbound { room: Some(Room::new(window)), ..Outbound::new(window) }
    }

    /// Sets the current time, in nanoseconds from any origin.
    pub fn at(&mut self, now_ns: u64) -> &mut Outbound<F> {
        self.now_ns = now_ns;
        self
    }

    /// Bytes that may be in flight now.
    pub fn room(&self) -> u32 {
        self.room.as_ref().map_or(self.window, Room::bytes)
    }

    #[cfg(test)]
    pub(crate) fn starting_at(window: u32, next: u32) -> Outbound<F> {
        Outbound { next, expected: next, ..Outbound::new(window) }
    }

    /// Returns true if a new frame of `bytes` (header included) may be sent now.
    ///
    /// Below a quarter of the window, a frame of any size may be sent: the receiver need not acknowledge less than
    /// that, so a sender that waited for an acknowledgement would wait forever. Retransmissions go first
    /// ([`Outbound::resend`]).
    pub fn may_send(&mut self, bytes: u32) -> bool {
        let room = self.room();
        let fits = self.in_flight < quarter(room) || self.in_flight + u64::from(bytes) <= u64::from(room);
        if let Some(room) = self.room.as_mut().filter(|_| !fits) {
            room.was_short();
        }
        self.missing == 0 && fits
    }

    /// The number of the next new frame.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Number of transmissions, including retransmissions: pass it to [`Outbound::answered`] if a request is sent now.
    pub fn sends(&self) -> u64 {
        self.sends
    }

    /// Counts a new frame as sent on this route, keeps it, and returns its number.
    pub fn sent(&mut self, route: Route, bytes: u32, frame: F) -> u32 {
        self.sent_through(Some(route), 0, bytes, frame)
    }

    /// As [`Outbound::sent`], for a frame whose path behind the route can break on its own: see
    /// [`Outbound::lost_through`]. `None`: no route is open, and the frame waits for retransmission.
    pub fn sent_through(&mut self, route: Option<Route>, through: u64, bytes: u32, frame: F) -> u32 {
        let sequence = self.next;
        self.next = self.next.wrapping_add(1);
        self.in_flight += u64::from(bytes);
        self.missing += usize::from(route.is_none());
        self.kept.push_back(Kept { bytes, sends: self.sends, route, through, frame });
        self.sends += 1;
        if let Some(room) = &mut self.room {
            room.sent(self.kept.len(), self.now_ns);
        }
        sequence
    }

    /// Processes an acknowledgement: every frame before number `ack` has arrived. Old acknowledgements are harmless.
    ///
    /// # Errors
    /// [`ChannelError::AckOfUnsent`].
    pub fn acknowledged(&mut self, ack: u32) -> Result<(), ChannelError> {
        let left = self.next.wrapping_sub(ack);
        if left > self.kept.len() as u32 {
            // Either older than the last acknowledgement, or of a frame that was never sent.
            let old = left < 1 << 31;
            return if old { Ok(()) } else { Err(ChannelError::AckOfUnsent { ack, sent: self.next }) };
        }
        let (frames, before) = (self.kept.len() as u32 - left, self.in_flight);
        for kept in self.kept.drain(..frames as usize) {
            self.in_flight -= u64::from(kept.bytes);
            self.missing -= usize::from(kept.route.is_none());
        }
        self.first_missing = self.first_missing.saturating_sub(frames as usize);
        if let Some(room) = self.room.as_mut().filter(|_| frames > 0) {
            room.acknowledged(frames, before - self.in_flight, self.now_ns);
        }
        self.arrived(ack);
        self.lose_passed();
        Ok(())
    }

    /// Counts all frames in flight on this route as lost. Returns true if there were any.
    pub fn lost(&mut self, route: Route) -> bool {
        self.lose(|kept| kept.route == Some(route))
    }

    /// Counts all frames in flight on all routes as lost. Returns true if there were any.
    pub fn lost_all(&mut self) -> bool {
        self.lose(|kept| kept.route.is_some())
    }

    /// Counts frames in flight with a nonzero mark as lost if `which` returns true for their route and mark. Returns
    /// true if there were any.
    pub fn lost_through(&mut self, mut which: impl FnMut(Route, u64) -> bool) -> bool {
        self.lose(|kept| kept.through != 0 && kept.route.is_some_and(|route| which(route, kept.through)))
    }

    fn lose(&mut self, mut which: impl FnMut(&Kept<F>) -> bool) -> bool {
        let before = self.missing;
        for kept in &mut self.kept {
            if which(kept) {
                kept.route = None;
                self.missing += 1;
            }
        }
        let any = self.missing > before;
        if any {
            self.first_missing = 0;
        }
        if let Some(room) = self.room.as_mut().filter(|_| any) {
            // Timings are meaningless until the lost frames are sent again.
            room.disturbed();
        }
        any
    }

    /// The routes with unacknowledged frames in flight, one bit each.
    pub fn routes_in_flight(&self) -> u64 {
        self.kept.iter().filter_map(|kept| kept.route).fold(0, |bits, route| bits | route.bit())
    }

    /// Returns true if a frame in flight depends on a path behind its route, which can break on its own.
    pub fn goes_through(&self) -> bool {
        self.kept.iter().any(|kept| kept.through != 0 && kept.route.is_some())
    }

    /// Processes the answer to an acknowledgement request that was sent on this route after `asked` transmissions
    /// ([`Outbound::sends`]): the receiver has every frame before number `expected`. A route delivers in order, so
    /// every other frame sent on this route before the request has arrived early or is lost. If the receiver waits for
    /// such a frame, that frame is lost, and so are the later ones among them. Frames with a path of their own behind
    /// the route may still be in flight.
    ///
    /// Returns the route to ask next, if the receiver waits for a frame of another route: then the answer does not show
    /// whether later frames of this route have arrived.
    pub fn answered(&mut self, route: Route, asked: u64, expected: u32) -> Option<Route> {
        match self.passed.iter_mut().find(|(known, _)| *known == route) {
            Some((_, passed)) => *passed = asked.max(*passed),
            None => self.passed.push((route, asked)),
        }
        self.arrived(expected);
        if self.lose_passed() {
            return None;
        }
        let at = self.awaited()?;
        let by = self.kept[at].route.filter(|by| *by != route && self.kept[at].through == 0)?;
        self.kept.range(at..).any(|kept| kept.went(route, asked)).then_some(by)
    }

    /// Notes the receiver's report that it has every frame before this number.
    fn arrived(&mut self, expected: u32) {
        let is_newer = expected.wrapping_sub(self.expected) < 1 << 31;
        if is_newer && self.next.wrapping_sub(expected) < 1 << 31 {
            self.expected = expected;
        }
    }

    /// Position of the frame that the receiver waits for.
    fn awaited(&self) -> Option<usize> {
        let first = self.next.wrapping_sub(self.kept.len() as u32);
        let at = self.expected.wrapping_sub(first) as usize;
        (at < self.kept.len()).then_some(at)
    }

    /// The receiver's `expected` is at least as recent as `passed`. So if the awaited frame was sent on a route before
    /// an answered request of that route, it is lost, and so are the later frames sent there before the request.
    /// Returns true if any frame is lost.
    fn lose_passed(&mut self) -> bool {
        let Some(at) = self.awaited() else { return false };
        let awaited = &self.kept[at];
        let Some((route, passed)) = self.passed.iter().copied().find(|(route, passed)| awaited.went(*route, *passed))
        else {
            return false;
        };
        let mut number = 0;
        self.lose(|kept| {
            number += 1;
            number > at && kept.went(route, passed)
        })
    }

    /// A gateway without memory dropped frames on this route and reported it: they must be retransmitted, with less in
    /// flight.
    pub fn refused(&mut self, route: Route) {
        self.lost(route);
        if let Some(room) = &mut self.room {
            room.refused();
        }
    }

    /// Returns true if a frame waits for retransmission.
    pub fn has_missing(&self) -> bool {
        self.missing > 0
    }

    /// The first frame to retransmit; counts it as sent on this route.
    pub fn resend(&mut self, route: Route) -> Option<&F> {
        if self.missing == 0 {
            return None;
        }
        let at = (self.first_missing..self.kept.len()).find(|at| self.kept[*at].route.is_none())?;
        let kept = &mut self.kept[at];
        (kept.route, kept.through, kept.sends) = (Some(route), 0, self.sends);
        self.sends += 1;
        self.missing -= 1;
        self.first_missing = at + 1;
        Some(&kept.frame)
    }

    /// The shortest recent round trip, in nanoseconds, if it is known.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.room.as_ref().and_then(Room::round_trip_ns)
    }

    /// Bytes sent and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }
}
