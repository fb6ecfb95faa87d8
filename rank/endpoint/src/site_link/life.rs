//! Signs of life of a peer's machine.
//!
//! A peer's process sends only while its program calls MPI, so its silence has no meaning. Its kernel always sends:
//! both ends have keepalive on, so each kernel probes a silent connection, and answers probes. Our own kernel counts
//! the segments that arrive ([`TcpInfo::arrived`]), even if the process does not read them. A frozen process still has
//! a kernel that answers; but its node's agent is then frozen too, and the site's gateways notice that.
//!
//! `TCP_USER_TIMEOUT` does not work here: Linux ends a connection whose peer has closed its window for that long,
//! although the peer answers every probe. A rank that computes for a minute while it is sent much data does exactly
//! that.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use member::pulse::{Beat, LOOK_NS, Pulse, RANK_SILENCE_S};
use rustix::net::sockopt;
use tcp_info::{Arrivals, TcpInfo};

use super::SiteLink;
use super::connection::Phase;
use crate::link::Sink;
use crate::reader::Broken;

/// Interval between checks of the connections.
pub(super) const LOOK: Duration = Duration::from_nanos(LOOK_NS);
/// Silence after which the kernel probes the peer's kernel, and interval of further probes. A rank may have a thousand
/// connections, so a peer that answers is not probed every second.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(1));
/// Unanswered probes after which the kernel itself closes the connection, for a rank that does not check: 12 s.
const KEEPALIVE_COUNT: u32 = 9;

/// Signs of life of a peer's kernel.
#[derive(Debug)]
pub(super) struct Life {
    arrivals: Arrivals,
    pulse: Pulse,
}

impl Life {
    /// For a connection that starts now.
    pub(super) fn new(now_ns: u64) -> Life {
        Life { arrivals: Arrivals::default(), pulse: Pulse::new(RANK_SILENCE_S, now_ns) }
    }

    /// Checks for new segments. `arrived`: the count so far; `None`: this kernel does not count segments, and its
    /// keepalive has to suffice.
    ///
    /// # Errors
    /// The number of seconds without any arrival, if the machine counts as lost.
    pub(super) fn look(&mut self, arrived: Option<u32>, now_ns: u64) -> Result<(), u64> {
        if self.arrivals.look(arrived) != Some(false) {
            self.pulse.heard(now_ns);
        }
        match self.pulse.look(now_ns) {
            // The kernel sends the probes.
            Beat::Quiet | Beat::Ping => Ok(()),
            Beat::Lost(seconds) => Err(seconds),
        }
    }
}

/// Has the kernel probe the peer's kernel for signs of life.
pub(super) fn watch(socket: &impl AsFd) -> std::io::Result<()> {
    let (idle, interval) = KEEPALIVE;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    Ok(sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)?)
}

impl SiteLink {
    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Gives up connections to silent machines, if a check is due.
    pub(super) fn listen_for_silence(&mut self, sink: &mut dyn Sink) {
        if self.connections.is_empty() || self.looked.elapsed() < LOOK {
            return;
        }
        self.looked = Instant::now();
        let now_ns = self.now_ns();
        let mut silent = Vec::new();
        for (key, connection) in &mut self.connections {
            // Dialling has its own time limit.
            if matches!(connection.phase, Phase::Connecting(_)) {
                continue;
            }
            let arrived = TcpInfo::of(&connection.stream).ok().and_then(|info| info.arrived);
            if let Err(seconds) = connection.life.look(arrived, now_ns) {
                silent.push((key, seconds));
            }
        }
        for (key, seconds) in silent {
            self.lose_connection(key, Broken::Silent(seconds), sink);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_machine_that_answers_is_left_alone_and_one_that_does_not_is_lost() {
        let mut life = Life::new(0);
        // Checked twice a second; the peer's process computes, and its kernel sends something every third second.
        for tick in 1..=120 {
            assert_eq!(life.look(Some(tick / 6), u64::from(tick) * S / 2), Ok(()), "tick {tick}");
        }
        let lost = (121..).find(|tick| life.look(Some(20), tick * S / 2).is_err());
        assert_eq!(lost, Some(120 + 2 * RANK_SILENCE_S));
    }

    #[test]
    fn time_in_which_nobody_looked_counts_little() {
        let mut life = Life::new(0);
        assert_eq!(life.look(Some(7), S), Ok(()));
        assert_eq!(life.look(Some(7), 3600 * S), Ok(()), "this machine may have been stopped");
        let lost = (1..).find(|looks| life.look(Some(7), (3600 + 100 * looks) * S).is_err());
        assert_eq!(lost, Some(2 * RANK_SILENCE_S - 1), "a rank that seldom calls MPI notices too");
    }

    #[test]
    fn a_kernel_that_does_not_count_has_only_its_keepalive() {
        let mut life = Life::new(0);
        assert!((1..100).all(|tick| life.look(None, tick * S).is_ok()));
    }
}
