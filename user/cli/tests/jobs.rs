//! `run --detach`, `jobs`, `logs` and `cancel` with real gateways.

#![allow(clippy::unwrap_used)]

mod stage;

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;

use stage::{Done, SOON, Stage, kill, wait_for};

fn type_it(stage: &Stage, words: &[&str]) -> Done {
    stage.start_with(words, |command| drop_env(command, stage)).finish(SOON)
}

fn drop_env(command: &mut std::process::Command, stage: &Stage) {
    command.env("XDG_STATE_HOME", stage.path("state"));
}

fn detach(stage: &Stage, script: &str) -> String {
    let done = type_it(stage, &["run", "-n", "2", "--detach", "--", "bash", "-c", script]);
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
    done.out.trim().to_owned()
}

fn states(stage: &Stage) -> Vec<(String, Option<i64>)> {
    let done = type_it(stage, &["jobs", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(shown["schema"], 1);
    let jobs = shown["jobs"].as_array().unwrap().iter();
    jobs.map(|job| (job["state"].as_str().unwrap().to_owned(), job["exit_code"].as_i64())).collect()
}

#[test]
fn a_detached_job_runs_to_its_end_and_is_remembered() {
    let stage = Stage::new();
    let id = detach(&stage, "echo up; sleep 1; echo over; exit $((LANDBRIDGE_RANK * 7))");
    assert_eq!(id, "1");
    let mode = stage.path("state/landbridge/jobs").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "whatever the umask");
    assert_eq!(states(&stage), [("running".to_owned(), None)]);
    let followed = type_it(&stage, &["logs", "-f", &id]);
    assert_eq!(followed.code, Some(0), "{followed:?}");
    assert_eq!(
        (followed.out.matches("up").count(), followed.out.matches("exited with code 7").count()),
        (2, 1),
        "{followed:?}"
    );
    assert_eq!(states(&stage), [("ended".to_owned(), Some(7))]);
    let table = type_it(&stage, &["jobs"]);
    assert!(table.out.contains("ended 7") && table.out.contains("run -n 2 -- bash -c echo up"), "{table:?}");
    let none = type_it(&stage, &["logs", "9"]);
    assert!(none.code == Some(1) && none.err.contains("no job 9"), "{none:?}");
    stage.nothing_left();
}

#[test]
fn a_detached_job_can_be_cancelled_and_killed() {
    let stage = Stage::new();
    let id = detach(&stage, "echo up; sleep 1000");
    wait_for("the ranks", SOON, || (type_it(&stage, &["logs", &id]).out.matches("up").count() == 2).then_some(()));
    let done = type_it(&stage, &["cancel", &id]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "job 1 is cancelled\n"), "{done:?}");
    assert_eq!(states(&stage), [("ended".to_owned(), Some(143))]);
    stage.nothing_left();
    let again = type_it(&stage, &["cancel", &id]);
    assert!(again.code == Some(1) && again.err.contains("has ended already"), "{again:?}");
    let id = detach(&stage, "echo up; sleep 1000");
    let pid = std::fs::read_to_string(stage.path("state/landbridge/jobs/2/pid")).unwrap();
    kill(pid.parse().unwrap(), "KILL");
    wait_for("the end", SOON, || (states(&stage)[1].0 == "killed").then_some(()));
    assert_eq!(type_it(&stage, &["logs", "-f", &id]).code, Some(0));
    stage.nothing_left();
}

/// A folder that other users can write to could name any process for `cancel` to end.
#[test]
fn what_others_could_have_written_is_no_job() {
    let stage = Stage::new();
    let jobs = stage.path("state/landbridge/jobs");
    let planted = jobs.join("1");
    let mode = |path: &std::path::Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    std::fs::create_dir_all(&planted).unwrap();
    let mut victim = Victim(std::process::Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let typed = serde_json::json!({ "command": ["run"], "directory": "/", "host": host, "began": 1 });
    std::fs::write(planted.join("job.json"), typed.to_string()).unwrap();
    std::fs::write(planted.join("pid"), victim.0.id().to_string()).unwrap();
    let lock = std::fs::File::create(planted.join("lock")).unwrap();
    lock.lock().unwrap();

    mode(&planted, 0o777);
    mode(&jobs, 0o755);
    assert_eq!(states(&stage), []);
    mode(&planted, 0o700);
    mode(&jobs, 0o775);
    for words in [&["jobs"][..], &["logs", "1"], &["cancel", "1"], &["run", "-n", "1", "--detach", "--", "true"]] {
        let done = type_it(&stage, words);
        assert!(done.code == Some(1) && done.err.contains("chmod go-w"), "{done:?}");
    }
    mode(&jobs, 0o755);
    if rustix::process::geteuid().is_root() {
        chown(&planted, Some(65534), None).unwrap();
        assert_eq!(states(&stage), []);
        let done = type_it(&stage, &["cancel", "1"]);
        assert!(done.code == Some(1) && done.err.contains("no job 1"), "{done:?}");
        chown(&planted, Some(0), None).unwrap();
    }
    assert!(victim.0.try_wait().unwrap().is_none(), "it was ended");
    // The same folder with safe permissions is a job.
    assert_eq!(states(&stage), [("running".to_owned(), None)]);
}

/// A process that ends with the test, even if the test fails.
struct Victim(std::process::Child);

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
