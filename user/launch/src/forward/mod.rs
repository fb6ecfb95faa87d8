//! TCP connections carried to a port of another site: `landbridge forward`.
//!
//! A forward is a job without ranks. Its launcher is the *near* end, which accepts connections. Its only agent is the
//! *far* end, which runs beside the other site's gateway and connects to the target if the site's `[site.forward]`
//! allows it. Admission, several gateways, their losses and the end after `kill -9` are therefore those of every job,
//! and gateways relay the bytes as they relay all frames: unread.
//!
//! Each connection is a *stream* with a window of its own (64 KiB in each direction), so a target that does not read
//! delays no other stream and costs a bounded amount of memory.

pub(crate) mod far;
pub mod near;
mod streams;

use serde::{Deserialize, Serialize};
use types::sites::Target;

pub use near::{ForwardError, Near, Request, run};

/// Most bytes of a stream in flight in one direction: sent, and not yet taken by the socket at the other end.
pub(crate) const WINDOW: u32 = 64 << 10;
/// Most streams of one forward.
pub(crate) const MOST: usize = 64;

/// What the two ends send to each other. The near end numbers streams from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// Near → far: may this target be connected to?
    Check { target: Target },
    /// The reply: why not, for the user; `None`: it is allowed.
    Checked { problem: Option<String> },
    /// Near → far: connect a new stream to this target.
    Open { stream: u32, target: Target },
    /// Far → near: the stream is connected; bytes may be sent.
    Opened { stream: u32 },
    /// Bytes of a stream, within its window.
    Bytes { stream: u32, bytes: Vec<u8> },
    /// The sender has no more bytes.
    Shut { stream: u32 },
    /// The receiver's socket has taken this many bytes, so the sender may send as many more.
    Took { stream: u32, bytes: u32 },
    /// The stream could not be opened, or broke. Nothing more is sent on it.
    Reset { stream: u32, reason: String },
}
