//! TCP's two halves as pure state machines: the network hands them arriving segments and asks for segments to send.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub(crate) use receiver::Receiver;
pub(crate) use sender::Sender;

use crate::error::{SimulationError, check};

/// Settings of the simulated TCP. Defaults are those of a Linux host without tuning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TcpSettings {
    /// Payload of a full segment. Default 1,460 bytes.
    pub segment_bytes: u32,
    /// Headers of every packet, acknowledgements included. Default 40 bytes (IPv4 and TCP).
    pub header_bytes: u32,
    /// The receiver's window, which never closes because applications read at once. Default 64 KiB, the most without
    /// window scaling; 10 MiB models a window tuned by the kernel.
    pub window_bytes: u64,
    /// Congestion window at the start and after a pause, in segments. Default 10 (RFC 6928); 2 was usual before 2010.
    pub initial_segments: u32,
    /// Least retransmission timeout. Default 0.2 s, as in Linux; RFC 6298 recommends 1 s.
    pub least_timeout_seconds: f64,
}

impl Default for TcpSettings {
    fn default() -> Self {
        TcpSettings {
            segment_bytes: 1460,
            header_bytes: 40,
            window_bytes: 65_536,
            initial_segments: 10,
            least_timeout_seconds: 0.2,
        }
    }
}

impl TcpSettings {
    pub(crate) fn check(&self) -> Result<(), SimulationError> {
        check("segment_bytes", f64::from(self.segment_bytes), 1.0, 65_000.0, "from 1 to 65000")?;
        check("header_bytes", f64::from(self.header_bytes), 0.0, 500.0, "at most 500")?;
        let segment = f64::from(self.segment_bytes);
        check("window_bytes", self.window_bytes as f64, segment, 1e12, "at least a segment, at most 1e12")?;
        check("initial_segments", f64::from(self.initial_segments), 1.0, 1e4, "from 1 to 10000")?;
        check("least_timeout_seconds", self.least_timeout_seconds, 1e-6, 60.0, "from 1e-6 to 60")
    }
}

/// Consecutive bytes of a stream sent in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Offset of the first byte in the stream.
    pub(crate) start: u64,
    pub(crate) bytes: u32,
}
