"""The ssh starter against Debian's own sshd, one on every node of a lab."""

import json
import os
import shutil

import pytest

from harness import LANDBRIDGE, PROGRAMS
from services import endless, run_words, ssh_site, start

# From a failure to the end of `run`, services of the lab included.
END_S = 10.0


@pytest.fixture
def sshd(isolated):
    if os.geteuid() != 0:
        pytest.skip("sshd in a lab needs root: it changes users")
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        pytest.skip("no sshd: apt install openssh-server")


@pytest.mark.one_mpi
def test_two_ssh_sites_run_a_job(workshop, mpi, sshd):
    program = [mpi.python, "-m", "mpi4py.bench", "helloworld"]
    sites = {site: ssh_site(site) for site in "ab"}
    done = start(workshop, sites, run_words(workshop, mpi, program), environment=mpi.environment).finish().check()
    hosts = sorted(line.split(" on ")[1].rstrip(".") for line in done.out.splitlines() if "Hello" in line)
    assert hosts == ["a-n1", "a-n2", "b-n1", "b-n2"], str(done)


def test_a_node_that_does_not_know_the_key_is_named_with_what_ssh_said(workshop, mpich_only, sshd):
    sites = {"a": ssh_site("a"), "b": ssh_site("b").copy()}
    sites["b"]["starter"] = sites["b"]["starter"].replace("user_key", "a-n1.hostkey")
    done = start(workshop, sites, run_words(workshop, mpich_only, ["true"])).finish()
    done.fails_naming("site b", "node n", "ssh to n", "Permission denied", "Try it where the gateway runs: `ssh ")


def test_an_unknown_host_key_is_named_with_what_to_do(workshop, mpich_only, sshd):
    sites = {"a": ssh_site("a"), "b": ssh_site("b", known=False)}
    done = start(workshop, sites, run_words(workshop, mpich_only, ["true"])).finish()
    done.fails_naming("site b", "Host key verification failed", "BatchMode=no")


def test_a_refused_connection_is_named(workshop, mpich_only, sshd):
    sites = {"a": ssh_site("a"), "b": ssh_site("b", lines="port = 2222")}
    done = start(workshop, sites, run_words(workshop, mpich_only, ["true"])).finish()
    done.fails_naming("site b", "ssh to n", "Connection refused")


def test_landbridge_missing_on_a_node_is_named(workshop, mpich_only, sshd):
    sites = {"a": ssh_site("a"), "b": ssh_site("b", lines='landbridge = "/no/such/landbridge"')}
    done = start(workshop, sites, run_words(workshop, mpich_only, ["true"])).finish()
    done.fails_naming("site b", "/no/such/landbridge cannot be run there", "`landbridge` in [site.starter]")


def ranks_and_agents(running):
    return [
        process
        for process in running.processes()
        if process.is_landbridge("agent")
        or process.is_landbridge("agent-worker")
        or str(PROGRAMS / "endless.py") in process.words
    ]


@pytest.mark.parametrize("victim", ["gateway", "ssh", "agent"])
def test_whoever_is_killed_nothing_stays_on_the_nodes(workshop, mpich_only, sshd, victim):
    """kill -9 of a gateway, of an ssh client, of an agent that was started by ssh: the job ends and the error names
    the place."""
    running = endless(workshop, mpich_only, {site: ssh_site(site) for site in "ab"})
    assert len([process for process in ranks_and_agents(running) if process.is_landbridge("agent")]) == 4
    if victim == "ssh":
        found = [process for process in running.processes() if process.words and process.words[0] == "ssh"]
    else:
        found = running.processes(victim)
    found = sorted(found, key=lambda process: process.pid)
    found[-1].kill()
    done = running.finish(within=END_S)
    # Only gateways are started one after the other, so that the last belongs to the last site.
    done.fails_naming("site b" if victim == "gateway" else "site ")


def test_check_tries_every_node(workshop, mpich_only, sshd):
    sites = {"a": ssh_site("a"), "b": ssh_site("b", lines="port = 2222")}
    done = start(workshop, sites, [LANDBRIDGE, "sites", "check", "--json"]).finish()
    assert done.code == 1, str(done)
    nodes = {
        (found["site"], found["part"]): found["ok"]
        for found in json.loads(done.out)["findings"]
        if "node" in found["part"]
    }
    assert nodes == {("a", "node n1"): True, ("a", "node n2"): True, ("b", "node n1"): False, ("b", "node n2"): False}


def test_a_pbs_job_is_ssh_to_the_nodes_of_its_file(workshop, mpich_only, sshd):
    """A stand-in for PBS: its variables in a job's environment. No PBS is asked."""
    file = workshop.folder / "nodefile"
    file.write_text("n2\nn2\nn1\n")
    pbs = ssh_site("a", nodes=False)
    pbs["starter"] = pbs["starter"].replace('kind = "ssh"', 'kind = "pbs"')
    run = [LANDBRIDGE, "run", "--prefix", "--", "sh", "-c", "echo rank $LANDBRIDGE_RANK"]
    variables = {"PBS_JOBID": "12.server", "PBS_NODEFILE": str(file)}
    done = start(workshop, {"a": pbs}, run, environment=variables).finish().check()
    assert sorted(done.out.splitlines()) == ["[a/n1/2] rank 2", "[a/n2/0] rank 0", "[a/n2/1] rank 1"], str(done)


def test_outside_a_pbs_job_the_site_has_no_nodes(workshop, mpich_only, sshd):
    pbs = ssh_site("b", nodes=False)
    pbs["starter"] = pbs["starter"].replace('kind = "ssh"', 'kind = "pbs"')
    done = start(workshop, {"b": pbs}, run_words(workshop, mpich_only, ["true"])).finish()
    done.fails_naming("site b", "PBS job", "qsub")
