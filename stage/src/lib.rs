//! Staging: copies files and folders to the nodes of the next job while another job computes there.
//!
//! A [`Source`] lists its files in a [`Manifest`] and reads them; [`Blocks`] cuts the data into blocks, the unit of
//! transfer; a [`Target`] writes blocks into a hidden area beside the target, records them in a journal, and puts
//! everything in place at once. [`transfer`] connects a source and a target of one machine, [`mover`] those of several.
//!
//! After Reid and Stumm, "Overlapping Data Transfer With Application Execution on Clusters".

#![deny(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accounts;
mod acl;
mod area;
mod blocks;
pub mod control;
mod error;
mod eviction;
mod journal;
pub mod look;
mod manifest;
pub mod mover;
mod pace;
mod place;
mod pressure;
mod reader;
pub mod relaid;
mod source;
mod supervise;
#[allow(unsafe_code)]
mod sys;
mod target;
pub mod transfer;
mod writer;
mod writers;

pub use blocks::{Bitmap, Blocks, FilePiece, Hash, SIZES};
pub use error::StageError;
pub use eviction::evict;
pub use manifest::{Attributes, Entry, EntryKind, Manifest, Stamp};
pub use pace::Pace;
pub use place::{NodeChoice, Place, PlaceError};
pub use source::Source;
pub use supervise::Overlap;
pub use target::{Check, Options, Report, Target, means_into, resolve};
