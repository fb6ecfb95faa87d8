//! Messages between movers, and between movers and the user's command.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::blocks::Hash;
use crate::control::Aim;
use crate::error::{At, StageError};
use crate::look::{Found, Role};
use crate::relaid::Layouts;
use crate::source::Source;
use crate::supervise::Overlap;
use crate::target::{Options, Report, resolve};

/// Maximum message length in bytes. Manifests and orders may be longer, so they are read from their owner's memory
/// instead.
pub(super) const LONGEST: usize = 16 << 10;

/// Interval between progress reports.
pub(crate) const TELL: Duration = Duration::from_millis(200);

/// A transfer request by the user. A line of JSON on the first rank's standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub tasks: Vec<Task>,
    /// Places to check. Then there are no tasks.
    #[serde(default)]
    pub looks: Vec<Look>,
    pub options: Settings,
}

/// A place to check before a transfer begins, and its end of the transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    pub at: Spot,
    pub role: Role,
}

/// A source and all its targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub from: Spot,
    pub to: Vec<Spot>,
    /// True if the targets' path must be a folder, because several sources go there.
    pub into: bool,
    /// True if the source may be missing: then nothing is moved, and that is no failure.
    #[serde(default)]
    pub optional: bool,
    /// The source is a pattern for files of processes, and the target is the folder for the files of another layout.
    #[serde(default)]
    pub layouts: Option<Layouts>,
}

impl Task {
    /// Opens the source, which is at this path on this machine.
    ///
    /// # Errors
    /// [`StageError`].
    pub(crate) fn source(&self, path: &Path) -> Result<Source, StageError> {
        match &self.layouts {
            None => Source::open(path),
            Some(layouts) => Source::relaid(path, layouts),
        }
    }

    /// The name of the source inside a target folder: the last component of its path as typed.
    ///
    /// # Errors
    /// [`StageError`].
    pub(crate) fn name(&self, path: &Path) -> Result<Vec<u8>, StageError> {
        if self.layouts.is_some() {
            return Ok(Vec::new());
        }
        if let Some(name) = path.file_name() {
            return Ok(name.as_bytes().to_vec());
        }
        let whole = std::fs::canonicalize(path).at("find", path)?;
        Ok(whole.file_name().unwrap_or_default().as_bytes().to_vec())
    }

    /// Identifies this source among all on this machine.
    ///
    /// # Errors
    /// [`StageError`].
    pub(crate) fn origin(&self, path: &Path) -> Result<Vec<u8>, StageError> {
        match self.layouts {
            None => Ok(std::fs::canonicalize(path).at("find", path)?.into_os_string().into_encoded_bytes()),
            Some(_) => Ok(path.as_os_str().as_bytes().to_vec()),
        }
    }

    /// The path for a source of this name ([`resolve`]).
    ///
    /// # Errors
    /// [`StageError`].
    pub(crate) fn target(&self, typed: &Path, name: &[u8]) -> Result<PathBuf, StageError> {
        match self.layouts {
            None => resolve(typed, Path::new(OsStr::from_bytes(name)), self.into),
            Some(_) => Ok(typed.to_owned()),
        }
    }
}

/// A path on a node of the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    pub rank: u32,
    /// The rank's site and node; empty where the job has one machine.
    pub node: String,
    /// Path as raw bytes.
    pub path: Vec<u8>,
    /// The place as the user typed it.
    pub typed: String,
}

impl Spot {
    /// Identifies this source among all, however its path was typed: with `./`, or from another folder.
    pub(crate) fn origin(&self) -> Vec<u8> {
        let plain: PathBuf = Path::new(OsStr::from_bytes(&self.path)).components().collect();
        [self.node.as_bytes(), b":", plain.as_os_str().as_bytes()].concat()
    }
}

/// Settings of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Block size in bytes.
    pub block: u32,
    /// Bytes per second at each target; `None`: no limit.
    pub rate: Option<u64>,
    /// Bytes of the target's file system that stay free for others.
    pub kept: Option<u64>,
    /// Deadline in milliseconds after the start.
    pub deadline: Option<u64>,
    /// The accepted loss of an application, in millionths of its time.
    pub harm: u32,
    /// Transfer blocks without checksums.
    #[serde(default)]
    pub unchecked: bool,
    /// Permit targets in folders of other users.
    #[serde(default)]
    pub other_owner: bool,
    /// Drop extended attributes and access control lists.
    #[serde(default)]
    pub no_xattrs: bool,
    /// Transport of blocks. It makes no difference between places of one machine.
    #[serde(default)]
    pub mode: Mode,
}

/// Transport of blocks from a feeder to the movers it feeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The receiver reads each block from the feeder's memory.
    #[default]
    Pull,
    /// The feeder sends each block.
    Send,
    /// The source sends each block once, to all targets at the same time.
    Bcast,
}

impl Settings {
    /// The transport for a task: a broadcast to a single target is a plain send.
    pub(super) fn mode_of(&self, task: &Task) -> Mode {
        if self.mode == Mode::Bcast && task.to.len() == 1 { Mode::Send } else { self.mode }
    }

    /// The options for writing a target.
    pub(crate) fn target(&self) -> Options {
        let Settings { block, kept, other_owner, no_xattrs, .. } = *self;
        Options { block, kept, other_owner, no_xattrs }
    }

    /// The limits for the controller.
    pub fn aim(&self) -> Aim {
        let deadline = self.deadline.map(Duration::from_millis);
        Aim { rate: self.rate, deadline, harm: f64::from(self.harm) / 1e6 }
    }
}

/// A control command by the user during a transfer. A line of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    Pause,
    Resume,
    /// Bytes per second; `None`: no limit.
    Rate(Option<u64>),
    /// Give up, and remove the blocks that have arrived.
    Cancel,
}

/// A message between movers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum MoverMessage {
    /// From rank 0: an [`Order`] is in its memory.
    Order {
        key: u64,
        length: u64,
    },
    /// From a source to each of its targets: the manifest is in its memory.
    Manifest {
        task: u32,
        key: u64,
        length: u64,
        host: u64,
        identity: (u64, u64),
        name: Vec<u8>,
    },
    /// The sender requests a block from the receiver's memory.
    Fetch {
        task: u32,
        block: u32,
    },
    /// The block is in the sender's memory until it is released.
    Ready {
        task: u32,
        block: u32,
        hash: Hash,
        key: u64,
        length: u32,
    },
    Release {
        task: u32,
        block: u32,
    },
    /// The sender, and all movers it feeds, have all blocks.
    Full {
        task: u32,
    },
    /// From a source whose files have not changed: put the target in place.
    Place {
        task: u32,
    },
    /// To rank 0: bytes that have arrived at a target, and bytes in total.
    Progress {
        task: u32,
        target: u32,
        arrived: u64,
        total: u64,
    },
    /// To rank 0: a target is in place.
    Placed {
        task: u32,
        target: u32,
        report: Placed,
    },
    Control(Control),
    /// To rank 0: a target has given up.
    Cancelled {
        task: u32,
        target: u32,
    },
    /// To rank 0: the job cannot continue.
    Failed {
        text: String,
    },
    /// From rank 0: the job is complete.
    End,
    /// To rank 0: an optional source is missing.
    Absent {
        task: u32,
    },
    /// To rank 0: the result of a check.
    Looked {
        look: u32,
        found: Found,
    },
    /// To rank 0: the order has been read from its memory.
    Begun,
    /// To rank 0, before the order: true if an application computes on the sender's node.
    Busy(bool),
    /// To a feeder that sends blocks.
    Take {
        task: u32,
        take: Take,
    },
}

/// Messages from a target to the feeder that sends it blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Take {
    /// Missing blocks as runs: first block and count. More messages follow unless `last`.
    Lacks { runs: Vec<(u32, u32)>, last: bool },
    /// The target lacks this block, and has posted a receive for it.
    Credit { block: u32 },
    /// Maximum rate of blocks in bytes per second; `None`: no limit. If `paused`, no block may be sent.
    Pace { rate: Option<u64>, paused: bool },
}

/// Result of a transfer to one target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// Path of the target on its machine.
    pub path: String,
    pub files: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// The part of `bytes` that an earlier transfer had brought.
    pub resumed: u64,
    /// The share of its time that an application on the node lost to the transfer; `None`: none computed there.
    pub harm: Option<f64>,
    pub notes: Vec<String>,
}

/// Events from the first rank to the user's command, as lines of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// Bytes, summed over all targets that have begun.
    Progress {
        arrived: u64,
        total: u64,
    },
    Placed {
        from: String,
        to: String,
        report: Placed,
    },
    Cancelled,
    Failed {
        text: String,
    },
    /// An optional source is missing.
    Absent {
        from: String,
    },
    /// Result of a check.
    Looked {
        /// The place as the user typed it.
        place: String,
        role: Role,
        found: Found,
    },
}

impl Placed {
    /// The result for a target at this path.
    pub fn new(path: &Path, report: Report, overlap: &Overlap) -> Placed {
        let Report { files, bytes, resumed, mut notes, .. } = report;
        if overlap.starved {
            let note = "an application left almost no core idle, so little could be moved beside it: --deadline, or \
                        --harm above 1, gives a transfer more";
            notes.push(note.to_owned());
        }
        Placed { path: path.display().to_string(), files, bytes, resumed, harm: overlap.harm, notes }
    }
}
/// A source's description of itself, besides its manifest.
pub(super) struct Origin {
    pub(super) host: u64,
    pub(super) identity: (u64, u64),
    pub(super) name: Vec<u8>,
}

/// Resolves a path on its own machine: `~/` and relative paths start at the user's home.
pub(super) fn at_home(path: &[u8]) -> PathBuf {
    let path = path.strip_prefix(b"~/").unwrap_or(if path == b"~" { b"." } else { path });
    let path = PathBuf::from(OsStr::from_bytes(path));
    match std::env::home_dir() {
        Some(home) if path.is_relative() => home.join(path),
        _ => path,
    }
}
