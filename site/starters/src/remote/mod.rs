//! Starters without a batch system: on the gateway's own machine, over ssh, and with any command of the site.

pub(crate) mod local;
pub(crate) mod process;
pub(crate) mod ssh;
pub(crate) mod template;
