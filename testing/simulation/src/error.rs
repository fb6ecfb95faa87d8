use thiserror::Error;

/// What a simulation cannot do. Each names what the caller passed.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A parameter is outside what it may be.
    #[error("{name} is {value}: {allowed}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A random graph stayed disconnected.
    #[error(
        "{nodes} nodes with edge probability {probability} stayed disconnected in {tries} tries: raise the probability"
    )]
    Disconnected {
        /// Nodes of the graph.
        nodes: usize,
        /// Probability of each edge.
        probability: f64,
        /// How often the graph was drawn.
        tries: usize,
    },
    /// No path leads from one node to another.
    #[error("no path leads from node {from} to node {to}")]
    Unreachable {
        /// Where the path would begin.
        from: u32,
        /// Where it would end.
        to: u32,
    },
    /// Probes between two members were lost, each time they were repeated.
    #[error("{what} from member {from} to member {to} cannot be measured: probes were lost {tries} times")]
    Unmeasured {
        /// Round trip or rate.
        what: &'static str,
        /// The sending member.
        from: usize,
        /// The receiving member.
        to: usize,
        /// How often it was tried.
        tries: usize,
    },
    /// What was given as a tree does not reach every member from the root.
    #[error("tree {tree}: {why}")]
    NotATree {
        /// Its place in the schedule.
        tree: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A broadcast did not end in the time allowed.
    #[error("the broadcast reached {reached} of {members} members in {seconds} s: allow more time or check the links")]
    Unfinished {
        /// Members that have the whole message.
        reached: usize,
        /// All members.
        members: usize,
        /// The time allowed.
        seconds: f64,
    },
}

/// Checks `low <= value <= high`, which NaN is not.
pub(crate) fn check(
    name: &'static str,
    value: f64,
    low: f64,
    high: f64,
    allowed: &'static str,
) -> Result<(), SimulationError> {
    if value >= low && value <= high { Ok(()) } else { Err(SimulationError::Parameter { name, value, allowed }) }
}
