//! The preloaded layer for MPI libraries with MPI-4's large-count functions: `layer`, and those functions.

#![deny(unsafe_op_in_unsafe_fn)]

layer::functions_with_counts!(layer::cover_large, i64);
