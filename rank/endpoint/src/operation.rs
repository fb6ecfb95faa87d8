//! Operations that a user of an endpoint requests, and their completions.

use memory::Buffer;
use thiserror::Error;
use types::Address;
use wire::message::{AtomicForm, Status};

/// A peer of an endpoint: an interned [`Address`]. Get one from `Endpoint::peer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// Returned to the user with a completion. The endpoint ignores it, except that `Endpoint::cancel` and the claim
/// functions look for `context`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserData {
    /// For instance a pointer to the user's operation context.
    pub context: usize,
    /// Anything else.
    pub flags: u64,
}

/// Completion condition of a send or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteWhen {
    /// When its bytes are copied or sent, whichever is first: the user may reuse the buffer at once.
    Buffered,
    /// When all its bytes have been sent to the peer.
    Sent,
    /// When all its bytes are in the peer's memory (for a send: in the matching receive's buffer).
    Delivered,
}

/// A message to send.
#[derive(Debug)]
pub struct SendOp {
    /// The receiver.
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

/// The messages that a receive or a peek matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// The sender; `None` is any.
    pub from: Option<PeerId>,
    /// Match tagged messages. Otherwise match untagged ones, and ignore `tag` and `ignore`.
    pub tagged: bool,
    pub tag: u64,
    /// Bits of the tag that are ignored.
    pub ignore: u64,
}

/// A receive to post.
#[derive(Debug)]
pub struct RecvOp {
    /// The messages that it matches.
    pub matching: Match,
    /// Target of its bytes. Written until the completion (the `released` one, if `multi`).
    pub buffer: Buffer,
    /// `Some(least)`: a multi-receive. It stores message after message, one behind the other, until fewer than `least`
    /// bytes are free. The completion that retires the buffer has `released` set.
    pub multi: Option<usize>,
    /// Returned with each completion.
    pub user: UserData,
}

/// Action on a message that a peek finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeekThen {
    Leave,
    /// Keep it for `Endpoint::receive_claimed` or `Endpoint::discard_claimed` under the same context.
    Claim,
    /// Discard it.
    Discard,
}

/// A write into a peer's region.
#[derive(Debug)]
pub struct WriteOp {
    /// The target.
    pub to: PeerId,
    /// The region's key.
    pub key: u64,
    pub address: u64,
    /// The bytes.
    pub buffer: Buffer,
    /// Data for a completion at the peer.
    pub data: Option<u64>,
    /// Completion condition. A failure at the peer is reported only for `Delivered`.
    pub complete: CompleteWhen,
    /// Returned with the completion.
    pub user: UserData,
}

/// A read from a peer's region.
#[derive(Debug)]
pub struct ReadOp {
    /// The target.
    pub from: PeerId,
    /// The region's key.
    pub key: u64,
    pub address: u64,
    /// Target of the bytes; its length is the number of bytes read.
    pub buffer: Buffer,
    /// Returned with the completion.
    pub user: UserData,
}

/// An atomic operation on a peer's region.
#[derive(Debug)]
pub struct AtomicOp {
    /// The target.
    pub to: PeerId,
    /// The region's key.
    pub key: u64,
    pub address: u64,
    /// `enum fi_datatype`.
    pub datatype: u8,
    /// `enum fi_op`.
    pub operation: u8,
    /// The form: with or without old values and compare operands.
    pub form: AtomicForm,
    /// Number of elements.
    pub count: u32,
    /// The operands, then the compare operands; at most [`MAX_ATOMIC`] bytes in all.
    pub operands: Vec<u8>,
    /// Target of the old values.
    pub result: Buffer,
    /// Returned with the completion.
    pub user: UserData,
}

/// Bytes for several ranks at other sites, sent once along trees of sites.
#[derive(Debug)]
pub struct ShareOp {
    /// Identifies the share among those of this rank. Its receivers use the same key.
    pub key: u64,
    /// At most 64 receivers, none of them at this rank's site.
    pub to: Vec<PeerId>,
    /// The bytes. Read until the completion.
    pub buffer: Buffer,
    /// Frames are spread over these trees according to the rate at which each delivers. Every tree begins at this
    /// rank's site and contains every receiver's site. A site without a receiver forwards nothing.
    pub trees: Vec<member::ShareTree>,
    /// Returned with the completion.
    pub user: UserData,
}

/// Maximum number of bytes of operands (and compare operands) in one atomic operation.
pub const MAX_ATOMIC: usize = 8192;

/// The kind of a completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    Send,
    /// A receive, a peek, or a claimed or discarded message.
    Recv,
    /// Our own write.
    Write,
    /// Our own read.
    Read,
    /// Our own atomic operation.
    Atomic,
    /// A share that was sent or received. Its completion is in a separate queue.
    Share,
    /// A peer wrote to a region with completion data. Has no user data.
    RemoteWrite,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    pub kind: OperationKind,
    /// The operation's user data.
    pub user: UserData,
    /// True if the message was tagged.
    pub tagged: bool,
    /// The message's tag.
    pub tag: u64,
    /// Bytes transferred; for a peek, and after truncation, the length of the message.
    pub length: u64,
    /// Multi-receive: offset of the message in the buffer.
    pub offset: u64,
    /// Completion data from the peer.
    pub data: Option<u64>,
    /// Receives: the sender.
    pub from: Option<PeerId>,
    /// Multi-receive: the buffer takes no more messages, and none is still arriving in it.
    pub released: bool,
    /// The buffer of the receive or read, returned (not for multi-receives).
    pub buffer: Option<Buffer>,
    /// The outcome.
    pub result: Result<(), Failure>,
}

/// Reasons for the failure of an operation.
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
        /// The peer's address.
        address: Address,
        /// The reason, as far as known.
        reason: String,
    },
    /// The peer refused.
    #[error("refused by the peer: {0:?}")]
    Refused(Status),
}

/// Reasons for refusing an operation.
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
    #[error("more operands than one atomic operation can take")]
    TooLong,
    /// A share whose trees do not lead to its receivers.
    #[error("{0}")]
    Tree(&'static str),
    /// The endpoint is closed.
    #[error("the endpoint is closed")]
    Closed,
}
