//! A gateway's view of itself, for users, browsers and collectors. It changes nothing, except that a user may have the
//! sites file reloaded.

mod metrics;
pub(crate) mod observe;
pub(crate) mod page;
