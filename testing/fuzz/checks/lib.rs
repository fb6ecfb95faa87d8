//! Properties that must hold for any input, one function per fuzz target.
//!
//! The fuzz targets call these with libFuzzer's inputs; the tests `corpus.rs` of the crates under test include the same
//! files and call them with the inputs kept in `corpus/`. So each check exists once, and old findings are tested
//! forever.

pub mod types;
pub mod wire;
