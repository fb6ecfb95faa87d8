use crate::tcp::Segment;
use crate::time::Time;

/// A path of the network, by its place in the network's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathId(pub(crate) u32);

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) path: PathId,
    /// The number of links of the path that it has passed.
    pub(crate) hop: u16,
    /// Bytes on the wire, headers included.
    pub(crate) bytes: u32,
    /// The time at which it was sent.
    pub(crate) sent: Time,
    pub(crate) content: Content,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Content {
    /// A segment of a TCP connection.
    Data { connection: u32, segment: Segment },
    /// All bytes before `to` have arrived; `echo` is the time at which the segment that caused it was sent.
    Acknowledgement { connection: u32, to: u64, echo: Time },
    /// A packet of a constant-rate flow.
    Constant { flow: u32 },
    /// A probe that the receiver's application reads.
    Probe { probe: u64 },
    /// A probe that is answered along the path `back`.
    Ping { probe: u64, back: PathId },
    /// The answer to a ping; `sent` is the time of the ping.
    Pong { probe: u64, sent: Time },
}

/// An event in the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NetworkEvent {
    /// A packet comes out of a link.
    Arrival(Packet),
    /// A connection's retransmission timer fires; its deadline may have moved since.
    Timer { connection: u32 },
    /// A constant-rate flow sends.
    Tick { flow: u32 },
    /// The driver asked to be woken.
    Wake { token: u64 },
}
