//! The sites file as written, before checks.

use super::{
    Deserialize, Duration, IpAddr, Links, Wrong, any_address, folder, host_port, key_path, listen_address, login, name,
    page, parse_bytes, parse_duration, unique,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SitesFile {
    #[serde(default)]
    pub site: Vec<Site>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Site {
    name: String,
    key: Option<String>,
    ssh: Option<String>,
    folder: Option<String>,
    fingerprint: String,
    next: Option<String>,
    #[serde(default)]
    gateway: Vec<GatewayFields>,
    #[serde(default)]
    node: Vec<NodeFields>,
    #[serde(default)]
    starter: super::starter::Raw,
    memory: Option<String>,
    #[serde(default)]
    run: super::run::Raw,
    fabric: Option<String>,
    libfabric: Option<String>,
    inside: Option<String>,
    patience: Option<String>,
    #[serde(default)]
    forward: super::forward::Raw,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Gateway")]
struct GatewayFields {
    name: String,
    advertise: Option<String>,
    ssh: Option<String>,
    inside: Option<String>,
    listen: Option<String>,
    memory: Option<String>,
    links: Option<u16>,
    page: Option<String>,
    meeting: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Node")]
struct NodeFields {
    name: String,
    address: Option<IpAddr>,
    slots: Option<u32>,
}

impl Site {
    pub(super) fn check(self) -> Result<super::Site, Wrong> {
        let site = name("site name", self.name)?;
        let place = format!("site {site}");
        let within = |wrong: Wrong| wrong.within(&place);
        let fingerprint = |field: &str, text: &str| {
            text.parse().map_err(|e: super::FingerprintError| within(Wrong::new(field, e.to_string())))
        };
        let next = self.next.as_deref().map(|text| fingerprint("next", text)).transpose()?;
        let fingerprint = fingerprint("fingerprint", &self.fingerprint)?;
        let key = self.key.map(key_path).transpose().map_err(within)?;
        let gateways: Vec<_> = self.gateway.into_iter().map(|g| g.check().map_err(within)).collect::<Result<_, _>>()?;
        let nodes: Vec<_> = self.node.into_iter().map(|n| n.check().map_err(within)).collect::<Result<_, _>>()?;
        if gateways.is_empty() {
            return Err(Wrong::new(&place, "needs at least one [[site.gateway]]"));
        }
        let starter = self.starter.check().map_err(within)?;
        match (nodes.first(), starter.allocates()) {
            (None, false) => return Err(Wrong::new(&place, "needs at least one [[site.node]]")),
            (Some(node), true) => {
                let message = "a site with this starter gets its nodes from batch jobs: remove every [[site.node]]";
                return Err(Wrong::new(format!("node {}", node.name), message).within(&place));
            }
            _ => {}
        }
        unique("gateway", gateways.iter().map(|g: &super::Gateway| g.name.as_str())).map_err(within)?;
        unique("node", nodes.iter().map(|n: &super::Node| n.name.as_str())).map_err(within)?;
        let memory = super::Memory::check(self.memory.as_deref()).map_err(within)?;
        let run = self.run.check().map_err(within)?;
        let fabric = super::fabric::check(self.fabric, self.libfabric, nodes.len()).map_err(within)?;
        let inside = super::Inside::check(self.inside.as_deref(), fabric.as_ref()).map_err(within)?;
        let forward = self.forward.check().map_err(within)?;
        let ssh = self.ssh.as_deref().map(login).transpose().map_err(within)?;
        let folder = self.folder.map(|text| folder("folder", text)).transpose().map_err(within)?;
        let patience = self.patience.as_deref().unwrap_or("5s");
        let patience = parse_duration(patience).map_err(|e| Wrong::new("patience", e.to_string())).map_err(within)?;
        if patience > MAX_PATIENCE {
            return Err(within(Wrong::new("patience", "more than a day")));
        }
        Ok(super::Site {
            name: site,
            key,
            ssh,
            folder,
            fingerprint,
            next,
            gateways,
            nodes,
            starter,
            memory,
            run,
            fabric,
            inside,
            patience,
            forward,
        })
    }
}

impl GatewayFields {
    fn check(self) -> Result<super::Gateway, Wrong> {
        let gateway = name("gateway name", self.name)?;
        let place = format!("gateway {gateway}");
        let within = |wrong: Wrong| wrong.within(&place);
        if let Some(advertise) = &self.advertise {
            host_port("advertise", advertise).map_err(within)?;
        }
        let ssh = self.ssh.as_deref().map(login).transpose().map_err(within)?;
        let inside = self.inside.or_else(|| self.advertise.clone()).ok_or_else(|| {
            Wrong::new(&place, "needs `inside` or `advertise` (host:port that this site's ranks dial)")
        })?;
        if matches!(inside.as_str(), "encrypted" | "clear") {
            let message =
                format!("`{inside}` belongs to the [[site]], above its first [[site.gateway]]: here it is host:port");
            return Err(within(Wrong::new("inside", message)));
        }
        let port = host_port("inside", &inside).map_err(within)?;
        let listen = self.listen.unwrap_or_else(|| any_address(port));
        listen_address(&listen).map_err(within)?;
        let memory = self.memory.as_deref().unwrap_or("256MiB");
        let bytes = parse_bytes(memory).map_err(|e| Wrong::new("memory", e.to_string()).within(&place))?;
        if bytes < MIN_MEMORY {
            return Err(Wrong::new("memory", format!("`{memory}` is less than the minimum of 16MiB")).within(&place));
        }
        let links = match self.links {
            None => Links::ByRoundTrip,
            Some(links) if (1..=64).contains(&links) => Links::Fixed(links),
            Some(links) => {
                return Err(Wrong::new("links", format!("`{links}` is not between 1 and 64")).within(&place));
            }
        };
        let page = self.page.as_deref().map(page).transpose().map_err(within)?;
        let (advertise, meeting) = (self.advertise, self.meeting.unwrap_or(true));
        Ok(super::Gateway { name: gateway, advertise, ssh, inside, listen, memory: bytes, links, page, meeting })
    }
}

const MIN_MEMORY: u64 = 16 << 20;
const MAX_PATIENCE: Duration = Duration::from_secs(86_400);

impl NodeFields {
    fn check(self) -> Result<super::Node, Wrong> {
        let node = name("node name", self.name)?;
        if let Some(address) = self.address.filter(|address| crate::id::is_link_local(*address)) {
            let message = format!(
                "`{address}` is link-local, which means nothing without an interface: give another address of the node"
            );
            return Err(Wrong::new(format!("node {node}: address"), message));
        }
        if self.slots == Some(0) {
            return Err(Wrong::new(format!("node {node}: slots"), "0 slots: remove the node instead"));
        }
        Ok(super::Node { name: node, address: self.address, slots: self.slots })
    }
}
