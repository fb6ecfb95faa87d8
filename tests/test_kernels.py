"""examples/kernels: their results do not depend on the number of ranks or sites, and errors are detected."""

import functools
import json
import subprocess

import pytest

from harness import KERNELS, LoopbackSites

# Small enough for many ranks on few cores; the grids divide neither by 3 nor by 5.
SMALL = {
    "sort": ["--size", "50001", "--iterations", "3"],
    "multigrid": ["--size", "16", "--iterations", "2", "--verify", "full"],
    "wavefront": ["--size", "11", "--iterations", "6", "--verify", "full"],
}


@pytest.fixture(scope="session", autouse=True)
def built():
    for name in SMALL:
        assert (KERNELS / name).exists(), f"{KERNELS / name} is not there: run make programs"


@pytest.fixture(params=SMALL)
def kernel(request):
    return request.param


def alone(mpiexec, kernel, ranks, *options):
    """Under MPICH's own mpiexec."""
    command = [str(word) for word in [mpiexec, "-n", ranks, KERNELS / kernel, *options]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@functools.cache
def result(mpiexec, kernel, ranks):
    done = alone(mpiexec, kernel, ranks, *SMALL[kernel], "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_across(workshop, mpi, kernel, reference):
    """Three ranks at one site, two at the other; the result is that of one rank, bit for bit."""
    sites = LoopbackSites(workshop)
    sites.start_gateways()
    program = [mpi.built(KERNELS / kernel), *SMALL[kernel], "--json", "-"]
    done = sites.run(mpi, program, "--site", "a=3", "--site", "b=2", ranks=5).check()
    found = json.loads(done.out)
    assert found["verified"] is True and found["ranks"] == 5
    assert found["checksum"] == reference["checksum"], str(done)


@pytest.mark.parametrize("ranks", [3, 5])
def test_any_number_of_ranks_gives_the_same_bits(mpich_only, kernel, ranks):
    one, several = result(mpich_only.mpiexec, kernel, 1), result(mpich_only.mpiexec, kernel, ranks)
    assert one["checksum"] == several["checksum"]
    assert several["verified"] is True and several["kernel"] == kernel and several["ranks"] == ranks
    assert one["bytes_sent"] == [0]
    assert len(several["bytes_sent"]) == ranks and min(several["bytes_sent"]) > 0
    assert several["rate"] > 0 and several["seconds"] >= several["seconds_communicating"]["mean"] > 0


def test_across_two_sites(workshop, mpich_only, kernel):
    check_across(workshop, mpich_only, kernel, result(mpich_only.mpiexec, kernel, 1))


def test_across_two_sites_with_open_mpi(workshop, mpich_only, openmpi_only):
    check_across(workshop, openmpi_only, "wavefront", result(mpich_only.mpiexec, "wavefront", 1))


@pytest.mark.parametrize(
    ("spoilt", "options", "said"),
    [
        ("sort", ["--iterations", "2"], "not those that went in"),
        ("multigrid", ["--size", "16", "--iterations", "3"], "a V-cycle divided the residual by"),
        ("multigrid", SMALL["multigrid"], "one rank alone gets"),
        ("wavefront", ["--size", "8", "--iterations", "6"], "at most"),
        ("wavefront", SMALL["wavefront"], "one rank alone gets"),
    ],
)
def test_one_wrong_value_is_found(mpich_only, spoilt, options, said):
    """A verification that cannot fail would prove nothing: --spoil makes one received value wrong."""
    done = alone(mpich_only.mpiexec, spoilt, 3, *options, "--json", "-", "--spoil")
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{spoilt}: wrong result: " in done.stderr and said in done.stderr
    assert done.stderr.count("\n") == 1, "said more than once"
    assert json.loads(done.stdout)["verified"] is False


@pytest.mark.parametrize(
    ("refusing", "ranks", "options", "named"),
    [
        ("sort", 2, ["--bogus"], "--bogus"),
        ("sort", 2, ["--size"], "--size needs a value"),
        ("sort", 2, ["--size", "0"], "--size 0"),
        ("sort", 2, ["--verify", "full"], "--verify"),
        ("sort", 1, ["--spoil"], "--spoil"),
        ("multigrid", 2, ["--iterations", "9", "--seconds", "1"], "exclude"),
        ("multigrid", 2, ["--size", "100"], "--size 100"),
        ("multigrid", 11, ["--size", "16"], "11 x 1 x 1"),
        ("multigrid", 2, ["--verify", "some"], "--verify some"),
        ("wavefront", 2, ["--seconds", "nan"], "nan"),
        ("wavefront", 5, ["--size", "4"], "5 x 1"),
    ],
)
def test_bad_arguments_are_named(mpich_only, refusing, ranks, options, named):
    done = alone(mpich_only.mpiexec, refusing, ranks, *options)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert done.stderr.count("\n") == 1, "said more than once"


def test_seconds_choose_the_iterations(mpich_only, kernel, tmp_path):
    done = alone(mpich_only.mpiexec, kernel, 2, "--seconds", "0.02", "--json", tmp_path / "result")
    assert done.returncode == 0, done.stderr
    assert "verified        yes" in done.stdout
    assert json.loads((tmp_path / "result").read_text())["iterations"] >= 1
