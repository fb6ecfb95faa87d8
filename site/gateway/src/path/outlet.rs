//! The writing side of a connection: straight to the socket if it accepts the bytes, else into a counted queue.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::counters::Counters;
use crate::path::queue::ByteQueue;

const SLICES: usize = 32;
/// Time that a closing connection has for its last bytes and for the peer to close too.
pub(crate) const LINGER: Duration = Duration::from_millis(500);

/// See the module docs. Single-threaded; nothing here is borrowed across an await.
#[derive(Debug)]
pub(crate) struct Outlet {
    socket: OwnedWriteHalf,
    queue: RefCell<ByteQueue>,
    counters: Arc<Counters>,
    /// Notified when there is something to write.
    filled: Notify,
    /// Notified when the queue has shrunk to half of the size at which senders pause.
    drained: Notify,
    backed_up: usize,
    broken: Cell<bool>,
    sealed: Cell<bool>,
}

impl Outlet {
    /// `backed_up`: senders should pause from this many queued bytes on.
    pub(crate) fn new(socket: OwnedWriteHalf, counters: Arc<Counters>, backed_up: usize) -> Outlet {
        let queue = RefCell::default();
        let (filled, drained) = (Notify::new(), Notify::new());
        Outlet {
            socket,
            queue,
            counters,
            filled,
            drained,
            backed_up,
            broken: Cell::new(false),
            sealed: Cell::new(false),
        }
    }

    pub(crate) fn socket(&self) -> &tokio::net::TcpStream {
        self.socket.as_ref()
    }

    /// Number of queued bytes.
    pub(crate) fn queued(&self) -> usize {
        self.queue.borrow().len()
    }

    pub(crate) fn is_backed_up(&self) -> bool {
        self.queued() >= self.backed_up && !self.broken.get()
    }

    /// Waits until senders may continue.
    pub(crate) async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            if !self.is_backed_up() {
                return;
            }
            drained.await;
        }
    }

    /// Sends bytes after everything sent before. Returns the number of bytes queued now. A broken connection discards
    /// them; its reader notices the break.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>]) -> usize {
        if self.is_closed() {
            return 0;
        }
        let mut queue = self.queue.borrow_mut();
        let mut written = 0;
        if queue.is_empty() {
            let result = match slices {
                [one] => self.socket.try_write(one),
                many => self.socket.try_write_vectored(many),
            };
            match result {
                Ok(count) => written = count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.break_off(&mut queue);
                    return 0;
                }
            }
        }
        for slice in slices {
            let skip = written.min(slice.len());
            written -= skip;
            queue.push(&slice[skip..], &self.counters);
        }
        if !queue.is_empty() {
            self.filled.notify_one();
        }
        queue.len()
    }

    /// Queues bytes after everything queued before, for the flushing task.
    pub(crate) fn append(&self, bytes: &[u8]) {
        if !self.is_closed() {
            self.queue.borrow_mut().push(bytes, &self.counters);
        }
    }

    /// Wakes the flushing task.
    pub(crate) fn wake(&self) {
        self.filled.notify_one();
    }

    /// Returns true if the outlet discards the bytes it is given.
    pub(crate) fn is_closed(&self) -> bool {
        self.broken.get() || self.sealed.get()
    }

    /// Accepts no more bytes.
    pub(crate) fn seal(&self) {
        self.sealed.set(true);
    }

    /// Accepts no more bytes and drops the queued ones. This may cut a frame in two, so only use it before closing.
    pub(crate) fn abandon(&self) {
        self.seal();
        self.break_off(&mut self.queue.borrow_mut());
    }

    fn break_off(&self, queue: &mut ByteQueue) {
        self.broken.set(true);
        queue.clear(&self.counters);
        self.drained.notify_waiters();
    }

    /// Writes the queued bytes until the connection breaks, then returns the error. Before each write, `more` may
    /// append any number of bytes from other queues.
    pub(crate) async fn run(&self, more: impl Fn()) -> io::Error {
        loop {
            self.filled.notified().await;
            if let Err(error) = self.flush(&more).await {
                return error;
            }
        }
    }

    /// Writes the queued bytes, and the bytes that `more` appends.
    async fn flush(&self, more: impl Fn()) -> io::Result<()> {
        loop {
            more();
            if self.queued() == 0 {
                return Ok(());
            }
            self.socket.writable().await?;
            let mut queue = self.queue.borrow_mut();
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = queue.slices(&mut slices);
            match self.socket.try_write_vectored(&slices[..count]) {
                Ok(written) => {
                    let before = queue.len();
                    queue.consume(written, &self.counters);
                    if before >= self.backed_up / 2 && queue.len() < self.backed_up / 2 {
                        self.drained.notify_waiters();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    self.break_off(&mut queue);
                    return Err(e);
                }
            }
        }
    }

    /// Writes the rest and ends the stream, within [`LINGER`].
    pub(crate) async fn finish(&self, more: impl Fn()) {
        // A peer that does not read gets no more of the gateway's time.
        let _ = timeout(LINGER, self.flush(more)).await;
        let _ = socket2::SockRef::from(self.socket()).shutdown(std::net::Shutdown::Write);
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.queue.borrow_mut().clear(&self.counters);
    }
}
