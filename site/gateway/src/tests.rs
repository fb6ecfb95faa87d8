//! A gateway for unit tests.

use std::rc::Rc;
use std::sync::Arc;

use client::key::SiteKey;
use gateway_tasks::{AgentHandle, AgentOrder, AgentStarter, AllocationHandle, AllocationOrder, StartError};
use types::sites::SitesFile;

use crate::config::GatewayConfig;
use crate::gateway::Gateway;

#[derive(Debug)]
struct Nobody;

impl AgentStarter for Nobody {
    fn start(&self, _: AgentOrder) -> Result<Box<dyn AgentHandle>, StartError> {
        Err(StartError("nothing is started here".into()))
    }

    fn allocate(&self, _: AllocationOrder) -> Result<Box<dyn AllocationHandle>, StartError> {
        Err(StartError("nothing is allocated here".into()))
    }
}

/// The gateway of site z, which can be dialled at `address`; those of sites a and b cannot.
pub(crate) fn gateway(address: &str) -> Rc<Gateway> {
    let key = SiteKey::random().unwrap();
    let entry = |name: &str, gateway: &str| {
        format!(
            "[[site]]\nname = \"{name}\"\nfingerprint = \"{}\"\n[[site.gateway]]\nname = \"gw1\"\n{gateway}\n\
             memory = \"16MiB\"\nlinks = 8\n[[site.node]]\nname = \"n1\"\n",
            key.fingerprint()
        )
    };
    let hidden = "inside = \"h:1\"";
    let own = format!("advertise = \"{address}\"");
    let text = entry("a", hidden) + &entry("b", hidden) + &entry("z", &own);
    let sites = SitesFile::parse(&text, "sites.toml").unwrap();
    let config = GatewayConfig::with_key(sites, "z", None, key).unwrap();
    let starter: Arc<dyn AgentStarter> = Arc::new(Nobody);
    Gateway::new(&config, &starter).unwrap()
}
