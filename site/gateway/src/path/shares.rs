//! Frames waiting for a link, in one queue per job. Jobs take turns, so no job waits behind all frames of another.
//!
//! Deficit round robin (Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin", SIGCOMM 1995): each
//! turn a job may send [`QUANTUM`] bytes more. Bytes that it cannot use because its next piece is longer are kept for
//! its next turn. Messages between gateways (job 0) go first. No I/O; held memory is counted.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use types::JobId;

use crate::counters::Counters;
use crate::path::copies::Body;

/// Bytes per turn.
const QUANTUM: usize = 64 << 10;
/// Frames are gathered into pieces of about this many bytes, so that a small frame costs little.
const PIECE: usize = 32 << 10;

/// Approximate memory of a queue besides its pieces.
const QUEUE: u64 = 256;

/// Stands for the messages between gateways, which belong to no job.
const GATEWAYS: JobId = JobId(0);

/// Whole frames.
#[derive(Debug)]
pub(crate) enum QueuedPiece {
    Frames(Vec<u8>),
    /// A frame's head, and its body, which other queues may hold too.
    Copy(Box<[u8]>, Rc<Body>),
}

impl QueuedPiece {
    pub(crate) fn len(&self) -> usize {
        match self {
            QueuedPiece::Frames(bytes) => bytes.len(),
            QueuedPiece::Copy(head, body) => head.len() + body.bytes().len(),
        }
    }

    /// Bytes of memory, without those that are counted elsewhere.
    fn held(&self) -> u64 {
        match self {
            QueuedPiece::Frames(bytes) => bytes.capacity() as u64,
            QueuedPiece::Copy(head, _) => head.len() as u64,
        }
    }
}

/// See the module docs.
#[derive(Debug)]
pub(crate) struct Shares {
    queues: HashMap<JobId, JobQueue>,
    /// Jobs with something to send, in the order of their turns.
    turns: VecDeque<JobId>,
    length: usize,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct JobQueue {
    pieces: VecDeque<QueuedPiece>,
    length: usize,
    /// Bytes that the job may still send this turn.
    deficit: usize,
}

impl Shares {
    pub(crate) fn new(counters: Arc<Counters>) -> Shares {
        Shares { queues: HashMap::new(), turns: VecDeque::new(), length: 0, counters }
    }

    /// Number of waiting bytes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Number of waiting bytes of a job.
    pub(crate) fn of(&self, job: JobId) -> usize {
        self.queues.get(&job).map_or(0, |queue| queue.length)
    }

    /// Queues whole frames of a job.
    pub(crate) fn push(&mut self, job: JobId, frames: &[u8]) {
        if frames.is_empty() {
            return;
        }
        if let Some(QueuedPiece::Frames(last)) = self.queues.get_mut(&job).and_then(|queue| queue.pieces.back_mut())
            && last.len() + frames.len() <= PIECE
        {
            let before = last.capacity();
            last.extend_from_slice(frames);
            self.counters.hold((last.capacity() - before) as u64);
            self.grow(job, frames.len());
        } else {
            self.add(job, QueuedPiece::Frames(frames.to_vec()));
        }
    }

    /// Queues a frame of a job whose bytes other queues may hold too.
    pub(crate) fn push_copy(&mut self, job: JobId, head: &[u8], body: Rc<Body>) {
        self.add(job, QueuedPiece::Copy(head.into(), body));
    }

    fn grow(&mut self, job: JobId, bytes: usize) {
        self.length += bytes;
        if let Some(queue) = self.queues.get_mut(&job) {
            queue.length += bytes;
        }
    }

    fn add(&mut self, job: JobId, piece: QueuedPiece) {
        let queue = self.queues.entry(job).or_insert_with(|| {
            self.counters.hold(QUEUE);
            JobQueue::default()
        });
        let (comes, bytes) = (queue.pieces.is_empty(), piece.len());
        self.counters.hold(piece.held());
        queue.pieces.push_back(piece);
        self.grow(job, bytes);
        if comes && job != GATEWAYS {
            self.turns.push_back(job);
            if self.turns.len() == 1 {
                self.begin_turn();
            }
        }
    }

    /// The next piece to send, and its job.
    pub(crate) fn pop(&mut self) -> Option<(JobId, QueuedPiece)> {
        if self.queues.contains_key(&GATEWAYS) {
            return self.take(GATEWAYS);
        }
        loop {
            let job = *self.turns.front()?;
            let queue = self.queues.get(&job)?;
            if queue.pieces.front()?.len() <= queue.deficit {
                return self.take(job);
            }
            self.turns.rotate_left(1);
            self.begin_turn();
        }
    }

    /// Lets the first job send one quantum more.
    fn begin_turn(&mut self) {
        if let Some(queue) = self.turns.front().and_then(|job| self.queues.get_mut(job)) {
            queue.deficit += QUANTUM;
        }
    }

    fn take(&mut self, job: JobId) -> Option<(JobId, QueuedPiece)> {
        let queue = self.queues.get_mut(&job)?;
        let piece = queue.pieces.pop_front()?;
        queue.deficit = queue.deficit.saturating_sub(piece.len());
        queue.length -= piece.len();
        self.length -= piece.len();
        self.counters.release(piece.held());
        if queue.pieces.is_empty() {
            // A job with nothing to send keeps no deficit.
            self.queues.remove(&job);
            self.counters.release(QUEUE);
            if self.turns.front() == Some(&job) {
                self.turns.pop_front();
                self.begin_turn();
            }
        }
        Some((job, piece))
    }

    /// Drops all waiting frames.
    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

impl Drop for Shares {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares() -> (Shares, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        (Shares::new(counters.clone()), counters)
    }

    fn bytes_of(piece: &QueuedPiece) -> Vec<u8> {
        match piece {
            QueuedPiece::Frames(bytes) => bytes.clone(),
            QueuedPiece::Copy(head, body) => [head, body.bytes()].concat(),
        }
    }

    #[test]
    fn what_two_queues_hold_is_held_once() {
        let counters = Arc::new(Counters::default());
        let mut links = [Shares::new(counters.clone()), Shares::new(counters.clone())];
        let body = Rc::new(Body::new(&[7; 10_000], &counters));
        links.iter_mut().for_each(|shares| shares.push_copy(JobId(1), &[1; 40], body.clone()));
        drop(body);
        assert_eq!(links.iter().map(Shares::len).sum::<usize>(), 2 * 10_040);
        assert_eq!(counters.held(), 10_000 + 2 * (40 + QUEUE));
        links[0].clear();
        assert_eq!(counters.held(), 10_000 + 40 + QUEUE);
        links[1].clear();
        assert_eq!(counters.held(), 0);
    }

    #[test]
    fn a_job_with_little_does_not_wait_for_one_with_much() {
        let (mut shares, _) = shares();
        (0..100).for_each(|_| shares.push(JobId(1), &[1; 100_000]));
        let first = shares.pop().unwrap();
        assert_eq!(first.0, JobId(1));
        shares.push(JobId(2), &[2; 500]);
        shares.push(JobId(0), &[0; 40]);
        let next: Vec<JobId> = (0..4).map(|_| shares.pop().unwrap().0).collect();
        assert_eq!(next[0], JobId(0), "gateways speak first");
        assert!(next.contains(&JobId(2)), "{next:?}");
    }

    #[test]
    fn jobs_that_always_have_something_get_the_same() {
        let (mut shares, _) = shares();
        let sizes = [400, 16_416, 131_072];
        let mut sent = [0usize; 3];
        for _ in 0..20_000 {
            for (at, size) in sizes.iter().enumerate() {
                while shares.of(JobId(at as u32 + 1)) < 300_000 {
                    shares.push(JobId(at as u32 + 1), &vec![0; *size]);
                }
            }
            let (job, piece) = shares.pop().unwrap();
            sent[job.0 as usize - 1] += piece.len();
        }
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(most - least <= 3 * 131_072, "{sent:?}");
    }

    proptest! {
        #[test]
        fn all_comes_out_in_order_per_job_and_is_counted(
            steps in prop::collection::vec((0u32..4, 0usize..70_000, 0usize..4, any::<bool>()), 1..60),
        ) {
            let (mut shares, counters) = shares();
            let (mut into, mut out) = (vec![Vec::new(); 4], vec![Vec::new(); 4]);
            let mut next = 0u8;
            for (job, length, pops, is_copy) in steps {
                let bytes: Vec<u8> = (0..length).map(|_| { next = next.wrapping_add(1); next }).collect();
                if is_copy {
                    let (head, body) = bytes.split_at(length.min(30));
                    shares.push_copy(JobId(job), head, Rc::new(Body::new(body, &counters)));
                } else {
                    shares.push(JobId(job), &bytes);
                }
                into[job as usize].extend_from_slice(&bytes);
                for _ in 0..pops {
                    if let Some((job, piece)) = shares.pop() {
                        out[job.0 as usize].extend_from_slice(&bytes_of(&piece));
                    }
                }
                prop_assert!(counters.held() >= shares.len() as u64);
            }
            while let Some((job, piece)) = shares.pop() {
                out[job.0 as usize].extend_from_slice(&bytes_of(&piece));
            }
            prop_assert_eq!(into, out);
            prop_assert_eq!((shares.len(), counters.held()), (0, 0));
        }
    }
}
