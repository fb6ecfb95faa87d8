//! Carries out redistributions of arrays that [`plan::redistribution`] describes.
//!
//! Start at [`Packing`], which copies the elements of a message between strided memory and a buffer. Then read
//! [`Coupling`], a process of a program that exchanges variables with another program; [`side`] joins it to the
//! coupling.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod beside;
mod call;
mod coupling;
pub mod datatype;
pub mod directory;
mod exchange;
mod helper;
mod message;
mod pack;
pub mod pieces;
mod sealed;
mod secret;
pub mod side;

pub use call::{CallError, Patience};
pub use coupling::{CoupleError, Coupling, CouplingMembership};
pub use exchange::{Arrived, ExchangeError, FetchId, Variable};
pub use pack::Packing;
