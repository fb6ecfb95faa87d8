"""`landbridge stage`: files and folders between nodes and sites, in a lab."""

import json
import os
import random
import shlex
import stat

import pytest

from harness import LANDBRIDGE, ROOT

LAB = f"{LANDBRIDGE} lab"
MOVE = f"{LANDBRIDGE} stage move"


def on(node, command):
    """A command on a node of the lab; each node has a /tmp of its own."""
    return f"{LAB} enter {node} -- sh -c '{command}'"


def in_lab(workshop, *steps, **options):
    return workshop.lab(["bash", "-ec", "\n".join(steps)], **options)


def make_tree(folder, seed=1):
    """A folder of files, links and holes."""
    numbers = random.Random(seed)
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "large").write_bytes(numbers.randbytes(9_000_000))
    for number in range(200):
        (folder / "deep" / str(number)).write_bytes(numbers.randbytes(number * 11))
    os.symlink("../large", folder / "deep" / "link")
    os.link(folder / "large", folder / "deep" / "same")
    os.chmod(folder / "deep" / "7", 0o640)
    with (folder / "sparse").open("wb") as file:
        file.truncate(3 << 30)
        file.seek(1 << 30)
        file.write(b"data in the middle")
    with open(os.fsencode(folder) + b"/no \xff utf-8", "wb") as file:
        file.write(b"x")
    (folder / "a new\nline").write_text("y")
    return folder


def description(folder):
    """All that is below a folder, for comparing. Of large files, only where they have data."""
    found = {}
    for at, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            path = os.path.join(at, name)
            what = os.lstat(path)
            key = os.path.relpath(path, os.fsencode(folder))
            if stat.S_ISLNK(what.st_mode):
                found[key] = os.readlink(path)
            elif stat.S_ISDIR(what.st_mode):
                found[key] = (oct(what.st_mode), what.st_mtime_ns)
            else:
                with open(path, "rb") as file:
                    data = []
                    at_end = 0
                    while at_end < what.st_size:
                        try:
                            begin = os.lseek(file.fileno(), at_end, os.SEEK_DATA)
                        except OSError:
                            break
                        at_end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
                        os.lseek(file.fileno(), begin, os.SEEK_SET)
                        data.append((begin, file.read(at_end - begin)))
                found[key] = (oct(what.st_mode), what.st_mtime_ns, what.st_size, what.st_nlink, data)
    return found


def nothing_hidden(folder):
    assert not [name for name in os.listdir(folder) if name.startswith(".landbridge")], os.listdir(folder)


def moved(done):
    return json.loads(done.check().out.splitlines()[-1])["moved"]


def test_on_this_machine(workshop):
    source = make_tree(workshop.folder / "source")
    done = workshop.run([LANDBRIDGE, "stage", "move", "--json", source, workshop.folder / "target"])
    (one,) = moved(done)
    assert description(workshop.folder / "target") == description(source)
    # The load of other tests may be worth a note.
    notes = [note for note in one["notes"] if not note.startswith("an application left")]
    assert one["resumed"] == 0 and one["files"] == 204 and notes == []
    nothing_hidden(workshop.folder)


@pytest.mark.parametrize("gateways", [1, 2])
def test_between_sites(workshop, gateways):
    """From a node of one site to a node of the other, each with a /tmp of its own."""
    source, target = make_tree(workshop.folder / "source"), workshop.folder / "target"
    done = in_lab(
        workshop,
        on("b-n2", f"cp -a {source} /tmp/source"),
        f"{MOVE} --json b/n2:/tmp/source a/n2:/tmp/target",
        on("a-n2", f"cp -a /tmp/target {target}; ls -A /tmp | grep landbridge-stage || true"),
        options=["--gateways", gateways],
    ).finish()
    done.check()
    assert description(target) == description(source)
    assert "landbridge-stage" not in done.out.splitlines()[-1], str(done)


def test_between_nodes_of_a_site_and_to_all_nodes_of_another(workshop):
    source = make_tree(workshop.folder / "source")
    done = in_lab(
        workshop,
        f"cp -a {source} /tmp/source",
        f"{MOVE} --json /tmp/source a/n2:/tmp/",
        f"{MOVE} --json a/n2:/tmp/source b/*:/tmp/copy",
        *(on(f"b-n{node}", f"cp -a /tmp/copy {workshop.folder}/copy{node}") for node in (1, 2, 3)),
        on("a-n2", f"cp -a /tmp/source {workshop.folder}/inside"),
        nodes=3,
    ).finish()
    done.check()
    for name in ("inside", "copy1", "copy2", "copy3"):
        assert description(workshop.folder / name) == description(source), name


def test_several_sources_and_this_machine(workshop):
    for name in ("one", "two"):
        (workshop.folder / name).write_text(name)
    done = in_lab(
        workshop,
        on("b-n1", f"mkdir /tmp/all; cp {workshop.folder}/two /tmp/two"),
        f"cd {workshop.folder}; {MOVE} one b/n1:/tmp/two b/n1:/tmp/all/; {MOVE} b/n1:/tmp/all here",
    ).finish()
    done.check()
    assert sorted(os.listdir(workshop.folder / "here")) == ["one", "two"]
    assert "one is at b/n1:/tmp/all/ (/tmp/all/one): 1 file(s), 3 bytes" in done.out, str(done)


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (("b/n1:/tmp/none", "here"), ("b/n1", "/tmp/none", "No such file")),
        (("c:/tmp/x", "here"), ("unknown site `c`", "a, b")),
        (("b/n9:/tmp/x", "here"), ("no node `n9`", "n1, n2")),
        (("b/*:/tmp/x", "here"), ("a source is on one node",)),
        (("b:", "here"), ("`b:` names no path",)),
        (("here/it", "b/n1:/none/x"), ("b/n1", "/none", "No such file")),
        (
            ("here/it", "here", "b/n1:/tmp/none"),
            ("several sources go into a folder that is there: write b/n1:/tmp/none/",),
        ),
        (("here/it", "here", "b/n1:/tmp/none/"), ("b/n1", "/tmp/none/", "there is no such folder")),
        (("here/it", "./here/it", "b/n1:/tmp/"), ("here/it and ./here/it have the same name",)),
        (("here", "a/n1:{folder}/here/it"), ("inside its source",)),
        (("--block", "0", "here", "b:/tmp/x"), ("--block", "0 bytes")),
        (("--rate", "0MB/s", "here", "b:/tmp/x"), ("--rate", "0MB/s")),
        (
            ("--keep-free", "1000000GB", "here", "b:/tmp/x"),
            ("gateway of b", "/tmp/x", "has room for", "Nothing was moved"),
        ),
    ],
    ids=lambda value: None if isinstance(value, tuple) else value,
)
def test_what_cannot_be_is_refused(workshop, places, says):
    (workshop.folder / "here" / "it").mkdir(parents=True)
    words = " ".join(f"'{place}'" for place in places).format(folder=workshop.folder)
    done = in_lab(workshop, f"cd {workshop.folder}", f"{MOVE} {words}").finish()
    done.fails_naming(*says)
    assert os.listdir(workshop.folder / "here") == ["it"] and os.listdir(workshop.folder / "here/it") == []
    nothing_hidden(workshop.folder)


def arrived(folder):
    """Blocks that the journal of an unfinished transfer in this folder remembers; 0: there is none."""
    for journal in folder.glob(".landbridge-stage-*/journal"):
        try:
            head = journal.read_bytes()
        except FileNotFoundError:
            continue
        return (len(head) - 48 - int.from_bytes(head[8:16], "little")) // 40
    return 0


# Processes in between are random victims too, in test_stage_kills.py.
@pytest.mark.parametrize(
    "victim",
    [
        "source",
        "target",
        "stage",
        *(pytest.param(other, marks=pytest.mark.matrix) for other in ("run", "agent")),
    ],
)
def test_after_a_kill_the_same_command_continues(workshop, isolated, victim):
    """In mid-transfer: blocks that have arrived are not moved again, and nothing is left over."""
    source = make_tree(workshop.folder / "source")
    (source / "larger").write_bytes(random.Random(2).randbytes(40_000_000))
    (workshop.folder / "to").mkdir()
    target = workshop.folder / "to" / "target"
    move = f"b/n1:{source} a/n2:{target}"
    # The same places in other words.
    again = f"b/n1:{source.parent}//./{source.name} a/n2:{target}"
    running = in_lab(
        workshop,
        f"{MOVE} --rate 10MB/s --block 256KiB {move} && exit 1 || true",
        f"cd {workshop.folder}; touch stopped; while [ ! -e go ]; do sleep 0.05; done",
        f"{MOVE} --json --block 256KiB {again}",
    )
    running.wait_for(lambda: arrived(target.parent) > 40, 30, "some blocks")
    assert not target.exists()
    movers = sorted(running.processes("mover"), key=lambda process: process.pid)
    place = {"source": "LANDBRIDGE_RANK=1", "target": "LANDBRIDGE_RANK=0"}
    if victim in place:
        movers = [process for process in movers if process.has(place[victim])]
        assert len(movers) == 1
        movers[0].kill()
    else:
        running.processes({"agent": "agent-worker"}.get(victim, victim))[0].kill()
    running.wait_for((workshop.folder / "stopped").exists, 40, "the end of the transfer")
    assert not target.exists()
    (workshop.folder / "go").touch()
    (one,) = moved(running.finish())
    assert one["resumed"] > 7_000_000, one
    assert description(target) == description(source)
    nothing_hidden(target.parent)


def test_a_gateway_that_is_lost_is_not_noticed(workshop, isolated):
    source = workshop.folder / "source"
    source.write_bytes(random.Random(3).randbytes(30_000_000))
    (workshop.folder / "to").mkdir()
    target = workshop.folder / "to" / "target"
    running = in_lab(
        workshop, f"{MOVE} --json --rate 8MB/s --block 256KiB b/n1:{source} a/n2:{target}", options=["--gateways", 2]
    )
    running.wait_for(lambda: arrived(target.parent) > 20, 30, "some blocks")
    gateways = [process for process in running.processes("gateway") if "b" in process.words]
    assert len(gateways) == 2, [process.words for process in running.processes("gateway")]
    gateways[0].kill()
    (one,) = moved(running.finish())
    assert one["resumed"] == 0 and one["bytes"] == 30_000_000
    assert target.read_bytes() == source.read_bytes()
    nothing_hidden(target.parent)


def test_a_source_that_is_written_to_is_refused(workshop):
    source = workshop.folder / "source"
    source.write_bytes(random.Random(4).randbytes(20_000_000))
    (workshop.folder / "to").mkdir()
    target = workshop.folder / "to" / "target"
    running = in_lab(workshop, f"{MOVE} --rate 8MB/s --block 256KiB b/n1:{source} a/n2:{target}")
    running.wait_for(lambda: arrived(target.parent) > 20, 30, "some blocks")
    with source.open("r+b") as file:
        file.seek(100)
        file.write(b"changed")
    running.finish().fails_naming("b/n1", f"{source} changed while it was being moved", "nothing was put in place")
    assert not target.exists()


def test_beside_an_application_it_says_what_that_lost(workshop):
    """Twice as many busy processes as cores: all rights are taken for the deadline, and the transfer ends."""
    source, target = workshop.folder / "source", workshop.folder / "target"
    source.write_bytes(random.Random(5).randbytes(60_000_000))
    spinners = [workshop.start(["sh", "-c", "while :; do :; done"]) for _ in range(2 * len(os.sched_getaffinity(0)))]
    words = [LANDBRIDGE, "stage", "move", "--json", "--rate", "20MB/s", "--deadline", "5s", source, target]
    (one,) = moved(workshop.run(words))
    assert all(spinner.child.poll() is None for spinner in spinners)
    for spinner in spinners:
        spinner.end()
    assert 0 <= one["harm"] <= 1, one
    assert target.read_bytes() == source.read_bytes()
    nothing_hidden(workshop.folder)


def test_mpbench_says_where_its_time_went(workshop, mpich_only):
    words = ["--iterations", 3, "--memory", "1M", "--stride", 64, "--access", "writes", "--passes", 2, "--block", 0.01]
    words += ["--disk", "64k", "--folder", workshop.folder, "--pattern", "broadcast", "--message", "64k"]
    program = ROOT / "examples" / "mpbench" / "mpbench"
    done = workshop.across(mpich_only, 2, [program, *words]).finish().check()
    found = json.loads(done.out.splitlines()[0])
    assert found["ranks"] == 2 and found["block"] >= 0.03 and found["disk"] > 0 and found["communicate"] > 0, found
    wrong = workshop.across(mpich_only, 1, [program, "--stride", "9"]).finish()
    assert "--stride must be a multiple of 8" in wrong.err, str(wrong)


@pytest.mark.parametrize("where", ["here", "between-sites"])
def test_a_transfer_is_asked_and_steered(workshop, where):
    """It is slow, waits, goes on, gets faster, and in a second attempt is given up."""
    source, target = workshop.folder / "source\n9999  forged", workshop.folder / "to" / "target"
    source.write_bytes(random.Random(6).randbytes(30_000_000))
    target.parent.mkdir()
    places = (source, target) if where == "here" else (f"b/n1:{source}", f"a/n2:{target}")
    move = " ".join(shlex.quote(str(place)) for place in places)
    move = f"{MOVE} --harm 100 --rate 2MB/s --block 256KiB {move}"
    stage = f"{LANDBRIDGE} stage"
    begun = f"until {stage} status --json | grep -q '\"arrived\":[1-9]'; do sleep 0.1; done"
    state = workshop.folder / ("state" * 20)
    running = in_lab(
        workshop,
        # Longer than the address of a socket can be.
        f"export XDG_STATE_HOME={state}; mkdir -p {state}",
        f"{move} & moving=$!",
        f"{begun}; {stage} pause; sleep 1; {stage} status --json; sleep 1.5; {stage} status --json; {stage} status",
        (
            f"{stage} resume; {stage} rate $moving 500MB/s; wait $moving; cmp {shlex.quote(str(source))} {target}; "
            f"rm {target}"
        ),
        f"{move} & moving=$!",
        f"{begun}; {stage} cancel; wait $moving && exit 9 || true; {stage} status --json",
        f"mkdir {state}/landbridge/stage/99999 && {stage} pause || true",
    )
    done = running.finish().check()
    states = [json.loads(line)["transfers"] for line in done.out.splitlines() if line.startswith("{")]
    (early,), (late,), nobody = states
    assert early["paused"] and early["total"] == 30_000_000 and early["rate"] == 2_000_000, states
    assert late["arrived"] == early["arrived"] < 30_000_000, states
    assert nobody == [] and not target.exists() and os.listdir(target.parent) == [], str(done)
    assert not [line for line in done.out.splitlines() if line.startswith("9999")], str(done)
    assert "2.0 MB/s, paused" in done.out and "cancelled" in done.err, str(done)
    assert "no transfer is running here" in done.err, str(done)
