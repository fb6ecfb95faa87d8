//! Heartbeats in both directions on a connection to a gateway.

use std::time::Duration;

use member::pulse::{GATEWAY_SILENCE_S, LOOK_NS, Nod};
use member::{Beat, Pulse};
use tcp_info::Machine;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use types::patience::CoreTime;
use wire::FrameKind;

use crate::client::Receiver;
use crate::error::ClientError;
use crate::patience::{core_time, slowness_in};

/// Least time between two checks that counts as a pause of this process, and the time for which it explains a loss.
const PAUSE: Duration = Duration::from_secs(3);
const EXPLAINS: Duration = Duration::from_secs(10);

/// See the module docs.
pub(super) struct Vigil {
    began: Instant,
    looks: Interval,
    pulse: Pulse,
    nod: Nod,
    heard_ns: u64,
    asked: bool,
    /// The gateway's machine.
    machine: Machine,
    /// The core time at the first check of the current silence.
    before: CoreTime,
    /// True if something arrived since the last check.
    heard: bool,
    /// Time of the last check.
    looked: Instant,
    /// The last pause of this process: its end and its length.
    pause: Option<(Instant, Duration)>,
}

impl Vigil {
    pub(super) fn new() -> Vigil {
        let mut looks = interval(Duration::from_nanos(LOOK_NS));
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (pulse, nod) = (Pulse::new(GATEWAY_SILENCE_S, 0), Nod::new(0));
        let (machine, before, now) = (Machine::default(), core_time(), Instant::now());
        Vigil {
            began: now,
            looks,
            pulse,
            nod,
            heard_ns: 0,
            asked: false,
            machine,
            before,
            heard: false,
            looked: now,
            pause: None,
        }
    }

    /// Notes the time since the last check if this process did not run in it.
    fn note_pause(&mut self, now: Instant) {
        let pause = now - std::mem::replace(&mut self.looked, now);
        if pause >= PAUSE {
            self.pause = Some((now, pause));
        }
    }

    /// The error of a lost connection. If this process did not run shortly before, that is part of it.
    pub(super) fn explained(&mut self, error: ClientError, now: Instant) -> ClientError {
        self.note_pause(now);
        match self.pause {
            Some((end, pause)) if now - end < EXPLAINS => {
                ClientError::Paused { seconds: pause.as_secs(), source: Box::new(error) }
            }
            _ => error,
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// Whole seconds for which the gateway had been silent at the last check.
    pub(super) fn silent_s(&self) -> u64 {
        self.pulse.silent_s()
    }

    /// A frame of this kind arrived.
    pub(super) fn heard(&mut self, kind: FrameKind) {
        self.heard_ns = self.now_ns();
        self.pulse.heard(self.heard_ns);
        self.heard = true;
        self.asked |= kind == FrameKind::Ping;
    }

    /// Waits until the next check is due. Cancel-safe.
    pub(super) async fn due(&mut self) {
        self.looks.tick().await;
    }

    /// Checks for silence. A gateway whose machine answers gets a longer limit if this machine is busy, because both
    /// may be the same machine, unless `impatient`. `stopped`: a gateway on this machine may be stopped.
    pub(super) fn beat(&mut self, receiver: &Receiver, stopped: bool, impatient: bool) -> Beat {
        self.note_pause(Instant::now());
        let now_ns = self.now_ns();
        if stopped && receiver.is_on_this_machine() {
            self.pulse.heard(now_ns);
        }
        let answers = self.machine.answers(receiver.arrived(), now_ns);
        if std::mem::take(&mut self.heard) {
            self.before = core_time();
        }
        let before = self.before;
        let stretch =
            |limit, silent| if answers && !impatient { slowness_in(silent, before).stretch(limit) } else { limit };
        self.pulse.look_patiently(now_ns, stretch)
    }

    /// Returns true, once per occasion, if the gateway asked for a sign of life or is due one.
    pub(super) fn owes_a_word(&mut self) -> bool {
        let now_ns = self.now_ns();
        let due = self.nod.is_due(self.heard_ns, now_ns);
        std::mem::take(&mut self.asked) || due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_loss_after_a_pause_of_this_process_names_the_pause() {
        let left = || ClientError::Left { address: "g:1".to_owned() };
        let mut vigil = Vigil::new();
        let begun = vigil.looked;
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(vigil.explained(left(), after(2)).to_string(), "gateway at g:1 closed the connection");
        let text = "gateway at g:1 closed the connection; this process did not run for 8 s before, so the gateway may \
                    have given it up";
        assert_eq!(vigil.explained(left(), after(10)).to_string(), text);
        // Checks each second, after the pause.
        (11..=19).for_each(|second| vigil.note_pause(after(second)));
        assert_eq!(vigil.explained(left(), after(19)).to_string(), text);
        vigil.note_pause(after(20));
        assert_eq!(vigil.explained(left(), after(20)).to_string(), "gateway at g:1 closed the connection");
    }
}
