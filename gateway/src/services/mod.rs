//! What a gateway does besides relaying: nodes and agents, sites that join, what it shows of itself.

pub(crate) mod join;
pub(crate) mod metrics;
pub(crate) mod nodes;
pub(crate) mod observe;
pub(crate) mod page;
pub(crate) mod standing;
pub(crate) mod starter;
