//! A connection that frames arrive from or go to: a member's or a link.

use std::cell::RefCell;
use std::rc::Rc;

use types::JobId;
use wire::{FrameHeader, FrameKind};

use crate::path::Path;
use crate::path::copies::Item;
use crate::path::link::Link;
use crate::path::member::Member;

/// A connection that frames arrive from or go to.
#[derive(Clone, Debug)]
pub(crate) enum Neighbour {
    Member(Rc<Member>),
    Link(Rc<Link>),
}

impl Neighbour {
    pub(super) fn pending(&self) -> &RefCell<Vec<Item>> {
        match self {
            Neighbour::Member(member) => &member.pending,
            Neighbour::Link(link) => &link.pending,
        }
    }

    /// Sends the frames gathered for this neighbour from the bytes of `source`.
    pub(super) fn send_pending(&self, path: &Path, bytes: &[u8], source: &Neighbour) {
        match self {
            Neighbour::Member(member) => member.send_pending(path, bytes),
            Neighbour::Link(link) => link.send_pending(path, bytes, source.job()),
        }
    }

    /// The job of the frames from this connection. A link carries frames of all jobs, but only for members, except for
    /// copies.
    pub(super) fn job(&self) -> JobId {
        match self {
            Neighbour::Member(member) => member.job.get(),
            Neighbour::Link(_) => JobId::default(),
        }
    }

    /// Returns true if members of a job should stop sending to this connection for now.
    pub(super) fn is_backed_up(&self, job: JobId) -> bool {
        match self {
            Neighbour::Member(member) => member.outlet.is_backed_up(),
            Neighbour::Link(link) => link.is_backed_up(job),
        }
    }

    /// Waits until this neighbour accepts more frames of a job.
    pub(crate) async fn drained(&self, job: JobId) {
        match self {
            Neighbour::Member(member) => member.outlet.drained().await,
            Neighbour::Link(link) => link.drained(job).await,
        }
    }

    pub(super) fn send_own(&self, path: &Path, header: FrameHeader, payload: &[u8]) {
        match self {
            Neighbour::Member(member) => member.send_own(path, header, payload),
            Neighbour::Link(link) if header.kind == FrameKind::Undeliverable => link.notice(path, header, payload),
            Neighbour::Link(link) => link.answer(path, header, payload),
        }
    }
}
