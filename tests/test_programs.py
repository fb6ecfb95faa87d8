"""Unmodified programs across two sites, on each MPI."""

import json
import re
import subprocess
import sys

import pytest

from harness import LANDBRIDGE, POISSON, PROGRAMS, ROOT

sys.path.insert(0, str(ROOT / "examples" / "poisson"))
import compare


def bench(mpi, *words):
    return [mpi.python, "-m", "mpi4py.bench", *words]


def test_helloworld_has_every_rank_on_its_node(workshop, mpi):
    done = workshop.across(mpi, 8, bench(mpi, "helloworld")).finish().check()
    found = dict(re.findall(r"I am process (\d+) of 8 on (\S+?)\.?$", done.out, re.MULTILINE))
    assert sorted(map(int, found)) == list(range(8)), str(done)
    # contiguous blocks: by sites in the order of the file, then by nodes
    hosts = [found[str(rank)] for rank in range(8)]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3], hosts
    assert hosts[4] == hosts[5] != hosts[6] == hosts[7], hosts
    assert len(set(hosts)) == 4, hosts


def test_ringtest(workshop, mpi):
    done = workshop.across(mpi, 4, bench(mpi, "ringtest", "-n", "100000", "-l", "20")).finish().check()
    assert "(4 processes, 100000 bytes)" in done.out, str(done)


@pytest.mark.one_mpi
def test_pingpong(workshop, mpi):
    done = workshop.across(mpi, 2, bench(mpi, "pingpong", "-n", "1048576", "-l", "5"), nodes=1).finish().check()
    sizes = [int(size) for size in re.findall(r"^ *(\d+) +[\d.]+ \|", done.out, re.MULTILINE)]
    assert sizes == [1 << power for power in range(21)], str(done)


@pytest.mark.parametrize("ranks_per_node", [1, 2])
def test_messages_arrive_whole_and_in_order(workshop, mpi, ranks_per_node):
    ranks = 4 * ranks_per_node
    program = [mpi.python, PROGRAMS / "messages.py", 22]
    done = workshop.across(mpi, ranks, program, limit=120).finish().check()
    assert f"messages: {22 * ranks * ranks} good" in done.out, str(done)


def test_point_to_point_semantics(workshop, mpi):
    done = workshop.across(mpi, 3, [mpi.built(PROGRAMS / "semantics")]).finish().check()
    assert "all good" in done.out, str(done)


def test_one_sided(workshop, mpi):
    done = workshop.across(mpi, 4, [mpi.python, PROGRAMS / "one_sided.py"], limit=120).finish().check()
    assert "one-sided: 4 ranks good" in done.out, str(done)


def test_a_window_that_is_not_freed_does_no_harm(workshop, mpi):
    code = "from mpi4py import MPI; w = MPI.Win.Allocate(1024); w.Fence(); print('fenced', flush=True)"
    done = workshop.across(mpi, 4, [mpi.python, "-c", code]).finish().check()
    assert done.out.count("fenced") == 4, str(done)


@pytest.mark.one_mpi
@pytest.mark.alone
def test_naps_do_not_slow_what_passes_us_by(workshop, mpi):
    """Compared with never napping: while a rank waits for the library's own shared memory, nothing of ours would
    wake it."""
    program, found = [mpi.python, PROGRAMS / "beside.py"], {"": {}, "always": {}}
    # Other activity of the machine can only add to a figure, so the minimum of a few counts.
    for _ in range(4):
        for spin, least in found.items():
            environment = {"LANDBRIDGE_SPIN": spin}
            done = workshop.across(mpi, 2, program, sites=1, nodes=1, environment=environment).finish().check()
            figures = re.findall(r"^(.+): ([\d.]+) us$", done.out, re.MULTILINE)
            assert len(figures) == 3, str(done)
            least.update({name: min(float(value), least.get(name, float(value))) for name, value in figures})
        # Naps made it a hundred times slower.
        slow = [name for name, value in found[""].items() if value > 15 * found["always"][name]]
        if not slow:
            break
    assert not slow, found


@pytest.mark.one_mpi
@pytest.mark.slow
def test_twelve_ranks_on_two_cores(workshop, mpi):
    program = [mpi.python, PROGRAMS / "collectives.py"]
    done = workshop.across(mpi, 12, program, limit=240).finish().check()
    assert "collectives: 12 ranks good" in done.out, str(done)


@pytest.mark.one_mpi
@pytest.mark.slow
def test_a_message_of_one_gibibyte(workshop, mpi):
    program = [mpi.python, PROGRAMS / "large_message.py", 1 << 30]
    # unshaped: this tests the content, at the speed of the machine
    options = ("--nic-rate", "0", "--wan-rate", "10gbit")
    done = workshop.across(mpi, 2, program, nodes=1, options=options, limit=240).finish().check()
    assert f"{1 << 30} bytes good both ways" in done.out, str(done)
    assert workshop.summary()["bytes_relayed"] >= 2 << 30


IMB = [
    "PingPong",
    "PingPing",
    "Sendrecv",
    "Exchange",
    "Allreduce",
    "Reduce",
    "Reduce_scatter",
    "Allgather",
    "Allgatherv",
    "Gather",
    "Gatherv",
    "Scatter",
    "Scatterv",
    "Alltoall",
    "Alltoallv",
    "Bcast",
    "Barrier",
]


@pytest.mark.slow
def test_intel_mpi_benchmarks(workshop, mpi, imb):
    """IMB-MPI1 to its end. PyPI's binary has no data checks (they are compiled out): messages.py, collectives.py and
    semantics.c check content."""
    if mpi.name == "openmpi":
        pytest.skip("IMB-MPI1 of PyPI's impi-rt is linked to MPICH's ABI, which Open MPI does not have")
    options = ["-npmin", 4, "-iter", 5, "-msglog", "0:16", "-time", 2]
    done = workshop.across(mpi, 4, [imb, *options, *IMB], limit=300).finish().check()
    for name in IMB:
        assert re.search(rf"^# Benchmarking {name} *$", done.out, re.MULTILINE), f"{name} did not run\n{done}"
    assert "All processes entering MPI_Finalize" in done.out, str(done)


@pytest.mark.one_mpi
def test_two_jobs_at_once_through_the_same_gateways(workshop, mpi):
    run = f"{LANDBRIDGE} run -n 4 --mpi {mpi.name} -- {mpi.python} {PROGRAMS / 'messages.py'} 22"
    script = f"{run} 1 >one & first=$!; {run} 2 >two & second=$!; wait $first && wait $second && cat one two"
    done = workshop.lab(["bash", "-c", script], environment=mpi.environment, limit=120).finish().check()
    assert done.out.count("messages: 352 good") == 2, str(done)


def test_poisson_gives_the_same_field_as_one_site(workshop, mpi, mpich_only):
    size = (33, 32, 65)
    options = ["--size", "33x32x65", "--iterations", "20", "--coefficients", "varied"]
    reference = workshop.folder / "reference"
    one = [mpich_only.mpiexec, "-n", "1", POISSON, *options, "--field", reference]
    subprocess.run([str(word) for word in one], check=True, timeout=60, capture_output=True)
    for decompose in ("2x2x1", "1x4x1", "1x1x4"):
        field = workshop.folder / decompose
        program = [mpi.built(POISSON), *options, "--decompose", decompose, "--json", "-", "--field", field]
        done = workshop.across(mpi, 4, program).finish().check()
        assert json.loads(done.out)["ranks"] == 4
        difference = compare.first_difference(compare.read_field(reference, size), compare.read_field(field, size))
        assert difference is None, f"{decompose}: {difference}"


@pytest.mark.one_mpi
def test_the_summary_tells_sites_ranks_and_bytes(workshop, mpi):
    program = [mpi.python, PROGRAMS / "large_message.py", 3_000_000]
    workshop.across(mpi, 4, program).finish().check()
    summary = workshop.summary()
    assert summary["ok"] is True and summary["exit_code"] == 0 and summary["failure"] is None
    assert summary["ranks"] == 4 and summary["mpi"] == mpi.name and summary["seconds"] > 0
    assert [site["name"] for site in summary["sites"]] == ["a", "b"]
    assert [site["ranks"] for site in summary["sites"]] == [[0, 1], [2, 3]]
    assert [len(site["nodes"]) for site in summary["sites"]] == [2, 2]
    for site in summary["sites"]:  # one message each way between the sites
        assert 3_000_000 <= site["bytes_sent"] <= 4_000_000, summary
        assert 3_000_000 <= site["bytes_received"] <= 4_000_000, summary
    assert 6_000_000 <= summary["bytes_relayed"] <= 8_000_000, summary


def test_the_site_option_places_ranks(workshop, mpich_only):
    done = (
        workshop.across(mpich_only, 4, bench(mpich_only, "helloworld"), run_options=["--site", "b=3", "--site", "a=1"])
        .finish()
        .check()
    )
    assert done.out.count("Hello, World!") == 4
    assert {site["name"]: len(site["ranks"]) for site in workshop.summary()["sites"]} == {"a": 1, "b": 3}


def test_output_directory_environment_and_prefix_come_through(workshop, mpich_only):
    code = (
        "import os, sys; from mpi4py import MPI; r = MPI.COMM_WORLD.rank\n"
        "print('out', r, os.getcwd(), os.environ['COLOUR'], flush=True)\n"
        "print('err', r, file=sys.stderr, flush=True)"
    )
    done = (
        workshop.across(
            mpich_only,
            2,
            [mpich_only.python, "-c", code],
            nodes=1,
            run_options=["--prefix"],
            environment={"COLOUR": "green"},
        )
        .finish()
        .check()
    )
    lines = done.out.splitlines()
    for rank, site in enumerate("ab"):
        wanted = rf"\[{site}/\S+/{rank}\] out {rank} {re.escape(str(workshop.folder))} green"
        assert any(re.fullmatch(wanted, line) for line in lines), (wanted, str(done))
        assert re.search(rf"\[{site}/\S+/{rank}\] err {rank}$", done.err, re.MULTILINE), str(done)


def test_an_exit_code_comes_back(workshop, mpich_only):
    code = "import sys; from mpi4py import MPI; r = MPI.COMM_WORLD.rank; MPI.Finalize(); sys.exit(23 if r == 3 else 0)"
    done = workshop.across(mpich_only, 4, [mpich_only.python, "-c", code]).finish()
    assert done.code == 23, str(done)
    summary = workshop.summary()
    assert summary["ok"] is False and summary["exit_code"] == 23
    assert summary["failure"]["site"] == "b" and summary["failure"]["rank"] == 3, summary


def test_communicators_from_sessions(workshop, mpi):
    done = workshop.across(mpi, 6, [mpi.python, PROGRAMS / "sessions.py"]).finish().check()
    assert "sessions: 6 ranks good" in done.out, str(done)


def test_names_are_refused_at_once(workshop, openmpi_only):
    """Open MPI's ports need names that PMIx keeps; MPICH's and Intel's do not."""
    done = workshop.across(openmpi_only, 2, [openmpi_only.python, PROGRAMS / "ports.py"]).finish().check()
    assert done.out.count("ports: refused") == 2, str(done)
    for rank in range(2):
        assert re.search(rf"rank {rank} published or looked up a name", done.err), str(done)


def test_spawning_is_refused_at_once(workshop, mpi):
    """Not supported, and reported: an MPI error for the program, a line with rank and program for the user, never a
    hang."""
    done = workshop.across(mpi, 3, [mpi.python, PROGRAMS / "spawn.py", "./some-worker"]).finish().check()
    assert "spawn: refused" in done.out, str(done)
    for rank in (0, 2):
        assert re.search(rf"rank {rank} called MPI_Comm_spawn for \S*some-worker\b", done.err), str(done)
