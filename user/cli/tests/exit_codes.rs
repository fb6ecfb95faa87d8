//! Exit codes of commands that are wrong as typed, as `docs/troubleshooting.md` lists them, and their JSON.

#![allow(clippy::unwrap_used)]

mod stage;

use stage::{Done, SOON, Stage};

/// A user without a sites file types this.
fn typed(stage: &Stage, words: &[&str]) -> Done {
    let running = stage.start_with(words, |command| {
        command.env_remove("LANDBRIDGE_SITES").env("HOME", stage.path("home"));
        command.env("XDG_CONFIG_HOME", stage.path("config")).env("XDG_STATE_HOME", stage.path("state"));
    });
    running.finish(SOON)
}

fn stage() -> Stage {
    let stage = Stage::without_gateways();
    std::fs::create_dir(stage.path("home")).unwrap();
    std::fs::write(stage.path("file"), "").unwrap();
    std::fs::write(stage.path("hosts"), "a/n1\n\na/n2 slots=x\n").unwrap();
    stage
}

#[test]
fn wrong_options_have_their_own_exit_code() {
    let stage = stage();
    let sites = stage.path("sites.toml").display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["run", "true"], "how many ranks?"),
        (&["run", "--dry-run", "true"], "how many ranks?"),
        (&["run", "--detach", "true"], "how many ranks?"),
        (&["run", "--detach", "-n", "1", "-x", "NOT_SET", "true"], "NOT_SET"),
        (&["run", "--sites", &sites, "--from", "zz", "-n", "1", "true"], "unknown site `zz`: the sites file has a, b"),
        (&["run", "--sites", &sites, "--from", "a", "-n", "200000000", "true"], "is more than the"),
        (&["run", "--sites", &sites, "--from", "a", "--hostfile", "hosts", "true"], "hosts: line 3: `a/n2 slots=x`"),
        (&["run", "-n", "1", "--stage-harm", "5", "true"], "--stage-in"),
        (&["run", "-n", "1", "--dry-run", "--stage-in", "x", "true"], "`x` is not SRC=DST"),
        (&["run", "-n", "-1", "true"], "unexpected argument '-1'"),
        (&["lab", "--sites", "0", "--", "true"], "sites is 0; it must be from 1 to 26"),
        (&["lab", "--links", "65", "--", "true"], "65 is not in 1..=64"),
        (&["lab", "--gateway-memory", "x", "--", "true"], "--gateway-memory"),
        (&["plan", "broadcast", "file", "--algorithm", "nosuch"], "no algorithm is named `nosuch`"),
        (&["sites", "add", "x", "h", "--advertise", "h", "--dial-out"], "leave one out"),
        (&["sites", "add", "x", "h:99999"], "the port is no number from 1 to 65535"),
        (&["stage", "in", "x"], "`x` is not SRC=DST"),
    ];
    for (words, problem) in cases {
        let done = typed(&stage, words);
        assert!(done.code == Some(2) && done.err.contains(problem), "{words:?}: {done:?}");
        assert!(!done.err.contains("tip: to pass '-"), "{done:?}");
    }
    let bare = typed(&stage, &["sites"]);
    assert!(bare.code == Some(2) && bare.err.starts_with("Add, remove"), "help is no error message: {bare:?}");
    assert!(typed(&stage, &["jobs"]).out.starts_with("no jobs"), "nothing was started");
    stage.nothing_left();
}

#[test]
fn variables_that_no_rank_could_use_are_refused_before_anything_starts() {
    let stage = stage();
    for (name, value, accepted) in [
        ("LANDBRIDGE_SPIN", "often", "microseconds, such as 100, or `always`"),
        ("LANDBRIDGE_EAGER", "much", "a size such as"),
        ("LANDBRIDGE_EAGER_REMOTE", "-1", "a size such as"),
        ("LANDBRIDGE_EAGER_MEMORY", "1 parsec", "a size such as"),
        ("LANDBRIDGE_SINGLE_COPY", "off", "a size such as"),
        ("LANDBRIDGE_INJECT", "17KiB", "a size of at most 16KiB"),
        ("LANDBRIDGE_CONFIRM_SENDS", "maybe", "yes or no"),
        ("LANDBRIDGE_UNEXPECTED", "lots", "a size such as"),
        ("LANDBRIDGE_BIND", "socket", "`share`"),
        ("LANDBRIDGE_COLLECTIVES", "mine", "`auto`, `exact` or `native`"),
        ("LANDBRIDGE_TREES", "oak", "no algorithm is named `oak`"),
    ] {
        let variable = format!("{name}={value}");
        let option = typed(&stage, &["run", "-n", "1", "-x", &variable, "touch", "started"]);
        let running = stage.start_with(&["run", "-n", "1", "touch", "started"], |command| {
            command.env_remove("LANDBRIDGE_SITES").env("HOME", stage.path("home")).env(name, value);
        });
        for done in [option, running.finish(SOON)] {
            let line = done.err.starts_with(&format!("landbridge: {variable}: ")) && done.err.lines().count() == 1;
            assert!(done.code == Some(2) && line && done.err.contains(accepted), "{variable}: {done:?}");
        }
    }
    // The last value counts, and an empty one is the default.
    for options in [&["-x", "LANDBRIDGE_SPIN=often", "-x", "LANDBRIDGE_SPIN="][..], &["-x", "LANDBRIDGE_BIND=mine"]] {
        let words = [&["run", "-n", "1", "--bind-to", "none"], options, &["--dry-run", "true"]].concat();
        assert_eq!(typed(&stage, &words).code, Some(0), "{options:?}");
    }
    // The sites file's variables count where the job has ranks.
    let sites = std::fs::read_to_string(stage.path("sites.toml")).unwrap();
    std::fs::write(stage.path("often.toml"), sites + "[site.run]\nenvironment = { LANDBRIDGE_SPIN = \"often\" }\n")
        .unwrap();
    for (site, code) in [("a=1", 0), ("b=1", 2)] {
        let words = ["run", "--sites", "often.toml", "--from", "a", "--site", site, "--dry-run", "true"];
        let done = typed(&stage, &words);
        assert_eq!(done.code, Some(code), "{done:?}");
    }
    assert!(!stage.path("started").exists());
    stage.nothing_left();
}

#[test]
fn files_without_end_are_refused() {
    let stage = stage();
    let sites = stage.path("sites.toml").display().to_string();
    let pipe = stage.path("pipe").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let run = |file: &str| typed(&stage, &["run", "--sites", &sites, "--from", "a", "--hostfile", file, "true"]);
    let (zeros, empty) = (run("/dev/zero"), run(&pipe));
    assert!(zeros.err.contains("--hostfile /dev/zero: it has more than 16777216 bytes"), "{zeros:?}");
    assert!(empty.code == Some(2) && empty.err.contains("it names no node"), "{empty:?}");
    let zeros = typed(&stage, &["plan", "broadcast", "/dev/zero"]);
    assert!(zeros.code == Some(1) && zeros.err.contains("/dev/zero: it has more than"), "{zeros:?}");
    let zeros = typed(&stage, &["slurm", "check", "/dev/zero"]);
    assert!(zeros.code == Some(1) && zeros.err.contains("/dev/zero: it has more than"), "{zeros:?}");
    let empty = typed(&stage, &["sites", "list", "--sites", &pipe]);
    assert!(empty.code == Some(1) && empty.err.contains("at least one [[site]]"), "{empty:?}");
}

#[test]
fn output_that_cannot_be_written_is_named() {
    let stage = stage();
    let started = typed(&stage, &["run", "--detach", "-n", "1", "echo", "text"]);
    let logs = typed(&stage, &["logs", "-f", started.out.trim()]);
    assert!(logs.out.ends_with("text\n"), "{started:?} {logs:?}");
    let running = stage.start_with(&["logs", "1"], |command| {
        command.env_remove("LANDBRIDGE_SITES").env("HOME", stage.path("home"));
        command.env("XDG_CONFIG_HOME", stage.path("config")).env("XDG_STATE_HOME", stage.path("state"));
        command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap());
    });
    let done = running.finish(SOON);
    assert_eq!(
        (done.code, done.err.as_str()),
        (Some(1), "landbridge: standard output: No space left on device (os error 28)\n")
    );
}

#[test]
fn other_failures_name_what_is_there() {
    let stage = stage();
    let home = stage.path("home").display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["run", "-n", "1", ""], "the name of the program is empty"),
        (&["run", "-n", "1", "--wdir", "file", "true"], "is no directory here: name another with --wdir"),
        (&["sites", "list", "--sites", "nowhere.toml"], "sites file nowhere.toml: No such file"),
        (&["key", &home], "Is a directory"),
        (&["key", "file/key"], "Not a directory"),
        (&["sites", "join", "zz", "--ticket", &home], "this is a folder: name the file that has the ticket"),
    ];
    for (words, problem) in cases {
        let done = typed(&stage, words);
        assert!(done.code == Some(1) && done.err.contains(problem), "{words:?}: {done:?}");
        assert!(!done.err.contains("makes one") && !done.err.contains("chmod"), "a false remedy: {done:?}");
    }
    assert_eq!(typed(&stage, &["sites", "list"]).code, Some(0), "nobody has named a file");
}

#[test]
fn json_is_printed_for_a_job_that_did_not_begin_and_for_one_that_is_detached() {
    let stage = stage();
    let sites = stage.path("sites.toml").display().to_string();
    let there = ["run", "--json", "--sites", &sites, "--from", "a"];
    for words in [
        &["run", "--json", "--sites", "nowhere.toml", "-n", "1", "true"][..],
        &["run", "--json", "true"],
        &["run", "--json", "-n", "1", "true", ":", "-n", "0", "true"],
        &["run", "--json", "-n", "1", "true", ":", "--prefix", "-n", "1", "true"],
        &["run", "--json", "-n", "1", "-x", "LANDBRIDGE_SPIN=often", "true"],
        &["run", "--json", "--dry-run", "-n", "1", "--host", "a/n1", "true"],
        &["run", "--json", "--detach", "-n", "1", "-x", "NOT_SET", "true"],
        &[&there[..], &["--host", "a/n9", "true"]].concat(),
        &[&there[..], &["--hostfile", "hosts", "true"]].concat(),
    ] {
        let done = typed(&stage, words);
        let summary: serde_json::Value = serde_json::from_str(&done.out).unwrap();
        assert_eq!((summary["ok"].as_bool(), summary["ranks"].as_u64()), (Some(false), Some(0)), "{done:?}");
        assert_eq!(summary["exit_code"].as_i64(), done.code.map(i64::from), "{done:?}");
        let reason = summary["failure"]["reason"].as_str().unwrap().lines().next().unwrap();
        assert!(done.err.contains(reason), "{done:?}");
    }
    let done = typed(&stage, &["run", "--json", "-n", "0", "true"]);
    assert_eq!((done.code, done.out.as_str()), (Some(2), ""), "found while options were parsed: {done:?}");
    let done = typed(&stage, &["run", "--detach", "--json", "-n", "1", "true"]);
    let started: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, started["job"].as_u64()), (Some(0), Some(1)), "{done:?}");
    stage.nothing_left();
}
