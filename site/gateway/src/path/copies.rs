//! Copies of one frame for several receivers: their heads differ, their bytes are kept once.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use types::JobId;
use wire::FrameHeader;
use wire::frame::HEADER_LEN;

use crate::counters::Counters;

/// Noted copies are sent once they amount to this many bytes. Until then they are not counted as held.
const NOTED: usize = 1 << 20;

/// Something to be sent out of the bytes of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Frames as they were received.
    Frames(Range<usize>),
    /// A copy. [`Copies`] has its head and the place of its body. Unlike other frames for a link, it may come from a
    /// link, which carries frames of all jobs.
    Copy { job: JobId, head: Range<usize>, body: usize },
}

/// The copies that were noted and not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Copies(RefCell<Noted>);

#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Headers and blocks of the copies.
    heads: Vec<u8>,
    bodies: Vec<(Range<usize>, Option<Rc<Body>>)>,
    /// Bytes of all copies.
    bytes: usize,
}

/// Bytes that several queues hold. Counted as held once.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Box<[u8]>,
    counters: Arc<Counters>,
}

impl Body {
    pub(crate) fn new(bytes: &[u8], counters: &Arc<Counters>) -> Body {
        counters.hold(bytes.len() as u64);
        Body { bytes: bytes.into(), counters: counters.clone() }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.counters.release(self.bytes.len() as u64);
    }
}

impl Copies {
    /// Forgets the noted copies, which have all been sent.
    pub(super) fn clear(&self) {
        let mut noted = self.0.borrow_mut();
        if noted.bytes > 0 {
            noted.heads.clear();
            noted.bodies.clear();
            noted.bytes = 0;
        }
    }

    /// Gives access to the noted copies while they are being sent.
    pub(crate) fn with<R>(&self, with: impl FnOnce(&Noted) -> R) -> R {
        with(&self.0.borrow())
    }

    /// Gives mutable access to the noted copies, to put them into queues.
    pub(crate) fn with_mut<R>(&self, with: impl FnOnce(&mut Noted) -> R) -> R {
        with(&mut self.0.borrow_mut())
    }
}

impl Noted {
    /// Returns true if the noted copies are to be sent before more are noted.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > NOTED
    }

    pub(super) fn add_body(&mut self, range: Range<usize>) -> usize {
        self.bodies.push((range, None));
        self.bodies.len() - 1
    }

    pub(super) fn add(&mut self, header: FrameHeader, block: &[u8], body: usize) -> Item {
        let start = self.heads.len();
        self.heads.extend_from_slice(&header.encode());
        self.heads.extend_from_slice(block);
        self.bytes += HEADER_LEN + header.length as usize;
        Item::Copy { job: header.job, head: start..self.heads.len(), body }
    }

    /// The slices of an item. `bytes`: the read that the item was noted from.
    pub(crate) fn slices<'a>(&'a self, item: &Item, bytes: &'a [u8]) -> [&'a [u8]; 2] {
        match item {
            Item::Frames(range) => [&bytes[range.clone()], &[]],
            Item::Copy { head, body, .. } => [&self.heads[head.clone()], &bytes[self.bodies[*body].0.clone()]],
        }
    }

    /// Returns the body of a copy in a form that several queues can hold.
    pub(crate) fn kept(&mut self, body: usize, bytes: &[u8], counters: &Arc<Counters>) -> Rc<Body> {
        let (range, kept) = &mut self.bodies[body];
        kept.get_or_insert_with(|| Rc::new(Body::new(&bytes[range.clone()], counters))).clone()
    }
}
