//! Implementation of `landbridge.h`, for C, C++ and Fortran: layouts, the messages between processes, and couplings.
//!
//! This library does not call MPI, because every MPI library has its own ABI. `landbridge_mpi.h`, which users compile
//! with their library, calls MPI. Each exported function checks its pointers, calls safe code, and turns errors and
//! panics into a code and a text for the calling thread ([`error`]).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod asked;
mod coupling;
mod dtype;
mod end;
mod error;
mod layout;
mod overlap;
mod pieces;
mod pointers;
mod runs;
mod transfer;
