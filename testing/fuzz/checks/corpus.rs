//! Replays a target's corpus. Included by the `corpus.rs` tests of the crates under test.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Calls the check with every file of `testing/fuzz/corpus/<target>`.
///
/// # Panics
/// The check failed (names the file), or there is no corpus, which would be a test that cannot fail.
pub fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testing/fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    for file in files {
        let bytes = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        if catch_unwind(AssertUnwindSafe(|| check(&bytes))).is_err() {
            panic!("{} breaks {target}; the panic above says how", file.display());
        }
    }
}
