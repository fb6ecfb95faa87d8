//! Simulated failures of a lab's hosts.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::process::{Command, Stdio};

use support::{ECHO_GATEWAY, as_nobody, driver, lab, lab_ok, skip, text};

/// Shell functions for a host that talks to an echo server at $1 and prints the result of each read: the line received,
/// `silence` (nothing within a second, and the connection is still open), or `end` (closed or reset). Files order the
/// steps.
const CLIENT: &str = r#"
    listen() { $L lab enter $1 -- socat TCP-LISTEN:7700,fork,reuseaddr EXEC:cat & }
    client() { $L lab enter $1 -- bash -c '
        for i in $(seq 500); do exec 3<>/dev/tcp/'$2'/7700 && break; sleep 0.01; done 2>/dev/null
        say() { echo $1 >&3; read -t $2 x <&3; c=$?
            [ $c = 0 ] && echo $x || { [ $c -gt 128 ] && echo silence || echo end; }; }
        say one 20; : > /tmp/up
        until [ -e /tmp/struck ]; do sleep 0.01; done; say two 1; : > /tmp/heard
        until [ -e /tmp/mended ]; do sleep 0.01; done; read -t 20 x <&3 && echo $x' 2>/dev/null & c=$!
        until $L lab enter $1 -- test -e /tmp/up; do sleep 0.01; done; }
    tell() { $L lab enter $1 -- touch /tmp/$2; }
    heard() { until $L lab enter $1 -- test -e /tmp/heard; do sleep 0.01; done; }
"#;

fn script(steps: &str) -> String {
    format!("{CLIENT}\n{steps}")
}

#[test]
fn a_host_that_loses_its_power_says_nothing_to_its_peers() {
    if skip() {
        return;
    }
    for (near, far, address) in [("b-n1", "b-n2", "10.2.0.2"), ("a-gw1", "b-gw1", "198.18.2.1")] {
        let steps = format!(
            "listen {far}; client {near} {address}; $L lab kill {far}; tell {near} struck; heard {near}
             $L lab enter {near} -- ss -tnH state established '( dport = :7700 )' | wc -l"
        );
        let out = lab_ok(&[], &script(&steps));
        assert_eq!(out, "one\nsilence\n1\n", "{far}");
    }
}

#[test]
fn a_frozen_host_answers_nobody_until_it_thaws() {
    if skip() {
        return;
    }
    let steps = "listen b-n2; client b-n1 10.2.0.2
        $L lab enter b-n2 -- bash -c 'trap \"echo late\" TERM; until false; do sleep 0.01; done' & sleeper=$!
        until $L lab enter b-n2 -- pgrep -x sleep >/dev/null; do sleep 0.01; done
        $L lab freeze b-n2; $L lab freeze b-n2; tell b-n1 struck; heard b-n1
        $L lab enter b-n2 -- echo entered & entered=$!; kill $sleeper; sleep 0.5; echo frozen
        $L lab thaw b-n2; wait $entered; tell b-n1 mended; wait $c
        kill -9 $sleeper; $L lab thaw b-n2; $L lab enter b-n2 -- hostname";
    let out = lab_ok(&[], &script(steps));
    let mut lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..3], ["one", "silence", "frozen"], "{out}");
    // Three processes continued at the same time.
    lines[3..6].sort_unstable();
    assert_eq!(lines[3..], ["entered", "late", "two", "b-n2"], "{out}");
}

#[test]
fn a_host_that_freezes_itself_is_thawed_by_another() {
    if skip() {
        return;
    }
    let steps = "$L lab enter b-n1 -- bash -c '$L lab freeze b-n1; echo thawed' & c=$!
        sleep 0.5; echo waiting; $L lab enter b-n2 -- $L lab thaw b-n1; wait $c";
    assert_eq!(lab_ok(&[], steps), "waiting\nthawed\n");
    let output = lab(&[], "$L lab enter b-n1 -- bash -c 'sleep 1000 & $L lab freeze b-n1' & sleep 0.5; exit 4");
    assert_eq!(output.status.code(), Some(4), "a lab with a frozen host ends: {}", text(&output.stderr));
}

#[test]
fn an_unplugged_host_is_silent_and_notices_nothing() {
    if skip() {
        return;
    }
    for (near, far, address, device) in [
        ("b-n1", "b-n2", "10.2.0.2", "eth0"),
        ("a-gw1", "b-gw1", "198.18.2.1", "wan0"),
        ("b-n1", "b-gw1", "10.2.0.101", "eth0"),
    ] {
        let steps = format!(
            "listen {far}; client {near} {address}; $L lab unplug {far}; tell {near} struck; heard {near}
             $L lab enter {far} -- ip -o link show {device} | grep -o LOWER_UP
             $L lab plug {far}; tell {near} mended; wait $c; $L lab wan report | grep -co 'unplugged_packets\":[1-9]'"
        );
        let out = lab(&[], &script(&steps));
        let counted = u8::from(device == "wan0");
        assert_eq!(text(&out.stdout), format!("one\nsilence\nLOWER_UP\ntwo\n{counted}\n"), "{}", text(&out.stderr));
    }
}

#[test]
fn one_connection_is_reset_and_others_stand() {
    if skip() {
        return;
    }
    let steps = r#"$L lab enter a-n2 -- socat TCP-LISTEN:7700,fork,reuseaddr EXEC:cat &
        $L lab enter a-n1 -- bash -c '
            for host in 10.1.0.101 10.1.0.2 10.1.0.2; do
                for i in $(seq 500); do exec {fd}<>/dev/tcp/$host/7700 && break; sleep 0.01; done 2>/dev/null
                fds+=($fd)
            done
            ask() { for fd in ${fds[@]}; do
                (echo x >&$fd; timeout 5 head -n 1 <&$fd) 2>/dev/null || true; done | wc -l; }
            ask; $L lab reset a-n1 --to 10.1.0.2:7700; ask
            $L lab reset a-n1 --to a-gw1 --of bash; ask; $L lab reset a-n1 --to a-gw1
            $L lab reset a-n1 --to n2 --of nobody
            $L lab reset a-n1 --to b-n1; $L lab reset a-n1 --to n2:http; $L lab reset a-n1; ask
        '"#;
    let output = lab(&["--gateway-command", ECHO_GATEWAY], steps);
    let out = text(&output.stdout);
    let lines: Vec<&str> = out.lines().collect();
    let errors = text(&output.stderr);
    assert_eq!(lines.len(), 7, "{out}\n{errors}");
    assert_eq!([lines[0], lines[2], lines[4], lines[6]], ["3", "2", "1", "0"], "{out}\n{errors}");
    let named = |line: &str, peer: &str| {
        line.starts_with("10.1.0.1:") && line.contains(&format!(" to {peer}:7700 (bash, process "))
    };
    assert!(named(lines[1], "10.1.0.2") && named(lines[3], "10.1.0.101") && named(lines[5], "10.1.0.2"), "{out}");
    for wanted in [
        "a-n1 has no established TCP connection to a-gw1; it has 10.1.0.1:",
        "a-n1 has no established TCP connection to n2 of process nobody; it has 10.1.0.1:",
        "\"b-n1\" is neither an address nor a host of this site; those are a-n1, a-n2, a-gw1",
        "\"n2:http\" is not HOST:PORT: \"http\" is not a port",
    ] {
        assert!(errors.contains(wanted), "{wanted}\n{errors}");
    }
}

#[test]
fn the_peer_of_a_reset_connection_receives_an_rst() {
    if skip() {
        return;
    }
    let steps = "$L lab enter b-gw1 -- bash -c '
            for i in $(seq 500); do exec 3<>/dev/tcp/198.18.1.1/7700 && break; sleep 0.01; done 2>/dev/null
            : > /tmp/up; cat <&3' &
        until $L lab enter b-gw1 -- test -e /tmp/up; do sleep 0.01; done
        until $L lab reset a-gw1 --to 198.18.2.1 2>/dev/null; do sleep 0.01; done; wait %1";
    let output = lab(&["--sites", "2", "--nodes", "1", "--gateway-command", ECHO_GATEWAY], steps);
    assert!(text(&output.stderr).contains("Connection reset by peer"), "{output:?}");
}

#[test]
fn a_host_that_is_not_there_cannot_fail() {
    if skip() {
        return;
    }
    let steps = "for how in kill freeze thaw unplug plug reset; do $L lab $how c-n1; echo $?; done
        $L lab kill b-n1; $L lab unplug b-n1; echo $?";
    let output = lab(&["--nodes", "1"], steps);
    assert_eq!(text(&output.stdout), "125\n".repeat(7), "{}", text(&output.stderr));
    let errors = text(&output.stderr);
    assert_eq!(
        errors.matches("there is no host \"c-n1\"; this lab has a-gw1, a-n1, b-gw1, b-n1").count(),
        6,
        "{errors}"
    );
    assert!(errors.contains("b-n1 does not answer"), "{errors}");
    for how in ["kill", "freeze", "thaw", "unplug", "plug", "reset"] {
        let outside = Command::new(driver()).args(["lab", how, "a-n1"]).output().unwrap();
        assert!(text(&outside.stderr).contains("no lab around this process"), "{}", text(&outside.stderr));
    }
}

#[test]
fn hosts_that_are_one_machine_do_not_fail_alone() {
    let steps = "for how in kill freeze thaw unplug plug reset; do $L lab $how a-n1; echo $?; done; exit 5";
    let mut command = Command::new(driver());
    command.args(["--loopback", "--", "bash", "-c", steps]).env("L", driver()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(text(&output.stdout), "125\n".repeat(6));
    let errors = text(&output.stderr);
    assert_eq!(errors.matches("this is a loopback lab").count(), 6, "{errors}");
    assert_eq!(errors.matches("start the lab with --isolation namespaces").count(), 6, "{errors}");
}

#[test]
fn an_ordinary_users_hosts_fail_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut command) = as_nobody(dir.path()) else { return };
    let steps = "listen b-n2; client b-n1 10.2.0.2; $L lab freeze b-n2; tell b-n1 struck; heard b-n1
        $L lab unplug b-n2; $L lab plug b-n2; $L lab thaw b-n2; tell b-n1 mended; wait $c
        client a-gw1 198.18.2.1; $L lab unplug b-gw1; tell a-gw1 struck; heard a-gw1
        $L lab reset a-gw1 --to 198.18.2.1 | grep -o 198.18.2.1; $L lab kill b-gw1; echo $?";
    command.args(["--namespaces", "--gateway-command", ECHO_GATEWAY, "--", "bash", "-c", &script(steps)]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(text(&output.stdout), "one\nsilence\ntwo\none\nsilence\n198.18.2.1\n0\n", "{errors}");
}
