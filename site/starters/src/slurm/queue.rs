//! Slurm's report on a job in its queue, and reasons why the job can never start.

use types::untrusted::printable;

/// A job's line in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queued {
    /// For example `PENDING`.
    state: String,
    /// For example `Resources`; empty if Slurm gives none.
    reason: String,
}

impl Queued {
    /// Parses squeue's `%T|%r`.
    pub(super) fn read(line: &str) -> Queued {
        let (state, reason) = line.trim().split_once('|').unwrap_or((line.trim(), ""));
        let reason = if reason == "None" { "" } else { reason };
        Queued { state: printable(state), reason: printable(reason) }
    }

    /// Describes the report in a sentence about job `id`.
    pub(super) fn describe(&self, id: &str) -> String {
        let Queued { state, reason } = self;
        match (state.is_empty(), reason.is_empty()) {
            (true, _) => format!("Slurm job {id} waits in the queue"),
            (false, true) => format!("Slurm job {id} waits in the queue ({state})"),
            (false, false) => format!("Slurm job {id} waits in the queue ({state}, {reason})"),
        }
    }

    /// The reason why the job never starts, unless somebody changes the job or Slurm's configuration. Reasons that pass
    /// by themselves do not count, such as a partition that is down or a limit that other jobs use up.
    pub(super) fn never_starts(&self) -> Option<&'static str> {
        if self.state != "PENDING" {
            return None;
        }
        let reason = self.reason.as_str();
        let why = match reason {
            "PartitionConfig" => "the partition's configuration does not allow such a job",
            "PartitionNodeLimit" => "the partition does not allow this number of nodes",
            "PartitionTimeLimit" => "the partition does not allow a job of this length",
            "AccountNotAllowed" | "InvalidAccount" => "the account may not be used here",
            "QOSNotAllowed" | "InvalidQOS" => "the quality of service may not be used here",
            "BadConstraints" => "no nodes have what the job requests",
            "DependencyNeverSatisfied" => "the job that it depends on did not end as required",
            _ if reason.ends_with("PerJob") || reason.ends_with("PerJobLimit") => "a limit for one job is exceeded",
            _ => return None,
        };
        Some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_can_never_start_are_distinguished() {
        for (line, words) in [
            ("PENDING|Resources", "Slurm job 5 waits in the queue (PENDING, Resources)"),
            ("CONFIGURING|None\n", "Slurm job 5 waits in the queue (CONFIGURING)"),
            ("", "Slurm job 5 waits in the queue"),
        ] {
            assert_eq!(Queued::read(line).describe("5"), words);
        }
        let never = |reason: &str| Queued::read(&format!("PENDING|{reason}")).never_starts().is_some();
        for reason in [
            "PartitionConfig",
            "AccountNotAllowed",
            "QOSMaxCpuPerJobLimit",
            "AssocMaxNodePerJobLimit",
            "PartitionTimeLimit",
        ] {
            assert!(never(reason), "{reason}");
        }
        for reason in [
            "Resources",
            "Priority",
            "PartitionDown",
            "QOSMaxJobsPerUserLimit",
            "ReqNodeNotAvail",
            "JobHeldUser",
            "None",
        ] {
            assert!(!never(reason), "{reason}");
        }
        assert!(Queued::read("RUNNING|PartitionConfig").never_starts().is_none());
    }
}
