"""Grid Engine in a lab, of Debian's own packages: a sge_qmaster for a site, an sge_execd on each of its nodes."""

import os
import shlex

import pytest

import gridengine
from harness import LANDBRIDGE
from services import run_words, ssh_site, start


@pytest.fixture
def cell(isolated):
    """The plan of a site with a cell."""
    if os.geteuid() != 0:
        pytest.skip("Grid Engine's daemons in a lab need root")
    missing = gridengine.missing_packages()
    if missing:
        pytest.skip(f"no Grid Engine: apt install {' '.join(missing)}")
    return {"services": ["gridengine"]}


def test_the_cell_itself(workshop, cell):
    """A job has slots on two nodes, and starts a task on each."""
    script = workshop.folder / "job.sh"
    script.write_text(
        'cat "$PE_HOSTFILE"\n'
        'echo "JOB $JOB_ID SLOTS $NSLOTS"\n'
        'for host in $(cut -d" " -f1 "$PE_HOSTFILE"); do echo TASK | qrsh -inherit "$host" "cat; hostname"; done\n'
        "exit 7\n"
    )
    out = workshop.folder / "job.out"
    batch = ["qsub", "-terse", "-sync", "y", "-j", "y", "-o", out, "-pe", gridengine.PARALLEL_ENVIRONMENT, 4, script]
    done = start(workshop, {"a": cell}, batch, host="a-gw1").finish()
    assert done.code == 7 and done.out.split() == ["1"], str(done)
    lines = out.read_text().splitlines()
    hostfile = [f"a-n{node} 2 {gridengine.QUEUE}@a-n{node} UNDEFINED" for node in (1, 2)]
    assert sorted(lines[:2]) == hostfile, lines
    assert lines[2] == "JOB 1 SLOTS 4", lines
    hosts = [line.split()[0] for line in lines[:2]]
    assert lines[3:] == ["TASK", hosts[0], "TASK", hosts[1]], lines


def grid_engine_site(site):
    """A site whose nodes are those of a Grid Engine job, reached by ssh."""
    plan = ssh_site(site, nodes=False)
    return {
        **plan,
        "starter": plan["starter"].replace('kind = "ssh"', 'kind = "gridengine"'),
        "services": ["sshd", "gridengine"],
    }


def submit(workshop, slots, words, out):
    """The words that run these words in a job with slots on both nodes, and end as they do."""
    script = workshop.folder / "job.sh"
    script.write_text(f"exec {shlex.join(map(str, words))}\n")
    return [
        "qsub",
        "-V",
        "-terse",
        "-sync",
        "y",
        "-j",
        "y",
        "-o",
        out,
        "-pe",
        gridengine.PARALLEL_ENVIRONMENT,
        slots,
        script,
    ]


@pytest.mark.one_mpi
def test_run_in_a_job_uses_all_its_slots(workshop, mpi, cell):
    program = [mpi.python, "-m", "mpi4py.bench", "helloworld"]
    out = workshop.folder / "job.out"
    words = [LANDBRIDGE, "run", "--mpi", mpi.name, "--", *program]
    batch = submit(workshop, 4, words, out)
    done = start(workshop, {"a": grid_engine_site("a")}, batch, host="a-gw1", environment=mpi.environment).finish()
    text = out.read_text()
    assert done.code == 0, f"{done}\n{text}"
    hosts = sorted(line.split(" on ")[1].rstrip(".") for line in text.splitlines() if "Hello" in line)
    assert hosts == ["a-n1", "a-n1", "a-n2", "a-n2"], text


@pytest.mark.one_mpi
def test_a_job_and_another_site_run_one_program(workshop, mpi, cell):
    program = [mpi.python, "-m", "mpi4py.bench", "helloworld"]
    out = workshop.folder / "job.out"
    words = [LANDBRIDGE, "run", "--site", "a=2", "--site", "b=2", "--mpi", mpi.name, "--", *program]
    sites = {"a": grid_engine_site("a"), "b": ssh_site("b")}
    done = start(workshop, sites, submit(workshop, 2, words, out), host="a-gw1", environment=mpi.environment).finish()
    text = out.read_text()
    assert done.code == 0, f"{done}\n{text}"
    hosts = sorted(line.split(" on ")[1].rstrip(".") for line in text.splitlines() if "Hello" in line)
    assert hosts == ["a-n1", "a-n2", "b-n1", "b-n2"], text


def test_outside_a_job_the_site_has_no_nodes(workshop, mpich_only, cell):
    words = run_words(workshop, mpich_only, ["true"])
    done = start(workshop, {"a": grid_engine_site("a")}, words, host="a-gw1").finish()
    done.fails_naming("site a", "Grid Engine job", "qsub")


def test_a_check_with_a_job_says_that_it_made_none(workshop, cell):
    words = [LANDBRIDGE, "sites", "check", "--quick", "--job"]
    done = start(workshop, {"a": grid_engine_site("a")}, words, host="a-gw1").finish().check()
    assert "no job was tried: Landbridge submits jobs only to Slurm" in " ".join(done.out.split()), str(done)


def test_a_job_without_a_parallel_environment_has_one_node(workshop, mpich_only, cell):
    script = workshop.folder / "job.sh"
    script.write_text(f"exec {LANDBRIDGE} run --prefix -- sh -c 'echo rank $LANDBRIDGE_RANK'\n")
    out = workshop.folder / "job.out"
    batch = ["qsub", "-V", "-terse", "-sync", "y", "-j", "y", "-o", out, "-q", f"{gridengine.QUEUE}@a-n2", script]
    done = start(workshop, {"a": grid_engine_site("a")}, batch, host="a-gw1").finish()
    text = out.read_text()
    assert done.code == 0, f"{done}\n{text}"
    assert text == "[a/a-n2/0] rank 0\n", text


def test_a_job_submitted_from_a_job_has_its_own_host(workshop, mpich_only, cell):
    """`qsub -V` passes on the variables of the job in which it is typed, also its PE_HOSTFILE."""
    inner, outer = workshop.folder / "inner.sh", workshop.folder / "job.out"
    out = workshop.folder / "inner.out"
    inner.write_text(f'echo "$PE_HOSTFILE"\nexec {LANDBRIDGE} run --prefix -- sh -c "echo rank"\n')
    words = ["qsub", "-V", "-sync", "y", "-j", "y", "-o", out, "-q", f"{gridengine.QUEUE}@a-n2", inner]
    done = start(workshop, {"a": grid_engine_site("a")}, submit(workshop, 2, words, outer), host="a-gw1").finish()
    text = out.read_text()
    assert done.code == 0, f"{done}\n{outer.read_text()}\n{text}"
    # Otherwise the test tries nothing.
    hostfile, *lines = text.splitlines()
    assert hostfile.endswith("/1.1/pe_hostfile"), text
    assert lines == ["[a/a-n2/0] rank"], text


def test_a_detached_job_is_refused_in_a_job(workshop, mpich_only, cell):
    out = workshop.folder / "job.out"
    batch = submit(workshop, 2, [LANDBRIDGE, "run", "--detach", "--", "true"], out)
    done = start(workshop, {"a": grid_engine_site("a")}, batch, host="a-gw1").finish()
    text = out.read_text()
    assert done.code == 2 and text.startswith("landbridge: --detach: ") and "batch job 1" in text, f"{done}\n{text}"
