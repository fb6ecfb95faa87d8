//! Real labs in real namespaces, driven through `examples/lab.rs`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::wan::WanReport;
use support::{ECHO_GATEWAY, as_nobody, driver, lab, lab_ok, skip, text};

#[test]
fn two_labs_at_once_do_not_meet() {
    if skip() {
        return;
    }
    let run = || {
        std::thread::spawn(|| {
            for _ in 0..2 {
                let out = lab_ok(
                    &["--gateway-command", ECHO_GATEWAY],
                    "echo > /run/mine; sleep 0.2; ls /run; hostname; $L lab enter b-n2 -- hostname",
                );
                assert_eq!(out, "landbridge-lab\nmine\na-n1\nb-n2\n");
            }
        })
    };
    let threads = [run(), run()];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn sites_cannot_reach_each_other_and_hosts_of_one_can() {
    if skip() {
        return;
    }
    let reach = r#"try() { (exec 3<>/dev/tcp/$1/7700) 2>&1 | grep -om1 'Network is unreachable\|refused' || echo open; }
        try 10.2.0.1; try 198.18.2.1; try 198.18.1.1; try 10.1.0.2; try 10.1.0.101"#;
    let out = lab_ok(&["--gateway-command", ECHO_GATEWAY], reach);
    assert_eq!(out, "Network is unreachable\nNetwork is unreachable\nNetwork is unreachable\nrefused\nopen\n");
    // The node cannot even reach it through its own gateway, which does not forward.
    let out = lab_ok(
        &["--gateway-command", ECHO_GATEWAY],
        "ip route add default via 10.1.0.101; timeout 1 bash -c 'exec 3<>/dev/tcp/198.18.2.1/7700' 2>/dev/null; \
         echo $?",
    );
    assert_ne!(out, "0\n");
}

#[test]
fn direct_routing_is_there_when_asked_for() {
    if skip() {
        return;
    }
    let script = "$L lab enter b-n2 -- socat TCP-LISTEN:5000,reuseaddr SYSTEM:hostname &
        for i in $(seq 500); do exec 3<>/dev/tcp/10.2.0.2/5000 && break; sleep 0.01; done 2>/dev/null; cat <&3";
    assert_eq!(lab_ok(&["--route-directly", "--delay", "1ms"], script), "b-n2\n");
}

#[test]
fn sites_may_use_the_same_range() {
    if skip() {
        return;
    }
    let script = "for h in a-n1 b-n1; do $L lab enter $h -- ip -o -4 addr show eth0 | grep -o '10[.0-9]*/24'; done
        grep advertise $LANDBRIDGE_SITES";
    let out = lab_ok(&["--same-range"], script);
    let expected = "10.0.0.1/24\n10.0.0.1/24\nadvertise = \"198.18.1.1:7700\"\nadvertise = \"198.18.2.1:7700\"\n";
    assert_eq!(out, expected);
}

#[test]
fn every_host_has_its_own_name_tmp_shm_and_processes() {
    if skip() {
        return;
    }
    let script = "touch /tmp/x /dev/shm/x
        $L lab enter a-n2 -- bash -c 'hostname; ls /tmp/x /dev/shm/x 2>/dev/null | wc -l; echo $$; ps -e -o comm= | grep -c sleep; grep -c b-n1 /etc/hosts'
        getent hosts a-gw1 n2";
    let out = lab_ok(&[], &format!("cd / ; sleep 5 & {script}"));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..2], ["a-n2", "0"], "{out}");
    let pid: u32 = lines[2].parse().unwrap();
    assert!(pid < 20, "{out}");
    assert_eq!(lines[3..5], ["0", "0"], "{out}");
    assert!(lines[5].starts_with("10.1.0.101") && lines[6].starts_with("10.1.0.2"), "{out}");
}

#[test]
fn delay_is_at_least_what_was_asked() {
    if skip() {
        return;
    }
    let script = r#"$L lab enter a-gw1 -- bash -c '
        exec 3<>/dev/tcp/198.18.2.1/7700
        for i in 1 2 3; do s=$(date +%s%N); echo x >&3; read x <&3; echo $(( ($(date +%s%N) - s) / 1000 )); done'"#;
    for (delay, least) in [("10ms", 20_000), ("1ms", 2_000)] {
        let out = lab_ok(&["--delay", delay, "--gateway-command", ECHO_GATEWAY], script);
        let round_trips: Vec<u64> = out.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(round_trips.len(), 3);
        assert!(round_trips.iter().all(|us| *us >= least), "{delay}: {out}");
    }
}

/// Sends `megabytes` from gateway a to gateway b and returns the number of bytes that arrived, the nanoseconds taken
/// and the report.
fn transfer(megabytes: u32, flags: &[&str]) -> (u64, u64, WanReport) {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("wan.json");
    let mut all = vec!["--report", report.to_str().unwrap(), "--nic-rate", "0"];
    all.extend(flags);
    let script = format!(
        "$L lab enter b-gw1 -- bash -c 'socat -u TCP-LISTEN:5000,reuseaddr - | wc -c' &
         $L lab enter a-gw1 -- bash -c '
            for i in $(seq 500); do exec 3<>/dev/tcp/198.18.2.1/5000 && break; sleep 0.01; done 2>/dev/null
            s=$(date +%s%N); head -c {megabytes}M /dev/zero >&3; exec 3>&-; echo $s'
         wait; date +%s%N"
    );
    let out = lab_ok(&all, &script);
    let mut numbers: Vec<u64> = out.lines().map(|line| line.parse().unwrap()).collect();
    numbers.sort_unstable();
    let report = serde_json::from_str(&std::fs::read_to_string(&report).unwrap()).unwrap();
    (numbers[0], numbers[2] - numbers[1], report)
}

#[test]
fn the_rate_holds_and_framing_is_charged() {
    if skip() {
        return;
    }
    let (arrived, took, report) = transfer(4, &["--delay", "1ms", "--wan-rate", "100mbit"]);
    assert_eq!(arrived, 4 << 20);
    let counters = report.link("a", "b").unwrap().counters;
    let (payload, segments) = (4u64 << 20, counters.segments);
    assert!(segments >= payload / 1448, "{counters:?}");
    assert!(counters.wire_bytes >= payload + segments * (24 + 14 + 40), "{counters:?}");
    // At 100 Mbit/s the charged bytes take this long; the queue at the end is included because the receiver waited.
    let least = payload * 80;
    assert!(took >= least, "{took} ns for {payload} bytes");
    assert!(counters.lost_segments == 0 && counters.down_segments == 0, "{counters:?}");
    assert!(report.ports.iter().all(|port| port.send_errors == 0), "{report:?}");
}

#[test]
fn loss_is_by_segment_counted_and_repaired_by_tcp() {
    if skip() {
        return;
    }
    let (arrived, _, report) = transfer(8, &["--delay", "1ms", "--loss", "2%"]);
    assert_eq!(arrived, 8 << 20, "TCP repairs what was lost");
    let counters = report.link("a", "b").unwrap().counters;
    // 2 % of about 5,800 segments, within ten standard deviations.
    let lost = counters.lost_segments as f64 / counters.segments as f64;
    assert!((0.005..0.04).contains(&lost), "{counters:?}");
    assert!(counters.packets < counters.segments, "super-packets pass whole: {counters:?}");
}

#[test]
fn links_change_while_the_lab_runs() {
    if skip() {
        return;
    }
    let script = r#"try() { $L lab enter a-gw1 -- timeout 1 bash -c 'exec 3<>/dev/tcp/198.18.2.1/7700; echo x >&3; read x <&3; echo $x'; echo $?; }
        try; $L lab wan a b down; try; $L lab wan b a up delay=2ms; try
        $L lab wan a b colour=red 2>&1; $L lab wan a z down 2>&1; $L lab wan report | grep -o '"delay_ns":[0-9]*' | sort -u"#;
    let out = lab_ok(&["--gateway-command", ECHO_GATEWAY], script);
    let expected = "x\n0\n124\nx\n0\nlab: \"colour\" is none of delay, jitter, loss, rate, queue, up, down\n\
                    lab: there is no site \"z\"; there are a, b\n\"delay_ns\":2000000\n";
    assert_eq!(out, expected);
}

#[test]
fn exit_codes_signals_input_directory_and_environment_pass_through() {
    if skip() {
        return;
    }
    assert_eq!(lab(&[], "exit 42").status.code(), Some(42));
    assert_eq!(lab(&[], "kill -TERM $$").status.code(), Some(128 + 15));
    let missing = Command::new(driver()).args(["--", "/nowhere/prog"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("a-n1: /nowhere/prog: No such file"), "{}", text(&missing.stderr));
    let script = "cd /etc; export MARK='two words'
        echo input | $L lab enter b-n1 -- bash -c 'cat; pwd; echo $MARK; echo problem >&2; exit 7'; echo $?
        $L lab enter b-n1 -- nonsense; echo $?; $L lab enter b-n1 -- /etc/hosts; echo $?
        $L lab enter b-n1 -- bash -c 'kill -KILL $$'; echo $?; $L lab enter b-n7 -- true; echo $?";
    let output = lab(&[], script);
    assert_eq!(text(&output.stdout), "input\n/etc\ntwo words\n7\n127\n126\n137\n125\n");
    let errors = text(&output.stderr);
    assert!(errors.contains("problem") && errors.contains("b-n1: nonsense: No such file"), "{errors}");
    assert!(errors.contains("no host \"b-n7\"; this lab has a-gw1, a-n1"), "{errors}");
    let outside = Command::new(driver()).args(["lab", "enter", "a-n1", "--", "true"]).output().unwrap();
    assert!(text(&outside.stderr).contains("no lab around this process"), "{}", text(&outside.stderr));
}

#[test]
fn the_death_of_enter_hangs_up_on_the_command_and_its_group() {
    if skip() {
        return;
    }
    let count = "$L lab enter a-n2 -- bash -c 'ps -e -o args= | grep -c ^sleep'";
    let script = format!(
        "$L lab enter a-n2 -- bash -c 'sleep 100 & sleep 100; true' & e=$!
         until [ $({count}) = 2 ]; do sleep 0.01; done; kill -9 $e
         for i in $(seq 500); do n=$({count}); [ $n = 0 ] && break; sleep 0.01; done; echo $n
         $L lab enter a-n2 -- bash -c 'trap \"sleep 0.5; echo cleaned > /tmp/over; exit\" HUP
            echo up > /tmp/traps; while :; do sleep 0.01; done' & e=$!
         until $L lab enter a-n2 -- test -e /tmp/traps; do sleep 0.01; done; kill -9 $e
         for i in $(seq 500); do $L lab enter a-n2 -- test -e /tmp/over && break; sleep 0.01; done
         $L lab enter a-n2 -- cat /tmp/over
         $L lab enter a-n2 -- bash -c 'trap \"echo got it; exit 3\" TERM; echo up > /tmp/up; while :; do sleep 0.01; done' & e=$!
         until $L lab enter a-n2 -- test -e /tmp/up; do sleep 0.01; done; kill -TERM $e; wait $e; echo $?"
    );
    assert_eq!(lab_ok(&[], &script), "0\ncleaned\ngot it\n3\n");
}

#[test]
fn a_host_that_loses_its_power_is_gone_and_the_lab_lives_on() {
    if skip() {
        return;
    }
    let script = "$L lab enter b-n2 -- sleep 1000 & e=$!
        until $L lab enter b-n2 -- pgrep -x sleep >/dev/null; do sleep 0.01; done
        $L lab kill b-n2; echo $?; sleep 0.2; kill $e && wait $e; echo $?; $L lab enter b-n2 -- true; echo $?
        $L lab kill b-gw1; $L lab wan report | grep -c deliveries; $L lab enter b-n1 -- hostname; exit 6";
    let output = lab(&["--gateway-command", ECHO_GATEWAY], script);
    assert_eq!(text(&output.stdout), "0\n125\n125\n1\nb-n1\n");
    assert_eq!(output.status.code(), Some(6));
    let errors = text(&output.stderr);
    assert!(errors.contains("b-n2 ended unexpectedly") && errors.contains("b-n2 does not answer"), "{errors}");
    assert!(errors.contains("gateway b-gw1 ended before the command"), "{errors}");
}

#[test]
fn gateways_that_fail_are_reported_with_their_last_words() {
    if skip() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("gw");
    std::fs::write(&script, "echo cannot read $1 of $2 >&2; exit 9\n").unwrap();
    let logs = dir.path().join("logs");
    let command = format!("bash {} {{sites_file}} {{site}}-{{gateway}}", script.display());
    let flags = ["--visible", dir.path().to_str().unwrap(), "--logs", logs.to_str().unwrap()];
    let output = lab(&[&flags[..], &["--gateway-command", &command]].concat(), "true");
    assert_eq!(output.status.code(), Some(125));
    let errors = text(&output.stderr);
    assert!(errors.contains("-gw1: ended before it listened on 0.0.0.0:7700: exit status: 9"), "{errors}");
    assert!(errors.contains("cannot read /run/landbridge-lab/sites.toml of "), "{errors}");
    let log = std::fs::read_to_string(logs.join("a-gw1.log")).unwrap();
    assert!(log.is_empty() || log == "cannot read /run/landbridge-lab/sites.toml of a-gw1\n", "{log}");
    let output =
        lab(&["--gateway-command", ECHO_GATEWAY], "$L lab enter a-gw1 -- pkill -KILL socat; sleep 0.2; exit 4");
    assert_eq!(output.status.code(), Some(4));
    let errors = text(&output.stderr);
    assert!(errors.contains("gateway a-gw1 ended before the command: signal: 9"), "{errors}");
}

/// Processes whose environment holds this marker.
fn marked(marker: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let zombie = state.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" Z"));
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        !zombie && environment.windows(marker.len()).any(|window| window == marker.as_bytes())
    })
    .collect()
}

fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a lab with `command`, waits until its gateways have started, ends it by `end`, and checks that nothing is
/// left.
fn nothing_is_left(mut command: Command, name: &str, end: impl FnOnce(u32, &[u32])) {
    let marker = format!("LAB_TEST_MARK={name}-{}", std::process::id());
    let (key, value) = marker.split_once('=').unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut child = command
        .env(key, value)
        .env("TMPDIR", dir.path())
        .args(["--gateway-command", "sleep 1000", "--", "sleep", "1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    // The gateways never listen, so the lab is still under construction; all its other processes exist.
    eventually("the lab's gateways start", || {
        let asleep =
            |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().starts_with(b"sleep");
        marked(&marker).iter().filter(|pid| asleep(pid)).count() == 2
    });
    let pids = marked(&marker);
    end(child.id(), &pids);
    eventually("every process is gone", || {
        let _ = child.try_wait();
        marked(&marker).is_empty()
    });
    child.wait().unwrap();
    // Without a process, only a mount could keep one of its namespaces alive.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("landbridge-lab"), "{mounts}");
    let interfaces = std::fs::read_dir("/sys/class/net").unwrap().flatten().map(|entry| entry.file_name());
    assert!(!interfaces.into_iter().any(|name| name == "sw-a" || name == "l-a-n1"), "an interface of the lab is here");
    eventually("temporary files are gone", || std::fs::read_dir(dir.path()).unwrap().next().is_none());
}

fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// The lab's process that was started with this hidden command.
fn find_process(pids: &[u32], hidden: &str) -> u32 {
    let is = |pid: &&u32| text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default()).contains(hidden);
    *pids.iter().find(is).unwrap()
}

#[test]
fn nothing_is_left_after_kill_9() {
    if skip() {
        return;
    }
    let isolated = || {
        let mut command = Command::new(driver());
        command.arg("--namespaces");
        command
    };
    nothing_is_left(isolated(), "signal", |pid, _| kill(pid, "-TERM"));
    nothing_is_left(isolated(), "caller", |pid, _| kill(pid, "-KILL"));
    nothing_is_left(isolated(), "outer", |_, pids| kill(find_process(pids, "lab-outer"), "-KILL"));
    nothing_is_left(isolated(), "supervisor", |_, pids| kill(find_process(pids, "lab-supervisor"), "-KILL"));
}

#[test]
fn nothing_is_left_of_a_loopback_lab() {
    let loopback = || {
        let mut command = Command::new(driver());
        command.arg("--loopback");
        command
    };
    nothing_is_left(loopback(), "loopback-caller", |pid, _| kill(pid, "-KILL"));
    nothing_is_left(loopback(), "loopback-supervisor", |_, pids| kill(find_process(pids, "lab-supervisor"), "-KILL"));
    nothing_is_left(loopback(), "loopback-node", |_, pids| kill(find_process(pids, "lab-node"), "-KILL"));
    nothing_is_left(loopback(), "loopback-signal", |pid, _| kill(pid, "-TERM"));
}

#[test]
fn signals_end_the_lab_in_order() {
    if skip() {
        return;
    }
    for (signal, code) in [("-TERM", 128 + 15), ("-INT", 128 + 2), ("-HUP", 128 + 1)] {
        let dir = tempfile::tempdir().unwrap();
        let up = dir.path().join("up");
        let mut child = Command::new(driver())
            .args(["--namespaces", "--visible", dir.path().to_str().unwrap()])
            .args(["--", "bash", "-c", ": > $UP; exec sleep 1000"])
            .env("UP", &up)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the command runs", || up.exists());
        kill(child.id(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
    }
}

#[test]
fn an_ordinary_user_gets_an_isolated_lab() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut command) = as_nobody(dir.path()) else { return };
    let script = r#"hostname; $L lab enter b-n2 -- hostname; (exec 3<>/dev/tcp/10.2.0.1/80) 2>&1 | grep -om1 unreachable
        $L lab enter a-gw1 -- bash -c 'exec 3<>/dev/tcp/198.18.2.1/7700; echo through >&3; read x <&3; echo $x'"#;
    command.args(["--namespaces", "--gateway-command", ECHO_GATEWAY, "--", "bash", "-c", script]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "a-n1\nb-n2\nunreachable\nthrough\n");
}

#[test]
fn nothing_is_left_after_kill_9_for_an_ordinary_user() {
    let dir = tempfile::tempdir().unwrap();
    for victim in ["caller", "lab-outer", "lab-supervisor"] {
        let Some(mut command) = as_nobody(dir.path()) else { return };
        command.arg("--namespaces");
        nothing_is_left(command, &format!("nobody-{victim}"), |pid, pids| {
            kill(if victim == "caller" { pid } else { find_process(pids, victim) }, "-KILL");
        });
    }
}

#[test]
fn without_isolation_a_loopback_lab_runs_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let script = "cat $LANDBRIDGE_SITES; exit 5";
    let mut command = Command::new(driver());
    command.args(["--loopback", "--", "bash", "-c", script]).env("TMPDIR", dir.path());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", text(&output.stderr));
    let sites = text(&output.stdout);
    assert!(sites.contains("kind = \"local\"") && sites.contains("inside = \"127.2."), "{sites}");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "the temporary directory is removed");

    // PATH alone does not hide iproute2, so a user without network namespaces simulates a machine that cannot isolate.
    let mut command = Command::new("unshare");
    command.args(["-Ur", "bash", "-c", "echo 0 > /proc/sys/user/max_net_namespaces 2>/dev/null && exec \"$@\"", "-"]);
    command.arg(driver()).args(["--", "echo", "ran"]);
    let output = command.output().unwrap();
    if !output.status.success() {
        println!("skipped the automatic fallback: {}", text(&output.stderr));
        return;
    }
    assert_eq!(text(&output.stdout), "ran\n");
    let errors = text(&output.stderr);
    assert!(errors.contains("new namespaces") && errors.contains("Falling back to loopback"), "{errors}");
}

#[test]
fn impossible_wishes_are_refused() {
    for (flags, word) in [
        (&["--sites", "0"][..], "sites is 0"),
        (&["--sites", "27"], "sites is 27"),
        (&["--nodes", "101"], "nodes is 101"),
        (&["--same-range", "--route-directly"], "same range"),
        (&["--visible", "/tmp/does-not-exist"], "/tmp/does-not-exist cannot be kept visible"),
    ] {
        let output = Command::new(driver()).args(flags).args(["--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains(word), "{}", text(&output.stderr));
    }
    let output = Command::new(driver()).arg("--").output().unwrap();
    assert!(text(&output.stderr).contains("no command"), "{}", text(&output.stderr));
}
