//! Standard input for the ranks. It is read only as fast as the ranks take it.

use std::io::Read;

use tokio::sync::mpsc;

/// Bytes read at once.
const CHUNK: usize = 32 << 10;
/// Most bytes in flight to a rank or waiting at its agent.
const WINDOW: u64 = 256 << 10;

/// The reading thread. Nothing waits for it, because a terminal may stay silent forever.
pub(super) enum Source {
    Unread(Box<dyn Read + Send>),
    Reading(mpsc::Receiver<Vec<u8>>),
    Ended,
}

impl Source {
    pub(super) fn new(input: Option<Box<dyn Read + Send>>) -> Source {
        input.map_or(Source::Ended, Source::Unread)
    }

    /// The next bytes; empty at the end. A read error counts as the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Vec<u8> {
        if let Source::Unread(_) = self
            && let Source::Unread(input) = std::mem::replace(self, Source::Ended)
        {
            // Only one chunk is read ahead, so the rest stays for other processes that share this input.
            let (sender, receiver) = mpsc::channel(1);
            let work = move || read(input, &sender);
            if let Err(error) = std::thread::Builder::new().name("input".into()).spawn(work) {
                tracing::warn!(%error, "standard input is not read");
                return Vec::new();
            }
            *self = Source::Reading(receiver);
        }
        match self {
            Source::Reading(receiver) => receiver.recv().await.unwrap_or_default(),
            Source::Unread(_) | Source::Ended => Vec::new(),
        }
    }
}

fn read(mut input: impl Read, sender: &mpsc::Sender<Vec<u8>>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::debug!(%error, "standard input ends");
                return;
            }
        }
    }
}

/// The amount of input that each rank has taken.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Ranks that still take input, each with the bytes taken so far.
    taken: Vec<(u32, u64)>,
    sent: u64,
    ended: bool,
}

impl Flow {
    pub(super) fn new(ranks: impl Iterator<Item = u32>) -> Flow {
        Flow { taken: ranks.map(|rank| (rank, 0)).collect(), sent: 0, ended: false }
    }

    /// True if the next bytes may be read.
    pub(super) fn has_room(&self) -> bool {
        let slowest = self.taken.iter().map(|(_, taken)| *taken).min();
        !self.ended && slowest.is_some_and(|taken| self.sent.saturating_sub(taken) + CHUNK as u64 <= WINDOW)
    }

    /// Counts sent bytes; returns the ranks to send them to.
    pub(super) fn send(&mut self, bytes: usize) -> impl Iterator<Item = u32> {
        self.sent += bytes as u64;
        self.ended |= bytes == 0;
        self.taken.iter().map(|(rank, _)| *rank)
    }

    /// Counts bytes that a rank has taken. `None`: it takes no more.
    pub(super) fn taken(&mut self, rank: u32, bytes: Option<u32>) {
        match bytes {
            None => self.taken.retain(|(other, _)| *other != rank),
            Some(bytes) => {
                for (_, taken) in self.taken.iter_mut().filter(|(other, _)| *other == rank) {
                    *taken += u64::from(bytes);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_rank_decides_until_it_takes_no_more() {
        let mut flow = Flow::new([3, 4].into_iter());
        let mut sent = 0;
        while flow.has_room() {
            assert_eq!(flow.send(CHUNK).collect::<Vec<_>>(), [3, 4]);
            sent += CHUNK as u64;
        }
        assert_eq!(sent, WINDOW);
        flow.taken(3, Some(WINDOW as u32));
        assert!(!flow.has_room());
        flow.taken(4, None);
        assert!(flow.has_room());
        assert_eq!(flow.send(0).collect::<Vec<_>>(), [3], "the end");
        assert!(!flow.has_room());
        assert!(!Flow::new(std::iter::empty()).has_room(), "nobody to read for");
    }

    #[tokio::test]
    async fn what_is_read_comes_in_order_and_then_the_end() {
        let text: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let mut source = Source::new(Some(Box::new(std::io::Cursor::new(text.clone()))));
        let mut got = Vec::new();
        loop {
            match source.next().await {
                bytes if bytes.is_empty() => break,
                bytes => got.extend(bytes),
            }
        }
        assert!(got == text);
        assert_eq!(Source::new(None).next().await, b"");
    }
}
