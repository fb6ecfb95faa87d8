//! The parts that requests for transfers have in common.

use std::path::PathBuf;
use std::time::Duration;

use launcher::Sites;
use stage::mover::{Mode, Settings};
use types::sites::Site;

use super::job::PreparedTransfer;

/// Common options of transfers.
#[derive(Clone, Debug)]
pub struct TransferRequest {
    pub pace: Pace,
    /// The user's own site, if named.
    pub from: Option<String>,
    /// The sites file, if named.
    pub sites: Option<PathBuf>,
}

/// Rate, priority and safety of a transfer.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Maximum bytes per second at each target.
    pub rate: Option<u64>,
    pub deadline: Option<Duration>,
    /// Maximum loss of applications on the nodes, in millionths.
    pub harm: u32,
    /// Size of a block in bytes, if the user has chosen it.
    pub block: Option<u32>,
    /// Bytes of the target's file system that stay free for others.
    pub keep_free: Option<u64>,
    pub allow_other_owner: bool,
    pub no_xattrs: bool,
    pub no_checksum: bool,
    pub mode: Mode,
}

impl Pace {
    /// `targets`: maximum number of nodes that get the same files. A node passes on whole blocks, so with shorter
    /// blocks the end of a chain starts sooner.
    pub(crate) fn settings(&self, targets: usize) -> Settings {
        let deadline = self.deadline.map(|deadline| deadline.as_millis() as u64);
        Settings {
            block: self.block.unwrap_or_else(|| usual_block(self.rate, targets)),
            rate: self.rate,
            kept: self.keep_free,
            deadline,
            harm: self.harm,
            unchecked: self.no_checksum,
            other_owner: self.allow_other_owner,
            no_xattrs: self.no_xattrs,
            mode: self.mode,
        }
    }
}

/// The size of a block, in bytes. A rate holds from block to block, so a block lasts an eighth of a second at most.
fn usual_block(rate: Option<u64>, targets: usize) -> u32 {
    let most: u32 = if targets > 2 { 1 << 20 } else { 4 << 20 };
    let eighth = rate.map_or(u64::from(most), |rate| rate / 8).clamp(LEAST_BLOCK.into(), most.into());
    1 << eighth.ilog2()
}

/// The least size of a block that the user has not chosen, in bytes.
const LEAST_BLOCK: u32 = 16 << 10;

/// A planned transfer.
pub enum PlannedTransfer {
    /// The command is to be carried to this site.
    Elsewhere(Box<(Sites, Site)>),
    Here(Box<PreparedTransfer>),
}

impl From<PreparedTransfer> for PlannedTransfer {
    fn from(transfer: PreparedTransfer) -> PlannedTransfer {
        PlannedTransfer::Here(Box::new(transfer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_rate_has_short_blocks() {
        assert_eq!([usual_block(None, 2), usual_block(None, 3)], [4 << 20, 1 << 20]);
        assert_eq!(usual_block(Some(100_000), 1), LEAST_BLOCK);
        assert_eq!(usual_block(Some(1_000_000), 1), 64 << 10);
        assert_eq!([usual_block(Some(1 << 40), 1), usual_block(Some(0), 1)], [4 << 20, LEAST_BLOCK]);
    }
}
