//! User memory, made safe to use: the one place where an address given by an MPI library becomes a slice.
//!
//! An operation reads or fills a [`Buffer`]; a peer reads or writes a region of [`Regions`]. Both are created by
//! `unsafe` functions whose caller passes on the promise that libfabric's interface makes: the memory stays valid until
//! the operation completes, or the region is closed. Everything after that is safe code. [`atomic`] applies libfabric's
//! atomic operations to the bytes of a region.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod atomic;
pub mod buffer;
pub mod pages;
pub mod region;

pub use buffer::Buffer;
pub use pages::Pages;
pub use region::{Access, RegionError, Regions};
