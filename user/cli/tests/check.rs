//! `landbridge sites check` and `landbridge key`, with real gateways and agents.

#![allow(clippy::unwrap_used)]

mod stage;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use stage::{Done, SOON, Stage, landbridge};

fn check(stage: &Stage, words: &[&str]) -> Done {
    let provider = |command: &mut Command| {
        command.env("LANDBRIDGE_PROVIDER", "/bin/true");
    };
    stage.start_with(&[&["sites", "check"], words].concat(), provider).finish(SOON)
}

#[test]
fn what_works_is_shown_link_by_link() {
    let stage = Stage::new();
    let done = check(&stage, &["--json", "--", "/bin/true"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let answer: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let parts: Vec<String> = answer["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| format!("{} {}", finding["site"].as_str().unwrap(), finding["part"].as_str().unwrap()))
        .collect();
    let expected =
        ["a key", "b key", "a gateway gw1", "b trunk from a", "a node n1", "a node n2", "b node n1", "b node n2"];
    assert_eq!(parts, expected);
    let pairs = answer["pairs"].as_array().unwrap();
    let ends: Vec<_> =
        pairs.iter().map(|pair| (pair["from"].as_str().unwrap(), pair["to"].as_str().unwrap())).collect();
    assert_eq!(ends, [("a", "b"), ("b", "a")]);
    for pair in pairs {
        assert!(
            pair["problem"].is_null() && pair["rtt_ms"].as_f64() > Some(0.0) && pair["mbit_s"].as_f64() > Some(0.0),
            "{pair}"
        );
    }
    stage.nothing_left();
}

#[test]
fn a_gateway_whose_log_finds_no_room_goes_on() {
    let mut stage = Stage::without_gateways();
    std::os::unix::fs::symlink("/dev/full", stage.path("a.log")).unwrap();
    let pid = stage.start_gateway("a");
    stage.start_gateway("b");
    let done = check(&stage, &["--", "/bin/true"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    // The gateway has raised its limit of open files to the maximum.
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let files: Vec<&str> = files.split_whitespace().collect();
    assert_eq!(files[3], files[4], "{files:?}");
    stage.nothing_left();
}

#[test]
fn what_does_not_is_named() {
    let stage = Stage::new();
    std::fs::set_permissions(stage.path("b.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let done = check(&stage, &["--", "./no-such-program"]);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.out.contains("chmod 600"), "{done:?}");
    assert_eq!(done.out.matches("program ./no-such-program not found").count(), 4, "{done:?}");
    assert!(done.out.contains("5 things do not work"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn without_transfers_only_round_trips_are_shown() {
    let stage = Stage::new();
    let done = check(&stage, &["--quick"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.out.contains("from / to") && !done.out.contains("bit/s"), "{done:?}");
    assert!(done.err.is_empty(), "nobody watches: {done:?}");
    stage.nothing_left();
}

#[test]
fn a_gateway_that_is_down_is_named() {
    let mut stage = Stage::without_gateways();
    let done = check(&stage, &["--from", "a"]);
    assert!(done.code == Some(1) && done.out.contains(&format!("127.0.0.1:{}", stage.ports[0])), "{done:?}");
    stage.start_gateway("a");
    let done = check(&stage, &["--from", "a"]);
    assert!(done.code == Some(1) && done.out.contains(&format!("127.0.0.1:{}", stage.ports[1])), "{done:?}");
    assert!(done.out.contains("trunk from a"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn a_key_is_made_once_and_shown_often() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("k");
    let key = |words: &[&str]| {
        let output = landbridge().arg("key").args(words).arg(&file).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (made, shown) = (key(&[]), key(&[]));
    assert!(made.1.starts_with("fingerprint = \"sha256:"), "{made:?}");
    assert_eq!(made, shown);
    assert_eq!(key(&["--out"]).0, Some(1));
}

#[test]
fn a_wrong_log_level_is_named_before_the_gateway_starts() {
    let stage = Stage::without_gateways();
    let words = ["gateway", "--site", "a"];
    let loud = |command: &mut Command| {
        command.env("LANDBRIDGE_LOG", "info,loud");
    };
    let done = stage.start_with(&words, loud).finish(SOON);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.err.contains("LANDBRIDGE_LOG=info,loud: `loud` is not a level"), "{done:?}");
}
