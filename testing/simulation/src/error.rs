use thiserror::Error;

/// Reasons why a simulation cannot run or finish.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// A parameter is out of range.
    #[error("{name} is {value}: {allowed}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The allowed range.
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
        /// The number of times the graph was drawn.
        tries: usize,
    },
    /// No path leads from one node to another.
    #[error("no path leads from node {from} to node {to}")]
    Unreachable {
        /// The start of the path.
        from: u32,
        /// The end of the path.
        to: u32,
    },
    /// Probes between two members were lost in every attempt.
    #[error("{what} from member {from} to member {to} cannot be measured: probes were lost {tries} times")]
    Unmeasured {
        /// The quantity: round trip or rate.
        what: &'static str,
        /// The sending member.
        from: usize,
        /// The receiving member.
        to: usize,
        /// The number of attempts.
        tries: usize,
    },
    /// A tree of the schedule does not fit the members or the first tree.
    #[error("tree {tree}: {why}")]
    NotATree {
        /// The tree's place in the schedule.
        tree: usize,
        /// The reason.
        why: String,
    },
    /// A broadcast did not end within its time limit.
    #[error("the broadcast reached {reached} of {members} members in {seconds} s: allow more time or check the links")]
    Unfinished {
        /// Members that have the whole message.
        reached: usize,
        /// All members.
        members: usize,
        /// The time limit.
        seconds: f64,
    },
}

/// Checks `low <= value <= high`; NaN fails.
pub(crate) fn check(
    name: &'static str,
    value: f64,
    low: f64,
    high: f64,
    allowed: &'static str,
) -> Result<(), SimulationError> {
    if value >= low && value <= high { Ok(()) } else { Err(SimulationError::Parameter { name, value, allowed }) }
}
