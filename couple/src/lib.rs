//! Carries out redistributions of arrays that [`plan::redistribution`] describes.
//!
//! Start at [`Packing`], which copies the elements of a message between strided memory and a buffer.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod pack;

pub use pack::Packing;
