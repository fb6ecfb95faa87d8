//! A connection before it is admitted: accepted, bounded, shaken hands with.

pub(crate) mod descriptors;
pub(crate) mod hellos;
pub(crate) mod listener;
pub(crate) mod lobby;
pub(crate) mod stream;
