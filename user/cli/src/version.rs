//! What `--version` shows: the version, the commit if the build knew it (`build.rs`), and features that are left out.

/// Such as `0.1.0 (1f2e3d4c5b6a)`, or `0.1.0 (1f2e3d4c5b6a, without lab)`.
pub(crate) const TEXT: &str = env!("LANDBRIDGE_VERSION_TEXT");
