//! TCP connections carried to a port of another site: `landbridge forward`.
//!
//! A forward is a job without ranks. Its launcher is the *near* end, which accepts connections. Its only agent is the
//! *far* end, which runs beside the other site's gateway and connects to the target if the site's `[site.forward]`
//! allows it. Admission, the use of several gateways, their losses and the end after `kill -9` work as for every job.
//! Gateways relay its bytes like all frames: unread.
//!
//! Each connection is a *stream* with a window of its own (64 KiB in each direction). A target that does not read
//! therefore delays no other stream and takes a bounded amount of memory.

pub mod streams;

use serde::{Deserialize, Serialize};
use types::sites::Target;

/// Most bytes of a stream in flight in one direction: sent, but not yet taken by the socket at the other end.
pub const WINDOW: u32 = 64 << 10;
/// Most streams of one forward.
pub const MOST: usize = 64;

/// Messages between the two ends. The near end numbers streams from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Piece {
    /// Near → far: asks for permission to connect to this target.
    Check { target: Target },
    /// Far → near, the reply: the reason for a refusal, for the user; `None`: the target is allowed.
    Checked { problem: Option<String> },
    /// Near → far: connect a new stream to this target.
    Open { stream: u32, target: Target },
    /// Far → near: the stream is connected; bytes may be sent.
    Opened { stream: u32 },
    /// Bytes of a stream, within its window.
    Bytes { stream: u32, bytes: Vec<u8> },
    /// The sender has no more bytes.
    Shut { stream: u32 },
    /// The receiver's socket has taken this many bytes, so the sender may send this many more.
    Took { stream: u32, bytes: u32 },
    /// The stream could not be opened, or broke. Nothing more is sent on it.
    Reset { stream: u32, reason: String },
}
