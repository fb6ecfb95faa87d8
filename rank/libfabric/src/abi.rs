//! libfabric's binary interface, written by hand: structures, constants and operation tables, under libfabric's own
//! names, which its manual pages describe.
//!
//! Checked against the headers of libfabric 1.17 and 2.6. Structures grow at their end from version to version, so this
//! declares the oldest layout (1.17's; Open MPI, MPICH and Intel MPI have at least that version). Operation tables
//! carry their size, which shows a reader which entries exist.

#![allow(non_camel_case_types)]

pub mod constants;
pub mod events;
pub mod info;
pub mod objects;
pub mod transfers;
