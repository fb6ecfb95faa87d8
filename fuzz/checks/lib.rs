//! What must hold for any input, one function for each fuzz target.
//!
//! The fuzz targets call these with what libFuzzer invents; the tests `corpus.rs` of the crates under test include the
//! same files and call them with what is kept in `corpus/`. So a check exists once, and an old finding stays found.

pub mod types;
pub mod wire;
