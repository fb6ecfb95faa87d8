"""`landbridge stage in`, `stage out`, `run --stage-in` and `--stage-out`, and places on gateways' machines."""

import json
import os
import random
import re

import numpy as np
import pytest

from harness import LANDBRIDGE
from services import start
from slurm import EMPTY, slurm_site, watched
from test_stage import MOVE, arrived, in_lab, moved, nothing_hidden, on

STAGE = f"{LANDBRIDGE} stage"
RUN = f"{LANDBRIDGE} run --mpi none"


def test_a_site_alone_means_its_gateways_machine(workshop, isolated):
    """Files that only that machine has arrive, and a name without a node is written there."""
    back = workshop.folder / "back"
    done = in_lab(
        workshop,
        on("b-gw1", "echo from the gateway >/tmp/there"),
        f"{MOVE} --json b:/tmp/there a:/tmp/here",
        f"{on('a-gw1', 'cat /tmp/here')}; {on('a-n1', 'test ! -e /tmp/here')}",
        f"{MOVE} b:/tmp/there a/n2:{back}",
    ).finish()
    assert "from the gateway" in done.check().out and back.read_text() == "from the gateway\n"


def test_a_gateways_machine_runs_nothing_else(workshop, isolated):
    done = in_lab(workshop, f"{RUN} --host b/_gateway -n 1 -- hostname").finish()
    done.fails_naming("site b", "hostname", "only `landbridge stage` may use it")


def test_all_nodes_get_what_is_staged_in_and_give_what_is_staged_out(workshop, isolated):
    source = workshop.folder / "source"
    source.write_bytes(random.Random(7).randbytes(3_000_000))
    (workshop.folder / "part-n1").write_text("one")
    (workshop.folder / "part-n2").write_text("two")
    steps = [
        f"cd {workshop.folder}; {STAGE} in --json b:source-is-not-there=/tmp/x && exit 1 || true",
        f"{STAGE} in --json b:{source}=/tmp/in b:{workshop.folder}/part-%n=/tmp/part",
        f"{STAGE} out --json /tmp/in=b:{workshop.folder}/out /tmp/part=b:{workshop.folder}/%s-%n",
        on("a-n2", "echo only here >/tmp/rare"),
        f"{STAGE} out --json /tmp/rare=b:{workshop.folder}/rare",
        f"{STAGE} out --json a/n1:/tmp/in=b:{workshop.folder}/single",
        f"{STAGE} out /tmp/nowhere=b:{workshop.folder}/nothing",
    ]
    done = in_lab(workshop, *steps).finish()
    done.fails_naming("none of these exists", "a/n1:/tmp/nowhere", "a/n2:/tmp/nowhere")
    for name in ("out.n1", "out.n2", "single"):
        assert (workshop.folder / name).read_bytes() == source.read_bytes(), name
    assert [(workshop.folder / f"a-n{number}").read_text() for number in (1, 2)] == ["one", "two"]
    assert (workshop.folder / "rare.n2").read_text() == "only here\n" and not (workshop.folder / "rare.n1").exists()
    nothing_hidden(workshop.folder)


def test_a_node_on_which_something_computes_feeds_no_other(workshop, isolated):
    """The nodes of a site pass on files; the first one would, but it computes, and so it comes last."""
    source = workshop.folder / "source"
    source.write_bytes(random.Random(8).randbytes(4_000_000))
    sent = "cat /proc/net/dev"
    steps = [on("b-n1", "(yes >/dev/null & echo $! >/tmp/pid)"), "sleep 0.5"]
    steps += [on(f"b-n{node}", f"{sent} >/tmp/before") for node in (1, 2, 3)]
    steps += [f"{MOVE} {source} 'b/*:/tmp/in'", on("b-n1", "kill $(cat /tmp/pid)")]
    for node in (1, 2, 3):
        steps += [f"echo node {node}", on(f"b-n{node}", f"cmp {source} /tmp/in && cat /tmp/before && {sent}")]
    done = in_lab(workshop, *steps, nodes=3).finish().check()
    share = {}
    for node, text in re.findall(r"^node (\d)$(.*?)(?=^node|\Z)", done.out, re.MULTILINE | re.DOTALL):
        before, after = (int(line.split()[9]) for line in text.splitlines() if ":" in line and "lo:" not in line)
        share[int(node)] = (after - before) / source.stat().st_size
    assert share[1] < 0.2 and sum(each > 1 for each in share.values()) == 2, share


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["in", "x"], ["`x` is not SRC=DST"]),
        (["in", "a=b=c"], ["more than one `=`"]),
        (["in", "b:/x=a:/y"], ["a:/y", "every node of the allocation"]),
        (["out", "/x=b/*:/y"], ["b/*:/y", "name one node"]),
        (["out", "/x=b:/y-%q"], ["%q means nothing", "%n is the node"]),
        (["in", "--host", "a/n9", "b:/x=/y"], ["a/n9", "n1, n2"]),
        (["in", "--host", "z/n1", "b:/x=/y"], ["unknown site `z`"]),
    ],
)
def test_a_wrong_spec_is_refused_before_anything_begins(workshop, isolated, words, expected):
    line = " ".join(f"'{word}'" for word in words)
    in_lab(workshop, f"{STAGE} {line}").finish().fails_naming(*expected)


def test_files_of_the_next_and_the_last_run_move_while_one_computes(workshop, isolated):
    source = workshop.folder / "source"
    source.write_bytes(random.Random(8).randbytes(5_000_000))
    compute = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"
    steps = [
        on("a-n1", "echo of the last run >/tmp/last"),
        (
            f"{RUN} -n 2 --site a=2 --json --stage-mode bcast --stage-in b:{source}=/tmp/next --stage-out "
            f"/tmp/last=b:{workshop.folder}/last -- sh -c '{compute}'"
        ),
        f"{RUN} -n 2 --site a=2 -- cmp /tmp/next {source}",
        f"{RUN} -n 1 --json --stage-in b:{source}-missing=/tmp/z -- true",
    ]
    done = in_lab(workshop, *steps).finish()
    assert done.code == 1 and "source-missing" in done.err, str(done)
    first, last = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert first["exit_code"] == 0 and first["staged"]["bytes"] == 2 * 5_000_000 + len("of the last run\n"), first
    staged = first["staged"]
    assert 0 < staged["speedup"] <= staged["optimum"] * 1.01 and staged["optimum"] <= 2, staged
    assert (workshop.folder / "last.n1").read_text() == "of the last run\n"
    assert last["exit_code"] == 1 and last["ok"] and "staged" not in last, last


def test_who_ends_a_run_ends_its_staging(workshop, isolated):
    """Blocks that have arrived are kept, and nothing goes on."""
    source = workshop.folder / "source"
    source.write_bytes(random.Random(9).randbytes(30_000_000))
    (workshop.folder / "to").mkdir()
    target = workshop.folder / "to" / "target"
    stages = f"--stage-in b:{source}={target} --stage-rate 2MB/s --stage-mode send"
    running = in_lab(
        workshop, f"{RUN} -n 1 --site a=1 {stages} -- sleep 60 || echo ended with $?; {STAGE} status; sleep 1"
    )
    running.wait_for(lambda: arrived(target.parent) > 0, 30, "some blocks")
    staging = [process.words for process in running.processes("stage") if "--mode" in process.words]
    assert staging and all(words[words.index("--mode") + 1] == "send" for words in staging), staging
    [run] = [process for process in running.processes("run") if "sleep" in process.words]
    run.kill(15)
    done = running.finish(within=30)
    assert "ended with 143" in done.out and str(target) not in done.out, str(done)
    assert not target.exists() and not running.processes("mover")


def test_without_a_sites_file_this_machine_is_the_only_node(workshop):
    source, target = workshop.folder / "source", workshop.folder / "target"
    source.write_bytes(b"x" * 100_000)
    environment = {"HOME": str(workshop.folder), "LANDBRIDGE_SITES": "", "XDG_CONFIG_HOME": str(workshop.folder)}
    (one,) = moved(workshop.run([LANDBRIDGE, "stage", "in", "--json", f"{source}={target}"], environment=environment))
    assert target.read_bytes() == source.read_bytes() and one["bytes"] == 100_000
    done = workshop.run([LANDBRIDGE, "stage", "out", f"{source}=lyon:x"], environment=environment)
    done.fails_naming("lyon:x", "there is no sites file")
    words = [LANDBRIDGE, "run", "-n", "1", "--stage-out", f"{source}={target}-2", "--", "sleep", "0.1"]
    assert "staged 100.0 kB" in workshop.run(words, environment=environment).check().err
    assert (workshop.folder / "target-2").read_bytes() == source.read_bytes()


def test_a_batch_jobs_nodes_are_staged_to_in_its_script(workshop, mpich_only, slurm):
    """Setting 1: `stage in`, a run with the next one's input and the last one's output, `stage out`. A site without an
    allocation has only its gateway's machine."""
    source = workshop.folder / "source"
    source.write_bytes(random.Random(10).randbytes(4_000_000))
    script = workshop.folder / "job.sh"
    lines = [
        "#!/bin/bash",
        "set -e",
        f"{STAGE} in b:{source}=/tmp/one",
        f"{RUN} --stage-in b:{source}=/tmp/two --stage-out /tmp/one=b:{workshop.folder}/first -- cmp /tmp/one {source}",
        f"{STAGE} out /tmp/two=b:{workshop.folder}/second",
        f"{MOVE} b/n1:{source} {workshop.folder}/never",
    ]
    script.write_text("\n".join(lines) + "\n")
    out = workshop.folder / "job.out"
    batch = ["sbatch", "--wait", "-N2", "--ntasks-per-node=1", f"--output={out}", f"--chdir={workshop.folder}", script]
    sites = {"a": slurm_site(), "b": slurm_site()}
    done = start(workshop, sites, watched(batch), environment=mpich_only.environment, host="a-gw1").finish()
    text = out.read_text()
    for name in ("first.n1", "first.n2", "second.n1", "second.n2"):
        assert (workshop.folder / name).exists(), f"{name}: {text}\n{done}"
        assert (workshop.folder / name).read_bytes() == source.read_bytes(), name
    assert "those of its batch system's jobs" in text and "in a job's script" in text, text
    assert done.out.count(EMPTY) == 1 and os.listdir(workshop.folder / "inside"), str(done)


SHAPE = (60, 44)


def part(array, axes, process):
    """A process's part of an array whose axes are dealt out to `over` processes in blocks."""
    indices = []
    for axis, (over, block) in enumerate(axes):
        place = process // int(np.prod([over for over, _ in axes[axis + 1 :]])) % over
        indices.append([index for index in range(array.shape[axis]) if index // block % over == place])
    return array[np.ix_(*indices)]


@pytest.mark.parametrize("where", ["here", "between-sites"])
def test_a_checkpoint_gets_another_layout(workshop, where):
    """Files of 6 processes become those of 4, and a loss on the way is resumed or refused."""
    array = np.random.default_rng(1).random(SHAPE)
    before, after = [(3, 20), (2, 22)], [(4, 4), (1, 44)]
    (workshop.folder / "from").mkdir()
    for process in range(6):
        (workshop.folder / "from" / f"x.{process}").write_bytes(part(array, before, process).tobytes())
    layouts = "--from-layout '60x44/8:block(3),block(2)' --to-layout '60x44/8:cyclic(4,4),whole'"
    place = {"here": ("", ""), "between-sites": ("b/n1:", "a/n2:")}[where]
    move = f"{MOVE} {layouts} {place[0]}{workshop.folder}/from/x.%r {place[1]}{workshop.folder}/to/y-%r.bin"
    done = in_lab(workshop, move) if where != "here" else workshop.start(["sh", "-c", move])
    done.finish().check()
    for process in range(4):
        expected = part(array, after, process).tobytes()
        assert (workshop.folder / "to" / f"y-{process}.bin").read_bytes() == expected, process
    assert len(os.listdir(workshop.folder / "to")) == 4
    nothing_hidden(workshop.folder)


@pytest.mark.parametrize(
    ("options", "names", "expected"),
    [
        ("--from-layout 8/1:*", ("x.%r", "y.%r"), ["--to-layout"]),
        ("--from-layout 8/1:* --to-layout 8/1:block(2)", ("x", "y.%r"), ["x", "needs %r"]),
        ("--from-layout 8/1:* --to-layout 8/2:block(2)", ("x.%r", "y.%r"), ["1 bytes", "2 bytes"]),
        ("--from-layout 9/1:* --to-layout 9/1:block(2)", ("x.%r", "y.%r"), ["x.0", "8 bytes", "has 9"]),
        ("--from-layout 8/1:block(2) --to-layout 8/1:*", ("x.%r", "y.%r"), ["x.0", "8 bytes", "process 0", "has 4"]),
        ("--from-layout 8/1:tiles(2) --to-layout 8/1:*", ("x.%r", "y.%r"), ["`tiles(2)` is no axis"]),
    ],
)
def test_layouts_that_do_not_fit_the_files_are_refused(workshop, options, names, expected):
    (workshop.folder / "x.0").write_bytes(b"12345678")
    places = [workshop.folder / names[0], workshop.folder / "out" / names[1]]
    workshop.run([LANDBRIDGE, "stage", "move", *options.split(), *places]).fails_naming(*expected)
    assert os.listdir(workshop.folder).count("out") == 0
