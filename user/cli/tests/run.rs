//! `landbridge run` with real gateways and agents, without MPI.

#![allow(clippy::unwrap_used)]

mod stage;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use stage::{Done, OPEN_FILES, Running, SOON, Stage, kill, wait_for};

fn pipe() -> (std::io::PipeWriter, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    (writer, OwnedFd::from(reader).into())
}

fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Starts a job in which every rank prints `up` and then waits.
fn waiting(stage: &Stage) -> Running {
    let running = stage.start_script(&["-n", "4"], "echo up; sleep 1000 & setsid sleep 1000 & wait");
    wait_for("the ranks", SOON, || (running.out().lines().count() == 4).then_some(()));
    running
}

#[test]
fn ranks_run_at_both_sites_and_know_their_place() {
    let stage = Stage::new();
    let script = "echo $LANDBRIDGE_RANK $LANDBRIDGE_SITE_NAME $LANDBRIDGE_NODE_NAME $LANDBRIDGE_LOCAL_RANK $PMI_SIZE $PWD; echo err >&2";
    let done = stage.script(&["-n", "6", "--json=summary"], script);
    assert_eq!((done.code, done.err.as_str()), (Some(0), &*"err\n".repeat(6)), "{done:?}");
    let at = stage.folder.path().display();
    let expected: Vec<String> = ["0 a n1 0", "1 a n1 1", "2 a n2 0", "3 b n1 0", "4 b n1 1", "5 b n2 0"]
        .map(|line| format!("{line} 6 {at}"))
        .to_vec();
    assert_eq!(lines(&done.out), expected);
    let summary: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(stage.path("summary")).unwrap()).unwrap();
    assert_eq!(summary["ok"], true);
    assert_eq!(summary["sites"][1]["name"], "b");
    assert_eq!(summary["sites"][1]["ranks"], serde_json::json!([3, 4, 5]));
    assert_eq!(summary["failure"], serde_json::Value::Null);
    assert!(summary["sites"][1]["bytes_sent"].is_u64(), "{summary}");
    stage.nothing_left();
}

#[test]
fn prefixes_and_the_site_option() {
    let stage = Stage::new();
    let done = stage.script(&["--site", "b=2", "--prefix"], "echo one; printf two");
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(lines(&done.out), ["[b/n1/0] one", "[b/n1/0] two", "[b/n2/1] one", "[b/n2/1] two"]);
}

#[test]
fn it_is_typed_as_mpiexec_is() {
    let stage = Stage::new();
    let mut words = vec!["run", "-np", "2", "-x", "A=1", "-x", "MPIEXEC_STYLE", "--wdir", "/usr", "bash", "-c"];
    words.extend(["echo $A $B $PWD $#", "name", "-np", "5"]);
    let done = stage.start(&words).finish(SOON);
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.err.contains("-x MPIEXEC_STYLE"), "{done:?}");
    words[6] = "B=two=2";
    let done = stage.start(&words).finish(SOON);
    assert_eq!((done.code, lines(&done.out)), (Some(0), vec!["1 two=2 /usr 2"; 2]), "{done:?}");
    stage.nothing_left();
}

#[test]
fn programs_are_separated_as_mpiexec_does() {
    let stage = Stage::new();
    let echo = |name: &str| format!("echo {name} $PMI_RANK/$PMI_SIZE $LANDBRIDGE_SITE_NAME $A $PWD $1");
    let (a, b, c) = (echo("a"), echo("b"), echo("c"));
    let here = stage.folder.path().display().to_string();
    let mut words = vec!["run", "-np", "1", "-x", "A=1", "bash", "-c", &a, "name", ":", ":"];
    words.extend(["-np", "3", "--wdir", "/usr", "bash", "-c", &b, ":", "-n", "2", "-x", "A=3", "--", "bash", "-c", &c]);
    let done = stage.start(&words).finish(SOON);
    let expected = [
        format!("a 0/6 a 1 {here} :"),
        "b 1/6 a /usr".to_owned(),
        "b 2/6 a /usr".to_owned(),
        "b 3/6 b /usr".to_owned(),
        format!("c 4/6 b 3 {here}"),
        format!("c 5/6 b 3 {here}"),
    ];
    assert_eq!((done.code, lines(&done.out)), (Some(0), expected.iter().map(String::as_str).collect()), "{done:?}");

    // Each program runs at its own site, in the order of the programs.
    let words =
        ["run", "--site", "b=2:/bin/bash", "sh", "-c", &a, ":", "--site", "a=1", "sh", "-c", &b, "n", ":", "-n", "x"];
    let done = stage.start(&words[..words.len() - 3]).finish(SOON);
    let expected = [format!("a 0/3 b {here}"), format!("a 1/3 b {here}"), format!("b 2/3 a {here}")];
    assert_eq!((done.code, lines(&done.out)), (Some(0), expected.iter().map(String::as_str).collect()), "{done:?}");
    let done = stage.start(&words).finish(SOON);
    let problem = "landbridge: invalid value 'x' for '--ranks <N>'";
    assert!(done.code == Some(2) && done.err.starts_with(problem), "{done:?}");
    stage.nothing_left();
}

#[test]
fn what_is_wrong_with_options_and_programs_is_named() {
    let stage = Stage::new();
    for (words, code, expected) in [
        ("-n 1 true : --prefix -n 2 true", 2, "--prefix holds for the whole job: give it before the first program."),
        ("-n 1 true : --wdir / sh", 2, "program 2 (sh): how many ranks? Give -n N, or --site NAME=N for each site"),
        ("--site a=1 true : -n 1 sh", 2, "program 2 (sh) has no --site, and another one has"),
        ("--site a=1 x : --site b=1 y : --site a=1 z", 2, "--site a: the ranks of a site have successive numbers"),
        ("true", 2, "how many ranks? Give -n N"),
        ("-n 3 --site a=1 true", 2, "-n 3 is not the sum of the --site options, which is 1"),
        ("-n 1 -x NOPE true", 2, "-x NOPE"),
        ("-n 1 -x =5 true", 2, "-x =5"),
        ("-n 1 true : -n 3 ./no-such-program", 1, "program ./no-such-program not found"),
        ("-n 2 true : -n 1 sh -c exit\\ 7", 7, "rank 2 exited with code 7"),
    ] {
        let words = words.replace("\\ ", "\u{a0}");
        let words: Vec<String> = words.split(' ').map(|word| word.replace('\u{a0}', " ")).collect();
        let words = [&["run"][..], &words.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        let done = stage.start(&words).finish(SOON);
        assert!(done.code == Some(code) && done.err.contains(expected), "{words:?}: {done:?}");
    }
    stage.nothing_left();
}

/// Runs a script on ranks with this file as standard input.
fn fed(stage: &Stage, options: &[&str], script: &str, input: File) -> Done {
    let words = [&["run"], options, &["--", "bash", "-c", script]].concat();
    let feed = |command: &mut Command| {
        command.stdin(input);
    };
    stage.start_with(&words, feed).finish(SOON)
}

#[test]
fn rank_0_gets_standard_input_and_the_others_an_empty_one() {
    let stage = Stage::new();
    let text: Vec<u8> = (0..2_000_003u32).map(|n| (n * 7 + n / 251) as u8).collect();
    std::fs::write(stage.path("in"), &text).unwrap();
    let input = || File::open(stage.path("in")).unwrap();
    let sum = Command::new("cksum").stdin(input()).output().unwrap();
    let sum = String::from_utf8_lossy(&sum.stdout).trim().to_owned();
    let empty = "4294967295 0";
    for (stdin, expected) in [
        (None, [&sum, empty, empty]),
        (Some("2"), [empty, empty, &sum]),
        (Some("all"), [&sum, &sum, &sum]),
        (Some("none"), [empty, empty, empty]),
    ] {
        let mut options = vec!["-n", "3"];
        options.extend(stdin.map(|to| ["--stdin", to]).into_iter().flatten());
        let done = fed(&stage, &options, "echo $LANDBRIDGE_RANK $(cksum)", input());
        let expected: Vec<String> = expected.iter().enumerate().map(|(rank, sum)| format!("{rank} {sum}")).collect();
        assert_eq!(
            (done.code, lines(&done.out)),
            (Some(0), expected.iter().map(String::as_str).collect()),
            "{stdin:?}"
        );
    }
    let done = fed(&stage, &["-n", "3", "--stdin", "3"], "true", input());
    assert!(done.code == Some(2) && done.err.contains("--stdin 3: the job has 3 rank(s)"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn input_that_never_ends_or_is_not_read_holds_nothing_up() {
    let stage = Stage::new();
    let endless = || File::open("/dev/zero").unwrap();
    // One rank closes it, one never reads, and one reads a little.
    let script = "case $LANDBRIDGE_RANK in 0) exec <&-; sleep 1;; 1) sleep 1;; *) head -c 1000000 | wc -c;; esac";
    let done = fed(&stage, &["-n", "3", "--stdin", "2"], script, endless());
    assert_eq!((done.code, done.out.trim()), (Some(0), "1000000"), "{done:?}");
    let done = fed(&stage, &["-n", "3", "--stdin", "all"], "echo $LANDBRIDGE_RANK; sleep 1", endless());
    assert_eq!((done.code, lines(&done.out)), (Some(0), vec!["0", "1", "2"]), "{done:?}");
    // Unread input does not keep a job alive after its timeout.
    let done = fed(&stage, &["-n", "2", "--timeout", "500ms"], "sleep 1000", endless());
    assert_eq!(done.code, Some(124), "{done:?}");
    // A pipe that stays open and silent: the job ends with its ranks.
    let (_writer, reader) = pipe();
    let done = fed(&stage, &["-n", "2"], "echo done", reader);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "done\ndone\n"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn nodes_can_be_named_and_filled() {
    let stage = Stage::new();
    let place = "echo $LANDBRIDGE_SITE_NAME/$LANDBRIDGE_NODE_NAME";
    let done = stage.script(&["--host", "b/n2:2,a/n1"], place);
    assert_eq!((done.code, lines(&done.out)), (Some(0), vec!["a/n1", "b/n2", "b/n2"]), "{done:?}");
    std::fs::write(stage.path("hosts"), "b/n1 slots=1 # first\nb/n2 slots=3\n").unwrap();
    let done = stage.script(&["-n", "3", "--hostfile", "hosts", "--map-by", "slot"], place);
    assert_eq!((done.code, lines(&done.out)), (Some(0), vec!["b/n1", "b/n2", "b/n2"]), "{done:?}");
    let done = stage.script(&["--host", "b/n7"], place);
    assert!(done.code == Some(2) && done.err.contains("site b has no node `n7`"), "{done:?}");
    let done = stage.script(&["-n", "2", "--map-by", "slot"], place);
    assert!(done.code == Some(2) && done.err.contains("slots"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn output_goes_to_a_file_for_each_rank_and_steps_are_shown() {
    let stage = Stage::new();
    let done = stage.script(&["-n", "2", "--output-filename", "out/", "-v"], "echo $LANDBRIDGE_RANK; echo e >&2");
    assert_eq!((done.code, done.out.as_str()), (Some(0), ""), "{done:?}");
    let read = |name: &str| std::fs::read_to_string(stage.path(name)).unwrap();
    assert_eq!(
        (read("out/rank.0.out"), read("out/rank.1.out"), read("out/rank.1.err")),
        ("0\n".into(), "1\n".into(), "e\n".into())
    );
    assert!(done.err.contains("opening a job at a, b") && done.err.contains("starting 2 ranks"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn ranks_are_bound_as_wanted() {
    let stage = Stage::new();
    let cores = std::thread::available_parallelism().unwrap().get().to_string();
    let done = stage.script(&["--site", "a=1", "--bind-to", "none"], "nproc");
    assert_eq!((done.code, done.out.trim()), (Some(0), cores.as_str()), "{done:?}");
    let done = stage.script(&["--host", "a/n1:4096", "--bind-to", "core"], "nproc");
    assert!(done.code == Some(1) && done.err.contains("--bind-to core: this node has"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn a_dry_run_says_who_would_run_where_and_starts_nothing() {
    let stage = Stage::new();
    let done = stage.script(&["--site", "b=3", "--dry-run", "--wdir", "/w"], "touch /tmp/never");
    let expected = "site  node  ranks  program\nb     n1    0-1    bash -c touch /tmp/never in /w\nb     n2    2\n";
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), expected, ""), "{done:?}");
    let words = ["run", "--dry-run", "-n", "3", "/x/a", "1", ":", "-n", "3", "--wdir", "/w", "b"];
    let done = stage.start(&words).finish(SOON);
    let at = stage.folder.path().display();
    let expected = format!(
        "site  node  ranks  program\na     n1    0-1    /x/a 1 in {at}\na     n2    2\nb     n1    3-4    b in /w\nb     n2    5\n"
    );
    assert_eq!((done.code, done.out), (Some(0), expected));
    let done = stage.start(&[&words[..2], &["--host", "a/n1"], &words[2..]].concat()).finish(SOON);
    let expected =
        format!("site  node  ranks  program\na     n1    0-2    /x/a 1 in {at}\na     n1    3-5    b in /w\n");
    assert_eq!((done.code, done.out), (Some(0), expected));
    let done = stage.start(&[&words[..2], &["--json"], &words[2..]].concat()).finish(SOON);
    let shown: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(
        shown["sites"][1]["parts"][0],
        serde_json::json!({"ranks": [3, 4, 5], "command": ["b"], "directory": "/w"})
    );
    let done = stage.script(&["-n", "4", "--dry-run", "--json"], "true");
    let shown: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!(shown["ranks"], 4);
    assert_eq!(shown["sites"][1]["nodes"][1], serde_json::json!({"name": "n2", "ranks": [3]}));
    let done = stage.script(&["--site", "nowhere=3", "--dry-run"], "true");
    assert_eq!(done.code, Some(2), "{done:?}");
    assert!(done.err.contains("unknown site `nowhere`"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn a_job_ends_when_its_time_is_over() {
    let stage = Stage::new();
    let done = stage.script(&["-n", "4", "--timeout", "700ms"], "echo up; trap '' TERM; sleep 1000 & wait; sleep 1000");
    assert_eq!((done.code, lines(&done.out)), (Some(124), vec!["up"; 4]), "{done:?}");
    assert!(done.err.ends_with("the ranks have run for 0.7 s, as long as --timeout allows\n"), "{done:?}");
    assert_eq!(stage.script(&["-n", "2", "--timeout", "1min"], "true").code, Some(0));
    stage.nothing_left();
}

#[test]
fn exit_codes_and_signals_come_back_with_their_place() {
    let stage = Stage::new();
    let done = stage.script(&["-n", "4"], "[ $LANDBRIDGE_RANK = 2 ] && exit 23; sleep 1000");
    assert_eq!(done.code, Some(23), "{done:?}");
    assert!(done.err.contains("site b, node n1: rank 2 exited with code 23"), "{done:?}");
    let done = stage.script(&["-n", "4"], "[ $LANDBRIDGE_RANK = 3 ] && kill -9 $$; sleep 1000");
    assert_eq!(done.code, Some(137), "{done:?}");
    assert!(done.err.contains("site b, node n2: rank 3 killed by signal 9 (SIGKILL)"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn ranks_that_ignore_sigterm_are_killed() {
    let stage = Stage::new();
    let done =
        stage.script(&["-n", "2"], "trap '' TERM; [ $LANDBRIDGE_RANK = 1 ] && exit 5; while :; do sleep 1; done");
    assert_eq!(done.code, Some(5), "{done:?}");
    stage.nothing_left();
}

#[test]
fn what_cannot_run_is_named_and_leaves_nothing() {
    let stage = Stage::new();
    let done = stage.start(&["run", "-n", "2", "--", "./no-such-program"]).finish(SOON);
    assert_eq!(done.code, Some(1), "{done:?}");
    let expected =
        format!("node n1: program ./no-such-program not found (looked in {})", stage.folder.path().display());
    assert!(done.err.contains(&expected), "{done:?}");
    let done = stage.start(&["run", "--site", "mars=2", "--", "/bin/true"]).finish(SOON);
    assert!(done.code == Some(2) && done.err.contains("unknown site `mars`: the sites file has a, b"), "{done:?}");
    stage.nothing_left();
}

#[test]
fn a_gateway_that_is_down_is_named() {
    for (up, down) in [("a", "b"), ("b", "a")] {
        let mut stage = Stage::without_gateways();
        stage.start_gateway(up);
        let done = stage.start(&["run", "--from", "a", "-n", "2", "--", "/bin/true"]).finish(SOON);
        assert_eq!(done.code, Some(1), "{done:?}");
        let port = stage.ports[usize::from(down == "b")];
        for word in [format!("site {down}"), "gw1".to_owned(), format!("127.0.0.1:{port}")] {
            assert!(done.err.contains(&word), "{word}: {done:?}");
        }
        stage.nothing_left();
    }
}

#[test]
fn a_killed_agent_or_keeper_ends_the_job() {
    for word in ["agent-worker", "agent"] {
        let stage = Stage::new();
        let running = waiting(&stage);
        let agents = stage.processes(word);
        assert_eq!(agents.len(), 4, "{word}");
        kill(agents[3], "KILL");
        let done = running.finish(SOON);
        assert_eq!(done.code, Some(75), "{done:?}");
        assert!(done.err.contains("agent"), "{done:?}");
        assert!(done.err.contains("node n"), "{done:?}");
        stage.nothing_left();
    }
}

#[test]
fn an_agent_that_is_hung_up_on_goes_on() {
    let stage = Stage::new();
    let go = stage.path("go");
    let running =
        stage.start_script(&["-n", "4"], &format!("echo up; until [ -e {} ]; do sleep 0.01; done", go.display()));
    wait_for("the ranks", SOON, || (running.out().lines().count() == 4).then_some(()));
    for word in ["agent-worker", "agent"] {
        for agent in stage.processes(word) {
            kill(agent, "HUP");
        }
    }
    // A signal is delivered before its target runs again, and these targets run before the ranks end.
    std::fs::write(go, "").unwrap();
    let done = running.finish(SOON);
    assert_eq!(done.code, Some(0), "{done:?}");
    stage.nothing_left();
}

/// A gateway raises its soft limit, but ranks get the old one: `select` breaks above 1024.
#[test]
fn ranks_may_open_as_many_files_as_the_gateway_before_it_raised_its_limit() {
    let stage = Stage::new();
    let done = stage.script(&["-n", "4"], "ulimit -Sn; ulimit -Hn");
    assert_eq!(done.code, Some(0), "{done:?}");
    let hard = String::from_utf8(Command::new("sh").args(["-c", "ulimit -Hn"]).output().unwrap().stdout).unwrap();
    let expected = [vec![OPEN_FILES.to_string(); 4], vec![hard.trim().to_owned(); 4]].concat();
    let mut got = lines(&done.out);
    got.sort_by_key(|line| line.parse::<u64>().unwrap_or(u64::MAX));
    assert_eq!(got, expected, "{done:?}");
    stage.nothing_left();
}

#[test]
fn a_killed_gateway_ends_the_job() {
    for site in ["a", "b"] {
        let mut stage = Stage::without_gateways();
        let pids = [stage.start_gateway("a"), stage.start_gateway("b")];
        let running = waiting(&stage);
        kill(pids[usize::from(site == "b")] as i32, "KILL");
        let done = running.finish(SOON);
        assert_eq!(done.code, Some(75), "{done:?}");
        assert!(done.err.contains(&format!("site {site}")) && done.err.contains("gateway"), "{done:?}");
        stage.nothing_left();
    }
}

#[test]
fn a_killed_run_takes_its_job_along() {
    let stage = Stage::new();
    let running = waiting(&stage);
    kill(running.child.id() as i32, "KILL");
    running.finish(SOON);
    stage.nothing_left();
}

#[test]
fn signals_end_the_job() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        let stage = Stage::new();
        let running = waiting(&stage);
        kill(running.child.id() as i32, signal);
        let done = running.finish(SOON);
        assert_eq!(done.code, Some(code), "{done:?}");
        stage.nothing_left();
    }
}

#[test]
fn output_that_nobody_reads_stops_the_ranks_and_loses_nothing() {
    let stage = Stage::new();
    // 20 MB per rank in lines of 99 bytes, into a pipe that is not read for a while.
    let script = "head -c 19999980 /dev/zero | tr '\\0' x | fold -w 99; echo; touch written-$LANDBRIDGE_RANK";
    let words = ["run", "-n", "2", "--", "bash", "-c", script];
    let mut running = stage.start_with(&words, |command| {
        command.stdout(Stdio::piped());
    });
    std::thread::sleep(Duration::from_secs(2));
    assert!(!stage.path("written-0").exists() && !stage.path("written-1").exists(), "nothing held the ranks back");
    let mut pipe = running.child.stdout.take().unwrap();
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut pipe, &mut text).unwrap();
    let done = running.finish(SOON);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(text.iter().filter(|byte| **byte == b'x').count(), 2 * 19_999_980);
    let whole = text.split(|byte| *byte == b'\n').filter(|line| line.len() == 99).count();
    assert_eq!(whole, 2 * 19_999_980 / 99);
    stage.nothing_left();
}

#[test]
fn a_reader_that_goes_away_ends_the_job() {
    let stage = Stage::new();
    let words = ["run", "-n", "2", "--", "yes"];
    let mut running = stage.start_with(&words, |command| {
        command.stdout(Stdio::piped());
    });
    let mut pipe = running.child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut pipe, &mut [0; 1000]).unwrap();
    drop(pipe);
    assert_eq!(running.finish(SOON).code, Some(141));
    stage.nothing_left();
}

#[test]
fn a_stopped_reader_does_not_keep_a_job_from_ending() {
    let stage = Stage::new();
    let running = stage.start_with(&["run", "-n", "2", "--", "yes"], |command| {
        command.stdout(Stdio::piped()).process_group(0);
    });
    // Wait until the job runs and the pipe is full.
    std::thread::sleep(Duration::from_secs(2));
    kill(running.child.id() as i32, "TERM");
    let done = running.finish(SOON);
    assert_eq!(done.code, Some(143), "{done:?}");
    stage.nothing_left();
}

#[test]
fn two_jobs_share_the_gateways() {
    let stage = Stage::new();
    let began = Instant::now();
    let jobs: Vec<Running> =
        (0..2).map(|_| stage.start_script(&["-n", "4"], "sleep 0.5; echo $LANDBRIDGE_JOB")).collect();
    let outs: Vec<String> = jobs.into_iter().map(|job| job.finish(SOON).out).collect();
    for out in &outs {
        let ids = lines(out);
        assert!(ids.len() == 4 && ids[0] == ids[3], "{outs:?} after {:?}", began.elapsed());
    }
    assert_ne!(outs[0], outs[1]);
    stage.nothing_left();
}

/// A PMI-1 client in four lines of shell.
const PMI: &str = r#"
ask() { echo "cmd=$1" >&$PMI_FD; read -r -u $PMI_FD answer; }
ask "init pmi_version=1 pmi_subversion=1"
ask "put kvsname=landbridge key=k$PMI_RANK value=from $PMI_RANK"
ask barrier_in
ask "get kvsname=landbridge key=k$(( ($PMI_RANK + 1) % $PMI_SIZE ))"
"#;

#[test]
fn ranks_of_all_nodes_exchange_values_by_pmi() {
    let stage = Stage::new();
    let words = ["run", "-n", "8", "--mpi", "mpich", "--", "bash", "-c"];
    // This value is for the first site: site b's agents have their own.
    let provider = |command: &mut std::process::Command| {
        command.env("LANDBRIDGE_PROVIDER", "/bin/true");
    };
    let script = format!("{PMI} echo \"$answer\"; ask barrier_in; ask finalize");
    let done = stage.start_with(&[&words[..], &[&script]].concat(), provider).finish(SOON);
    assert_eq!(done.code, Some(0), "{done:?}");
    let expected: Vec<String> =
        (0..8).map(|rank| format!("cmd=get_result rc=0 msg=success value=from {rank}")).collect();
    assert_eq!(lines(&done.out), expected);

    let script = format!("{PMI} [ $PMI_RANK = 5 ] && exit 0; ask barrier_in; ask finalize");
    let done = stage.start_with(&[&words[..], &[&script]].concat(), provider).finish(SOON);
    assert_eq!(done.code, Some(1), "{done:?}");
    assert!(done.err.contains("rank 5 exited without calling MPI_Finalize"), "{done:?}");

    let script = format!("{PMI} [ $PMI_RANK = 6 ] && ask 'abort exitcode=7'; ask barrier_in");
    let done = stage.start_with(&[&words[..], &[&script]].concat(), provider).finish(SOON);
    assert_eq!(done.code, Some(7), "{done:?}");
    assert!(done.err.contains("rank 6 called MPI_Abort with code 7"), "{done:?}");

    let unrecognised = stage.start_script(&["-n", "2"], PMI).finish(SOON);
    assert!(unrecognised.err.contains("name it with --mpi"), "{unrecognised:?}");
    stage.nothing_left();
}
