//! The cause of a job's failure among several failures.

use super::outcome::Failure;
use job::message::{End, MpiState};
use job::processes::signal_name;

/// Likelihood that a failure is the cause of the others. The likeliest one is reported.
pub(super) type Weight = u8;
pub(super) const EFFECT: Weight = 1;
const EXIT_CODE: Weight = 2;
pub(super) const ABORT: Weight = 3;
const UNFINALISED: Weight = 3;
pub(super) const SIGNAL: Weight = 4;
pub(super) const LOST: Weight = 5;

/// Exit code when a running job loses something that it needs (a gateway, a site, an agent, memory), when the
/// connection that carries a command to a site is lost, and of a mover that has lost another one. The program is not at
/// fault, and the job may be run again. `EX_TEMPFAIL` of sysexits.h.
pub const LOST_CODE: i32 = 75;

/// The exit code of MPICH and Intel MPI for `MPI_ERR_OTHER`, which ranks get when a peer is gone: the low byte of their
/// error code, class 15 with the bit of a dynamic message.
pub(super) const MPI_ERROR: i32 = 0x8f;

#[derive(Debug, Default)]
pub(super) struct Cause {
    known: Option<(Weight, Failure, i32)>,
    trouble: Option<Failure>,
}

impl Cause {
    /// Adds a failure and its exit code. The one with the greatest weight counts; among equals, the first.
    pub(super) fn add(&mut self, weight: Weight, failure: Failure, code: i32) {
        if self.known.as_ref().is_none_or(|(other, _, _)| *other < weight) {
            self.known = Some((weight, failure, code));
        }
    }

    /// Adds something that a rank's provider lacks. The program may still go on; if a rank fails, this is the reported
    /// reason. The first one counts.
    pub(super) fn add_trouble(&mut self, failure: Failure) {
        self.trouble.get_or_insert(failure);
    }

    /// The failure to report and the exit code; `None` if nothing failed.
    pub(super) fn get(&self) -> Option<(&Failure, i32)> {
        let (weight, failure, code) = self.known.as_ref()?;
        match &self.trouble {
            Some(trouble) if *weight < LOST => Some((trouble, LOST_CODE)),
            _ => Some((failure, *code)),
        }
    }
}

/// Weight, reason and exit code of a rank's end; `None` if it is no failure.
pub(super) fn of_end(end: End, state: MpiState, uses_mpi: bool) -> Option<(Weight, String, i32)> {
    let (weight, reason) = match (end, state) {
        (End::Signal(signal), _) => (SIGNAL, format!("killed by signal {signal} ({})", signal_name(signal))),
        (End::Code(0), MpiState::Running) => {
            (UNFINALISED, "exited without calling MPI_Finalize, while other ranks may wait for it".to_owned())
        }
        (End::Code(0), MpiState::Untouched) if uses_mpi => {
            (UNFINALISED, "exited without calling MPI_Init, although other ranks did".to_owned())
        }
        (End::Code(0), _) => return None,
        (End::Code(code), _) => {
            let is_effect = (code == MPI_ERROR && uses_mpi) || code == LOST_CODE;
            let weight = if is_effect { EFFECT } else { EXIT_CODE };
            (weight, format!("exited with code {code}"))
        }
    };
    let code = if end == End::Code(0) { 1 } else { end.exit_code() };
    Some((weight, reason, code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(cause: &Cause) -> Option<(String, i32)> {
        cause.get().map(|(failure, code)| (failure.to_string(), code))
    }

    #[test]
    fn the_weightiest_counts_and_then_the_first() {
        let mut cause = Cause::default();
        assert_eq!(told(&cause), None);
        for (weight, reason) in [(EFFECT, "effect"), (SIGNAL, "one"), (SIGNAL, "two"), (ABORT, "abort")] {
            cause.add(weight, Failure::new(reason), i32::from(weight));
        }
        assert_eq!(told(&cause), Some(("one".into(), 4)));
    }

    #[test]
    fn a_rank_in_trouble_explains_what_ranks_do_but_not_what_is_lost() {
        let mut cause = Cause::default();
        cause.add_trouble(Failure::new("memory is full"));
        cause.add_trouble(Failure::new("memory is still full"));
        assert_eq!(told(&cause), None, "the program goes on");
        cause.add(ABORT, Failure::new("called MPI_Abort"), 15);
        assert_eq!(told(&cause), Some(("memory is full".into(), LOST_CODE)));
        cause.add(LOST, Failure::new("interrupted"), 130);
        assert_eq!(told(&cause), Some(("interrupted".into(), 130)));
    }
}
