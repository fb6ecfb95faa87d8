//! Carries out redistributions of arrays that [`plan::redistribution`] describes.
//!
//! Start at [`Packing`], which copies the elements of a message between strided memory and a buffer; then at
//! [`Coupling`], a process of a program that exchanges variables with another one.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod coupling;
mod exchange;
mod message;
mod pack;
mod sealed;

pub use coupling::{CallError, CoupleError, Coupling, Patience, Place};
pub use exchange::{Arrived, ExchangeError, FetchId, Variable};
pub use pack::Packing;
