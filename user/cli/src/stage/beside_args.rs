//! The flags of `landbridge run` for transfers beside a job.

use std::ffi::OsString;

use clap::Args;
use types::quantity::parse_byte_rate;

use super::args::{Mode, harm};
use super::nodes::{Way, is_here};

/// Transfers beside a run.
#[derive(Clone, Debug, Args)]
pub(crate) struct BesideArgs {
    /// Move this to the nodes while the program runs, for the next run; as for `stage in`, may be repeated
    #[arg(long, value_name = "SRC=DST")]
    pub stage_in: Vec<OsString>,
    /// Move this from the nodes while the program runs, such as the last run's output; as for `stage out`
    #[arg(long, value_name = "SRC=DST")]
    pub stage_out: Vec<OsString>,
    /// Maximum bytes per second of either at each target [default: the maximum that --stage-harm allows]
    #[arg(long, value_name = "RATE", value_parser = parse_byte_rate)]
    pub stage_rate: Option<u64>,
    /// Maximum loss of the program to either, in percent of its time [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = harm)]
    pub stage_harm: Option<u32>,
    /// Transport of blocks for either, as for `stage move --mode` [default: pull]
    #[arg(long, value_name = "MODE", value_enum)]
    pub stage_mode: Option<Mode>,
    /// Permit folders of other users for either, as for `stage move --allow-other-owner`
    #[arg(long)]
    pub stage_allow_other_owner: bool,
}

impl BesideArgs {
    pub(crate) fn is_wanted(&self) -> bool {
        !self.stage_in.is_empty() || !self.stage_out.is_empty()
    }

    /// Returns true if a source of `--stage-in` or a target of `--stage-out` is a path on the machine where it was
    /// typed.
    pub(crate) fn names_this_machine(&self) -> bool {
        let ins = self.stage_in.iter().map(|spec| is_here(spec, Way::In));
        ins.chain(self.stage_out.iter().map(|spec| is_here(spec, Way::Out))).any(|here| here)
    }
}
