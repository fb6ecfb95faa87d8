"""The service of a Slurm node works only for users whom munge vouches for, and only with their rights."""

import json
import os
import random
import re
import secrets
import signal
import time
from pathlib import Path

from harness import LANDBRIDGE, PROGRAMS
from slurm_jobs import LAB, MOVE, MUNGED, RATE, at_work_as, begin, gone, job, line, on, quoted, service, until
from test_stage import description, make_tree


def request(work, node="n1", release=2):
    return {"landbridge_node_service": release, "node": node, "nonce": secrets.token_hex(16), "work": work}


def removal(*paths):
    return {"remove": {"paths": [list(os.fsencode(path)) for path in paths]}}


def call(*whats, node="n1", munged=MUNGED, port=7760):
    """The words of a call of a node's service, made by the user who runs them."""
    return ["/usr/bin/python3", PROGRAMS / "node_caller.py", f"{node}:{port}", munged, *map(json.dumps, whats)]


def answers(done):
    """The answer to each call: reasons of refusals, else exit codes and words."""

    def short(answer):
        answer = answer.get("unproven", answer)
        return (
            answer["refused"]["reason"] if "refused" in answer else (answer["ended"]["code"], answer["ended"]["words"])
        )

    return [[short(answer) for answer in json.loads(text)] for text in done.out.splitlines() if text.startswith("[")]


def test_files_go_to_nodes_on_which_others_compute(workshop, people, slurm):
    anna, bob = people
    source = make_tree(workshop.folder / "source")
    busy = " ".join(bob.words("srun", "-N4", "--exclusive", "sleep", "1000"))
    done = begin(
        workshop,
        anna,
        f"{busy} & until squeue -h -t R | grep -q .; do sleep 0.2; done",
        f"{MOVE} b:{source} a/n1,n3:/tmp/target",
        f"{MOVE} a/n3:/tmp/target a/n4:/tmp/other",
        "squeue -h -o '%u %T'",
        *(
            on(f"a-{node}", f"cp -a /tmp/{name} {workshop.folder}/{node}; ls -A /tmp")
            for node, name in (("n1", "target"), ("n3", "target"), ("n4", "other"))
        ),
        "scancel --user " + bob.name,
    ).finish()
    done.check()
    assert f"{bob.name} RUNNING" in done.out and anna.name not in done.out.split("RUNNING")[0].split("\n")[-1], str(
        done
    )
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
        (["munge", request(removal("/tmp/none"), release=1)], "version 1"),
        (["munge", request(removal("/tmp/none")) | {"nonce": "0"}], "32 hexadecimal digits"),
        (["munge", "hello"], "unknown request"),
        (["munge", request({"shell": {"words": ["id"]}})], "unknown variant `shell`"),
        (["munge", request(removal("/tmp/../etc"))], "cannot examine or remove /tmp/../etc"),
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
        workshop,
        anna,
        f"anna: {line(mine)}",
        (
            f"install -d -o {anna.uid} {own}; head -c 128 /dev/urandom > {own}/key; chown {anna.uid} {own}/key; "
            f"chmod 400 {own}/key"
        ),
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
        (
            f"ln -s {b} {a}/way; ln -s {b}/secret {a}/link; ln -s {b}/folder {a}/tree/below; "
            f"chown -h {anna.uid} {a}/* {a}/tree/*"
        ),
        f"chown {bob.uid} {a}/hard {a}/tree/hard; chmod 755 {a}",
        f"find {b} -type f | xargs sha256sum > /tmp/before; ls -lR --time-style=full-iso {b} >> /tmp/before",
    ]
    mine = f"b:{workshop.folder}/mine/file"
    refused = [
        f"a/n1:{b}/secret b:{out}1",
        f"a/n1:{a}/way/secret b:{out}2",
        f"a/n1:{a}/hard b:{out}3",
        f"a/n1:{a}/tree b:{out}4",
        f"{mine} a/n1:{b}/in",
        f"{mine} a/n1:{b}/secret",
        f"{mine} a/n1:{a}/way/in",
        f"b:{workshop.folder}/mine a/n1:{a}/way/",
    ]
    attack = (
        f"while :; do mkdir {a}/turn 2>/dev/null; rmdir {a}/turn 2>/dev/null; ln -sfn {b} {a}/turn; rm -f {a}/turn; "
        "done"
    )
    removals = call(
        ["munge", request(removal(f"{b}/secret", f"{b}/folder", b, f"{a}/way/secret", f"{a}/link", f"{a}/way"))]
    )
    done = begin(
        workshop,
        anna,
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
        on(
            "a-n1",
            "sed -i 's/^\\(-[^ ]*\\) [0-9]*/\\1/' /tmp/before /tmp/after; cmp /tmp/before /tmp/after && echo UNTOUCHED",
        ),
        on("a-n1", f"cat {a}/hard; stat -c %u {a}/hard; ls {a}"),
        nodes=1,
        limit=270,
    ).finish()
    done.check()
    assert "DONE" not in done.out and "UNTOUCHED" in done.out, str(done)
    assert len(re.findall("Permission denied|this folder belongs to user id", done.err)) >= len(refused), str(done)
    assert not [path for path in workshop.folder.glob("out*") if path.is_file()], str(done)
    [[(code, words)]] = answers(done)
    # A name in a sticky folder belongs to its owner: EPERM. In bob's folder he can rename the target of anna's path.
    refused = words.count("can rename what is in") + words.count("/tmp/bob: Operation not permitted")
    assert code == 2 and refused >= 4, words
    assert f"anna's{anna.uid}" in done.out, str(done)


def test_what_runs_beside_others_is_the_user_and_nothing_of_the_users(workshop, people, slurm):
    anna, _ = people
    (workshop.folder / "source").write_bytes(random.Random(1).randbytes(8_000_000))
    evil = f"LD_PRELOAD=/nonexistent/evil.so PATH=/nonexistent:$PATH {LANDBRIDGE}"
    running = begin(
        workshop,
        anna,
        f"anna: {evil} stage move --rate 1MB/s b:{workshop.folder}/source a/n1:/tmp/target || true",
        f"anna: {LANDBRIDGE} run --host a/n1:1 -- true || true",
        f"anna: {LANDBRIDGE} stage move --block 512MiB b:{workshop.folder}/source a/n1:/tmp/large || true",
        nodes=1,
    )

    def at_work():
        return at_work_as(anna, "mover") and [
            p for kind in ("mover", "agent", "agent-worker") for p in at_work_as(anna, kind)
        ]

    running.wait_for(at_work, 60, "a mover")
    for process in at_work():
        status = dict(
            text.split(":\t", 1)
            for text in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if ":\t" in text
        )
        assert set(status["Uid"].split()) == {str(anna.uid)} and set(status["Gid"].split()) == {str(anna.gid)}, status
        assert status["Groups"].split() == [str(anna.gid)] and status["NoNewPrivs"] == "1", status
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}, status
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
        assert b"LD_PRELOAD" not in environment and b"nonexistent" not in environment, process.words
        # The user does not choose its share of others' time.
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
        workshop,
        anna,
        f"anna: {LANDBRIDGE} stage move --rate 200kB/s b:{workshop.folder}/source a/n1:/tmp/target || true",
        f"touch {workshop.folder}/over; {until('test -e ' + str(workshop.folder / 'checked'), 90)}",
        nodes=1,
        limit=180,
    )

    def ours():
        return [process for kind in ("agent", "agent-worker", "mover") for process in at_work_as(anna, kind)]

    running.wait_for(lambda: at_work_as(anna, "mover"), 60, "a mover")
    found = ours()
    assert len(found) == 3, found
    for process in found:
        attack = (
            "import ctypes, sys; libc = ctypes.CDLL(None, use_errno=True); "
            f"print(libc.ptrace(16, {process.pid}, 0, 0), ctypes.get_errno()); "
            f"open('/proc/{process.pid}/mem', 'r+b')"
        )
        tried = workshop.run(anna.words("/usr/bin/python3", "-c", attack))
        assert tried.out.split() == ["-1", "1"] and "Permission denied" in tried.err, str(tried)
    # A user may stop his own processes, but then they do not stay when the order is over.
    assert len(at_work_as(anna, "mover")) == 1
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
    crowd = line(
        bob.words("/usr/bin/python3", PROGRAMS / "silent_callers.py", "100", ready, "n1:7760", "/run/slurm-a/hooks")
    )
    path = job(
        workshop,
        anna,
        "calm",
        f"stage_in=b:{workshop.folder}/source=/tmp/calm {RATE}",
        body=f"cp /tmp/calm {anna.home}/got",
    )
    threads = (
        "cat /proc/$(pgrep -f 'slurm node-service --node NODE' | head -1)/status | grep Threads | sed 's/^/NODE /'"
    )
    done = begin(
        workshop,
        anna,
        f"{crowd} & crowd=$!; {until(f'test -e {ready}')}",
        *(
            f"anna: {LANDBRIDGE} stage move --rate 200MB/s b:{workshop.folder}/source a/n1:/tmp/moved{number}"
            for number in range(3)
        ),
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        until(f"test -s {anna.home}/got"),
        gone("calm"),
        *(threads.replace("NODE", node) for node in ("n1", "gw1")),
        "kill $crowd; wait $crowd || true",
        on("a-n1", "ls /tmp"),
        nodes=1,
        staging=True,
        limit=200,
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
    # It tries until the service is killed, and then is faster than the restart of the service.
    again = f"while ! test -e {ready}; do {impostor} 2>/dev/null; done"
    running = begin(
        workshop,
        anna,
        f"{LAB} enter a-n1 -- sh -c {quoted(again)} & touch {workshop.folder}/begun; {until(f'test -e {ready}')}",
        *(f"{order} && echo BELIEVED || true" for _ in range(4)),
        f"wait; {until(f'{order} 2>&1 | grep -q unreadable')}; echo BACK",
        nodes=1,
        limit=180,
    )
    running.wait_for((workshop.folder / "begun").exists, 90, "the services")
    while not ready.exists():
        if process := service(running, "n1"):
            process.kill()
        time.sleep(0.05)
    done = running.finish().check()
    assert "BELIEVED" not in done.out and "BACK" in done.out, str(done)
    assert done.err.count("has not proved that it is the node service") >= 3, str(done)
