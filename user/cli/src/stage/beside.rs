//! `run --stage-in` and `--stage-out`: their flags, and the line about their result.

use std::ffi::OsString;

use clap::{ArgGroup, Args, ValueEnum};
use commands::transfers::beside::{BesideRequest, Overlap};
use types::quantity::parse_byte_rate;

use super::args::{TransportMode, harm};
use crate::quantity::decimal;

/// The options that request a transfer.
const BESIDE: &str = "beside";

/// Transfers beside a run.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new(BESIDE).multiple(true))]
pub(crate) struct BesideArgs {
    /// While the program runs, copy files that the next run will read to the nodes; as `stage in`, may be repeated
    #[arg(long, value_name = "SRC=DST", group = BESIDE)]
    pub stage_in: Vec<OsString>,
    /// While the program runs, fetch files from the nodes, such as the last run's output; as `stage out`
    #[arg(long, value_name = "SRC=DST", group = BESIDE)]
    pub stage_out: Vec<OsString>,
    /// Maximum rate of --stage-in and --stage-out at each target, in bytes per second [default: as --stage-harm allows]
    #[arg(long, value_name = "RATE", value_parser = parse_byte_rate, requires = BESIDE)]
    pub stage_rate: Option<u64>,
    /// Maximum slowdown of the program by --stage-in and --stage-out, in percent [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = harm, requires = BESIDE)]
    pub stage_harm: Option<u32>,
    /// Transport of blocks for both, as for `stage move --mode` [default: pull]
    #[arg(long, value_name = "MODE", value_enum, requires = BESIDE)]
    pub stage_mode: Option<TransportMode>,
    /// Permit folders of other users for both, as for `stage move --allow-other-owner`
    #[arg(long, requires = BESIDE)]
    pub stage_allow_other_owner: bool,
}

impl BesideArgs {
    pub(crate) fn request(&self) -> BesideRequest {
        let mode = self.stage_mode.and_then(|mode| mode.to_possible_value());
        BesideRequest {
            stage_in: self.stage_in.clone(),
            stage_out: self.stage_out.clone(),
            rate: self.stage_rate,
            harm: self.stage_harm,
            mode: mode.map(|mode| mode.get_name().to_owned()),
            allow_other_owner: self.stage_allow_other_owner,
        }
    }
}

/// A summary line for the user.
pub(crate) fn line(overlap: &Overlap) -> String {
    let lost =
        overlap.harm.map_or(String::new(), |harm| format!(", which lost {:.1} % of its time to it", harm * 100.0));
    format!(
        "staged {} in {:.1} s beside the program{lost}; together {:.2} times as fast as one after the other, of {:.2} \
         at most",
        decimal(overlap.bytes),
        overlap.staging,
        overlap.speedup,
        overlap.optimum
    )
}
