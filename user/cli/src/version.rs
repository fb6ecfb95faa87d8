//! Output of `--version`: the version, the commit if the build knew it (`build.rs`), and omitted features.

/// For example `0.1.0 (1f2e3d4c5b6a)`, or `0.1.0 (1f2e3d4c5b6a, without lab)`.
pub(crate) const TEXT: &str = env!("LANDBRIDGE_VERSION_TEXT");
