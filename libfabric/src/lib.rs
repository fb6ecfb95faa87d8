//! libfabric's C interface. [`abi`] is the binary layout, which our provider implements and a consumer calls.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod abi;
