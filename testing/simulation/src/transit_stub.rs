use crate::error::{SimulationError, check};
use crate::random::Random;
use crate::topology::{Cable, NodeId, NodeRole, Topology};

/// The most draws of a random graph until it is connected.
const TRIES: usize = 1000;

/// Parameters of a transit-stub topology, as in GT-ITM's `ts` graphs.
///
/// Zegura, Calvert, Bhattacharjee, "How to model an internetwork", INFOCOM 1996: transit domains are joined by a random
/// graph; each is a random graph of routers; each of its routers has stub domains, which are random graphs too,
/// attached by one edge. Every graph is drawn until it is connected. Nodes lie in squares inside squares, and an edge's
/// delay is its length. GT-ITM draws the sizes of domains around a mean; here they are exact, so the number of nodes is
/// exact too.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransitStub {
    /// Transit domains.
    pub transit_domains: usize,
    /// Routers in each.
    pub transit_nodes: usize,
    /// Stub domains on each transit router.
    pub stubs: usize,
    /// Routers in each stub domain.
    pub stub_nodes: usize,
    /// Edges between random transit and stub routers beyond those that attach stub domains.
    pub extra_transit_stub: usize,
    /// Edges between random routers of different stub domains.
    pub extra_stub_stub: usize,
    /// Probability of an edge between two transit domains.
    pub top_probability: f64,
    /// Probability of an edge between two routers of a transit domain.
    pub transit_probability: f64,
    /// Probability of an edge between two routers of a stub domain.
    pub stub_probability: f64,
    /// Side of the square that holds all transit domains, in seconds of propagation.
    pub top_side: f64,
    /// Side of a transit domain's square.
    pub transit_side: f64,
    /// Side of a stub domain's square.
    pub stub_side: f64,
}

impl TransitStub {
    /// The sizes that [`TransitStub::of_size`] accepts.
    pub const SIZES: [usize; 3] = [220, 1000, 10_000];

    /// A topology of 220, 1,000 or 10,000 nodes.
    ///
    /// Edge probabilities 1.0, 0.6 and 0.42 for the three levels are those of GT-ITM's sample of 100 nodes; the sides
    /// (40, 15 and 3 ms) give round trips of 10 to 150 ms between stub domains, as across a continent.
    ///
    /// # Errors
    /// [`SimulationError::Parameter`] for any other size.
    pub fn of_size(nodes: usize) -> Result<TransitStub, SimulationError> {
        let (transit_domains, transit_nodes, stubs, stub_nodes) = match nodes {
            220 => (4, 5, 2, 5),
            1000 => (4, 5, 7, 7),
            10_000 => (10, 10, 9, 11),
            _ => {
                let value = nodes as f64;
                return Err(SimulationError::Parameter { name: "nodes", value, allowed: "220, 1000 or 10000" });
            }
        };
        Ok(TransitStub {
            transit_domains,
            transit_nodes,
            stubs,
            stub_nodes,
            extra_transit_stub: 0,
            extra_stub_stub: 0,
            top_probability: 1.0,
            transit_probability: 0.6,
            stub_probability: 0.42,
            top_side: 0.040,
            transit_side: 0.015,
            stub_side: 0.003,
        })
    }

    /// The number of nodes of every topology with these parameters.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.transit_domains * self.transit_nodes * (1 + self.stubs * self.stub_nodes)
    }

    /// The topology of a seed. The shape depends on the seed alone, not on the rates.
    ///
    /// # Errors
    /// [`SimulationError::Parameter`] for empty domains or rates out of range; [`SimulationError::Disconnected`].
    pub fn generate(&self, rates: &Rates, seed: u64) -> Result<Topology, SimulationError> {
        for (name, value) in [
            ("transit_domains", self.transit_domains),
            ("transit_nodes", self.transit_nodes),
            ("stub_nodes", self.stub_nodes),
        ] {
            check(name, value as f64, 1.0, 1e6, "from 1 to 1000000")?;
        }
        check("nodes", self.nodes() as f64, 1.0, 1e6, "at most 1000000 in all")?;
        let mut build = Build {
            topology: Topology::new(),
            places: Vec::new(),
            shape: Random::new(seed, 1),
            drawn: Random::new(seed, 2),
        };
        let domains = build.places_in((0.0, 0.0), self.top_side, self.transit_domains);
        let transit: Vec<Vec<NodeId>> = domains
            .iter()
            .map(|&centre| {
                let nodes = build.nodes(NodeRole::Transit, centre, self.transit_side, self.transit_nodes);
                build.join_all(&nodes, self.transit_probability, rates.transit).map(|()| nodes)
            })
            .collect::<Result<_, _>>()?;
        for (one, other) in edges(&mut build.shape, self.transit_domains, self.top_probability)? {
            let (a, b) = (build.one_of(&transit[one]), build.one_of(&transit[other]));
            build.join(a, b, rates.transit)?;
        }
        let mut stubs = Vec::new();
        for &router in transit.iter().flatten() {
            for centre in build.places_in(build.places[router.0 as usize], self.transit_side, self.stubs) {
                let nodes = build.nodes(NodeRole::Stub, centre, self.stub_side, self.stub_nodes);
                build.join_all(&nodes, self.stub_probability, rates.stub)?;
                let edge = build.one_of(&nodes);
                build.join(router, edge, rates.access)?;
                stubs.push(nodes);
            }
        }
        if !stubs.is_empty() {
            let transit: Vec<NodeId> = transit.into_iter().flatten().collect();
            for _ in 0..self.extra_transit_stub {
                let domain = build.shape.below(stubs.len());
                let (a, b) = (build.one_of(&transit), build.one_of(&stubs[domain]));
                build.join(a, b, rates.access)?;
            }
            for _ in 0..if stubs.len() > 1 { self.extra_stub_stub } else { 0 } {
                let one = build.shape.below(stubs.len());
                let other = (one + 1 + build.shape.below(stubs.len() - 1)) % stubs.len();
                let (a, b) = (build.one_of(&stubs[one]), build.one_of(&stubs[other]));
                build.join(a, b, rates.access)?;
            }
        }
        Ok(build.topology)
    }
}

/// The range from which a cable's rate is drawn, in bytes per second: uniform on a logarithmic scale, or one value if
/// `low` equals `high`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateRange {
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl RateRange {
    /// One value, in Mbit/s.
    #[must_use]
    pub fn fixed(megabits: f64) -> RateRange {
        RateRange::between(megabits, megabits)
    }

    /// A range, in Mbit/s.
    #[must_use]
    pub fn between(low: f64, high: f64) -> RateRange {
        RateRange { low: low * 125_000.0, high: high * 125_000.0 }
    }

    /// Draws a rate.
    pub fn draw(&self, random: &mut Random) -> f64 {
        let share = random.unit();
        if self.low == self.high { self.low } else { self.low * (self.high / self.low).powf(share) }
    }
}

/// The rates of a topology's cables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Between transit routers.
    pub transit: RateRange,
    /// Between a transit router and a stub domain.
    pub access: RateRange,
    /// Between routers of a stub domain.
    pub stub: RateRange,
    /// Between a host and its router.
    pub host: RateRange,
}

impl Rates {
    /// The same rate for all cables of a kind: OC-3 between transit routers, T3 to a stub domain, Fast Ethernet inside.
    #[must_use]
    pub fn uniform() -> Rates {
        Rates {
            transit: RateRange::fixed(155.0),
            access: RateRange::fixed(45.0),
            stub: RateRange::fixed(100.0),
            host: RateRange::fixed(100.0),
        }
    }

    /// Host cables from 1 to 100 Mbit/s and access cables from 4 to 100 Mbit/s, uniform on a logarithmic scale: links
    /// that differ as much as those of sites.
    #[must_use]
    pub fn unlike() -> Rates {
        Rates {
            transit: RateRange::fixed(155.0),
            access: RateRange::between(4.0, 100.0),
            stub: RateRange::fixed(100.0),
            host: RateRange::between(1.0, 100.0),
        }
    }

    /// Draws the cable of a host: a random rate, and a delay of 0.1 ms.
    pub fn host_cable(&self, random: &mut Random) -> Cable {
        Cable::new(self.host.draw(random), 0.0001)
    }
}

/// A topology under construction.
struct Build {
    topology: Topology,
    /// The position of each node, in seconds of propagation.
    places: Vec<(f64, f64)>,
    shape: Random,
    drawn: Random,
}

impl Build {
    /// Random places in a square around a centre.
    fn places_in(&mut self, centre: (f64, f64), side: f64, count: usize) -> Vec<(f64, f64)> {
        let half = side / 2.0;
        let mut along = |middle: f64| self.shape.uniform(middle - half, middle + half);
        (0..count).map(|_| (along(centre.0), along(centre.1))).collect()
    }

    fn nodes(&mut self, role: NodeRole, centre: (f64, f64), side: f64, count: usize) -> Vec<NodeId> {
        let places = self.places_in(centre, side, count);
        self.places.extend(places);
        (0..count).map(|_| self.topology.add(role)).collect()
    }

    /// Joins the nodes in a connected random graph.
    fn join_all(&mut self, nodes: &[NodeId], probability: f64, rate: RateRange) -> Result<(), SimulationError> {
        for (one, other) in edges(&mut self.shape, nodes.len(), probability)? {
            self.join(nodes[one], nodes[other], rate)?;
        }
        Ok(())
    }

    fn join(&mut self, one: NodeId, other: NodeId, rate: RateRange) -> Result<(), SimulationError> {
        let (a, b) = (self.places[one.0 as usize], self.places[other.0 as usize]);
        // No cable is shorter than 10 µs, even between two places that are closer.
        let seconds = (a.0 - b.0).hypot(a.1 - b.1).max(1e-5);
        self.topology.join(one, other, Cable::new(rate.draw(&mut self.drawn), seconds)).map(|_| ())
    }

    fn one_of(&mut self, nodes: &[NodeId]) -> NodeId {
        nodes[self.shape.below(nodes.len())]
    }
}

/// The edges of a connected random graph in which each pair is joined with the same probability (GT-ITM's "pure
/// random").
fn edges(random: &mut Random, nodes: usize, probability: f64) -> Result<Vec<(usize, usize)>, SimulationError> {
    check("edge probability", probability, 0.0, 1.0, "from 0 to 1")?;
    for _ in 0..TRIES {
        let mut found = Vec::new();
        for one in 0..nodes {
            for other in one + 1..nodes {
                if random.chance(probability) {
                    found.push((one, other));
                }
            }
        }
        if is_connected(nodes, &found) {
            return Ok(found);
        }
    }
    Err(SimulationError::Disconnected { nodes, probability, tries: TRIES })
}

fn is_connected(nodes: usize, edges: &[(usize, usize)]) -> bool {
    let mut group: Vec<usize> = (0..nodes).collect();
    let mut groups = nodes;
    fn find(group: &mut [usize], mut node: usize) -> usize {
        while group[node] != node {
            group[node] = group[group[node]];
            node = group[node];
        }
        node
    }
    for &(one, other) in edges {
        let (a, b) = (find(&mut group, one), find(&mut group, other));
        if a != b {
            group[a] = b;
            groups -= 1;
        }
    }
    groups <= 1
}
