//! Everything the fuzzer has found worth keeping, on every `cargo test`.
#![allow(clippy::unwrap_used, missing_docs)]
#![allow(unreachable_pub, reason = "the checks are also a library, whose users are the fuzz targets")]

#[path = "../../fuzz/checks/wire.rs"]
mod checks;
#[path = "../../fuzz/checks/corpus.rs"]
mod corpus;

use corpus::replay;

#[test]
fn frame_headers() {
    replay("frame_header", checks::frame_header);
}

#[test]
fn first_handshakes() {
    replay("handshake_first", checks::handshake_first);
}

#[test]
fn later_handshakes() {
    replay("handshake_later", checks::handshake_later);
}

#[test]
fn messages() {
    replay("message", checks::message);
}

#[test]
fn passages() {
    replay("passage", checks::passage);
}

#[test]
fn receipts() {
    replay("receipt", checks::receipt);
}

#[test]
fn controls() {
    replay("control", checks::control);
}
