//! What a user of an endpoint asks for, and what it hears back.

use memory::Buffer;
use thiserror::Error;
use types::Address;
use wire::message::{AtomicForm, Status};

/// A peer of an endpoint: an interned [`Address`]. Get one from `Endpoint::peer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// What the user wants back with a completion; the endpoint never looks at it, except that `context` is what
/// `Endpoint::cancel` and the claim functions look for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserData {
    /// For instance a pointer to the user's operation context.
    pub context: usize,
    /// Anything else.
    pub flags: u64,
}

/// When a send or write is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteWhen {
    /// When its bytes are copied or sent, whichever is first: the buffer may be reused at once.
    Buffered,
    /// When all its bytes have left for the peer.
    Sent,
    /// When all its bytes are in the peer's memory (for a send: in the matching receive's buffer).
    Delivered,
}

/// A message to send.
#[derive(Debug)]
pub struct SendOp {
    /// To whom.
    pub to: PeerId,
    /// The tag; `None` is an untagged message.
    pub tag: Option<u64>,
    /// Data for the receiver's completion.
    pub data: Option<u64>,
    /// The bytes. Read until the completion.
    pub buffer: Buffer,
    pub complete: CompleteWhen,
    /// Returned with the completion.
    pub user: UserData,
}

/// Which messages a receive or a peek matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// From whom; `None` is anybody.
    pub from: Option<PeerId>,
    /// Tagged messages; else untagged ones (whose tag and ignore do not count).
    pub tagged: bool,
    pub tag: u64,
    /// Bits of the tag that need not agree.
    pub ignore: u64,
}

/// A receive to post.
#[derive(Debug)]
pub struct RecvOp {
    /// Which message.
    pub matching: Match,
    /// Where its bytes go. Written until the completion (the released one, if `multi`).
    pub buffer: Buffer,
    /// `Some(least)`: a multi-receive. Takes message after message, one behind the other, until fewer than `least` bytes are
    /// free; the completion that retires the buffer has `released` set.
    pub multi: Option<usize>,
    /// Returned with each completion.
    pub user: UserData,
}

/// What to do with a message that a peek finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekThen {
    Leave,
    /// Keep it for `Endpoint::receive_claimed` or `Endpoint::discard_claimed` under the same context.
    Claim,
    /// Throw it away.
    Discard,
}

/// A write into a peer's region.
#[derive(Debug)]
pub struct WriteOp {
    /// To whom.
    pub to: PeerId,
    /// The region's key.
    pub key: u64,
    pub address: u64,
    /// The bytes.
    pub buffer: Buffer,
    /// Data for a completion at the peer.
    pub data: Option<u64>,
    /// When it is complete. A failure at the peer is reported only for `Delivered`.
    pub complete: CompleteWhen,
    /// Returned with the completion.
    pub user: UserData,
}

/// A read from a peer's region.
#[derive(Debug)]
pub struct ReadOp {
    /// From whom.
    pub from: PeerId,
    /// The region's key.
    pub key: u64,
    pub address: u64,
    /// Where the bytes go; its length is how many.
    pub buffer: Buffer,
    /// Returned with the completion.
    pub user: UserData,
}

/// An atomic operation on a peer's region.
#[derive(Debug)]
pub struct AtomicOp {
    /// To whom.
    pub to: PeerId,
    /// The region's key.
    pub key: u64,
    pub address: u64,
    /// `enum fi_datatype`.
    pub datatype: u8,
    /// `enum fi_op`.
    pub operation: u8,
    /// Whether old values are fetched and compare operands given.
    pub form: AtomicForm,
    /// Number of elements.
    pub count: u32,
    /// The operands, then the compare operands; at most [`MAX_ATOMIC`] bytes in all.
    pub operands: Vec<u8>,
    /// Where the old values go.
    pub result: Buffer,
    /// Returned with the completion.
    pub user: UserData,
}

/// Most bytes of operands (and compare operands) of one atomic operation.
pub const MAX_ATOMIC: usize = 8192;

/// What has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    /// A receive, a peek, or a claimed or discarded message.
    Recv,
    /// A write of ours.
    Write,
    /// A read of ours.
    Read,
    /// An atomic of ours.
    Atomic,
    /// A peer wrote to a region with completion data. Has no user data.
    RemoteWrite,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    pub kind: Kind,
    /// The operation's.
    pub user: UserData,
    /// Whether the message was tagged.
    pub tagged: bool,
    /// The message's tag.
    pub tag: u64,
    /// Bytes transferred; for a peek, and after truncation, the length of the message.
    pub length: u64,
    /// Multi-receive: where in the buffer the message lies.
    pub offset: u64,
    /// Completion data from the peer.
    pub data: Option<u64>,
    /// Receives: who sent it.
    pub from: Option<PeerId>,
    /// Multi-receive: the buffer takes no more messages, and none is still arriving in it.
    pub released: bool,
    /// The receive's or read's buffer, back (not for multi-receives).
    pub buffer: Option<Buffer>,
    /// How it went.
    pub result: Result<(), Failure>,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The message was longer than the buffer; the buffer holds its beginning.
    #[error("message of {total} bytes truncated to {kept}")]
    Truncated {
        /// Length of the message.
        total: u64,
        /// Bytes in the buffer.
        kept: u64,
    },
    /// Cancelled by the user.
    #[error("cancelled")]
    Cancelled,
    /// A peek found nothing.
    #[error("no such message has arrived")]
    NoMessage,
    /// The peer is gone or cannot be reached.
    #[error("{address:?}: {reason}")]
    PeerLost {
        /// Who.
        address: Address,
        /// Why, as far as known.
        reason: String,
    },
    /// The peer refused.
    #[error("refused by the peer: {0:?}")]
    Refused(Status),
}

/// Why an operation was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotBegun {
    /// Too much is queued: make progress and try again.
    #[error("too much is queued: make progress and try again")]
    Again,
    /// No such peer.
    #[error("no such peer")]
    UnknownPeer,
    /// Nothing was claimed under this context.
    #[error("nothing was claimed under this context")]
    NotClaimed,
    /// More operands than fit one operation.
    #[error("more operands than one atomic operation takes")]
    TooLong,
    /// The endpoint is closed.
    #[error("the endpoint is closed")]
    Closed,
}
