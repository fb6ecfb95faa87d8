"""Staging behind other users' jobs: Debian's own Slurm and munge in a lab, node services, users who are not root."""

import hashlib
import random
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness import LANDBRIDGE, ONCE
from slurm_jobs import (
    FORGOTTEN,
    LAB,
    NODES,
    RATE,
    assert_nothing_left,
    begin,
    gone,
    job,
    left,
    line,
    occupied,
    on,
    service,
    staged,
    until,
)
from test_stage import description, make_tree


def crossed(workshop):
    """Bytes that have come to site a over the WAN in all jobs of its gateway."""
    log = (workshop.folder / "inside" / "gateway-a.log").read_text()
    return sum(map(int, re.findall(r"job closed job=.* received=(\d+)", log)))


def test_input_comes_before_a_job_and_output_leaves_after_it(workshop, people, slurm):
    """While others compute on all nodes, to the predicted one; the copies go with the job."""
    anna, bob = people
    source = make_tree(workshop.folder / "source")
    (workshop.folder / "to").mkdir()
    body = f"hostname > {anna.home}/ran; cp -a /tmp/one /tmp/output; hostname > /tmp/each"
    words = f"stage_in=b:{source}=/tmp/one stage_out=/tmp/output=b:{workshop.folder}/to/output rate=3MB/s"
    words += f" stage_out=/tmp/each=b:{workshop.folder}/to/each-{{node}}"
    one = job(workshop, anna, "one", words, body=body)
    meanwhile = (
        f"squeue -h -t R -w n4 -n next -o %i | grep -q . && ls -A {workshop.folder}/to | grep -q landbridge-stage"
    )
    done = begin(
        workshop,
        anna,
        *(occupied(bob, node, 50 - 10 * node) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 {one}",
        staged("one", 4),
        f"test ! -e {anna.home}/ran; squeue -h -n one -o 'while it is %T'",
        "SLURM_TIME_FORMAT=%s scontrol -o show job $(squeue -h -n one -o %i) | grep -oE 'StartTime=[0-9]{10} '",
        "scancel -n busy4",
        until(f"test -e {anna.home}/ran"),
        "cd /",
        line(
            bob.words(
                "sbatch", "-N1", "-t1", "-w", "n4", "-J", "next", "-o", "/dev/null", "--exclusive", "--wrap", "sleep 30"
            )
        ),
        until(f"{meanwhile} && echo MEANWHILE", 30),
        gone("one"),
        on("a-n4", "rm -r /tmp/output /tmp/each"),
        *left(),
        "scancel --user " + bob.name,
        staging=True,
        limit=150,
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
        "sbatch",
        "-N1",
        "-t1",
        "-o",
        "/dev/null",
        "-J",
        f"x {claim} {state}",
        "--chdir",
        anna.home,
        "--comment",
        f"{claim} {state}\nJobId=1 {claim} {state}\n1 {bob.uid}",
        "--wckey",
        claim,
        path,
    )
    mine = f"squeue -h -u {anna.name} -o %i"
    over = until(f'test -z "$({mine})"', 90)
    done = begin(
        workshop,
        anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        line(submit),
        staged("forged", 1),
        f"scontrol -o show job $({mine}) | grep -o 'UserId=[a-z]*' | head -1",
        on("a-n1", "stat -c 'owner %u' /tmp/forged"),
        f"scancel -n busy1; {over}; {FORGOTTEN}",
        on("a-n1", "rm /tmp/out"),
        *left(),
        "scancel --user " + bob.name,
        staging=True,
        limit=200,
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
        path = job(
            workshop,
            anna,
            name,
            f"stage_in=b:{workshop.folder}/source=/tmp/{name}",
            RATE,
            body=f"echo $SLURM_JOB_NODELIST $(sha256sum < /tmp/{name}) >> {anna.home}/log",
        )
        steps += [
            *(occupied(bob, node, 2 if node == predicted else 9) for node in NODES),
            f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
            staged(name, predicted),
            f"scancel -n busy{real}",
            gone(name),
            "scancel --user " + bob.name,
            until(f'test -z "$(squeue -h -u {bob.name} -o %i)"'),
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
    path = job(
        workshop,
        anna,
        "many",
        f"stage_in=b:{source}=/tmp/many",
        f"stage_in={workshop.folder}/homes/table=/tmp/table {RATE}",
        body=body,
    )
    done = begin(
        workshop,
        anna,
        *(occupied(bob, node, 3 if node < 4 else 9) for node in NODES),
        f"anna: cd; sbatch -N3 -t1 -o /dev/null {path}",
        *(staged("table", node) for node in (1, 2, 3)),
        "scancel -n busy4; scancel -n busy3; scancel -n busy2",
        gone("many"),
        *left(),
        "scancel --user " + bob.name,
        staging=True,
        limit=180,
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
        workshop,
        anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 {slow}",
        until(partly),
        "scancel -n slow",
        gone("slow"),
        *left(),
        "echo AND",
        f"anna: cd; sbatch -N1 -t1 {whole}",
        staged("whole", 1),
        "scancel -n whole",
        gone("whole"),
        *left(),
        "scancel --user " + bob.name,
        staging=True,
        limit=250,
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
        workshop,
        anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 {one}",
        staged("one", 1),
        f"cp -a {records} {aside}",
        "scancel -n one",
        gone("one"),
        *left(),
        "echo AGAIN",
        on("a-n1", again),
        f"cp -a {aside}/. {records}/; ls {records}",
        FORGOTTEN,
        *left(),
        "scancel --user " + bob.name,
        staging=True,
        limit=200,
    ).finish()
    done.check()
    first, second = done.out.split("AGAIN")
    assert second.split()[0] == "5", str(done)
    for text in (first, second):
        assert_nothing_left(replace(done, out=text))


@pytest.mark.parametrize(
    ("directive", "says"),
    [
        ("stage-in=b:/x=/tmp/x", "it is unknown; there are stage_in=SRC=DST"),
        ("stage_in=b:/x=tmp/x", "tmp/x is no absolute path"),
        ("stage_in=b:/x", "give SRC=DST"),
        ("rate=0", "rate=0"),
    ],
    ids=lambda value: None,
)
def test_a_wrong_directive_is_refused_when_the_job_is_submitted(workshop, people, slurm, directive, says):
    anna, _ = people
    path = job(workshop, anna, "wrong", directive)
    done = begin(
        workshop,
        anna,
        f"anna: cd; sbatch {path} 2>&1 || echo REFUSED",
        "squeue -h",
        nodes=1,
        staging=True,
    ).finish()
    done.check()
    assert "REFUSED" in done.out and f"line 3 of the job script: `{directive}`" in done.out and says in done.out, str(
        done
    )


def test_a_killed_service_does_not_stop_a_jobs_input(workshop, people, slurm):
    """That of the node in mid-transfer, then that of the controller; the transfer continues when they are back."""
    anna, bob = people
    (workshop.folder / "source").write_bytes(random.Random(3).randbytes(12_000_000))
    path = job(
        workshop,
        anna,
        "input",
        f"stage_in=b:{workshop.folder}/source=/tmp/input rate=2MB/s",
        body=f"cmp /tmp/input {workshop.folder}/source && echo same > {anna.home}/result",
    )
    partly = until(f"{LAB} enter a-n1 -- sh -c 'ls -A /tmp/.landbridge-stage-*/tree'")
    running = begin(
        workshop,
        anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        partly,
        f"cd {workshop.folder}; touch begun; {until('test -e go')}",
        staged("input", 1),
        f"scancel -n busy1; {gone('input')}",
        *left(),
        "scancel --user " + bob.name,
        staging=True,
        limit=180,
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
    path = job(
        workshop,
        anna,
        "pinned",
        f"stage_in=b:{workshop.folder}/source=/tmp/pinned pin",
        body=f"hostname > {anna.home}/ran",
    )
    done = begin(
        workshop,
        anna,
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        staged("pinned", 1),
        until("scontrol show job $(squeue -h -n pinned -o %i) | grep -q ReqNodeList=n1"),
        f"scancel -n busy3; sleep 3; test ! -e {anna.home}/ran; scancel -n busy1",
        gone("pinned"),
        *left(),
        "scancel --user " + bob.name,
        staging=True,
        limit=120,
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
        workshop,
        anna,
        *(
            on(f"a-n{node}", f"echo mine > /tmp/there; chown {anna.uid} /tmp/there; mkdir -m 0777 /tmp/group")
            for node in NODES
        ),
        *(occupied(bob, node, 2 if node == 1 else 9) for node in NODES),
        *(
            step
            for path, name, text in (
                (none, "none", "No such file"),
                (there, "there", "is there already"),
                (shared, "shared", "mode 777 allows it can rename what is in"),
            )
            for step in (
                f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
                until(f"{says.format(name)} | grep -q '{text}'"),
                says.format(name),
                f"scancel -n {name}; {gone(name)}",
            )
        ),
        on("a-n1", "cat /tmp/there"),
        *left(),
        "scancel --user " + bob.name,
        staging=True,
        limit=180,
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
        workshop,
        anna,
        f"anna: cd; sbatch -N1 -t1 -o /dev/null {path}",
        f"{until('squeue -h -n late -t R -o %i | grep -q .')}; rmdir {none}",
        until("squeue -h -n late -t STAGE_OUT -o %i | grep -q ."),
        # Longer than the retries for a passing fault.
        f"sleep 20; squeue -h -n late -o 'after 20 s %T'; mkdir {workshop.folder}/to/none; {gone('late')}",
        on("a-n1", "rm /tmp/late"),
        nodes=1,
        staging=True,
        limit=200,
    ).finish()
    done.check()
    assert "after 20 s STAGE_OUT" in done.out, str(done)
    assert (workshop.folder / "to" / "none" / "late").read_text() == "late\n", str(done)


def test_install_shows_what_it_changes_and_uninstall_undoes_it(workshop):
    conf, units = workshop.folder / "slurm.conf", workshop.folder / "units"
    conf.write_text("ClusterName=x\n# the last line\n")
    before = conf.read_text()
    places = [
        "--conf",
        conf,
        "--units",
        units,
        "--state",
        workshop.folder / "state",
        "--socket",
        workshop.folder / "hooks",
    ]

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
    # Copies known only from the records stay.
    (workshop.folder / "state" / "7").write_text("{}")
    removed = slurm("uninstall", "--yes").check()
    assert "landbridge-node.service: removed" in removed.out and "1 job(s) still have copies" in removed.err, str(
        removed
    )
    assert conf.read_text() == before and not list(units.iterdir())
    (workshop.folder / "state" / "7").unlink()
    assert "state: removed" in slurm("uninstall", "--yes").check().out
    assert not (workshop.folder / "state").exists(), "uninstall leaves nothing"
    if not Path("/run/systemd/system").exists():
        refused = workshop.run([LANDBRIDGE, "slurm", "install", "--yes", *places])
        refused.fails_naming("systemd does not run", "--no-start", "nothing was changed")
        assert not list(units.iterdir()), "files without anything that starts the service"
    (workshop.folder / "burst_buffer.lua").write_text("-- the centre's own\n")
    slurm("install", "--controller", "--yes").fails_naming("burst_buffer.lua exists and Landbridge did not write it")
    assert conf.read_text() == before
