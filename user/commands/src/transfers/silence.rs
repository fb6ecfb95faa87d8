//! A transfer's process that exists and does not answer: the reason, as far as the system knows it.

use std::fmt;

use serde::{Serialize, Serializer};

/// The state of a process that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The process is stopped, as by SIGSTOP or Ctrl-Z.
    Stopped,
    /// It did not answer in time.
    Unknown,
}

impl Silence {
    /// The reason for which this process does not answer.
    pub(super) fn of(process: u32) -> Silence {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        if is_stopped(&stat) { Silence::Stopped } else { Silence::Unknown }
    }

    /// The commands that help with such a transfer.
    pub(super) fn remedy(self, process: u32, host: &str) -> String {
        let again = "the same `landbridge stage` command continues it later";
        match self {
            Silence::Stopped => {
                format!("on {host}, `kill -CONT {process}` lets it go on, and `kill -KILL {process}` ends it; {again}")
            }
            Silence::Unknown => {
                format!("try again, or end it with `kill -KILL {process}` on {host}; {again}")
            }
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Silence::Stopped => "does not answer: its process is stopped",
            Silence::Unknown => "does not answer: its process is busy or stopped",
        })
    }
}

impl Serialize for Silence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Reads the state in the text of `/proc/PID/stat`. The name before it may contain anything, a parenthesis too.
fn is_stopped(stat: &str) -> bool {
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_is_stopped_is_called_so() {
        assert!(is_stopped("407 (landbridge) T 1 407 407 0 -1"));
        assert!(is_stopped("407 (a) S b) t 1 407 407 0 -1"));
        for other in ["407 (landbridge) S 1 407 407 0 -1", "407 (a) T b) R 1 407", ""] {
            assert!(!is_stopped(other), "{other}");
        }
        assert_eq!(Silence::of(std::process::id()), Silence::Unknown);
    }
}
