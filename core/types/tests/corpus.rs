//! Replays the fuzzer's saved corpus on every `cargo test`.
#![allow(clippy::unwrap_used)]
#![allow(unreachable_pub, reason = "the checks are also a library, whose users are the fuzz targets")]

#[path = "../../../testing/fuzz/checks/types.rs"]
mod checks;
#[path = "../../../testing/fuzz/checks/corpus.rs"]
mod corpus;

use corpus::replay;

#[test]
fn sites_files() {
    replay("sites_file", checks::sites_file);
}

#[test]
fn rosters() {
    replay("roster", checks::roster);
}

#[test]
fn quantities() {
    replay("quantity", checks::quantity);
}

#[test]
fn fingerprints() {
    replay("fingerprint", checks::fingerprint);
}
