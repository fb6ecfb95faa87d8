//! The WAN emulator: delay, rate, jitter, loss and failure between every pair of sites.
//!
//! `link` decides if and when a packet is delivered, in time that is passed in; `segment` cuts super-packets;
//! `lateness` records how well the emulator met its own deadlines. None of these three touches a socket or a clock.
//! `emulator` is the process: packet sockets, one thread, a heap of departures. `control` is the socket through which
//! settings change.

mod control;
pub(crate) mod emulator;
mod lateness;
mod link;
mod report;
mod segment;

pub(crate) use control::plug;
pub use control::{send as control, socket_path};
pub use lateness::Lateness;
pub use link::{Counters, LinkSettings};
pub use report::{LinkReport, PortReport, WanReport};
