"""Staging behind other users' jobs: Debian's own Slurm and munge in a lab, node services, users who are not root."""

import hashlib
import json
import os
import random
import re
import secrets
import signal
import time
from pathlib import Path
from dataclasses import replace

import pytest

from harness import LANDBRIDGE, ONCE, PROGRAMS, Process
from people import people  # noqa: F401
from services import start
from test_slurm import slurm  # noqa: F401
from test_stage import description, make_tree

LAB = f"{LANDBRIDGE} lab"


def cluster(services=("slurm", "node_service")):
    starter = 'kind = "slurm"\nnode_service = 7760'
    return {"starter": starter, "services": list(services), "nodes": False}


def sites():
    return {"a": cluster(), "b": {}}


def script(person, *lines):
    """Root's commands on site a's login node; lines that begin with `anna: ` are the user's."""
    own = " ".join(f"'{word}'" for word in person.words("bash", "-c"))
    typed = [f"{own} {quoted(line.removeprefix('anna: '))}" if line.startswith("anna: ") else line for line in lines]
    return ["bash", "-ec", "\n".join(["cd /", *typed])]


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def on(node, command):
    """A command of root's on a node, each of which has a /tmp of its own."""
    return f"{LAB} enter {node} -- sh -c {quoted(command)}"


def begin(workshop, person, *lines, nodes=4, staging=False, **options):
    plan = {"a": cluster(services=["slurm_staging"]), "b": {}} if staging else sites()
    return start(workshop, plan, script(person, *lines), nodes=nodes, host="a-gw1", person=person, **options)


MUNGED = "/run/slurm-a/munge/socket"


def request(work, node="n1", release=2):
    return {"landbridge_node_service": release, "node": node, "nonce": secrets.token_hex(16), "work": work}


def removal(*paths):
    return {"remove": {"paths": [list(os.fsencode(path)) for path in paths]}}


def call(*whats, node="n1", munged=MUNGED, port=7760):
    """The words of a call of a node's service, made by the user who runs them."""
    return ["/usr/bin/python3", PROGRAMS / "node_caller.py", f"{node}:{port}", munged, *map(json.dumps, whats)]


def line(words):
    return " ".join(quoted(str(word)) for word in words)


def answers(done):
    """What each call was answered: reasons of refusals, else exit codes and words."""
    def short(answer):
        answer = answer.get("unproven", answer)
        return answer["refused"]["reason"] if "refused" in answer else (answer["ended"]["code"], answer["ended"]["words"])
    return [[short(answer) for answer in json.loads(text)] for text in done.out.splitlines() if text.startswith("[")]


def at_work_as(person, kind):
    """This user's processes of a kind. A mover has no environment of a test's, by which others are found."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{entry}").st_uid == person.uid:
                words = open(f"/proc/{entry}/cmdline", "rb").read().decode().split("\0")[:-1]
                found.append(Process(int(entry), words))
        except OSError:
            continue
    return [process for process in found if process.is_landbridge(kind)]


MOVE = f"anna: {LANDBRIDGE} stage move --json"


def test_files_go_to_nodes_on_which_others_compute(workshop, people, slurm):
    anna, bob = people
    source = make_tree(workshop.folder / "source")
    busy = " ".join(bob.words("srun", "-N4", "--exclusive", "sleep", "1000"))
    done = begin(
        workshop, anna,
        f"{busy} & until squeue -h -t R | grep -q .; do sleep 0.2; done",
        f"{MOVE} b:{source} a/n1,n3:/tmp/target",
        f"{MOVE} a/n3:/tmp/target a/n4:/tmp/other",
        "squeue -h -o '%u %T'",
        *(on(f"a-{node}", f"cp -a /tmp/{name} {workshop.folder}/{node}; ls -A /tmp") for node, name in
          (("n1", "target"), ("n3", "target"), ("n4", "other"))),
        "scancel --user " + bob.name,
    ).finish()
    done.check()
    assert f"{bob.name} RUNNING" in done.out and anna.name not in done.out.split("RUNNING")[0].split("\n")[-1], str(done)
    for node in ("n1", "n3", "n4"):
        copy = workshop.folder / node
        assert description(copy) == description(source), node
        assert {(path.lstat().st_uid, path.lstat().st_gid) for path in copy.rglob("*")} == {(anna.uid, anna.gid)}
    assert "landbridge-stage" not in done.out, str(done)


def test_the_node_service_does_nothing_for_whom_munge_does_not_vouch(workshop, people, slurm):
    """Forged, changed, used, old, for another node, of root, of nobody, of another munge, and no credential at all."""
    anna, _ = people
    nothing = request(removal("/tmp/none"))
    # The path of a socket is short.
    own = "/tmp/munge"
    whats = [
        (["munge", "--restrict-uid=0", nothing], (0, "")),
        (["again", nothing], "replayed: it has been used"),
        (["changed", nothing], "nvalid credential"),
        (["munge", "--ttl=1", "wait=2.5", nothing], "expired: it is too old"),
        (["munge", request(removal("/tmp/none"), node="n2")], "the order is for node n2, and this is n1"),
        (["munge", request(removal("/tmp/none"), release=1)], "release 1"),
        (["munge", request(removal("/tmp/none")) | {"nonce": "0"}], "32 hexadecimal digits"),
        (["munge", "hello"], "not one for this service"),
        (["munge", request({"shell": {"words": ["id"]}})], "unknown variant `shell`"),
        (["munge", request(removal("/tmp/../etc"))], "cannot be looked at or removed"),
        (["munge", request({"agent": {"order": "{}"}})], "unreadable order"),
        (["raw", "MUNGE:AwQDAAD" + "A" * 200 + ":"], "refuses the credential"),
        (["raw", "GET / HTTP/1.1"], "nvalid credential"),
        (["long", ""], "a line of more than"),
        (["munge", f"--restrict-uid={anna.uid}", nothing], "refuses the credential"),
    ]
    mine = call(*(what for what, _ in whats))
    forged = call(["munge", nothing], munged=f"{own}/socket")
    for_root = call(["munge", nothing])
    done = begin(
        workshop, anna,
        f"anna: {line(mine)}",
        f"install -d -o {anna.uid} {own}; head -c 128 /dev/urandom > {own}/key; chown {anna.uid} {own}/key; chmod 400 {own}/key",
        f"anna: munged --force --key-file={own}/key --socket={own}/socket --pid-file={own}/pid --seed-file={own}/seed "
        f"--log-file={own}/log; {line(forged)}; kill $(cat {own}/pid)",
        line(for_root),
        f"setpriv --reuid=54321 --regid=54321 --clear-groups {line(for_root)}",
        nodes=1,
    ).finish()
    done.check()
    found, [other], [root], [nobody] = answers(done)
    for (what, expected), answer in zip(whats, found, strict=True):
        text = answer if isinstance(answer, str) or isinstance(expected, tuple) else answer[1]
        assert expected == text or (isinstance(expected, str) and expected in text), f"{what}: {answer}"
    assert "nvalid credential" in other and "nothing is done as root" in root and "no account" in nobody, str(done)


def test_a_user_cannot_have_anothers_files_read_written_or_removed(workshop, people, slurm):
    """By a path, a symlink on the way, at its end or below it, a hard link, and while links and folders change."""
    anna, bob = people
    (workshop.folder / "mine").mkdir()
    (workshop.folder / "mine" / "file").write_text("anna's")
    b, a, out = "/tmp/bob", "/tmp/anna", workshop.folder / "out"
    prepare = [
        f"install -d -m 700 -o {bob.uid} {b} {b}/folder; install -d -m 755 -o {anna.uid} {a} {a}/tree",
        f"echo bobs > {b}/secret; echo bobs > {b}/folder/secret; chmod 600 {b}/secret {b}/folder/secret",
        f"chown -R {bob.uid} {b}; ln {b}/secret {a}/hard; ln {b}/secret {a}/tree/hard",
        f"ln -s {b} {a}/way; ln -s {b}/secret {a}/link; ln -s {b}/folder {a}/tree/below; chown -h {anna.uid} {a}/* {a}/tree/*",
        f"chown {bob.uid} {a}/hard {a}/tree/hard; chmod 755 {a}",
        f"find {b} -type f | xargs sha256sum > /tmp/before; ls -lR --time-style=full-iso {b} >> /tmp/before",
    ]
    mine = f"b:{workshop.folder}/mine/file"
    refused = [
        f"a/n1:{b}/secret b:{out}1", f"a/n1:{a}/way/secret b:{out}2", f"a/n1:{a}/hard b:{out}3", f"a/n1:{a}/tree b:{out}4",
        f"{mine} a/n1:{b}/in", f"{mine} a/n1:{b}/secret", f"{mine} a/n1:{a}/way/in", f"b:{workshop.folder}/mine a/n1:{a}/way/",
    ]
    attack = f"while :; do mkdir {a}/turn 2>/dev/null; rmdir {a}/turn 2>/dev/null; ln -sfn {b} {a}/turn; rm -f {a}/turn; done"
    removals = call(["munge", request(removal(f"{b}/secret", f"{b}/folder", b, f"{a}/way/secret", f"{a}/link", f"{a}/way"))])
    done = begin(
        workshop, anna,
        *(on("a-n1", step) for step in prepare),
        *(f"anna: if {LANDBRIDGE} stage move {places}; then echo DONE {places}; fi" for places in refused),
        f"anna: {LANDBRIDGE} stage move {mine} a/n1:{a}/hard || true",
        f"anna: {LANDBRIDGE} stage move {mine} a/n1:{a}/link || true",
        f"{LAB} enter a-n1 -- {line(anna.words('timeout', '250', 'sh', '-c', attack))} & attacker=$!",
        *(f"anna: {LANDBRIDGE} stage move {mine} a/n1:{a}/turn/file || true" for _ in range(4)),
        *(f"anna: {LANDBRIDGE} stage move a/n1:{a}/turn/secret b:{out}5 || true" for _ in range(4)),
        "kill $attacker || true; wait $attacker || true",
        f"anna: {line(removals)}",
        on("a-n1", f"find {b} -type f | xargs sha256sum > /tmp/after; ls -lR --time-style=full-iso {b} >> /tmp/after"),
        # The hard link at the target has been replaced by anna's file, so that bob's has one link less.
        on("a-n1", f"sed -i 's/^\\(-[^ ]*\\) [0-9]*/\\1/' /tmp/before /tmp/after; cmp /tmp/before /tmp/after && echo UNTOUCHED"),
        on("a-n1", f"cat {a}/hard; stat -c %u {a}/hard; ls {a}"),
        nodes=1, limit=270,
    ).finish()
    done.check()
    assert "DONE" not in done.out and "UNTOUCHED" in done.out, str(done)
    assert len(re.findall("Permission denied|this folder belongs to user id", done.err)) >= len(refused), str(done)
    assert not [path for path in workshop.folder.glob("out*") if path.is_file()], str(done)
    [[(code, words)]] = answers(done)
    # A name in a sticky folder belongs to its owner: EPERM. In bob's folder he can rename what anna's path names.
    refused = words.count("can rename what is in") + words.count("/tmp/bob: Operation not permitted")
    assert code == 2 and refused >= 4, words
    assert f"anna's{anna.uid}" in done.out, str(done)


def test_what_runs_beside_others_is_the_user_and_nothing_of_the_users(workshop, people, slurm):
    anna, _ = people
    (workshop.folder / "source").write_bytes(random.Random(1).randbytes(8_000_000))
    evil = f"LD_PRELOAD=/nonexistent/evil.so PATH=/nonexistent:$PATH {LANDBRIDGE}"
    running = begin(
        workshop, anna,
        f"anna: {evil} stage move --rate 1MB/s b:{workshop.folder}/source a/n1:/tmp/target || true",
        f"anna: {LANDBRIDGE} run --host a/n1:1 -- true || true",
        f"anna: {LANDBRIDGE} stage move --block 512MiB b:{workshop.folder}/source a/n1:/tmp/large || true",
        nodes=1,
    )
    def at_work():
        return at_work_as(anna, "mover") and [p for kind in ("mover", "agent", "agent-worker") for p in at_work_as(anna, kind)]
    running.wait_for(at_work, 60, "a mover")
    for process in at_work():
        status = dict(text.split(":\t", 1) for text in open(f"/proc/{process.pid}/status").read().splitlines() if ":\t" in text)
        assert set(status["Uid"].split()) == {str(anna.uid)} and set(status["Gid"].split()) == {str(anna.gid)}, status
        assert status["Groups"].split() == [str(anna.gid)] and status["NoNewPrivs"] == "1", status
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}, status
        environment = open(f"/proc/{process.pid}/environ", "rb").read()
        assert b"LD_PRELOAD" not in environment and b"nonexistent" not in environment, process.words
        # How much of others' time it may take is not the user's to say.
        assert b"\0LANDBRIDGE_MOST_HARM=3\0" in b"\0" + environment, process.words
        program = os.readlink(f"/proc/{process.pid}/exe")
        assert os.path.basename(program) == "landbridge" and os.stat(program).st_mode & 0o777 == 0o711, process.words
        assert os.stat(program).st_uid == 0, process.words
    done = running.finish()
    assert "give --site a=N instead" in done.err, str(done)
    assert "--block must be at most 64 MiB" in done.err, str(done)


def test_a_mover_cannot_be_traced_and_does_not_outlive_its_order(workshop, people, slurm):
    """Not by its own user, from its first instruction on, and neither when it is stopped."""
    anna, _ = people
    (workshop.folder / "source").write_bytes(random.Random(1).randbytes(8_000_000))
    running = begin(
        workshop, anna,
        f"anna: {LANDBRIDGE} stage move --rate 200kB/s b:{workshop.folder}/source a/n1:/tmp/target || true",
        f"touch {workshop.folder}/over; {until('test -e ' + str(workshop.folder / 'checked'), 90)}",
        nodes=1, limit=180,
    )

    def ours():
        return [process for kind in ("agent", "agent-worker", "mover") for process in at_work_as(anna, kind)]

    running.wait_for(lambda: at_work_as(anna, "mover"), 60, "a mover")
    found = ours()
    assert len(found) == 3, found
    for process in found:
        attack = ("import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True); "
                  f"print(libc.ptrace(16, {process.pid}, 0, 0), ctypes.get_errno()); "
                  f"open('/proc/{process.pid}/mem', 'r+b')")
        tried = workshop.run(anna.words("/usr/bin/python3", "-c", attack))
        assert tried.out.split() == ["-1", "1"] and "Permission denied" in tried.err, str(tried)
    # A user may stop his own processes, but then they do not stay when the order is over.
    [mover] = at_work_as(anna, "mover")
    for process in found:
        os.kill(process.pid, signal.SIGSTOP)
    for process in running.processes("stage"):
        os.kill(process.pid, signal.SIGINT)
    running.wait_for(lambda: not ours(), 90, "the end of what the order has started")
    (workshop.folder / "checked").touch()
    running.finish().check()


def test_silent_callers_keep_nobody_out(workshop, people, slurm):
    """Neither of the service nor of the hooks' socket, and they cost it no threads."""
    anna, bob = people
    (workshop.folder / "source").write_text("x")
    ready = workshop.folder / "homes" / bob.name / "ready"
    crowd = line(bob.words("/usr/bin/python3", PROGRAMS / "silent_callers.py", "100", ready, "n1:7760", "/run/slurm-a/hooks"))
    path = job(workshop, anna, "calm", f"stage_in=b:{workshop.folder}/source=/tmp/calm {RATE}", body=f"cp /tmp/calm {anna.home}/got")
    threads = f"cat /proc/$(pgrep -f 'slurm node-service --node NODE' | head -1)/status | grep Threads | sed 's/^/NODE /'"
    done = begin(
        workshop, anna,
        f"{crowd} & crowd=$!; {until(f'test -e {ready}')}",
        *(f"anna: {LANDBRIDGE} stage move --rate 200MB/s b:{workshop.folder}/source a/n1:/tmp/moved{number}" for number in range(3)),
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}", until(f"test -s {anna.home}/got"), gone("calm"),
        *(threads.replace("NODE", node) for node in ("n1", "gw1")),
        "kill $crowd; wait $crowd || true", on("a-n1", "ls /tmp"),
        nodes=1, staging=True, limit=200,
    ).finish()
    done.check()
    assert all(f"moved{number}" in done.out for number in range(3)), str(done)
    counts = dict(re.findall(r"(n1|gw1) Threads:\s*(\d+)", done.out))
    assert len(counts) == 2 and all(int(count) < 40 for count in counts.values()), str(done)


def test_an_impostor_at_the_services_port_is_not_believed(workshop, people, slurm):
    """Nor does one keep the service away for longer than it holds the port."""
    anna, bob = people
    ready = workshop.folder / "homes" / bob.name / "ready"
    impostor = line(bob.words("/usr/bin/python3", PROGRAMS / "node_impostor.py", "7760", MUNGED, ready))
    order = line(anna.words("sh", "-c", f"echo {{}} | {LANDBRIDGE} slurm call n1 7760"))
    # It tries until the service is killed, and then is faster than whatever starts the service again.
    again = f"while ! test -e {ready}; do {impostor} 2>/dev/null; done"
    running = begin(
        workshop, anna,
        f"{LAB} enter a-n1 -- sh -c {quoted(again)} & touch {workshop.folder}/begun; {until(f'test -e {ready}')}",
        *(f"{order} && echo BELIEVED || true" for _ in range(4)),
        f"wait; {until(f'{order} 2>&1 | grep -q unreadable')}; echo BACK",
        nodes=1, limit=180,
    )
    running.wait_for((workshop.folder / "begun").exists, 90, "the services")
    while not ready.exists():
        if process := service(running, "n1"):
            process.kill()
        time.sleep(0.05)
    done = running.finish().check()
    assert "BELIEVED" not in done.out and "BACK" in done.out, str(done)
    assert done.err.count("does not prove to be the node service") >= 3, str(done)


def job(workshop, person, name, *directives, body="true"):
    """A job script of this user's."""
    path = workshop.folder / "homes" / f"{name}.sh"
    lines = ["#!/bin/sh", f"#SBATCH --job-name={name}", *(f"#BB_LUA landbridge {words}" for words in directives), body]
    path.write_text("\n".join(lines) + "\n")
    person.owns(path)
    return path


def crossed(workshop):
    """Bytes that have come to site a over the WAN in all jobs of its gateway."""
    log = (workshop.folder / "inside" / "gateway-a.log").read_text()
    return sum(map(int, re.findall(r"job closed job=.* received=(\d+)", log)))


# A transfer with a rate takes the cores that it needs for it, so that a busy machine does not starve these tests.
RATE = "rate=200MB/s"
NODES = range(1, 5)


def until(condition, seconds=60):
    """Shell words that wait for a condition."""
    count = int(seconds * 5)
    return (f"for i in $(seq {count}); do {condition} && break; test $i -lt {count} || {{ echo TOO LATE: {quoted(condition)};"
            f" squeue -o '%i %j %T %r %Y %N'; exit 9; }}; sleep 0.2; done")


# Slurm may kill a teardown that it has just started; then the next sweep but one does it, within a minute.
FORGOTTEN = until("test -z \"$(ls /run/slurm-a/state/landbridge)\"", 90)


def gone(name):
    """Until a job is over, and nothing is known of any job's copies."""
    over = until(f"test -z \"$(squeue -h -n {name} -o %i)\"", 90)
    return f"{over}; {FORGOTTEN}"


def occupied(bob, node, minutes):
    """Another user's job on a node, which Slurm expects to end after some minutes. Slurm rounds: keep ends apart."""
    words = bob.words("sbatch", "-w", f"n{node}", "--exclusive", f"-t{minutes}", "-J", f"busy{node}", "-o", "/dev/null",
                      "--chdir=/", "--wrap", "exec sleep 1000")
    return f"{line(words)}; {until(f'squeue -h -t R -n busy{node} -o %i | grep -q .')}"


def staged(name, node):
    """Until a job's input is complete on a node: a target appears as a whole."""
    return until(f"{LAB} enter a-n{node} -- test -e /tmp/{name}")


def left():
    """What is left on each node."""
    return [on(f"a-n{node}", f'echo "left on n{node}:" $(ls -A /tmp)') for node in NODES]


def assert_nothing_left(done):
    for node in NODES:
        assert f"left on n{node}:\n" in done.out, str(done)


def test_input_comes_before_a_job_and_output_leaves_after_it(workshop, people, slurm):
    """While others compute on all nodes, to the predicted one; the copies go with the job."""
    anna, bob = people
    source = make_tree(workshop.folder / "source")
    (workshop.folder / "to").mkdir()
    body = f"hostname > {anna.home}/ran; cp -a /tmp/one /tmp/output; hostname > /tmp/each"
    words = f"stage_in=b:{source}=/tmp/one stage_out=/tmp/output=b:{workshop.folder}/to/output rate=3MB/s"
    words += f" stage_out=/tmp/each=b:{workshop.folder}/to/each-{{node}}"
    one = job(workshop, anna, "one", words, body=body)
    meanwhile = f"squeue -h -t R -w n4 -n next -o %i | grep -q . && ls -A {workshop.folder}/to | grep -q landbridge-stage"
    done = begin(
        workshop, anna,
        *(occupied(bob, node, 50 - 10 * node) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 {one}",
        staged("one", 4),
        f"test ! -e {anna.home}/ran; squeue -h -n one -o 'while it is %T'",
        "SLURM_TIME_FORMAT=%s scontrol -o show job $(squeue -h -n one -o %i) | grep -oE 'StartTime=[0-9]{10} '",
        "scancel -n busy4",
        until(f"test -e {anna.home}/ran"),
        "cd /",
        line(bob.words("sbatch", "-N1", "-t1", "-w", "n4", "-J", "next", "-o", "/dev/null", "--exclusive", "--wrap", "sleep 30")),
        until(f"{meanwhile} && echo MEANWHILE", 30),
        gone("one"),
        on("a-n4", "rm -r /tmp/output /tmp/each"),
        *left(),
        "scancel --user " + bob.name,
        staging=True, limit=150,
    ).finish()
    done.check()
    assert "while it is PENDING" in done.out and "StartTime=" in done.out, str(done)
    assert "MEANWHILE" in done.out and (anna.home / "ran").read_text() == "a-n4\n", str(done)
    assert description(workshop.folder / "to" / "output") == description(source), str(done)
    assert (workshop.folder / "to" / "each-n4").read_text() == "a-n4\n", str(done)
    assert_nothing_left(done)
    assert crossed(workshop) < ONCE * 9_250_000, crossed(workshop)


def test_a_job_acts_as_its_own_user_whatever_its_text_says(workshop, people, slurm):
    """A job's name, comment and other text look like fields of Slurm's records, on one line and on several."""
    anna, bob = people
    claim = f"UserId={bob.name}({bob.uid})"
    (workshop.folder / "source").write_text("x")
    (workshop.folder / "to").mkdir(mode=0o777)
    (workshop.folder / "to").chmod(0o777)
    words = f"stage_in=b:{workshop.folder}/source=/tmp/forged stage_out=/tmp/out=b:{workshop.folder}/to/out {RATE}"
    body = f"stat -c %u /tmp/forged > {anna.home}/owner; cp /tmp/forged /tmp/out"
    path = job(workshop, anna, "forged", words, body=body)
    state = "JobState=RUNNING NodeList=n9 SchedNodeList=n9 EndTime=1"
    submit = anna.words(
        "sbatch", "-N1", "-t1", "-o", "/dev/null", "-J", f"x {claim} {state}", "--chdir", anna.home,
        "--comment", f"{claim} {state}\nJobId=1 {claim} {state}\n1 {bob.uid}", "--wckey", claim, path,
    )
    mine = f"squeue -h -u {anna.name} -o %i"
    over = until(f'test -z "$({mine})"', 90)
    done = begin(
        workshop, anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        line(submit), staged("forged", 1),
        f"scontrol -o show job $({mine}) | grep -o 'UserId=[a-z]*' | head -1",
        on("a-n1", "stat -c 'owner %u' /tmp/forged"),
        f"scancel -n busy1; {over}; {FORGOTTEN}",
        on("a-n1", "rm /tmp/out"), *left(), "scancel --user " + bob.name,
        staging=True, limit=200,
    ).finish()
    done.check()
    assert f"owner {anna.uid}\n" in done.out, str(done)
    assert (anna.home / "owner").read_text() == f"{anna.uid}\n", str(done)
    assert (workshop.folder / "to" / "out").read_text() == "x", str(done)
    assert_nothing_left(done)


def test_wrong_predictions_are_repaired_from_node_to_node(workshop, people, slurm):
    """Each time the input is on the node that Slurm predicted when another one is free first. It crosses the WAN
    once."""
    anna, bob = people
    (workshop.folder / "source").write_bytes(random.Random(3).randbytes(3_000_000))
    digest = hashlib.sha256((workshop.folder / "source").read_bytes()).hexdigest()
    steps, rounds = [], [(1, 3), (2, 4), (3, 1), (4, 2), (2, 1)]
    for number, (predicted, real) in enumerate(rounds):
        name = f"job{number}"
        path = job(workshop, anna, name, f"stage_in=b:{workshop.folder}/source=/tmp/{name}", RATE,
                   body=f"echo $SLURM_JOB_NODELIST $(sha256sum < /tmp/{name}) >> {anna.home}/log")
        steps += [
            *(occupied(bob, node, 2 if node == predicted else 9) for node in NODES),
            f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
            staged(name, predicted),
            f"scancel -n busy{real}",
            gone(name),
            "scancel --user " + bob.name,
            until(f"test -z \"$(squeue -h -u {bob.name} -o %i)\""),
        ]
    done = begin(workshop, anna, *steps, *left(), staging=True, limit=300).finish()
    done.check()
    assert (anna.home / "log").read_text().split("\n")[:-1] == [f"n{real} {digest} -" for _, real in rounds], str(done)
    assert crossed(workshop) < ONCE * 3_000_000 * len(rounds), crossed(workshop)
    assert_nothing_left(done)


def test_several_nodes_get_what_they_miss(workshop, people, slurm):
    """Two of three nodes were predicted, and the input of a second directive is read on the nodes themselves."""
    anna, bob = people
    source = make_tree(workshop.folder / "source")
    body = f"srun -N3 sh -c 'cp -a /tmp/many {anna.home}/$SLURMD_NODENAME; cat /tmp/table >> {anna.home}/tables'"
    (workshop.folder / "homes" / "table").write_text("x")
    path = job(workshop, anna, "many", f"stage_in=b:{source}=/tmp/many",
               f"stage_in={workshop.folder}/homes/table=/tmp/table {RATE}", body=body)
    done = begin(
        workshop, anna,
        *(occupied(bob, node, 3 if node < 4 else 9) for node in NODES),
        f"anna: cd; sbatch -N3 -t1 -o /dev/null {path}",
        *(staged("table", node) for node in (1, 2, 3)),
        "scancel -n busy4; scancel -n busy3; scancel -n busy2",
        gone("many"), *left(),
        "scancel --user " + bob.name,
        staging=True, limit=180,
    ).finish()
    done.check()
    for node in (2, 3, 4):
        assert description(anna.home / f"n{node}") == description(source), f"{node}: {done}"
    assert (anna.home / "tables").read_text() == "xxx", str(done)
    assert crossed(workshop) < ONCE * 9_250_000, crossed(workshop)
    assert_nothing_left(done)


def test_a_cancelled_jobs_input_goes_complete_or_not(workshop, people, slurm):
    anna, bob = people
    (workshop.folder / "source").write_bytes(random.Random(3).randbytes(8_000_000))
    slow, whole = (
        job(workshop, anna, name, f"stage_in=b:{workshop.folder}/source=/tmp/{name} rate={rate}")
        for name, rate in (("slow", "500kB/s"), ("whole", "200MB/s"))
    )
    partly = f"{LAB} enter a-n1 -- sh -c 'ls -A /tmp/.landbridge-stage-*/tree'"
    done = begin(
        workshop, anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 {slow}", until(partly), "scancel -n slow", gone("slow"), *left(),
        "echo AND",
        f"anna: cd; sbatch -N1 -t1 {whole}", staged("whole", 1), "scancel -n whole", gone("whole"), *left(),
        "scancel --user " + bob.name,
        staging=True, limit=250,
    ).finish()
    done.check()
    first, second = done.out.split("AND")
    for text in (first, second):
        assert_nothing_left(replace(done, out=text))


def test_what_slurm_forgets_to_tear_down_is_removed(workshop, people, slurm):
    """As it does when it kills a job's teardown with the job's other hooks: then the record and the copies stay."""
    anna, bob = people
    (workshop.folder / "source").write_bytes(random.Random(3).randbytes(100_000))
    one = job(workshop, anna, "one", f"stage_in=b:{workshop.folder}/source=/tmp/one")
    records, aside = "/run/slurm-a/state/landbridge", workshop.folder / "records"
    again = line(anna.words("cp", workshop.folder / "source", "/tmp/one"))
    done = begin(
        workshop, anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 {one}", staged("one", 1), f"cp -a {records} {aside}", "scancel -n one", gone("one"), *left(),
        "echo AGAIN", on("a-n1", again), f"cp -a {aside}/. {records}/; ls {records}", FORGOTTEN, *left(),
        "scancel --user " + bob.name,
        staging=True, limit=200,
    ).finish()
    done.check()
    first, second = done.out.split("AGAIN")
    assert second.split()[0] == "5", str(done)
    for text in (first, second):
        assert_nothing_left(replace(done, out=text))


@pytest.mark.parametrize(("directive", "says"), [
    ("stage-in=b:/x=/tmp/x", "it is unknown; there are stage_in=SRC=DST"),
    ("stage_in=b:/x=tmp/x", "tmp/x is no absolute path"),
    ("stage_in=b:/x", "give SRC=DST"),
    ("rate=0", "rate=0"),
], ids=lambda value: None)
def test_a_wrong_directive_is_refused_when_the_job_is_submitted(workshop, people, slurm, directive, says):
    anna, _ = people
    path = job(workshop, anna, "wrong", directive)
    done = begin(
        workshop, anna, f"anna: cd; sbatch {path} 2>&1 || echo REFUSED", "squeue -h", nodes=1, staging=True,
    ).finish()
    done.check()
    assert "REFUSED" in done.out and f"line 3 of the job script: `{directive}`" in done.out and says in done.out, str(done)


def service(running, node):
    """The node service of a node of site a. None while it is started again."""
    found = [process for process in running.processes("slurm") if process.words[1:5] == ["slurm", "node-service", "--node", node]]
    return found[0] if found else None


def test_a_killed_service_does_not_stop_a_jobs_input(workshop, people, slurm):
    """That of the node in mid-transfer, then that of the controller; the transfer continues when they are back."""
    anna, bob = people
    (workshop.folder / "source").write_bytes(random.Random(3).randbytes(12_000_000))
    path = job(workshop, anna, "input", f"stage_in=b:{workshop.folder}/source=/tmp/input rate=2MB/s",
               body=f"cmp /tmp/input {workshop.folder}/source && echo same > {anna.home}/result")
    partly = until(f"{LAB} enter a-n1 -- sh -c 'ls -A /tmp/.landbridge-stage-*/tree'")
    running = begin(
        workshop, anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}", partly,
        f"cd {workshop.folder}; touch begun; {until('test -e go')}",
        staged("input", 1), f"scancel -n busy1; {gone('input')}", *left(), "scancel --user " + bob.name,
        staging=True, limit=180,
    )
    for node in ("n1", "gw1"):
        running.wait_for((workshop.folder / "begun").exists, 90, "a part of the input")
        service(running, node).kill()
        time.sleep(4)
    (workshop.folder / "go").touch()
    done = running.finish().check()
    assert (anna.home / "result").read_text() == "same\n", str(done)
    assert crossed(workshop) < 1.5 * 12_000_000, crossed(workshop)
    assert_nothing_left(done)


def test_a_pinned_job_waits_for_the_node_that_has_its_input(workshop, people, slurm):
    anna, bob = people
    (workshop.folder / "source").write_text("x")
    path = job(workshop, anna, "pinned", f"stage_in=b:{workshop.folder}/source=/tmp/pinned pin", body=f"hostname > {anna.home}/ran")
    done = begin(
        workshop, anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}", staged("pinned", 1),
        until("scontrol show job $(squeue -h -n pinned -o %i) | grep -q ReqNodeList=n1"),
        f"scancel -n busy3; sleep 3; test ! -e {anna.home}/ran; scancel -n busy1",
        gone("pinned"), *left(), "scancel --user " + bob.name,
        staging=True, limit=120,
    ).finish()
    done.check()
    assert (anna.home / "ran").read_text() == "a-n1\n", str(done)
    assert_nothing_left(done)


def test_input_that_cannot_come_holds_the_job_and_says_why(workshop, people, slurm):
    """No such source; a path where something is, which stays; a path of which others could change the meaning."""
    anna, bob = people
    (workshop.folder / "source").write_text("x")
    none = job(workshop, anna, "none", f"stage_in=b:{workshop.folder}/nothing=/tmp/none")
    there = job(workshop, anna, "there", f"stage_in=b:{workshop.folder}/source=/tmp/there")
    shared = job(workshop, anna, "shared", f"stage_in=b:{workshop.folder}/source=/tmp/group/shared")
    says = "scontrol show job $(squeue -h -n {0} -o %i) | grep -A9 -i comment"
    done = begin(
        workshop, anna,
        *(on(f"a-n{node}", f"echo mine > /tmp/there; chown {anna.uid} /tmp/there; mkdir -m 0777 /tmp/group") for node in NODES),
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        *(step for path, name, text in ((none, "none", "No such file"), (there, "there", "is there already"), (shared, "shared", "mode 777 allows it can rename what is in")) for step in (
            f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}", until(f"{says.format(name)} | grep -q '{text}'"),
            says.format(name), f"scancel -n {name}; {gone(name)}",
        )),
        on("a-n1", "cat /tmp/there"), *left(), "scancel --user " + bob.name,
        staging=True, limit=180,
    ).finish()
    done.check()
    assert "mine" in done.out and f"{workshop.folder}/nothing" in done.out, str(done)
    for node in NODES:
        assert f"left on n{node}: group there\n" in done.out, str(done)


def test_output_waits_for_its_folder_and_the_job_ends(workshop, people, slurm):
    """The folder was there before the job, and is away when the job is over."""
    anna, _ = people
    none = workshop.folder / "to" / "none"
    none.mkdir(parents=True)
    body = f"echo late > /tmp/late; while test -e {none}; do sleep 0.1; done"
    path = job(workshop, anna, "late", f"stage_out=/tmp/late=b:{none}/late {RATE}", body=body)
    done = begin(
        workshop, anna,
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        f"{until('squeue -h -n late -t R -o %i | grep -q .')}; rmdir {none}",
        until("squeue -h -n late -t STAGE_OUT -o %i | grep -q ."),
        # Longer than a step is tried again for what passes in a moment.
        f"sleep 20; squeue -h -n late -o 'after 20 s %T'; mkdir {workshop.folder}/to/none; {gone('late')}",
        on("a-n1", "rm /tmp/late"), nodes=1, staging=True, limit=200,
    ).finish()
    done.check()
    assert "after 20 s STAGE_OUT" in done.out, str(done)
    assert (workshop.folder / "to" / "none" / "late").read_text() == "late\n", str(done)


def test_install_shows_what_it_changes_and_uninstall_undoes_it(workshop):
    conf, units = workshop.folder / "slurm.conf", workshop.folder / "units"
    conf.write_text("ClusterName=x\n# the last line\n")
    before = conf.read_text()
    places = ["--conf", conf, "--units", units, "--state", workshop.folder / "state", "--socket", workshop.folder / "hooks"]

    def slurm(what, *options):
        return workshop.run([LANDBRIDGE, "slurm", what, "--no-start", *places, *options])

    shown = slurm("install", "--controller", "--dry-run").check()
    assert "  + BurstBufferType=burst_buffer/lua" in shown.out and "  + ExecStart=" in shown.out, str(shown)
    assert conf.read_text() == before and not units.exists()
    slurm("install", "--controller").fails_naming("nothing was changed", "--yes", "--dry-run")
    slurm("install", "--controller", "--yes").check()
    assert (workshop.folder / "state").stat().st_mode & 0o777 == 0o700
    names = {path.name for path in workshop.folder.iterdir()}
    assert {"burst_buffer.lua", "burst_buffer.conf"} <= names and (units / "landbridge-node.service").exists()
    assert "Nothing to change." in slurm("install", "--controller", "--yes").check().out
    # What only the records know stays.
    (workshop.folder / "state" / "7").write_text("{}")
    removed = slurm("uninstall", "--yes").check()
    assert "landbridge-node.service: removed" in removed.out and "1 job(s) still have copies" in removed.err, str(removed)
    assert conf.read_text() == before and not list(units.iterdir())
    (workshop.folder / "state" / "7").unlink()
    assert "state: removed" in slurm("uninstall", "--yes").check().out
    assert not (workshop.folder / "state").exists(), "uninstall leaves nothing"
    if not Path("/run/systemd/system").exists():
        refused = workshop.run([LANDBRIDGE, "slurm", "install", "--yes", *places])
        refused.fails_naming("systemd does not run", "--no-start", "nothing was changed")
        assert not list(units.iterdir()), "files without anything that starts the service"
    (workshop.folder / "burst_buffer.lua").write_text("-- the centre's own\n")
    slurm("install", "--controller", "--yes").fails_naming("burst_buffer.lua is there, and not ours")
    assert conf.read_text() == before
