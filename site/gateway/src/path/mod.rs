//! A frame's way between two connections: read, routed, queued, written, or refused if memory is short.
//!
//! [`forward`] and [`many`] route the frames of one read to their neighbours: a [`member::Member`] of this site or a
//! [`link::Link`] of a trunk. A member's or a link's task reads them and writes what could not be written at once.
//! Frames for the gateway itself are passed to the task's owner.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use client::tls::sealed_len;
use tokio::time::Instant;
use types::Identity;

use crate::counters::Counters;
use crate::load::Load;
use crate::log::{MEMBERS, log};
use crate::path::copies::Copies;
use crate::path::limits::{PIECE, SCRATCH};
use crate::path::link::Link;
use crate::path::member::Member;
use crate::path::neighbour::Neighbour;
use crate::path::reading::Partial;
use crate::path::trunk_links::TrunkLinks;
use crate::table::shared::SharedTable;
use crate::table::{Leave, TrunkId};

mod copies;
mod decipher;
mod forward;
pub(crate) mod limits;
pub(crate) mod link;
mod many;
pub(crate) mod member;
mod neighbour;
pub(crate) mod outlet;
mod queue;
pub(crate) mod reading;
mod shares;
mod shortage;
pub(crate) mod trunk_links;

/// State that all connections share.
pub(crate) struct Path {
    pub table: SharedTable<Rc<Member>>,
    pub counters: Arc<Counters>,
    /// Most bytes the gateway may hold.
    pub memory: u64,
    /// Slowness of this machine for the gateway.
    pub load: Load,
    /// Connected members and users, by number.
    pub connections: RefCell<HashMap<u64, Rc<Member>>>,
    /// The links of each trunk, by [`TrunkId`].
    trunks: RefCell<Vec<Rc<TrunkLinks>>>,
    /// Scratch space, one for all connections: no task holds it across an await.
    plain: RefCell<Vec<u8>>,
    pub cipher: RefCell<Vec<u8>>,
    sealed: Rc<RefCell<Vec<u8>>>,
    stage: RefCell<Vec<u8>>,
    touched: RefCell<Vec<Neighbour>>,
    copies: Copies,
    /// Connections to be closed once the current frames are processed, and the reasons.
    drops: RefCell<Vec<(u64, String)>>,
    next_id: Cell<u64>,
    now: Cell<Instant>,
}

impl Path {
    /// `memory`: the gateway's configured memory in bytes.
    pub(crate) fn new(table: SharedTable<Rc<Member>>, counters: Arc<Counters>, memory: u64) -> Path {
        Path {
            table,
            counters,
            memory,
            load: Load::default(),
            connections: RefCell::default(),
            trunks: RefCell::default(),
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

    /// Adds the links of the next trunk.
    pub(crate) fn add_trunk(&self, links: Rc<TrunkLinks>) {
        self.trunks.borrow_mut().push(links);
    }

    /// The link of a trunk for frames of this pair of members; `None` while the trunk is down.
    fn link(&self, trunk: TrunkId, from: Identity, to: Identity) -> Option<Rc<Link>> {
        self.trunks.borrow()[trunk.0].choose(from, to)
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
    fn drop_later(&self, id: u64, reason: String) {
        self.drops.borrow_mut().push((id, reason));
    }

    /// Drops the connections that a turn of reading has marked for it.
    fn after_turn(&self) {
        if self.drops.borrow().is_empty() {
            return;
        }
        for (id, reason) in self.drops.take() {
            let member = self.connections.borrow_mut().remove(&id);
            let Some(member) = member else { continue };
            let (job, who) = (member.job.get(), member.identity.get().slot);
            self.counters.violation();
            log!(warn, MEMBERS, peer = %member.address, %job, member = %who, reason, "connection dropped");
            member.abandon();
            self.table.change(|table| table.leave(job, who, &member, Leave::Lost(reason)));
        }
    }
}
