use std::sync::Arc;

use crate::error::{SimulationError, check};
use crate::network::Network;
use crate::random::Random;
use crate::tcp::TcpSettings;
use crate::time::Time;
use crate::topology::{NodeId, NodeRole, Topology};
use crate::transit_stub::{Rates, TransitStub};

/// Bytes of a constant-rate flow's packets.
const CONSTANT_PACKET: u32 = 1000;
/// The range of a constant-rate flow's share of the narrowest link on its path.
const CONSTANT_SHARE: (f64, f64) = (0.05, 0.2);
/// The seconds within which background flows start.
const START_SECONDS: f64 = 1.0;

/// A network with the members of a broadcast and with background traffic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scenario {
    /// The topology's shape.
    pub shape: TransitStub,
    /// Its rates.
    pub rates: Rates,
    /// Members: hosts on random stub routers, no two on one router.
    pub members: usize,
    /// Constant-rate flows (UDP), 5 to 20 % of the narrowest link of their path each.
    pub constant_flows: usize,
    /// Endless transfers (FTP over TCP).
    pub transfers: usize,
    /// TCP of the transfers.
    pub tcp: TcpSettings,
    /// Seconds of background traffic before [`Scenario::start`] returns the network.
    pub warm_up_seconds: f64,
}

impl Scenario {
    /// The network of a seed after the warm-up, and its members, the root first. Every background flow has one end on a
    /// host next to some member, so that it meets the broadcast, and the other end on a host anywhere.
    ///
    /// # Errors
    /// [`SimulationError::Parameter`] if the topology has fewer stub routers than members, or for a parameter out of
    /// range; those of [`TransitStub::generate`].
    pub fn start(&self, seed: u64) -> Result<(Network, Vec<NodeId>), SimulationError> {
        let mut topology = self.shape.generate(&self.rates, seed)?;
        let stubs: Vec<NodeId> = topology.of_role(NodeRole::Stub).collect();
        check("members", self.members as f64, 2.0, stubs.len() as f64, "from 2 to the number of stub routers")?;
        check("warm_up_seconds", self.warm_up_seconds, 0.0, 1e6, "from 0 to 1000000")?;
        let mut random = Random::new(seed, 4);
        let routers = random.choose(&stubs, self.members);
        let members = attach_all(&mut topology, &routers, &self.rates, &mut random)?;
        let flows = self.constant_flows + self.transfers;
        let mut ends = Vec::new();
        for _ in 0..flows {
            let pair = [routers[random.below(routers.len())], stubs[random.below(stubs.len())]];
            let mut hosts = attach_all(&mut topology, &pair, &self.rates, &mut random)?;
            if random.chance(0.5) {
                hosts.reverse();
            }
            ends.push((hosts[0], hosts[1]));
        }
        let mut network = Network::new(Arc::new(topology), seed);
        for &(from, to) in &ends[..self.constant_flows] {
            let path = network.links_between(from, to)?;
            let links = network.topology().links();
            let narrowest = path.iter().map(|link| links[link.0 as usize].cable.rate).fold(f64::INFINITY, f64::min);
            let rate = narrowest * random.uniform(CONSTANT_SHARE.0, CONSTANT_SHARE.1);
            let start = Time::from_seconds(random.uniform(0.0, START_SECONDS));
            network.constant_flow((from, to), rate, CONSTANT_PACKET, start, Time::NEVER)?;
        }
        let mut starts: Vec<_> =
            ends[self.constant_flows..].iter().map(|&ends| (random.uniform(0.0, START_SECONDS), ends)).collect();
        starts.sort_by(|one, other| one.0.total_cmp(&other.0));
        for (start, (from, to)) in starts {
            network.run(Time::from_seconds(start.min(self.warm_up_seconds)));
            let connection = network.connect(from, to, self.tcp, false)?;
            network.write(connection, u64::MAX);
        }
        network.run(Time::from_seconds(self.warm_up_seconds));
        Ok((network, members))
    }
}

fn attach_all(
    topology: &mut Topology,
    routers: &[NodeId],
    rates: &Rates,
    random: &mut Random,
) -> Result<Vec<NodeId>, SimulationError> {
    routers.iter().map(|&router| topology.attach(router, rates.host_cable(random))).collect()
}
