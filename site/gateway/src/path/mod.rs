//! A frame's way between two connections: read, routed, queued, written, or refused if memory is short.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use client::tls::sealed_len;
use tokio::time::Instant;

use crate::counters::Counters;
use crate::gateway::Gateway;
use crate::log::{MEMBERS, log};
use crate::path::copies::Copies;
use crate::path::forward::{Partial, READ, SCRATCH, Target};
use crate::path::member::Member;
use crate::table::Leave;

pub(crate) mod copies;
pub(crate) mod decipher;
pub(crate) mod forward;
pub(crate) mod member;
pub(crate) mod outlet;
pub(crate) mod queue;
pub(crate) mod shares;
pub(crate) mod shortage;

/// Bytes encrypted at once.
pub(crate) const PIECE: usize = READ;

/// State that all connections share.
pub(crate) struct Path {
    counters: Arc<Counters>,
    /// Connected members and users, by number.
    pub connections: RefCell<HashMap<u64, Rc<Member>>>,
    /// Scratch space, one for all connections: no task holds it across an await.
    pub plain: RefCell<Vec<u8>>,
    pub cipher: RefCell<Vec<u8>>,
    pub sealed: Rc<RefCell<Vec<u8>>>,
    pub stage: RefCell<Vec<u8>>,
    pub touched: RefCell<Vec<Target>>,
    pub copies: Copies,
    /// Connections to be closed once the current frames are processed, and the reasons.
    pub drops: RefCell<Vec<(u64, String)>>,
    next_id: Cell<u64>,
    now: Cell<Instant>,
}

impl Path {
    pub(crate) fn new(counters: Arc<Counters>) -> Path {
        Path {
            counters,
            connections: RefCell::default(),
            plain: RefCell::new(vec![0; SCRATCH]),
            cipher: RefCell::new(vec![0; SCRATCH]),
            sealed: Rc::new(RefCell::new(vec![0; sealed_len(PIECE)])),
            stage: RefCell::default(),
            touched: RefCell::default(),
            copies: Copies::default(),
            drops: RefCell::default(),
            next_id: Cell::new(1),
            now: Cell::new(Instant::now()),
        }
    }

    /// A unique number.
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    /// Space for the start of a frame.
    pub(crate) fn partial(&self) -> Partial {
        Partial::new(self.counters.clone())
    }

    /// Reads the clock.
    pub(crate) fn tick(&self) -> Instant {
        self.now.set(Instant::now());
        self.now.get()
    }

    /// Last reading of the clock; accurate enough for heartbeats.
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Drops a member's connection once the current frames are processed.
    pub(crate) fn drop_later(&self, id: u64, reason: String) {
        self.drops.borrow_mut().push((id, reason));
    }
}

impl Gateway {
    /// Drops the connections that a turn of reading has marked for it.
    pub(crate) fn after_turn(&self) {
        if self.path.drops.borrow().is_empty() {
            return;
        }
        for (id, reason) in self.path.drops.take() {
            let member = self.path.connections.borrow_mut().remove(&id);
            let Some(member) = member else { continue };
            let (job, who) = (member.job.get(), member.identity.get().slot);
            self.counters.violation();
            log!(warn, MEMBERS, peer = %member.address, %job, member = %who, reason, "connection dropped");
            member.abandon();
            self.change(|table| table.leave(job, who, &member, Leave::Lost(reason)));
        }
    }
}
