"""A stranger's first hour: a laptop, two centres that only ssh reaches, one with Slurm that wants an account, one whose
login shell is tcsh. The commands are those of README.md and docs/first-use.md, for other addresses and programs."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from accounts import PORT, wan
from harness import ROOT
from laptop import LAPTOP, Person

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no sshd: apt install openssh-server"),
    pytest.mark.skipif(not Path("/usr/sbin/slurmctld").exists(), reason="no Slurm: apt install slurm-wlm munge"),
    pytest.mark.skipif(shutil.which("tcsh") is None, reason="no tcsh: apt install tcsh"),
    pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons in a lab, and hiding a home, need root"),
]

ACCOUNT_NEEDED = """
function slurm_job_submit(job, partitions, uid)
    if job.account ~= "physics" then
        slurm.log_user("Invalid account: give one of yours with --account")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
"""
# It runs any command there, as a login shell of this kind does.
TCSH = 'ForceCommand /usr/bin/tcsh -c "$SSH_ORIGINAL_COMMAND"\n'
PLACES = {
    "user@login.lyon.example": f"root@{wan('a-gw1')}:{PORT}",
    "other@login.kyoto.example:2222": f"root@{wan('b-gw1')}:{PORT}",
}
SOLVER = '#!/bin/sh\necho "solver at $LANDBRIDGE_SITE_NAME in $(pwd)"\n'
JOB = (
    "import os, sys\nprint('job at', os.environ['LANDBRIDGE_SITE_NAME'], 'reads', sys.argv[0], len(sys.stdin.read()))\n"
)


def typed(start):
    """The command of README.md or docs/first-use.md that begins like this, without its explanation."""
    lines = [line for page in ("docs/first-use.md", "README.md") for line in (ROOT / page).read_text().splitlines()]
    found = [re.split(r"\s{2,}|\s#", line.strip())[0] for line in lines if line.strip().startswith(start)]
    assert found, f"neither page has `{start}`"
    # The nodes of a lab have two cores.
    words = found[0].replace("-n 8", "-n 4").split()
    return [PLACES.get(word, word) for word in words]


def test_the_first_hour(workshop, isolated, mpich_only):
    partitions = ["PartitionName=main Nodes=ALL MaxTime=INFINITE State=UP Default=YES"]
    person = Person(
        workshop,
        mpich_only.environment,
        sshd_of={"a-gw1": TCSH},
        slurm={"b": {"partitions": partitions, "job_submit": ACCOUNT_NEEDED}},
    )
    home = person.home(LAPTOP)
    work = home / "work"
    work.mkdir(parents=True)
    (work / "solver").write_text(SOLVER)
    (work / "solver").chmod(0o755)
    (work / "job.py").write_text(JOB)
    for host in ("a-gw1", "b-gw1"):
        person.home(host).mkdir(parents=True)
    (person.home("a-gw1") / ".cshrc").write_text("echo Welcome to lyon\n")
    # The hosts of a lab have one disk: at the sites the laptop's home is not there.
    for host in ("a-gw1", "b-gw1", "b-n1"):
        person.types("mount", "-t", "tmpfs", "tmpfs", home, on=host, must=True)

    def types(command, **step):
        """As typed into the laptop's shell, in its `work`."""
        line = shlex.join(command).replace("'~/", "~/'") if isinstance(command, list) else command
        return person.types("sh", "-c", line, on=LAPTOP, cwd=str(work), **step)

    types(typed("landbridge sites add lyon"), must=True)
    refused = types(typed("landbridge sites add kyoto"))
    # The row of the table about flags that the finding names.
    assert "`--slurm account=physics`" in (ROOT / "docs/first-use.md").read_text()
    types("landbridge sites add kyoto --slurm account=physics", must=True)
    types("landbridge sites list", must=True)
    types("landbridge sites status", must=True)
    types("landbridge sites check --quick", must=True)
    missing = types(typed("landbridge run -n 8 -- ./solver"))
    pushed = types(typed("landbridge run -n 8 --push ./solver"))
    there = types(typed("landbridge run -n 8 -- ./solver"))
    argument = types(typed("landbridge run -n 8 --push ~/work/job.py"))
    fed = types(
        f"echo data | {shlex.join(typed('landbridge run -n 8 --push ~/work/job.py'))}".replace(
            "'~/work/job.py'", "~/work/job.py"
        )
    )
    # A job of the site's: its input comes from here, its laptop is not needed.
    types("printf '#!/bin/sh\nwc -c\nsleep 600\n' >solver", must=True)
    types(typed("landbridge sites push")[:4], must=True)
    detached = types(
        f"head -c 200000 /dev/zero | {shlex.join(typed('landbridge run --detach'))} >id; cat id", must=True
    )
    jobs = types("landbridge jobs --json")
    logs = types(
        "for i in $(seq 200); do landbridge logs $(cat id) | grep 200000 && exit; sleep 0.2; done; exit 1", must=True
    )
    listed = types(typed("landbridge jobs"))
    cancelled = types("landbridge cancel $(cat id)")
    after = types(typed("landbridge jobs"))
    # Other commands that can be typed at a site.
    moved = types("landbridge stage move lyon:work/job.py kyoto:moved.py")
    status = types("landbridge stage status --json")
    not_a_place = types("landbridge stage move job.py lyon:x")
    allow = '\n[site.forward]\nallow = ["127.0.0.1:2222"]\n'
    types(f"printf %s {shlex.quote(allow)} >>{person.file(LAPTOP)}", must=True)
    types("landbridge sites apply", must=True)
    forwarded = types("timeout -s INT 10 landbridge forward 0 kyoto:2222; echo ended $?")
    # The laptop's connection breaks: the site ends the job, and the exit code is that of a loss.
    lost = types(
        f"{shlex.join(typed('landbridge run -n 8 -- ./solver'))} >out & job=$!; "
        "until grep -q . out; do sleep 0.2; done; kill -9 $(pgrep -P $job); wait $job; echo ended $?"
    )
    idle = types(
        "for i in $(seq 100); do landbridge sites status --json | grep -q '\"jobs\":[1-9]' || exit 0; sleep 0.2; "
        "done; exit 1"
    )
    for name in ("kyoto", "lyon"):
        types(f"landbridge sites remove {name}", must=True)
    results = person.run(limit=600)
    results[refused].bad("--slurm account=NAME", "partitions here: main")
    results[missing].bad("--push ~/work", "or type `landbridge sites push ~/work --to", "does not exist here")
    homes = {site: person.home(host) / "work" for site, host in (("lyon", "a-gw1"), ("kyoto", "b-gw1"))}
    lines = sorted(f"solver at {site} in {place}" for site, place in homes.items() for _ in range(2))
    for place in (pushed, there):
        assert sorted(results[place].good().out.splitlines()) == lines, str(results[place])
    for place, bytes_of_first in ((argument, 0), (fed, 5)):
        lines = results[place].good().out.splitlines()
        counts = sorted(int(line.split()[-1]) for line in lines)
        assert counts == [0] * 3 + [bytes_of_first], str(results[place])
        assert all(f"{homes[line.split()[2]]}/job.py" in line for line in lines), str(results[place])
    assert results[detached].out.strip() == "lyon/1", str(results[detached])
    assert '"command":["run","-n","4","--","./solver"]' in results[jobs].out, str(results[jobs])
    assert '"site":"lyon"' in results[jobs].good().out and '"state":"running"' in results[jobs].out, str(results[jobs])
    results[logs].good()
    assert re.search(r"^lyon/1  running", results[listed].good().out, re.MULTILINE), str(results[listed])
    assert "ended 75" in results[lost].out and "site lyon: " in results[lost].err, str(results[lost])
    assert "the connection is lost" in results[lost].err, str(results[lost])
    results[idle].good()
    assert "kyoto:moved.py" in results[moved].good().out, str(results[moved])
    assert (person.home("b-gw1") / "moved.py").read_text() == JOB, str(results[moved])
    assert '"transfers":[]' in results[status].good().out, str(results[status])
    results[not_a_place].bad("landbridge sites push job.py --to lyon")
    assert re.search(
        r"landbridge: 127\.0\.0\.1:\d+ is forwarded to site kyoto, 127\.0\.0\.1:2222", results[forwarded].err
    ), str(results[forwarded])
    assert "ended 130" in results[forwarded].out or "ended 124" in results[forwarded].out, str(results[forwarded])
    assert "job lyon/1 is cancelled" in results[cancelled].good().out, str(results[cancelled])
    assert re.search(r"^lyon/1  ended 143", results[after].good().out, re.MULTILINE), str(results[after])
