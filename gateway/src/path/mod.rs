//! What a frame passes between two connections: read, looked up, queued, written, and refused where memory is short.

pub(crate) mod forward;
pub(crate) mod member;
pub(crate) mod outlet;
pub(crate) mod queue;
pub(crate) mod shares;
pub(crate) mod shortage;
