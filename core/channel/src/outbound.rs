//! The sender's half of a channel.

use std::collections::VecDeque;

use crate::room::Room;
use crate::{ChannelError, Route, quarter};

/// See [the crate](crate). `F` is a frame in a form that the caller can retransmit.
#[derive(Debug)]
pub struct Outbound<F> {
    window: u32,
    /// What it learns about the path, if it adapts.
    room: Option<Room>,
    /// The time that the caller passed in last.
    now_ns: u64,
    next: u32,
    in_flight: u64,
    /// Everything not acknowledged; the last has number `next - 1`.
    kept: VecDeque<Kept<F>>,
    /// How many of them must be retransmitted, and a lower bound on the position of the first.
    missing: usize,
    first_missing: usize,
    /// How often frames were sent, again or not.
    sends: u64,
    /// Before this number the receiver had everything when it last told.
    expected: u32,
    /// For each route: whatever was sent on it before this many sends has arrived or is lost.
    passed: Vec<(Route, u64)>,
}

#[derive(Debug)]
struct Kept<F> {
    bytes: u32,
    /// How many sends came before it was last sent.
    sends: u64,
    /// The route it took last; `None`: it was lost and waits for retransmission.
    route: Option<Route>,
    /// What it went through behind that route, as the caller marks it; 0: nothing that is not on the route itself.
    through: u64,
    frame: F,
}

impl<F> Kept<F> {
    /// Whether it went by this route alone, before this many sends.
    fn went(&self, route: Route, before: u64) -> bool {
        self.route == Some(route) && self.through == 0 && self.sends < before
    }
}

impl<F> Outbound<F> {
    /// A channel with this window in bytes, all of which is used.
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

    /// A channel with this window in bytes, of which only as much is used as keeps the path full. Pass the time in with
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

    /// Whether a new frame of `bytes` (header included) may be sent now.
    ///
    /// Below a quarter of the window a frame of any size may be sent: the receiver does not have to acknowledge so
    /// little, and a sender that waited for it would wait forever. Retransmissions go first ([`Outbound::resend`]).
    pub fn may_send(&mut self, bytes: u32) -> bool {
        let room = self.room();
        let fits = self.in_flight < quarter(room) || self.in_flight + u64::from(bytes) <= u64::from(room);
        if let Some(room) = self.room.as_mut().filter(|_| !fits) {
            room.was_short();
        }
        self.missing == 0 && fits
    }

    /// The number that the next new frame gets.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// How often frames were sent, again or not: pass it to [`Outbound::answered`] if a request is sent now.
    pub fn sends(&self) -> u64 {
        self.sends
    }

    /// Counts a new frame as sent on this route, keeps it, and returns its number.
    pub fn sent(&mut self, route: Route, bytes: u32, frame: F) -> u32 {
        self.sent_through(Some(route), 0, bytes, frame)
    }

    /// The same for a frame that goes through something that may be lost without the route: [`Outbound::lost_through`].
    /// `None`: there is no way now, and it waits for retransmission.
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
            // Behind what is already acknowledged (old), or ahead of what was sent (wrong).
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

    /// Whatever is in flight on this route will not arrive, as far as is known. Returns whether there was anything.
    pub fn lost(&mut self, route: Route) -> bool {
        self.lose(|kept| kept.route == Some(route))
    }

    /// Whatever is in flight on any route may not arrive. Returns whether there was anything.
    pub fn lost_all(&mut self) -> bool {
        self.lose(|kept| kept.route.is_some())
    }

    /// What is in flight and went through something, if `which` says so of its route and mark, will not arrive, as far
    /// as is known. Returns whether there was anything.
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
            // Timings are meaningless until everything is as it was.
            room.disturbed();
        }
        any
    }

    /// The routes with unacknowledged frames in flight, one bit each.
    pub fn routes_in_flight(&self) -> u64 {
        self.kept.iter().filter_map(|kept| kept.route).fold(0, |bits, route| bits | route.bit())
    }

    /// Whether anything in flight went through something that may be lost without its route.
    pub fn goes_through(&self) -> bool {
        self.kept.iter().any(|kept| kept.through != 0 && kept.route.is_some())
    }

    /// The receiver answers an acknowledgement request that was sent on this route after `asked` sends
    /// ([`Outbound::sends`]): it has every frame before number `expected`. A route delivers in order, so whatever else
    /// went before the request on this route has arrived early or never will. It never will if the receiver waits for a
    /// frame of it. Frames that went through something else may still be on the way.
    ///
    /// Returns the route by which to ask next, if the receiver waits for a frame of that route and so has not told what
    /// became of those behind it.
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

    /// The receiver had everything before this number when it told.
    fn arrived(&mut self, expected: u32) {
        let is_newer = expected.wrapping_sub(self.expected) < 1 << 31;
        if is_newer && self.next.wrapping_sub(expected) < 1 << 31 {
            self.expected = expected;
        }
    }

    /// Where the frame is that the receiver waits for.
    fn awaited(&self) -> Option<usize> {
        let first = self.next.wrapping_sub(self.kept.len() as u32);
        let at = self.expected.wrapping_sub(first) as usize;
        (at < self.kept.len()).then_some(at)
    }

    /// Whatever the receiver told of its frames, it told later than of the routes: so if it waits for one that was to
    /// arrive before, that one is lost, and with it what was on its way behind it. Returns whether anything is.
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

    /// A gateway that was short of memory dropped frames on this route and reported it: they must be retransmitted,
    /// with less in flight.
    pub fn refused(&mut self, route: Route) {
        self.lost(route);
        if let Some(room) = &mut self.room {
            room.refused();
        }
    }

    /// Whether anything must be retransmitted.
    pub fn has_missing(&self) -> bool {
        self.missing > 0
    }

    /// The first frame to retransmit, counted as sent on this route.
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

    /// The shortest round trip lately, in nanoseconds, if it is known.
    pub fn round_trip_ns(&self) -> Option<u64> {
        self.room.as_ref().and_then(Room::round_trip_ns)
    }

    /// Bytes sent and not acknowledged.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }
}
