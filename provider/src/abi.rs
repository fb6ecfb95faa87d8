//! libfabric's binary interface, written by hand: structures, constants and operation tables.
//!
//! Checked against the headers of libfabric 1.17 and 2.6. Structures grow at their end from version to version, so we
//! declare the oldest layout (1.17's, which Open MPI, MPICH and Intel MPI all have at least): that is all we read from a
//! caller, and what we allocate for a caller is zeroed and longer (see [`border::allocate`]). Operation tables
//! carry their size, which tells a newer core which entries exist.
//!
//! Nothing here imports a symbol: the core calls us through `fi_prov_ini` and tables, and we never call back.

#![allow(non_camel_case_types)]

pub mod border;
pub mod constants;
pub mod events;
pub mod info;
pub mod objects;
pub mod transfers;
