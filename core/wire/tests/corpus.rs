//! Replays the fuzzer's saved corpus on every `cargo test`.
#![allow(clippy::unwrap_used)]
#![allow(unreachable_pub, reason = "the checks are also a library, whose users are the fuzz targets")]

#[path = "../../../testing/fuzz/checks/wire.rs"]
mod checks;
#[path = "../../../testing/fuzz/checks/corpus.rs"]
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
fn frames_for_many() {
    replay("many", checks::many);
}

#[test]
fn controls() {
    replay("control", checks::control);
}

/// A file that does not decode does not exercise the check. The fuzzer's own files have names of 16 hexadecimal digits.
#[test]
fn controls_that_were_named_are_messages() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testing/fuzz/corpus/control");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_named = |name: &str| name.len() != 16 || name.bytes().any(|byte| !byte.is_ascii_hexdigit());
    let mut named = 0;
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap();
        if is_named(name) {
            let decoded = wire::Control::decode(&std::fs::read(&path).unwrap());
            assert_eq!(decoded.is_ok(), name != "ranks_overflow", "{name}: {decoded:?}");
            named += 1;
        }
    }
    assert!(named >= 30, "{named} named files");
}
