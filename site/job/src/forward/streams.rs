//! The streams of one end. Each has a task that reads the socket, a task that writes it, and a window for each
//! direction.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::{Piece, WINDOW};

/// Most bytes in one piece.
const CHUNK: usize = 16 << 10;
/// Most events queued while the end has no room for pieces.
const EVENTS: usize = 16;

/// The other end violated a stream's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("stream {stream}: {problem}")]
pub struct Misuse {
    stream: u32,
    problem: &'static str,
}

/// An event at a socket.
#[derive(Debug)]
pub struct Event {
    stream: u32,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// These bytes were read.
    Read(Vec<u8>),
    /// No more will be read.
    ReadAll,
    /// This many bytes were written.
    Wrote(u32),
    /// Everything was written, and the socket's sending side is shut.
    WroteAll,
    Broken(io::Error),
}

/// An order to a writing task.
enum Write {
    Bytes(Vec<u8>),
    Shut,
}

/// One stream at this end.
struct Stream {
    /// Bytes that may still be read and sent.
    credit: Arc<Semaphore>,
    /// Bytes sent and not yet taken by the other end's socket.
    in_flight: u32,
    /// Bytes received and not yet taken by this end's socket.
    held: u32,
    write: mpsc::UnboundedSender<Write>,
    read_all: bool,
    wrote_all: bool,
    /// Used to reset the connection, so that its peer does not mistake a broken stream for a complete one.
    socket: Option<OwnedFd>,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// All streams of this end.
pub struct Streams {
    open: HashMap<u32, Stream>,
    events: mpsc::Receiver<Event>,
    sink: mpsc::Sender<Event>,
}

impl Default for Streams {
    fn default() -> Streams {
        let (sink, events) = mpsc::channel(EVENTS);
        Streams { open: HashMap::new(), events, sink }
    }
}

impl Streams {
    /// Number of streams that are open.
    pub fn count(&self) -> usize {
        self.open.len()
    }

    pub fn contains(&self, stream: u32) -> bool {
        self.open.contains_key(&stream)
    }

    /// Adds a connection. `connected`: true if the other end is connected, so reading may begin; otherwise
    /// [`Streams::opened`] begins it.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn add_tcp(&mut self, stream: u32, tcp: TcpStream, connected: bool) -> io::Result<()> {
        // Sends short requests and keystrokes at once. Without this option they are only slower.
        let _ = tcp.set_nodelay(true);
        let socket = tcp.as_fd().try_clone_to_owned()?;
        let (read, write) = tcp.into_split();
        self.add(stream, read, write, Some(socket), connected);
        Ok(())
    }

    /// Adds the two halves of any byte stream, like [`Streams::add_tcp`].
    pub fn add(
        &mut self,
        stream: u32,
        read: impl AsyncRead + Unpin + Send + 'static,
        write: impl AsyncWrite + Unpin + Send + 'static,
        socket: Option<OwnedFd>,
        connected: bool,
    ) {
        let credit = Arc::new(Semaphore::new(if connected { WINDOW as usize } else { 0 }));
        // The window bounds this channel.
        let (sender, orders) = mpsc::unbounded_channel();
        let tasks = [
            tokio::spawn(reading(stream, read, credit.clone(), self.sink.clone())),
            tokio::spawn(writing(stream, write, orders, self.sink.clone())),
        ];
        let (read_all, wrote_all) = (false, false);
        let new = Stream { credit, in_flight: 0, held: 0, write: sender, read_all, wrote_all, socket, tasks };
        self.open.insert(stream, new);
    }

    /// The other end has connected, so reading may begin.
    pub fn opened(&mut self, stream: u32) {
        if let Some(found) = self.open.get(&stream)
            && found.in_flight == 0
            && found.credit.available_permits() == 0
        {
            found.credit.add_permits(WINDOW as usize);
        }
    }

    /// Ends a stream whose other end is gone, and resets its connection here. Returns true if the stream existed.
    pub fn reset(&mut self, stream: u32) -> bool {
        let Some(found) = self.open.remove(&stream) else { return false };
        if let Some(socket) = &found.socket {
            let _ = set_socket_linger(socket, Some(Duration::ZERO));
        }
        true
    }

    /// Handles a piece that the other end sent on a stream. Ignores pieces of streams that have ended here.
    ///
    /// # Errors
    /// The other end violated the protocol.
    pub fn receive(&mut self, piece: Piece) -> Result<(), Misuse> {
        match piece {
            Piece::Bytes { stream, bytes } => {
                let Some(found) = self.open.get_mut(&stream) else { return Ok(()) };
                found.held += bytes.len() as u32;
                if bytes.len() > CHUNK || found.held > WINDOW {
                    return Err(Misuse { stream, problem: "more bytes than its window allows" });
                }
                // A writing task that has ended has reported the reason.
                let _ = found.write.send(Write::Bytes(bytes));
            }
            Piece::Shut { stream } => {
                if let Some(found) = self.open.get(&stream) {
                    let _ = found.write.send(Write::Shut);
                }
            }
            Piece::Took { stream, bytes } => {
                let Some(found) = self.open.get_mut(&stream) else { return Ok(()) };
                let left = found.in_flight.checked_sub(bytes);
                found.in_flight = left.ok_or(Misuse { stream, problem: "took more bytes than were sent" })?;
                found.credit.add_permits(bytes as usize);
            }
            Piece::Reset { stream, .. } => {
                self.reset(stream);
            }
            Piece::Check { .. } | Piece::Checked { .. } | Piece::Open { .. } | Piece::Opened { .. } => {}
        }
        Ok(())
    }

    /// The next event at a socket of this end. Cancel-safe. Never returns without an event.
    pub async fn next(&mut self) -> Event {
        match self.events.recv().await {
            Some(event) => event,
            // Unreachable: `sink` is a sender.
            None => std::future::pending().await,
        }
    }

    /// Handles an event. Returns the piece for the other end, if there is one.
    pub fn piece(&mut self, Event { stream, kind }: Event) -> Option<Piece> {
        let found = self.open.get_mut(&stream)?;
        let piece = match kind {
            Kind::Read(bytes) => {
                found.in_flight += bytes.len() as u32;
                Some(Piece::Bytes { stream, bytes })
            }
            Kind::ReadAll => {
                found.read_all = true;
                Some(Piece::Shut { stream })
            }
            Kind::Wrote(bytes) => {
                found.held -= bytes.min(found.held);
                Some(Piece::Took { stream, bytes })
            }
            Kind::WroteAll => {
                found.wrote_all = true;
                None
            }
            Kind::Broken(error) => {
                self.reset(stream);
                return Some(Piece::Reset { stream, reason: error.to_string() });
            }
        };
        if found.read_all && found.wrote_all {
            self.open.remove(&stream);
        }
        piece
    }
}

async fn reading(stream: u32, mut from: impl AsyncRead + Unpin, credit: Arc<Semaphore>, events: mpsc::Sender<Event>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        let Ok(first) = credit.acquire().await else { return };
        first.forget();
        let more = credit.available_permits().min(CHUNK - 1);
        let more = match credit.try_acquire_many(more as u32) {
            Ok(permits) => {
                permits.forget();
                more
            }
            Err(_) => 0,
        };
        let kind = match from.read(&mut buffer[..1 + more]).await {
            Ok(0) => Kind::ReadAll,
            Ok(length) => {
                credit.add_permits(1 + more - length);
                Kind::Read(buffer[..length].to_vec())
            }
            Err(error) => Kind::Broken(error),
        };
        let last = !matches!(kind, Kind::Read(_));
        if events.send(Event { stream, kind }).await.is_err() || last {
            return;
        }
    }
}

async fn writing(
    stream: u32,
    mut to: impl AsyncWrite + Unpin,
    mut orders: mpsc::UnboundedReceiver<Write>,
    events: mpsc::Sender<Event>,
) {
    while let Some(order) = orders.recv().await {
        let (done, last) = match order {
            Write::Bytes(bytes) => {
                // Flushed, because standard output is buffered.
                let written = async {
                    to.write_all(&bytes).await?;
                    to.flush().await
                };
                (written.await.map(|()| Kind::Wrote(bytes.len() as u32)), false)
            }
            Write::Shut => (to.shutdown().await.map(|()| Kind::WroteAll), true),
        };
        let (kind, last) = match done {
            Ok(kind) => (kind, last),
            Err(error) => (Kind::Broken(error), true),
        };
        if events.send(Event { stream, kind }).await.is_err() || last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;
    use tokio::time::timeout;

    use super::*;

    /// One end with stream 1, and the peer of its socket.
    fn end(connected: bool) -> (Streams, tokio::io::DuplexStream) {
        let (inner, outer) = duplex(1 << 20);
        let (read, write) = tokio::io::split(inner);
        let mut streams = Streams::default();
        streams.add(1, read, write, None, connected);
        (streams, outer)
    }

    async fn next_piece(streams: &mut Streams) -> Option<Piece> {
        let event = timeout(Duration::from_millis(200), streams.next()).await.ok()?;
        streams.piece(event)
    }

    #[tokio::test]
    async fn no_more_than_a_window_is_read_until_the_other_end_takes_it() {
        let (mut streams, mut socket) = end(false);
        socket.write_all(&vec![7; 3 * WINDOW as usize]).await.unwrap();
        assert_eq!(next_piece(&mut streams).await, None, "the other end is not connected yet");
        streams.opened(1);
        let mut sent = 0;
        while let Some(Piece::Bytes { bytes, .. }) = next_piece(&mut streams).await {
            sent += bytes.len() as u32;
        }
        assert_eq!(sent, WINDOW);
        streams.receive(Piece::Took { stream: 1, bytes: 1000 }).unwrap();
        let Some(Piece::Bytes { bytes, .. }) = next_piece(&mut streams).await else { panic!("nothing read") };
        assert_eq!(bytes.len(), 1000);
        assert!(streams.receive(Piece::Took { stream: 1, bytes: WINDOW + 1 }).is_err());
    }

    #[tokio::test]
    async fn both_directions_end_by_themselves() {
        let (mut streams, mut socket) = end(true);
        socket.write_all(b"ask").await.unwrap();
        socket.shutdown().await.unwrap();
        assert_eq!(next_piece(&mut streams).await, Some(Piece::Bytes { stream: 1, bytes: b"ask".to_vec() }));
        assert_eq!(next_piece(&mut streams).await, Some(Piece::Shut { stream: 1 }));
        assert_eq!(streams.count(), 1, "the answer is still missing");
        streams.receive(Piece::Bytes { stream: 1, bytes: b"answer".to_vec() }).unwrap();
        streams.receive(Piece::Shut { stream: 1 }).unwrap();
        assert_eq!(next_piece(&mut streams).await, Some(Piece::Took { stream: 1, bytes: 6 }));
        assert_eq!(next_piece(&mut streams).await, None);
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await.unwrap();
        assert_eq!((answer.as_slice(), streams.count()), (b"answer".as_slice(), 0));
    }

    #[tokio::test]
    async fn a_window_that_is_exceeded_is_misuse_and_other_streams_do_not_matter() {
        let (mut streams, _socket) = end(true);
        streams.receive(Piece::Bytes { stream: 9, bytes: vec![0; CHUNK] }).unwrap();
        let most = (0..WINDOW as usize / CHUNK).map(|_| Piece::Bytes { stream: 1, bytes: vec![0; CHUNK] });
        most.for_each(|piece| streams.receive(piece).unwrap());
        let error = streams.receive(Piece::Bytes { stream: 1, bytes: vec![0] }).unwrap_err();
        assert_eq!(error.to_string(), "stream 1: more bytes than its window allows");
        assert!(streams.reset(1) && !streams.reset(1));
    }
}
