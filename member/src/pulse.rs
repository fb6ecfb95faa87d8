//! Whether the other end of a connection is alive. Machines that freeze and cables that are pulled do not close connections.
//!
//! One rule for all of them: members and gateways, agents and launchers, gateways among each other, ranks of a site. Time is passed
//! in, in nanoseconds of any clock.

use std::time::Duration;

/// Seconds of silence after which a gateway gives up a link to another.
pub const LINK_SILENCE_S: u64 = 3;
/// After which a member leaves a gateway, which says something each second, however busy. Two seconds without a
/// cable are not its end: what TCP lost in them it sends for the fourth time 3.1 s after the first, and that may have been a ping
/// after a silence of 1.25 s.
pub const GATEWAY_SILENCE_S: u64 = 5;
/// After which a gateway gives up an agent or a launcher. Its machine may be busy with the job's ranks.
pub const AGENT_SILENCE_S: u64 = 6;
/// After which a rank gives up the machine of another of its site: later than gateways do, who can say what else is lost there.
pub const RANK_SILENCE_S: u64 = 7;

/// An end that has been silent this long is sent a ping, and again after as long.
const PING_NS: u64 = 1_000_000_000;
/// It is looked at this often at least by whoever runs.
pub const LOOK_NS: u64 = 250_000_000;
/// At most so much of the time between two looks counts.
const COUNTS_NS: u64 = 2 * LOOK_NS;

#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    silence_ns: u64,
    heard_ns: u64,
    pinged_ns: u64,
    looked_ns: u64,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// Nothing.
    Quiet,
    /// Send a ping.
    Ping,
    /// The other end has said nothing for this many seconds: the connection is lost.
    Lost(u64),
}

impl Pulse {
    /// A connection that has just opened, which is lost after `silence_s` seconds without a sign of life.
    pub fn new(silence_s: u64, now_ns: u64) -> Pulse {
        Pulse { silence_ns: silence_s * 1_000_000_000, heard_ns: now_ns, pinged_ns: now_ns, looked_ns: now_ns }
    }

    /// Something came.
    pub fn heard(&mut self, at_ns: u64) {
        // Who says when it last heard something does not take back what is known of this end.
        self.heard_ns = self.heard_ns.max(at_ns);
    }

    /// Looks. Time in which nobody looked does not count: an end that was itself stopped, waited for a core of a busy machine, or
    /// computed, has not read what came.
    pub fn look(&mut self, now_ns: u64) -> Beat {
        self.look_patiently(now_ns, |limit| limit)
    }

    /// The same for an end whose process may have no core for a while. `stretch` is asked, when the silence is over the limit, for
    /// that of a machine as busy as this one is.
    pub fn look_patiently(&mut self, now_ns: u64, stretch: impl FnOnce(Duration) -> Duration) -> Beat {
        let pause_ns = now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns));
        self.heard_ns = (self.heard_ns + pause_ns.saturating_sub(COUNTS_NS)).min(now_ns);
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        if silent_ns >= self.silence_ns {
            let limit = stretch(Duration::from_nanos(self.silence_ns));
            if u128::from(silent_ns) >= limit.as_nanos() {
                return Beat::Lost(limit.as_secs());
            }
        }
        if silent_ns >= PING_NS && now_ns.saturating_sub(self.pinged_ns) >= PING_NS {
            self.pinged_ns = now_ns;
            return Beat::Ping;
        }
        Beat::Quiet
    }
}

/// Tells an end that says much that this end is alive. Its own pings wait behind all that it has sent, which can be more seconds of
/// a slow card than it has patience for; and nothing has to be said to it meanwhile, if what it sends is for others.
#[derive(Clone, Copy, Debug)]
pub struct Nod {
    nodded_ns: u64,
}

impl Nod {
    /// Of a connection that has just opened.
    pub fn new(now_ns: u64) -> Nod {
        Nod { nodded_ns: now_ns }
    }

    /// Whether to say something, each second at most, to an end that was heard at `heard_ns` for the last time.
    pub fn is_due(&mut self, heard_ns: u64, now_ns: u64) -> bool {
        let due = heard_ns > self.nodded_ns && now_ns.saturating_sub(self.nodded_ns) >= PING_NS;
        if due {
            self.nodded_ns = now_ns;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is done in so many seconds in which it is looked every [`LOOK_NS`].
    fn watch(pulse: &mut Pulse, from_s: u64, seconds: u64, answers: bool) -> Vec<Beat> {
        let mut beats = Vec::new();
        for tick in 1..=seconds * 1_000_000_000 / LOOK_NS {
            let now_ns = from_s * 1_000_000_000 + tick * LOOK_NS;
            let beat = pulse.look(now_ns);
            if beat == Beat::Ping && answers {
                pulse.heard(now_ns);
            }
            beats.extend(Some(beat).filter(|beat| *beat != Beat::Quiet));
        }
        beats
    }

    #[test]
    fn silence_is_asked_about_and_then_believed() {
        let mut pulse = Pulse::new(4, 0);
        assert_eq!(watch(&mut pulse, 0, 10, true), [Beat::Ping; 10]);
        let silent = watch(&mut pulse, 10, 4, false);
        assert_eq!(silent[..3], [Beat::Ping; 3]);
        assert_eq!(silent.last(), Some(&Beat::Lost(4)));
    }

    #[test]
    fn an_end_that_seldom_looks_notices_too() {
        let mut pulse = Pulse::new(4, 0);
        let mut beats = (1..).map(|look| pulse.look(look * 30_000_000_000));
        assert_eq!(beats.position(|beat| beat == Beat::Lost(4)), Some(7), "each look counts for half a second");
    }

    #[test]
    fn a_busy_machine_is_given_more_time_and_not_for_ever() {
        let mut pulse = Pulse::new(4, 0);
        let mut look = |quarters: u64| pulse.look_patiently(quarters * LOOK_NS, |limit| limit * 3);
        let lost = (1..).find(|quarters| matches!(look(*quarters), Beat::Lost(_)));
        assert_eq!(lost, Some(48));
    }

    #[test]
    fn an_end_that_says_something_hears_something_each_second() {
        let mut nod = Nod::new(0);
        let due = |nod: &mut Nod, heard_ms: u64, now_ms: u64| nod.is_due(heard_ms * 1_000_000, now_ms * 1_000_000);
        let nods = (1..=40).filter(|tick| due(&mut nod, tick * 250 - 10, tick * 250)).count();
        assert_eq!(nods, 10);
        assert!(!due(&mut nod, 9_000, 20_000), "nothing was heard since");
    }

    #[test]
    fn time_in_which_nobody_looked_does_not_count() {
        let mut pulse = Pulse::new(4, 0);
        assert_eq!(pulse.look(100_000_000_000), Beat::Quiet);
        pulse.heard(0);
        assert_eq!(watch(&mut pulse, 100, 3, false), [Beat::Ping; 3]);
    }
}
