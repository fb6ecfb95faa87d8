//! The rule for a member's last connection to the gateways of its site. If it breaks, which a single reset can do, its
//! gateway is dialled again, and nothing is lost before that fails. Time is passed in, in nanoseconds of any clock.

use std::time::Duration;

use crate::Route;

/// The time for which a gateway waits for a member whose connection broke, and for which the member tries to return.
pub const RETURN: Duration = Duration::from_secs(2);

/// Delay before a member dials a gateway again, unless a reset is likely and it dials sooner.
pub const AGAIN: Duration = Duration::from_secs(1);

/// When a member stops dialling its last gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Time(Duration),
    /// After this many failed attempts: a rank dials only while its program calls MPI, so its time does not count.
    Attempts(u32),
}

/// See the module docs. `R` is the reason for the break.
#[derive(Debug)]
pub struct LastRoute<R> {
    limit: Limit,
    broken: Option<BrokenRoute<R>>,
}

#[derive(Debug)]
struct BrokenRoute<R> {
    route: Route,
    reason: R,
    since_ns: u64,
    failures: u32,
}

impl<R> LastRoute<R> {
    pub fn new(limit: Limit) -> LastRoute<R> {
        LastRoute { limit, broken: None }
    }

    /// Notes that the last route that was open broke. Its gateway is to be dialled again.
    pub fn broke(&mut self, route: Route, reason: R, now_ns: u64) {
        self.broken = Some(BrokenRoute { route, reason, since_ns: now_ns, failures: 0 });
    }

    /// True while the gateway of the last route is dialled again.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Notes that a route is open. Returns the broken route and its reason if that is another one, which is lost.
    pub fn opened(&mut self, route: Route) -> Option<(Route, R)> {
        self.broken.take().filter(|broken| broken.route != route).map(|broken| (broken.route, broken.reason))
    }

    /// Notes that a gateway was dialled in vain. `is_down`: nothing listens at its address. A gateway that has not
    /// noticed yet that the old connection broke refuses the new one for a second. Returns the reason of the break if
    /// the route is lost.
    pub fn failed(&mut self, route: Route, is_down: bool) -> Option<R> {
        let broken = self.broken.as_mut().filter(|broken| broken.route == route)?;
        broken.failures += 1;
        let is_over = matches!(self.limit, Limit::Attempts(most) if broken.failures >= most);
        self.broken.take_if(|_| is_down || is_over).map(|broken| broken.reason)
    }

    /// The time at which the broken route is lost, if it is not dialled in vain before.
    pub fn due_ns(&self) -> Option<u64> {
        match (&self.broken, self.limit) {
            (Some(broken), Limit::Time(limit)) => Some(broken.since_ns + limit.as_nanos() as u64),
            _ => None,
        }
    }

    /// The broken route and the reason, if its time is over: it is lost.
    pub fn expired(&mut self, now_ns: u64) -> Option<(Route, R)> {
        let is_due = self.due_ns().is_some_and(|due_ns| due_ns <= now_ns);
        self.broken.take_if(|_| is_due).map(|broken| (broken.route, broken.reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_route_is_lost_when_its_time_is_over_or_its_gateway_is_down() {
        let mut last = LastRoute::new(Limit::Time(Duration::from_nanos(100)));
        last.broke(Route(1), "reset", 5);
        assert_eq!((0..9).find_map(|_| last.failed(Route(1), false)), None, "the gateway has not noticed yet");
        assert_eq!((last.due_ns(), last.expired(104)), (Some(105), None));
        assert_eq!(last.expired(105), Some((Route(1), "reset")));
        assert!(!last.is_broken() && last.expired(u64::MAX).is_none());
        last.broke(Route(1), "reset", 5);
        assert_eq!((last.failed(Route(0), true), last.failed(Route(1), true)), (None, Some("reset")));
        assert!(!last.is_broken());
    }

    #[test]
    fn attempts_count_for_a_rank() {
        let mut last = LastRoute::new(Limit::Attempts(3));
        last.broke(Route(0), "reset", 5);
        assert_eq!((last.failed(Route(0), false), last.failed(Route(0), false)), (None, None));
        assert_eq!((last.due_ns(), last.expired(u64::MAX)), (None, None));
        assert_eq!(last.failed(Route(0), false), Some("reset"));
    }

    #[test]
    fn a_route_that_opens_ends_the_wait() {
        let mut last = LastRoute::new(Limit::Time(RETURN));
        last.broke(Route(0), "reset", 5);
        assert_eq!(last.opened(Route(0)), None);
        last.broke(Route(0), "reset", 6);
        assert_eq!(last.opened(Route(1)), Some((Route(0), "reset")), "another gateway was reached first");
        assert!(!last.is_broken());
    }
}
