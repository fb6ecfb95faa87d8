//! One gateway: its parts, and how they work together.
//!
//! The table decides and performs no I/O. It is changed through [`SharedTable`]; the resulting effects are carried out
//! here.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use gateway_tasks::AgentStarter;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use types::roster::FORWARDER;

use crate::config::GatewayConfig;
use crate::door::{Door, listener};
use crate::error::GatewayError;
use crate::path::Path;
use crate::path::member::Member;
use crate::services::Services;
use crate::sites::Sites;
use crate::table::shared::{CarryOut, SharedTable};
use crate::table::{Effect, Table, TrunkInfo};
use crate::trunks::Trunks;
use crate::trunks::list::{self, TrunkList};

/// See the module docs.
pub(crate) struct Gateway {
    pub since: Instant,
    /// The sites file in force, and the gateway's names and credentials.
    pub sites: Rc<Sites>,
    pub path: Rc<Path>,
    pub trunks: Rc<Trunks>,
    pub services: Rc<Services>,
    pub door: Rc<Door>,
}

impl Gateway {
    pub(crate) fn new(config: &GatewayConfig, starter: &Arc<dyn AgentStarter>) -> Result<Rc<Gateway>, GatewayError> {
        let sites = Rc::new(Sites::new(config)?);
        let run_number = getrandom::u32().map_err(|e| GatewayError::System {
            site: sites.site.clone(),
            gateway: sites.gateway.clone(),
            what: "random numbers",
            source: std::io::Error::other(e.to_string()),
        })?;
        let gateway = Rc::new_cyclic(|me: &Weak<Gateway>| {
            let table = SharedTable::new(table(config), me.clone());
            let path = Rc::new(Path::new(table, config.counters.clone(), config.own().memory));
            let list = Rc::new(TrunkList::new(path.clone(), sites.clone(), run_number));
            let trunks = Rc::new(Trunks::new(config, list));
            let services = Rc::new(Services::new(config, starter, &trunks));
            let door = Rc::new(Door::new(trunks.clone(), services.clone(), config.own_site().inside));
            Gateway { since: Instant::now(), sites, path, trunks, services, door }
        });
        let trunks = &gateway.trunks;
        trunks.list.in_use().iter().for_each(|trunk| trunks.visits.expect(trunk));
        Ok(gateway)
    }

    /// Accepts connections forever.
    pub(crate) async fn accept(self: &Rc<Self>, listener: TcpListener) -> Infallible {
        let gateway = self.clone();
        listener::accept(&self.door, listener, move |member, message| gateway.handle_member_message(member, message))
            .await
    }
}

/// The table of the gateway with this configuration.
fn table(config: &GatewayConfig) -> Table<Rc<Member>> {
    let (site, own) = (config.own_site(), config.own());
    let trunks = list::trunks(&config.sites, (config.site, config.gateway));
    let infos = trunks.iter().map(|trunk| TrunkInfo::new(trunk.site.clone())).collect();
    let forwarder = (!site.forward.is_off()).then(|| FORWARDER.to_owned());
    let nodes = site.nodes.iter().map(|node| node.name.clone()).chain(forwarder).collect();
    let mut table = Table::new((site.name.clone(), config.gateway), nodes, infos, own.memory, site.patience);
    table.siblings = site.gateways.len() > 1;
    table
}

impl CarryOut<Rc<Member>> for Gateway {
    fn carry_out(&self, effect: Effect<Rc<Member>>) {
        let path = &self.path;
        match effect {
            Effect::ToMember(member, message) => member.send_control(path, message),
            Effect::ToTrunk(trunk, message) => self.trunks.list.get(trunk).send_control(path, message),
            Effect::StartAgents(job, nodes) => self.services.agents.start(job, &nodes),
            Effect::Leave(job) => {
                self.services.agents.leave(&BTreeSet::from([job]));
                self.services.nodes.leave(&BTreeSet::from([job]));
            }
            Effect::KillAgents(job) => self.services.agents.kill(job),
            Effect::Allocate(order) => self.services.nodes.allocate(order),
            Effect::Release(job) => self.services.nodes.release(job),
            Effect::Dismiss(member, reason) => member.dismiss(&reason),
            Effect::Passage(member, site, passage) => member.send_passage(path, site, &passage),
            Effect::Patience(trunk, changes, after) => {
                let path = path.clone();
                tokio::task::spawn_local(async move {
                    sleep(after).await;
                    path.table.change(|table| table.patience_over(trunk, changes));
                });
            }
            Effect::Timer(job, epoch, timer, after) => {
                let path = path.clone();
                tokio::task::spawn_local(async move {
                    sleep(after).await;
                    path.table.change(|table| table.timer(job, epoch, timer));
                });
            }
        }
    }
}
