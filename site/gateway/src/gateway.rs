//! One gateway: its table, its parts, and how they work together.
//!
//! The [`Table`] decides and performs no I/O. It is read through [`Gateway::table`] and changed through
//! [`Gateway::change`], which also carries out the resulting effects. [`Path`], [`Trunks`], [`Services`] and [`Door`]
//! hold the state of the code in their folders; code that concerns more than one of them is a method of `Gateway`.

use std::cell::{Cell, Ref, RefCell};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use gateway_hooks::AgentStarter;
use tokio::time::{Instant, sleep};
use types::roster::FORWARDER;
use wire::FrameHeader;
use wire::many::Astray;

use crate::GatewayError;
use crate::config::GatewayConfig;
use crate::counters::Counters;
use crate::door::Door;
use crate::path::Path;
use crate::path::member::Member;
use crate::services::Services;
use crate::services::standing::Sites;
use crate::table::error::Violation;
use crate::table::spread::{Lost, Take};
use crate::table::{Effect, Origin, Route, Table, TrunkId, TrunkInfo};
use crate::trunks::Trunks;

/// Time limit for a whole handshake on a machine that is not overloaded: see [`Gateway::patiently`].
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Gateway {
    me: Weak<Gateway>,
    /// Name of the gateway's site.
    pub site: String,
    pub name: String,
    /// A random number; other gateways see from it that this one was restarted.
    pub run_number: u32,
    pub since: Instant,
    /// Most bytes the gateway may hold.
    pub memory: u64,
    pub counters: Arc<Counters>,
    /// The sites file in force, and the gateway's credentials.
    pub sites: Sites,
    table: RefCell<Table<Rc<Member>>>,
    /// True while effects are being carried out.
    settling: Cell<bool>,
    pub path: Path,
    pub trunks: Trunks,
    pub services: Services,
    pub door: Door,
}

impl Gateway {
    pub(crate) fn new(config: &GatewayConfig, starter: Arc<dyn AgentStarter>) -> Result<Rc<Gateway>, GatewayError> {
        let (site, own) = (config.own_site(), config.own());
        let trunks = Trunks::new(&config.sites, (config.site, config.gateway), config.tunneller.clone());
        let infos = trunks.in_use().iter().map(|trunk| TrunkInfo::new(trunk.site.clone())).collect();
        let forwarder = (!site.forward.is_off()).then(|| FORWARDER.to_owned());
        let nodes = site.nodes.iter().map(|node| node.name.clone()).chain(forwarder).collect();
        let mut table = Table::new((site.name.clone(), config.gateway), nodes, infos, own.memory, site.patience);
        table.siblings = site.gateways.len() > 1;
        let run_number = getrandom::u32().map_err(|e| GatewayError::System {
            site: site.name.clone(),
            gateway: own.name.clone(),
            what: "random numbers",
            source: std::io::Error::other(e.to_string()),
        })?;
        let sites = Sites::new(config)?;
        let gateway = Rc::new_cyclic(|me| Gateway {
            me: me.clone(),
            site: site.name.clone(),
            name: own.name.clone(),
            run_number,
            since: Instant::now(),
            memory: own.memory,
            counters: config.counters.clone(),
            sites,
            table: RefCell::new(table),
            settling: Cell::new(false),
            path: Path::new(config.counters.clone()),
            trunks,
            services: Services::new(config, starter),
            door: Door::new(own.memory, site.inside),
        });
        gateway.trunks.in_use().iter().for_each(|trunk| gateway.expect(trunk));
        Ok(gateway)
    }

    /// The table, read-only. Do not hold it across a call that may change the table.
    pub(crate) fn table(&self) -> Ref<'_, Table<Rc<Member>>> {
        self.table.borrow()
    }

    /// Changes the table, then carries out the resulting effects until none is left. Nothing else may access the table
    /// within `change`. Changes made while effects are carried out are settled by the outermost call.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Table<Rc<Member>>) -> R) -> R {
        let (result, opened) = {
            let mut table = self.table.borrow_mut();
            let epoch = table.epoch;
            let result = change(&mut table);
            (result, table.epoch != epoch)
        };
        if opened {
            self.door.job_opened.notify_waiters();
        }
        if !self.settling.replace(true) {
            loop {
                let effects = self.table.borrow_mut().take_effects();
                if effects.is_empty() {
                    break;
                }
                effects.into_iter().for_each(|effect| self.carry_out(effect));
            }
            self.settling.set(false);
        }
        result
    }

    /// Looks up the route of a frame, and counts the frame. This produces no effects.
    pub(crate) fn route<R>(
        &self,
        origin: Origin,
        header: &FrameHeader,
        then: impl FnOnce(Route<'_, Rc<Member>>) -> R,
    ) -> R {
        then(self.table.borrow_mut().route(origin, header))
    }

    /// Checks a frame for several receivers and passes its parts to `take` ([`Table::spread`]).
    pub(crate) fn spread<'b>(
        &self,
        origin: Origin,
        header: &FrameHeader,
        payload: &'b [u8],
        take: &mut Take<'_, 'b, Rc<Member>>,
    ) -> Result<Vec<Lost>, Violation> {
        self.table.borrow_mut().spread(origin, header, payload, take)
    }

    /// Looks up the route of a report about a lost copy.
    pub(crate) fn astray<R>(
        &self,
        by: Option<TrunkId>,
        header: &FrameHeader,
        astray: Astray,
        then: impl FnOnce(Route<'_, Rc<Member>>) -> R,
    ) -> R {
        then(self.table.borrow_mut().astray(by, header, astray))
    }

    /// Runs a task concurrently, with a handle on this gateway.
    pub(crate) fn beside<F: Future<Output = ()> + 'static>(&self, task: impl FnOnce(Rc<Gateway>) -> F) {
        if let Some(gateway) = self.shared() {
            tokio::task::spawn_local(task(gateway));
        }
    }

    /// A handle on this gateway for a task that outlives this call. `None` when the gateway is ending.
    pub(crate) fn shared(&self) -> Option<Rc<Gateway>> {
        self.me.upgrade()
    }

    fn carry_out(&self, effect: Effect<Rc<Member>>) {
        match effect {
            Effect::ToMember(member, message) => member.send_control(self, message),
            Effect::ToTrunk(trunk, message) => self.trunks.get(trunk).send_control(self, message),
            Effect::StartAgents(job, nodes) => self.start_agents(job, &nodes),
            Effect::Leave(job) => {
                self.services.agents.leave(&BTreeSet::from([job]));
                self.services.nodes.leave(&BTreeSet::from([job]));
            }
            Effect::KillAgents(job) => self.services.agents.kill(job),
            Effect::Allocate(order) => self.allocate(order),
            Effect::Release(job) => self.services.nodes.release(job),
            Effect::Dismiss(member, reason) => member.dismiss(&reason),
            Effect::Passage(member, site, passage) => member.send_passage(self, site, &passage),
            Effect::Patience(trunk, changes, after) => self.beside(async move |gateway| {
                sleep(after).await;
                gateway.change(|table| table.patience_over(trunk, changes));
            }),
            Effect::Timer(job, epoch, timer, after) => self.beside(async move |gateway| {
                sleep(after).await;
                gateway.change(|table| table.timer(job, epoch, timer));
            }),
        }
    }
}
