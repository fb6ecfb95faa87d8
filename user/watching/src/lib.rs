//! Watching and checking the gateways of running sites, and measuring the links between them.

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod check;
pub mod links;
pub mod measure;
pub mod rates;
pub mod watch;
