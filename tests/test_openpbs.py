"""OpenPBS in a lab: a pbs_server for a site, a pbs_mom on each of its nodes. Debian has no package of OpenPBS, so these
tests run only where it is installed from its sources, as its INSTALL file describes."""

import os
import re
import shlex
import signal
import subprocess

import pytest

import openpbs
from harness import LANDBRIDGE, PROGRAMS, wait_until
from services import run_words, ssh_site, start

BOTH = ["-l", "select=2:ncpus=2:mpiprocs=2", "-l", "place=scatter"]
UNEVEN = ["-l", "select=1:ncpus=1:mpiprocs=1+1:ncpus=2:mpiprocs=3", "-l", "place=scatter"]
END_S = 20.0
LIMIT_S = 180


@pytest.fixture
def pbs(isolated):
    """The plan of a site with an OpenPBS alone."""
    if os.geteuid() != 0:
        pytest.skip("OpenPBS's daemons in a lab need root")
    if reason := openpbs.missing():
        pytest.skip(reason)
    return {"services": ["openpbs"]}


def pbs_site(site, service="openpbs"):
    """A site whose nodes are those of a PBS job, reached by ssh."""
    plan = ssh_site(site, nodes=False)
    return {**plan, "starter": plan["starter"].replace('kind = "ssh"', 'kind = "pbs"'), "services": ["sshd", service]}


def submit(workshop, words, *options, variables=()):
    """The words that run these words in a job, and end as they do. Their output goes to `job.out`, because that of the
    job itself may arrive after its end. `variables`: names of variables that the job gets too. The job has no script: a
    login shell of root's would run it, after a profile that may do anything."""
    names = ",".join(["LANDBRIDGE_SITES", "LANDBRIDGE_TEST_MARKER", *variables])
    job = ["/bin/sh", "-c", 'exec "$@" >> "$0" 2>&1', workshop.folder / "job.out", *words]
    return ["qsub", "-v", names, "-W", "block=true", *options, "--", *job]


def finished(workshop, sites, command, **options):
    """Runs the command on site a's login node. Returns its end, and the output of its job."""
    done = start(workshop, sites, command, host="a-gw1", limit=LIMIT_S, **options).finish()
    out = workshop.folder / "job.out"
    return done, out.read_text() if out.exists() else ""


def hello_hosts(text):
    return sorted(line.split(" on ")[1].rstrip(".") for line in text.splitlines() if "Hello" in line)


def hello(mpi):
    return [mpi.python, "-m", "mpi4py.bench", "helloworld"]


def test_the_complex_itself(workshop, pbs):
    """A job has slots on two nodes, and starts a task on each."""
    task = [openpbs.place() / "bin" / "pbsdsh", "--", "/bin/sh", "-c", f"hostname >> {workshop.folder}/tasks"]
    shows = f'cat "$PBS_NODEFILE"; echo "JOB $PBS_JOBID"; {shlex.join(map(str, task))}; exit 7'
    done, text = finished(workshop, {"a": pbs}, submit(workshop, ["/bin/sh", "-c", shows], *BOTH))
    assert done.code == 7 and done.out.split() == ["0.a-gw1"], f"{done}\n{text}"
    assert text.split("\n") == ["a-n1", "a-n1", "a-n2", "a-n2", "JOB 0.a-gw1", ""], text
    tasks = (workshop.folder / "tasks").read_text().split()
    assert sorted(tasks) == ["a-n1", "a-n1", "a-n2", "a-n2"], tasks


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("service", "resources", "slots"),
    [
        ("openpbs", BOTH, [2, 2]),
        ("openpbs", UNEVEN, [1, 3]),
        ("openpbs", ["-l", "select=1:ncpus=2:mpiprocs=2"], [2]),
        ("openpbs_vnodes", ["-l", "select=4:ncpus=1:mpiprocs=1"], [2, 2]),
    ],
    ids=["even", "uneven", "one-node", "vnodes"],
)
def test_run_in_a_job_uses_all_its_slots(workshop, mpi, pbs, service, resources, slots):
    words = [LANDBRIDGE, "run", "--mpi", mpi.name, "--", *hello(mpi)]
    sites = {"a": pbs_site("a", service)}
    job = submit(workshop, words, *resources, variables=mpi.environment)
    done, text = finished(workshop, sites, job, environment=mpi.environment)
    assert done.code == 0, f"{done}\n{text}"
    hosts = hello_hosts(text)
    assert sorted(hosts.count(f"a-n{node}") for node in (1, 2) if hosts.count(f"a-n{node}")) == slots, text


@pytest.mark.one_mpi
def test_a_job_and_another_site_run_one_program(workshop, mpi, pbs):
    words = [LANDBRIDGE, "run", "--site", "a=4", "--site", "b=2", "--mpi", mpi.name, "--", *hello(mpi)]
    sites = {"a": pbs_site("a"), "b": ssh_site("b")}
    job = submit(workshop, words, *BOTH, variables=mpi.environment)
    done, text = finished(workshop, sites, job, environment=mpi.environment)
    assert done.code == 0, f"{done}\n{text}"
    assert hello_hosts(text) == ["a-n1", "a-n1", "a-n2", "a-n2", "b-n1", "b-n2"], text


def test_outside_a_job_the_site_has_no_nodes(workshop, mpich_only, pbs):
    done, _ = finished(workshop, {"a": pbs_site("a")}, run_words(workshop, mpich_only, ["true"]))
    done.fails_naming("site a", "PBS job", "qsub")


def test_each_job_of_an_array_has_its_own_run(workshop, mpich_only, pbs):
    words = [LANDBRIDGE, "run", "--prefix", "--", "sh", "-c", "echo job $PBS_JOBID, task $PBS_ARRAY_INDEX"]
    options = ["-J", "1-2", "-l", "select=1:ncpus=2:mpiprocs=1", "-l", "place=scatter"]
    done, text = finished(workshop, {"a": pbs_site("a")}, submit(workshop, words, *options))
    assert done.code == 0, f"{done}\n{text}"
    seen = sorted(line.split("] ")[1] for line in text.splitlines())
    assert seen == [f"job 0[{task}].a-gw1, task {task}" for task in (1, 2)], text


def test_an_interactive_job(workshop, mpich_only, pbs):
    """Its user types at a terminal, which `script` provides."""
    run = f"{LANDBRIDGE} run --site a=4 --prefix -- sh -c 'echo $LANDBRIDGE_RANK of $PBS_ENVIRONMENT'; exit"
    screen = workshop.folder / "screen"
    screen.touch()
    qsub = ["qsub", "-I", "-S", shell(workshop), "-v", "LANDBRIDGE_SITES,LANDBRIDGE_TEST_MARKER", *BOTH]
    shows = f"until grep -q '{{}}' {screen}; do sleep 0.1; done"
    types = f"{shows.format('a-gw1 ready')}; echo {shlex.quote(run)}; {shows.format('a-gw1 completed')}"
    qsub = shlex.quote(shlex.join(map(str, qsub)))
    command = ["sh", "-c", f"({types}) | script --flush --quiet --return --command {qsub} {screen}"]
    done, _ = finished(workshop, {"a": pbs_site("a")}, command)
    ranks = re.findall(r"\[a/(a-n.)/(.)\] (.) of PBS_INTERACTIVE", screen.read_text())
    slots = [("a-n1", "0"), ("a-n1", "1"), ("a-n2", "2"), ("a-n2", "3")]
    assert done.code == 0 and sorted(ranks) == [(*slot, slot[1]) for slot in slots], str(done)


def shell(workshop):
    """A login shell with a home of its own, because root's profile may do anything."""
    path = workshop.folder / "shell"
    path.write_text(f"#!/bin/sh\nHOME={workshop.folder} exec /bin/bash --noprofile --norc\n")
    path.chmod(0o755)
    return path


def test_ranks_have_the_jobs_folder_only_where_it_exists_and_its_secret_only_at_its_site(workshop, mpich_only, pbs):
    """PBS makes the job's TMPDIR on its first node. PBS_JOBCOOKIE lets processes start others in the job."""
    show = 'test -z "$TMPDIR" -o -d "$TMPDIR" && echo $(hostname) ${TMPDIR:-none} ${PBS_JOBCOOKIE:+cookie}'
    words = [LANDBRIDGE, "run", "--site", "a=4", "--site", "b=2", "--", "sh", "-c", show]
    sites = {"a": pbs_site("a"), "b": ssh_site("b")}
    done, text = finished(workshop, sites, submit(workshop, words, *BOTH))
    assert done.code == 0, f"{done}\n{text}"
    first = ["a-n1 /tmp/pbs.0.a-gw1 cookie"] * 2
    assert sorted(text.splitlines()) == [*first, "a-n2 none cookie", "a-n2 none cookie", "b-n1 none", "b-n2 none"], text


class Job:
    """A job whose ranks work without end, and the lab around it, which stays until `close`."""

    def __init__(self, workshop, mpi, sites, *options, program=None, person=None):
        self.workshop, self.closing = workshop, workshop.folder / "closing"
        working = workshop.folder / "working"
        program = program or [mpi.python, PROGRAMS / "endless.py", working]
        words = [LANDBRIDGE, "run", *(word for site in sites for word in ("--site", f"{site}=4")), "--", *program]
        qsub = shlex.join(map(str, submit(workshop, words, *BOTH, *options, variables=mpi.environment)))
        script = f"{qsub}; code=$?; until test -e {self.closing}; do sleep 0.1; done; exit $code"
        words = person.words("sh", "-c", script) if person else ["sh", "-c", script]
        about = {"environment": mpi.environment, "person": person}
        self.running = start(workshop, sites, words, host="a-gw1", limit=LIMIT_S, **about)
        try:
            self.running.wait_for(working.exists, 90, "the job's ranks")
        except AssertionError as error:
            out = workshop.folder / "job.out"
            raise AssertionError(f"{error}\n--- job\n{out.read_text() if out.exists() else 'no output'}") from error

    def gateway(self):
        return next(process for process in self.running.processes("gateway") if process.words[-1] == "a")

    def pbs(self, *words):
        """Runs one of PBS's commands on the server's host."""
        path = f"{openpbs.place()}/bin:{os.environ['PATH']}"
        environment = {"PBS_CONF_FILE": "/run/openpbs-a/a-gw1/pbs.conf", "PATH": path}
        words = ["nsenter", "-t", self.gateway().pid, "-a", *words]
        return self.workshop.run(words, environment=environment).check().out

    def parts(self):
        """Processes of the run that are left: `run` itself, agents and ranks."""
        found = self.running.processes()
        kinds = ("run", "agent", "agent-worker")
        ours = [process for process in found if any(map(process.is_landbridge, kinds))]
        return ours + [
            process for process in found if any(process.has(f"LANDBRIDGE_SITE_NAME={site}") for site in "ab")
        ]

    def ends(self):
        """Waits until nothing of the run is left. Returns the output of `run`."""
        wait_until(lambda: not self.parts(), END_S, "the end of the run's processes")
        self.closing.touch()
        done = self.running.finish()
        assert done.code != 0, str(done)
        return (self.workshop.folder / "job.out").read_text()


STUBBORN = "trap '' TERM INT HUP; touch {working}; while :; do sleep 1; done"


@pytest.mark.parametrize("program", ["mpi", "ignores-term"])
@pytest.mark.parametrize("sites", ["a", "ab"])
def test_nothing_outlives_a_job_that_is_deleted(workshop, mpich_only, pbs, program, sites):
    words = ["sh", "-c", STUBBORN.format(working=workshop.folder / "working")] if program != "mpi" else None
    plans = {"a": pbs_site("a"), "b": ssh_site("b")}
    job = Job(workshop, mpich_only, {site: plans[site] for site in sites}, program=words)
    assert len(job.parts()) > 4 * len(sites)
    job.pbs("qdel", "0.a-gw1")
    job.ends()


def test_nothing_outlives_a_job_that_exceeds_its_time(workshop, mpich_only, pbs):
    job = Job(workshop, mpich_only, {"a": pbs_site("a")}, "-l", "walltime=00:00:05")
    job.ends()


def test_pbs_itself_ends_agents_and_ranks_that_are_frozen(workshop, mpich_only, pbs, people):
    """They are a part of the job on all its nodes, although ssh has started them. PBS overlooks root's processes."""
    anna = people[0]
    # sshd takes an account without a password for a locked one.
    subprocess.run(["usermod", "--password", "*", anna.name], check=True)
    workshop.folder.chmod(0o777)
    program = ["sh", "-c", STUBBORN.format(working=workshop.folder / "working")]
    job = Job(workshop, mpich_only, {"a": pbs_site("a")}, program=program, person=anna)
    for process in job.parts():
        if not process.is_landbridge("run"):
            process.kill(signal.SIGSTOP)
    job.pbs("qdel", "0.a-gw1")
    job.ends()
