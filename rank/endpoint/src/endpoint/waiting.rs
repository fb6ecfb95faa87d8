//! Waiting for an endpoint from outside: the descriptors to watch, and the time limit.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::Endpoint;
use crate::gateway_link::GatewayLink;
use crate::memory_link::MemoryLink;

impl Endpoint {
    /// Descriptors that become readable when [`Endpoint::progress`] has something to do, provided that
    /// [`Endpoint::arm`] returned a time. They stay the same until the endpoint is closed.
    pub fn wait_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let others = [self.memory.as_ref().map(MemoryLink::poll_fd), self.gateway.as_ref().map(GatewayLink::poll_fd)];
        std::iter::once(self.site.poll_fd()).chain(others.into_iter().flatten())
    }

    /// Makes progress, and prepares for a wait on [`Endpoint::wait_fds`] by other means than [`Endpoint::wait`]: from
    /// now on, neighbours that write to our memory ring our doorbell. Returns the longest time until progress is due
    /// even if no descriptor becomes readable. `None`: something moved or is there already; call it again before
    /// waiting. [`Endpoint::wait`] ends this preparation.
    pub fn arm(&mut self) -> Option<Duration> {
        if let Some(memory) = &mut self.memory {
            memory.wake_up();
        }
        self.ask_sockets_soon();
        if self.progress() || self.has_completed() {
            return None;
        }
        if let Some(memory) = &mut self.memory
            && !memory.fall_asleep()
        {
            memory.wake_up();
            return None;
        }
        Some(self.site.longest_sleep().unwrap_or(Duration::MAX))
    }
}
