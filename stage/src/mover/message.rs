//! What movers tell each other, and what the user's command tells them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Hash;
use crate::control::Aim;
use crate::error::{At, StageError};
use crate::look::{Found, Role};
use crate::relaid::Layouts;
use crate::source::Source;
use crate::supervise::Overlap;
use crate::target::{Options, Report, resolve};

/// The longest message in bytes. What may be longer, a manifest or an order, is read from the memory of who has it.
pub(super) const LONGEST: usize = 16 << 10;

/// What the user wants moved. Comes as a line of JSON on the first rank's standard input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub tasks: Vec<Task>,
    /// Places to look at. Then there are no tasks.
    #[serde(default)]
    pub looks: Vec<Look>,
    pub options: Settings,
}

/// A place of a transfer that has not begun, and which end of it the place is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    pub at: Spot,
    pub role: Role,
}

/// A source, and all places that get it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub from: Spot,
    pub to: Vec<Spot>,
    /// Whether the targets' path must be a folder, because several sources go there.
    pub into: bool,
    /// Whether the source may be missing: then nothing arrives, and nothing failed.
    #[serde(default)]
    pub optional: bool,
    /// The source is a pattern of files of processes, and the target the folder of those of another layout.
    #[serde(default)]
    pub layouts: Option<Layouts>,
}

impl Task {
    /// The source, which is at this path here.
    ///
    /// # Errors
    /// [`StageError`].
    pub(crate) fn source(&self, path: &Path) -> Result<Source, StageError> {
        match &self.layouts {
            None => Source::open(path),
            Some(layouts) => Source::relaid(path, layouts),
        }
    }

    /// The name of the source, which a target that is a folder to go into gives it: its last name as it was typed.
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

    /// What tells this source from others on this machine.
    ///
    /// # Errors
    /// [`StageError`].
    pub(crate) fn origin(&self, path: &Path) -> Result<Vec<u8>, StageError> {
        match self.layouts {
            None => Ok(std::fs::canonicalize(path).at("find", path)?.into_os_string().into_encoded_bytes()),
            Some(_) => Ok(path.as_os_str().as_bytes().to_vec()),
        }
    }

    /// Where a source of this name goes ([`resolve`]).
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
    /// Raw bytes.
    pub path: Vec<u8>,
    /// How the user wrote the place.
    pub typed: String,
}

impl Spot {
    /// What tells this source from others, however its path was typed: with `./`, or from another folder.
    pub(crate) fn origin(&self) -> Vec<u8> {
        let plain: PathBuf = Path::new(OsStr::from_bytes(&self.path)).components().collect();
        [self.node.as_bytes(), b":", plain.as_os_str().as_bytes()].concat()
    }
}

/// How it is moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Bytes of a block.
    pub block: u32,
    /// Bytes per second at each target; `None`: as fast as it goes.
    pub rate: Option<u64>,
    /// Bytes of the target's file system that are left to others.
    pub kept: Option<u64>,
    /// Milliseconds after which all should be there.
    pub deadline: Option<u64>,
    /// Parts of a million of its time that an application may lose.
    pub harm: u32,
    /// Blocks have no checksums.
    #[serde(default)]
    pub unchecked: bool,
    /// Folders of other users may be added to.
    #[serde(default)]
    pub other_owner: bool,
    /// Extended attributes and access control lists are left out.
    #[serde(default)]
    pub no_xattrs: bool,
    /// How blocks travel. Between places of one machine it makes no difference.
    #[serde(default)]
    pub mode: Mode,
}

/// How blocks travel from the mover that feeds others to those.
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
    /// How the blocks of a task travel: to send to one alone is no broadcast.
    pub(super) fn mode_of(&self, task: &Task) -> Mode {
        if self.mode == Mode::Bcast && task.to.len() == 1 { Mode::Send } else { self.mode }
    }

    /// How a target is written.
    pub(crate) fn target(&self) -> Options {
        let Settings { block, kept, other_owner, no_xattrs, .. } = *self;
        Options { block, kept, other_owner, no_xattrs }
    }

    /// The same for the controller.
    pub fn aim(&self) -> Aim {
        let deadline = self.deadline.map(Duration::from_millis);
        Aim { rate: self.rate, deadline, harm: f64::from(self.harm) / 1e6 }
    }
}

/// Something that the user wants while it is being moved. A line of JSON too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    Pause,
    Resume,
    /// Bytes per second; `None`: as fast as it goes.
    Rate(Option<u64>),
    /// Give up, and remove what has arrived.
    Cancel,
}

/// A mover to another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Message {
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
    /// The sender wants a block from the receiver's memory.
    Fetch {
        task: u32,
        block: u32,
    },
    /// It is there until it is released.
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
    /// The sender, and all that it feeds, have all blocks.
    Full {
        task: u32,
    },
    /// From a source, whose files are still the listed ones: put it in place.
    Place {
        task: u32,
    },
    /// To rank 0: bytes that have arrived of all that a target waits for.
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
    /// To rank 0: the job cannot go on.
    Failed {
        text: String,
    },
    /// From rank 0: all is done.
    End,
    /// To rank 0: a task's source, which may be missing, is.
    Absent {
        task: u32,
    },
    /// To rank 0: what a look of the order has found.
    Looked {
        look: u32,
        found: Found,
    },
    /// To rank 0: the order has been read from its memory.
    Begun,
    /// To rank 0, before the order: whether an application computes on the sender's node.
    Busy(bool),
    /// To a feeder that sends blocks.
    Take {
        task: u32,
        take: Take,
    },
}

/// What a target tells the feeder that sends it blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Take {
    /// Blocks that it lacks, as the first one and the number of those that follow each other. More come, unless `last`.
    Lacks { runs: Vec<(u32, u32)>, last: bool },
    /// It lacks this block, and has posted a receive for it.
    Credit { block: u32 },
    /// Bytes per second with which blocks may come; `None`: as fast as it goes. While it is paused, none may.
    Pace { rate: Option<u64>, paused: bool },
}

/// What became of a target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// Where it is, as the target's machine names it.
    pub path: String,
    pub files: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Of these, what an earlier transfer had brought.
    pub resumed: u64,
    /// The share of its time that an application on the node lost to the transfer; `None`: none computed there.
    pub harm: Option<f64>,
    pub notes: Vec<String>,
}

/// What the first rank writes for the user's command, as lines of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// Bytes, over all targets that have begun.
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
    /// A source that may be missing is.
    Absent {
        from: String,
    },
    /// What a look has found.
    Looked {
        /// As the user wrote the place.
        place: String,
        role: Role,
        found: Found,
    },
}

impl Placed {
    /// What became of a target at this path.
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
