"""Open MPI's peculiarities: libpmix, start-up by PMIx, Debian's older release, files of its own."""

import os
import shutil
import subprocess

import pytest

from harness import LANDBRIDGE, PROGRAMS, LoopbackSites, wait_until


def hello(mpi):
    return [mpi.python, "-m", "mpi4py.bench", "helloworld"]


def test_the_library_is_recognised(workshop, openmpi_only):
    """--mpi auto: by the interpreter's own folder, and by the libraries that a C program is linked to."""
    for program in (hello(openmpi_only), [openmpi_only.built(PROGRAMS / "semantics")]):
        command = [LANDBRIDGE, "run", "-n", 4, f"--json={workshop.folder / 'run.json'}", "--", *program]
        workshop.lab(command).finish().check()
        assert workshop.summary()["mpi"] == "openmpi"


def test_a_hidden_program_does_not_become_many_jobs_of_one_rank(workshop, openmpi_only):
    """The command line does not show the program that `sh -c` runs. Without a PMIx server, Open MPI would start one
    job per rank and succeed."""
    code = "from mpi4py import MPI; print('ran with', MPI.COMM_WORLD.size)"
    hidden = ["sh", "-c", f'{openmpi_only.python} -c "{code}"']
    done = workshop.lab([LANDBRIDGE, "run", "-n", 2, "--", *hidden]).finish()
    done.fails_naming("rank")
    assert "ran with" not in done.out, str(done)
    done = workshop.lab([LANDBRIDGE, "run", "-n", 2, "--mpi", "openmpi", "--", *hidden]).finish().check()
    assert done.out.count("ran with 2") == 2, str(done)


@pytest.fixture
def debian(workshop):
    """semantics.c compiled for Debian's Open MPI 4.1."""
    compiler = shutil.which("mpicc.openmpi")
    if compiler is None:
        pytest.skip("mpicc.openmpi is not there: apt install openmpi-bin libopenmpi-dev")
    program = workshop.folder / "semantics"
    flags = ["-std=c99", "-D_XOPEN_SOURCE=700", "-Wall", "-Wextra", "-Werror", "-O1"]
    words = [compiler, *flags, PROGRAMS / "semantics.c", "-o", program]
    subprocess.run([str(word) for word in words], check=True, timeout=60, env=os.environ | {"OMPI_CC": "cc"})
    return program


def test_debians_open_mpi(workshop, debian):
    command = [LANDBRIDGE, "run", "-n", 4, f"--json={workshop.folder / 'run.json'}", "--", debian]
    done = workshop.lab(command).finish().check()
    assert done.out.count("all good") == 1, str(done)
    assert workshop.summary()["mpi"] == "openmpi"


@pytest.mark.parametrize("named", ["missing", "not a library", "another library"])
def test_a_libpmix_that_cannot_be_used_is_named(workshop, openmpi_only, named):
    path = workshop.folder / "libpmix.so.2"
    if named == "not a library":
        path.write_text("nothing")
    if named == "another library":
        shutil.copy(next((openmpi_only.home / "lib" / "openmpi").glob("libhwloc.so.*")), path)
    environment = {"LANDBRIDGE_PMIX": str(path)}
    done = workshop.across(openmpi_only, 2, hello(openmpi_only), environment=environment).finish()
    done.fails_naming("site", "node", f"LANDBRIDGE_PMIX={path}")
    if named == "another library":
        assert "PMIx_Get_version" in done.err, str(done)


@pytest.mark.parametrize("collect", ["1", "0"])
def test_addresses_on_demand(workshop, openmpi_only, collect):
    """Without a fence that collects data, or with one that does not wait, ranks request each other's addresses one
    by one."""
    environment = {"OMPI_MCA_pmix_base_async_modex": "1", "OMPI_MCA_pmix_base_collect_data": collect}
    program = [openmpi_only.python, PROGRAMS / "collectives.py"]
    done = workshop.across(openmpi_only, 6, program, environment=environment).finish().check()
    assert "collectives: 6 ranks good" in done.out, str(done)


def test_the_system_s_libpmix_serves_too(workshop, openmpi_only):
    """A server older than the ranks' own library, as when libpmix and Open MPI come from different packages."""
    system = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    paths = [line.split()[-1] for line in system.splitlines() if line.strip().startswith("libpmix.so.2 ")]
    if not paths:
        pytest.skip("the system has no libpmix.so.2: apt install libpmix2")
    environment = {"LANDBRIDGE_PMIX": paths[0]}
    program = [openmpi_only.python, PROGRAMS / "messages.py", 11]
    done = workshop.across(openmpi_only, 4, program, environment=environment).finish().check()
    assert "messages: 176 good" in done.out, str(done)


def folders():
    places = ("/tmp", "/dev/shm")
    return {f"{place}/{name}" for place in places for name in os.listdir(place) if name.startswith("landbridge-agent-")}


@pytest.mark.parametrize("victim", [None, "agent", "agent-worker", "run"])
def test_no_file_stays(workshop, openmpi_only, victim):
    """Outside a lab, whose nodes have a temporary /tmp of their own."""
    before = folders()
    sites = LoopbackSites(workshop)
    for site in "ab":
        sites.start_gateway(site)
    working = workshop.folder / "working"
    code = (
        "import sys; from mpi4py import MPI; comm = MPI.COMM_WORLD; window = MPI.Win.Allocate(4096, comm=comm)\n"
        "local = MPI.Win.Allocate_shared(4096, comm=comm.Split_type(MPI.COMM_TYPE_SHARED))\n"
        "comm.Barrier()\n"
        f"if comm.rank == 0: open({str(working)!r}, 'w').close()\n"
        "while len(sys.argv) > 1: comm.allreduce(1)\n"
        "local.Free(); window.Free()\n"
    )
    words = [LANDBRIDGE, "run", "-n", 4, "--", openmpi_only.python, "-c", code, *([victim] if victim else [])]
    running = workshop.start(words, environment={"LANDBRIDGE_SITES": str(sites.file)}, limit=60)
    running.wait_for(working.exists, 40, "the ranks")
    if victim is None:
        running.finish().check()
    else:
        assert folders() - before, "the agents have no folders"
        agents = [process for gateway in workshop.running for process in gateway.processes(victim)]
        assert agents, victim
        agents[0].kill()
        running.finish(within=30)
    wait_until(lambda: not folders() - before, 5, f"{folders() - before} to go")
