//! Signals as a pollable file descriptor.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::SigId;

/// Watches some signals until dropped. Afterwards they are ignored, not reset to their default.
#[derive(Debug)]
pub(crate) struct Signals {
    reader: UnixStream,
    raised: Vec<(i32, Arc<AtomicBool>)>,
    registrations: Vec<SigId>,
}

impl Signals {
    pub(crate) fn watch(signals: &[i32]) -> io::Result<Signals> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        let mut watcher = Signals { reader, raised: Vec::new(), registrations: Vec::new() };
        for &signal in signals {
            let flag = Arc::new(AtomicBool::new(false));
            // Register the flag first, so that it is set when the byte arrives.
            watcher.registrations.push(signal_hook::flag::register(signal, Arc::clone(&flag))?);
            watcher.registrations.push(signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?);
            watcher.raised.push((signal, flag));
        }
        Ok(watcher)
    }

    /// A descriptor that is readable after a signal arrived.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// The signals that arrived since the last call.
    pub(crate) fn take(&self) -> Vec<i32> {
        let mut bytes = [0; 64];
        while matches!((&self.reader).read(&mut bytes), Ok(1..)) {}
        let raised = self.raised.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        raised.map(|(signal, _)| *signal).collect()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registrations.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}
