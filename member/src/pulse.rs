//! Whether the other end of a connection is alive. Machines that freeze and cables that are pulled do not close connections.
//!
//! One rule for all of them: members and gateways, agents and launchers. Time is passed in, in nanoseconds of any clock.

/// An end that has been silent this long is sent a ping, and again after as long.
const PING_NS: u64 = 1_000_000_000;
/// It is looked at this often at least by whoever runs.
pub const LOOK_NS: u64 = 250_000_000;

/// See the module.
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

    /// Looks. Only time in which this end looked counts: an end that was itself stopped, or busy elsewhere, has not read what came.
    pub fn look(&mut self, now_ns: u64) -> Beat {
        if now_ns.saturating_sub(std::mem::replace(&mut self.looked_ns, now_ns)) > PING_NS {
            self.heard_ns = now_ns;
        }
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        if silent_ns >= self.silence_ns {
            return Beat::Lost(self.silence_ns / 1_000_000_000);
        }
        if silent_ns >= PING_NS && now_ns.saturating_sub(self.pinged_ns) >= PING_NS {
            self.pinged_ns = now_ns;
            return Beat::Ping;
        }
        Beat::Quiet
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
    fn time_in_which_nobody_looked_does_not_count() {
        let mut pulse = Pulse::new(4, 0);
        assert_eq!(pulse.look(100_000_000_000), Beat::Quiet);
        pulse.heard(0);
        assert_eq!(watch(&mut pulse, 100, 3, false), [Beat::Ping; 3]);
    }
}
