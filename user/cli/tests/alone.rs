//! `landbridge run` without a sites file.

#![allow(clippy::unwrap_used)]

mod stage;

use std::fs::File;
use std::process::Command;

use stage::{Done, Running, SOON, Stage, kill, wait_for};

const NOTE: &str = "landbridge: no sites file, so all ranks run on this machine; `landbridge sites add NAME [USER@]HOST` \
                    adds a site\n";

/// Starts `landbridge` with these words for a user without a sites file.
fn start(stage: &Stage, words: &[&str], change: impl FnOnce(&mut Command)) -> Running {
    stage.start_with(words, |command| {
        command.env_remove("LANDBRIDGE_SITES").env_remove("XDG_CONFIG_HOME").env("HOME", stage.path("home"));
        command.env("XDG_STATE_HOME", stage.path("state")).env("TMPDIR", stage.path("tmp"));
        change(command);
    })
}

fn stage() -> Stage {
    let stage = Stage::without_gateways();
    ["home", "tmp"].iter().for_each(|name| std::fs::create_dir(stage.path(name)).unwrap());
    stage
}

fn typed(stage: &Stage, words: &[&str]) -> Done {
    start(stage, words, |_| {}).finish(SOON)
}

fn nothing_left(stage: &Stage) {
    stage.nothing_left();
    wait_for("files to be gone", SOON, || std::fs::read_dir(stage.path("tmp")).unwrap().next().is_none().then_some(()));
}

#[test]
fn ranks_run_on_this_machine_and_the_user_is_told() {
    let stage = stage();
    let done = typed(&stage, &["run", "-n", "3", "--json=summary", "bash", "-c", "echo $PMI_RANK $PMI_SIZE"]);
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    assert_eq!((done.code, lines, done.err.as_str()), (Some(0), vec!["0 3", "1 3", "2 3"], NOTE), "{done:?}");
    let summary = std::fs::read_to_string(stage.path("summary")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["sites"][0]["name"], "here");
    assert_eq!(summary["sites"][0]["ranks"], serde_json::json!([0, 1, 2]));
    let done = typed(&stage, &["run", "-n", "2", "--map-by", "slot", "bash", "-c", "exit $((PMI_RANK * 5))"]);
    assert_eq!(done.code, Some(5), "{done:?}");
    assert!(done.err.contains("site here, node ") && done.err.ends_with(": rank 1 exited with code 5\n"), "{done:?}");
    let done = typed(&stage, &["run", "-n", "1", "--json", "bash", "-c", "printf half; printf whole >&2; exit 3"]);
    let lines: Vec<&str> = done.out.lines().collect();
    assert!(done.code == Some(3) && lines.len() == 2 && lines[0] == "half", "{done:?}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(lines[1]).unwrap()["exit_code"], 3);
    assert!(done.err.contains("whole\nlandbridge: site here") && done.err.ends_with("with code 3\n"), "{done:?}");
    let done = typed(&stage, &["run", "-n", "2", "--dry-run", "true"]);
    assert!(done.code == Some(0) && done.out.contains("here") && done.out.contains("0-1"), "{done:?}");
    nothing_left(&stage);
}

#[test]
fn input_time_limits_and_detached_jobs_work_as_with_sites() {
    let stage = stage();
    std::fs::write(stage.path("in"), "one\ntwo\n").unwrap();
    let input = File::open(stage.path("in")).unwrap();
    let fed = start(&stage, &["run", "-n", "2", "wc", "-l"], |command| {
        command.stdin(input);
    });
    let done = fed.finish(SOON);
    let mut lines: Vec<&str> = done.out.lines().collect();
    lines.sort_unstable();
    assert_eq!((done.code, lines), (Some(0), vec!["0", "2"]), "{done:?}");
    let done = typed(&stage, &["run", "-n", "2", "--timeout", "500ms", "sleep", "1000"]);
    assert_eq!(done.code, Some(124), "{done:?}");
    let done = typed(&stage, &["run", "-n", "2", "--detach", "bash", "-c", "echo up; exit 3"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "1\n"), "{done:?}");
    let done = typed(&stage, &["logs", "-f", "1"]);
    assert!(done.out.starts_with(NOTE) && done.out.contains("up\n"), "{done:?}");
    nothing_left(&stage);
}

#[test]
fn nothing_outlives_a_run_that_is_ended_or_killed() {
    for (signal, code) in [("INT", Some(130)), ("KILL", None)] {
        let stage = stage();
        let running = start(&stage, &["run", "-n", "2", "bash", "-c", "echo up; setsid sleep 1000 & wait"], |_| {});
        wait_for("the ranks", SOON, || (running.out().lines().count() == 2).then_some(()));
        kill(running.child.id() as i32, signal);
        let done = running.finish(SOON);
        assert_eq!(done.code, code, "{done:?}");
        nothing_left(&stage);
    }
}

#[test]
fn options_about_sites_and_a_file_that_was_named_are_errors() {
    let stage = stage();
    for option in [["--site", "lyon=2"], ["--host", "a/n1"], ["--push", "x"], ["--from", "a"], ["--hostfile", "x"]] {
        let done = typed(&stage, &["run", option[0], option[1], "true"]);
        let expected =
            format!("landbridge: {} is about sites, and there is no sites file: `landbridge sites add", option[0]);
        assert!(done.code == Some(2) && done.err.starts_with(&expected), "{done:?}");
    }
    let named = typed(&stage, &["run", "-n", "2", "--sites", "nowhere.toml", "true"]);
    assert!(named.code == Some(1) && named.err.contains("sites file nowhere.toml: No such file"), "{named:?}");
    let named = start(&stage, &["run", "-n", "2", "true"], |command| {
        command.env("LANDBRIDGE_SITES", "nowhere.toml");
    });
    let named = named.finish(SOON);
    assert!(named.code == Some(1) && named.err.contains("sites file nowhere.toml: No such file"), "{named:?}");
    let done = typed(&stage, &["sites", "check"]);
    assert!(done.code == Some(1) && done.err.contains("no sites file: `landbridge sites add"), "{done:?}");
    nothing_left(&stage);
}

#[test]
fn output_that_has_nowhere_to_go_is_named() {
    let stage = stage();
    let dry: &[&str] = &["run", "-n", "2", "--dry-run", "true"];
    for words in [dry, &["run", "-n", "1", "--json", "true"], &["--help"], &["--version"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let done = start(&stage, words, |command| {
            command.stdout(full);
        });
        let done = done.finish(SOON);
        assert!(done.code == Some(1) && done.err.contains("standard output: No space left"), "{done:?}");
    }
}
