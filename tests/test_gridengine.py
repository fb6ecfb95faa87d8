"""Grid Engine in a lab, of Debian's own packages: a sge_qmaster for a site, an sge_execd on each of its nodes."""

import os

import pytest

import gridengine
from services import start


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
