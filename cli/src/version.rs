//! What `--version` shows: the version, the commit it was built from if the build knew (`build.rs`), and what was left out.

/// Such as `0.1.0 (1f2e3d4c5b6a)`, or `0.1.0 (1f2e3d4c5b6a, without lab)`.
pub(crate) const TEXT: &str = env!("LANDBRIDGE_VERSION_TEXT");
