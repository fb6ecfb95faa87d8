use crate::tcp::Segment;
use crate::time::Time;

/// A path of the network, by its place in the network's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathId(pub(crate) u32);

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) path: PathId,
    /// How many links of the path it has passed.
    pub(crate) hop: u16,
    /// On the wire, headers included.
    pub(crate) bytes: u32,
    /// When it was sent.
    pub(crate) sent: Time,
    pub(crate) content: Content,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// Of a TCP connection.
    Data { connection: u32, segment: Segment },
    /// All bytes before `to` have arrived; `echo` is when the segment that caused it was sent.
    Acknowledgement { connection: u32, to: u64, echo: Time },
    /// Of a constant-rate flow.
    Constant { flow: u32 },
    /// A probe that the receiver's application reads.
    Probe { probe: u64 },
    /// A probe that is answered along the path back.
    Ping { probe: u64, back: PathId },
    /// The answer.
    Pong { probe: u64, sent: Time },
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A packet comes out of a link.
    Arrival(Packet),
    /// A connection's retransmission timer, which may have been put off since.
    Timer { connection: u32 },
    /// A constant-rate flow sends.
    Tick { flow: u32 },
    /// The driver asked to be woken.
    Wake { token: u64 },
}
