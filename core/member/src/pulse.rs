//! Detection of a dead peer on a connection. Frozen machines and pulled cables do not close connections.
//!
//! One rule serves all connections: between members and gateways, agents and launchers, gateways, and ranks of a site.
//! Time is passed in, in nanoseconds of any clock. Periods in which the watcher itself did not run do not count.
//!
//! An agent or a launcher whose machine answers gets more time while cores are short ([`Pulse::look_patiently`]): 64
//! ranks that wait in `MPI_Init` have kept an agent from running for many seconds. A rank answers only while its
//! program calls MPI, so a gateway watches the rank's agent instead.

use std::time::Duration;

/// Seconds of silence after which a gateway gives up a link to another gateway.
pub const LINK_SILENCE_S: u64 = 3;
/// Seconds of silence after which a member leaves a gateway, which sends a frame each second, however busy it is. Two
/// seconds without a cable do not end the connection: TCP sends the segment lost in them for the fourth time 3.1 s
/// after the first time, and it may carry a ping that was sent after 1.25 s of silence.
pub const GATEWAY_SILENCE_S: u64 = 5;
/// Seconds of silence after which a gateway gives up an agent or a launcher. Its machine may be busy with the job's
/// ranks.
pub const AGENT_SILENCE_S: u64 = 6;
/// Seconds of silence after which a rank gives up the machine of another rank of its site: later than gateways do,
/// because gateways can report the other losses there too.
pub const RANK_SILENCE_S: u64 = 7;

/// An end that has been silent this long gets a ping, and another each time this has passed again.
const PING_NS: u64 = 1_000_000_000;
/// Longest interval between checks.
pub const LOOK_NS: u64 = 250_000_000;
/// At most this much of the time between two checks counts as silence.
const COUNTS_NS: u64 = 2 * LOOK_NS;

#[derive(Clone, Copy, Debug)]
pub struct Pulse {
    silence_ns: u64,
    heard_ns: u64,
    pinged_ns: u64,
    looked_ns: u64,
}

/// The action after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// No action.
    Quiet,
    /// Send a ping.
    Ping,
    /// The other end has been silent for this many seconds: the connection is lost.
    Lost(u64),
}

impl Pulse {
    /// For a connection that has just opened, and is lost after `silence_s` seconds in which nothing arrives.
    pub fn new(silence_s: u64, now_ns: u64) -> Pulse {
        Pulse { silence_ns: silence_s * 1_000_000_000, heard_ns: now_ns, pinged_ns: now_ns, looked_ns: now_ns }
    }

    /// Notes that something arrived at this time.
    pub fn heard(&mut self, at_ns: u64) {
        // A late report of an earlier time does not set the clock back.
        self.heard_ns = self.heard_ns.max(at_ns);
    }

    /// Whole seconds for which the other end had been silent at the last check.
    pub fn silent_s(&self) -> u64 {
        self.looked_ns.saturating_sub(self.heard_ns) / 1_000_000_000
    }

    /// Checks the connection. Time without checks does not count: an end that was stopped, waited for a core of a busy
    /// machine, or computed, has not read its input.
    pub fn look(&mut self, now_ns: u64) -> Beat {
        self.look_patiently(now_ns, |limit, _| limit)
    }

    /// As [`Pulse::look`], for a process that may have no core for a while. When the silence exceeds the limit,
    /// `stretch` is called with the limit and the length of the silence; it returns the limit on a machine that is as
    /// busy as this one was in that time.
    pub fn look_patiently(&mut self, now_ns: u64, stretch: impl FnOnce(Duration, Duration) -> Duration) -> Beat {
        let pause_ns = now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns));
        self.heard_ns = (self.heard_ns + pause_ns.saturating_sub(COUNTS_NS)).min(now_ns);
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        if silent_ns >= self.silence_ns {
            let limit = stretch(Duration::from_nanos(self.silence_ns), Duration::from_nanos(silent_ns));
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

/// Shows an end that sends a lot that this end is alive. The other end's pings wait behind all its earlier frames,
/// which can take longer than its patience on a slow network card. If those frames are for others, no other traffic may
/// go back to it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Nod {
    nodded_ns: u64,
}

impl Nod {
    /// For a connection that has just opened.
    pub fn new(now_ns: u64) -> Nod {
        Nod { nodded_ns: now_ns }
    }

    /// Returns true if a nod is due: something has arrived since the last nod, at `heard_ns`, and a second has passed
    /// since.
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

    /// The beats in this many seconds, with a check every [`LOOK_NS`].
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
        assert_eq!(pulse.silent_s(), 4);
        pulse.heard(100_000_000_000);
        assert_eq!(pulse.silent_s(), 0);
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
        let mut look = |quarters: u64| {
            pulse.look_patiently(quarters * LOOK_NS, |limit, silent| {
                assert_eq!((limit.as_secs(), silent.as_nanos()), (4, u128::from(quarters * LOOK_NS)));
                limit * 3
            })
        };
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
        assert_eq!(pulse.silent_s(), 0);
        pulse.heard(0);
        assert_eq!(watch(&mut pulse, 100, 3, false), [Beat::Ping; 3]);
    }
}
