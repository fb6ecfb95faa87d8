//! `stage status` and `cancel` while a transfer's process is stopped.

#![allow(clippy::unwrap_used)]

mod stage;

use stage::{Done, Running, SOON, Stage, kill, wait_for};

fn start(stage: &Stage, words: &[&str]) -> Running {
    stage.start_with(words, |command| {
        command
            .env_remove("LANDBRIDGE_SITES")
            .env("HOME", stage.path("home"))
            .env("XDG_STATE_HOME", stage.path("state"));
        command.env("LANDBRIDGE_PROVIDER", "/bin/true");
    })
}

fn type_it(stage: &Stage, words: &[&str]) -> Done {
    start(stage, words).finish(SOON)
}

fn transfers(stage: &Stage) -> Vec<serde_json::Value> {
    let done = type_it(stage, &["stage", "status", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    shown["transfers"].as_array().unwrap().clone()
}

#[test]
fn a_stopped_transfer_is_listed_and_named() {
    let stage = Stage::without_gateways();
    std::fs::write(stage.path("source"), vec![7; 64 << 20]).unwrap();
    let (source, target) = (stage.path("source").display().to_string(), stage.path("target").display().to_string());
    let slowly = ["stage", "move", "--harm", "100", "--rate", "1MB/s", "--block", "64KiB", &source, &target];
    let moving = start(&stage, &slowly);
    wait_for("some blocks", SOON, || transfers(&stage).first()?["arrived"].as_u64().filter(|bytes| *bytes > 0));
    let id = moving.child.id();
    kill(id as i32, "STOP");
    let silent = wait_for("the stop", SOON, || transfers(&stage).pop().filter(|one| !one["problem"].is_null()));
    assert_eq!((silent["id"].as_u64(), &silent["arrived"]), (Some(id.into()), &serde_json::Value::Null), "{silent}");
    assert_eq!(silent["problem"], "does not answer: its process is stopped");
    let listed = type_it(&stage, &["stage", "status"]);
    let line = format!("{id}  does not answer: its process is stopped\n");
    assert_eq!((listed.code, listed.out), (Some(0), line), "{}", listed.err);
    let number = id.to_string();
    for words in [&["stage", "cancel"][..], &["stage", "cancel", &number], &["stage", "rate", &number, "2MB/s"]] {
        let done = type_it(&stage, words);
        assert_eq!(done.code, Some(1), "{done:?}");
        let remedy = format!("`kill -CONT {id}` lets it go on");
        assert!(done.err.contains(&format!("transfer {id} does not answer")) && done.err.contains(&remedy), "{done:?}");
    }
    kill(id as i32, "CONT");
    assert_eq!(type_it(&stage, &["stage", "cancel"]).code, Some(0));
    let ended = moving.finish(SOON);
    assert!(ended.code != Some(0) && ended.err.contains("cancelled"), "{ended:?}");
    assert!(transfers(&stage).is_empty());
    stage.nothing_left();
}
