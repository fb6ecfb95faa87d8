"""Ranks that share memory: inside a node, and on a pool of several nodes. Nothing of it is left after any death."""

import re
import signal
import subprocess

import pytest

from harness import LANDBRIDGE, PROGRAMS, LoopbackSites, wait_until

# Makes an MPI with its own shared memory use the provider inside a node.
THROUGH_PROVIDER = {
    "mpich": {"MPIR_CVAR_NOLOCAL": "1"},
    "intel": {"I_MPI_FABRICS": "ofi", "I_MPI_COLL_INTRANODE": "pt2pt"},
    "openmpi": {},
}
CLOSED = re.compile(
    r"sent through memory (\d+) items of (\d+) bytes, over the site's network (\d+) of (\d+), by gateways (\d+)"
)
# From the failure to the end of `landbridge run`.
END_S = 5.0


def carried(log):
    """Each endpoint's final report: items and bytes through memory, items over the site's network, items through
    gateways. Endpoints that were never used are left out: Open MPI has one for windows."""
    found = [[int(number) for number in numbers] for numbers in CLOSED.findall(log.read_text())]
    used = [(items, size, site, gateway) for items, size, site, _, gateway in found if items + site + gateway]
    assert used, log.read_text()
    return used


def through_provider(workshop, mpi, **more):
    return {**THROUGH_PROVIDER[mpi.name], "LANDBRIDGE_LOG_FILE": str(workshop.folder / "provider.log"), **more}


def is_all_memory(log, ranks):
    endpoints = carried(log)
    assert len(endpoints) == ranks, endpoints
    for items, size, site, gateway in endpoints:
        assert items > 50 and size > 100_000 and (site, gateway) == (0, 0), endpoints


@pytest.mark.parametrize("copies", ["single-copy", "pieces"])
def test_ranks_of_a_node_use_their_memory(workshop, mpi, copies):
    more = {"LANDBRIDGE_SINGLE_COPY": "1GiB"} if copies == "pieces" else {}
    environment = through_provider(workshop, mpi, **more)
    program = [mpi.python, PROGRAMS / "messages.py", 22]
    done = workshop.across(mpi, 4, program, sites=1, nodes=1, environment=environment, limit=120).finish().check()
    assert f"messages: {22 * 4 * 4} good" in done.out, str(done)
    is_all_memory(workshop.folder / "provider.log", 4)


def test_one_sided_through_memory(workshop, mpi):
    environment = through_provider(workshop, mpi)
    program = [mpi.python, PROGRAMS / "one_sided.py"]
    done = workshop.across(mpi, 4, program, sites=1, nodes=1, environment=environment, limit=120).finish().check()
    assert "one-sided: 4 ranks good" in done.out, str(done)
    assert all(items > 0 and site == 0 for items, _, site, _ in carried(workshop.folder / "provider.log"))


@pytest.mark.one_mpi
def test_memory_network_and_gateways_in_one_job(workshop, mpi):
    """Two ranks on each of four nodes at two sites: every pair uses the right link, and order is kept on all."""
    environment = through_provider(workshop, mpi)
    program = [mpi.python, PROGRAMS / "messages.py", 22]
    done = workshop.across(mpi, 8, program, environment=environment, limit=120).finish().check()
    assert f"messages: {22 * 8 * 8} good" in done.out, str(done)
    for items, _, site, gateway in carried(workshop.folder / "provider.log"):
        assert min(items, site, gateway) > 0


def test_more_ranks_than_cores(workshop, mpi):
    environment = through_provider(workshop, mpi)
    program = [mpi.python, PROGRAMS / "collectives.py"]
    workshop.across(mpi, 12, program, sites=1, nodes=1, environment=environment, limit=120).finish().check()


@pytest.mark.one_mpi
def test_a_pool_joins_the_nodes_of_a_site(workshop, mpi, isolated):
    """Two nodes share the pool and no other file: their ranks then do not need the network."""
    environment = through_provider(workshop, mpi)
    program = [mpi.python, PROGRAMS / "messages.py", 22]
    options = ["--pool", "/run/pool"]
    lab = workshop.across(mpi, 4, program, sites=1, nodes=2, options=options, environment=environment, limit=120)
    done = lab.finish().check()
    assert f"messages: {22 * 4 * 4} good" in done.out, str(done)
    is_all_memory(workshop.folder / "provider.log", 4)


@pytest.mark.one_mpi
def test_without_shared_memory_there_is_the_network(workshop, mpi):
    """`memory = "off"`."""
    sites = LoopbackSites(workshop)
    file = sites.write("off.toml", a=('name = "a"\n', 'name = "a"\nmemory = "off"\n'))
    sites.start_gateway("a", file)
    environment = through_provider(workshop, mpi)
    words = [
        LANDBRIDGE,
        "run",
        "-n",
        2,
        "--mpi",
        mpi.name,
        "--site",
        "a=2",
        "--",
        mpi.python,
        PROGRAMS / "messages.py",
        22,
    ]
    environment = {**mpi.environment, **environment, "LANDBRIDGE_SITES": str(file)}
    workshop.run(words, environment=environment, limit=60).check()
    assert all(items == 0 and site > 0 for items, _, site, _ in carried(workshop.folder / "provider.log"))


@pytest.fixture
def pool(workshop):
    """A folder as the pool of a site `a` of one node on this machine, and its gateway."""
    folder = workshop.folder / "pool"
    folder.mkdir()
    return folder


def on_pool(workshop, mpi, pool, program, ranks=3):
    """A job of site `a` alone, on a pool. Returns the gateway and the started `landbridge run`."""
    sites = LoopbackSites(workshop)
    file = sites.write("pool.toml", a=('name = "a"\n', f'name = "a"\nmemory = "{pool}"\n'))
    gateway = sites.start_gateway("a", file)
    words = [LANDBRIDGE, "run", "-n", ranks, "--mpi", mpi.name, "--site", f"a={ranks}", "--", *program]
    environment = {**mpi.environment, **THROUGH_PROVIDER[mpi.name], "LANDBRIDGE_SITES": str(file)}
    return gateway, workshop.start(words, environment=environment, limit=60)


def is_empty(folder):
    wait_until(lambda: not list(folder.iterdir()), END_S, f"{folder} to be empty, not {list(folder.iterdir())}")


@pytest.mark.one_mpi
def test_a_pool_is_empty_after_success(workshop, mpi, pool):
    seen = workshop.folder / "seen"
    script = (
        f"import os; from mpi4py import MPI; MPI.COMM_WORLD.barrier(); open('{seen}', "
        f"'w').write(os.listdir('{pool}')[0])"
    )
    _, running = on_pool(workshop, mpi, pool, [mpi.python, "-c", script])
    running.finish().check()
    assert re.fullmatch(r"landbridge-[0-9a-f]{8}-a", seen.read_text())
    is_empty(pool)


@pytest.mark.parametrize("victim", ["rank", "agent", "agent-worker", "gateway", "run"])
def test_a_pool_is_empty_whoever_is_killed(workshop, mpich_only, pool, victim):
    working = workshop.folder / "working"
    gateway, running = on_pool(workshop, mpich_only, pool, [mpich_only.python, PROGRAMS / "endless.py", working])
    running.wait_for(working.exists, 30, "the job's ranks")
    assert len(list(pool.iterdir())) == 1
    everybody = [*gateway.processes(), *running.processes()]
    if victim == "rank":
        chosen = [
            process
            for process in everybody
            if str(PROGRAMS / "endless.py") in process.words and "run" not in process.words[1:4]
        ]
    else:
        chosen = [process for process in everybody if process.is_landbridge(victim)]
    assert chosen, [process.words for process in everybody]
    chosen[0].kill(signal.SIGKILL)
    is_empty(pool)
    if victim != "run":
        running.finish(within=END_S)

    def ended():
        return all(process.is_landbridge("gateway") for process in gateway.processes())

    # Its agents and their keepers clean up, unless this test ends them first.
    wait_until(ended, 10, "what the gateway had started to end")


def refused(workshop, mpi, memory, *names):
    sites = LoopbackSites(workshop)
    file = sites.write("bad.toml", a=('name = "a"\n', f'name = "a"\nmemory = "{memory}"\n'))
    sites.start_gateway("a", file)
    environment = {**mpi.environment, "LANDBRIDGE_SITES": str(file)}
    job = [
        LANDBRIDGE,
        "run",
        "-n",
        2,
        "--mpi",
        mpi.name,
        "--site",
        "a=2",
        "--",
        mpi.python,
        "-c",
        "from mpi4py import MPI",
    ]
    workshop.run(job, environment=environment, limit=20).fails_naming("a", "n1", memory, *names)
    checked = workshop.run([LANDBRIDGE, "sites", "check", "--from", "a"], environment=environment, limit=20)
    assert checked.code != 0 and memory in checked.out + checked.err, str(checked)


def test_a_pool_that_is_missing(workshop, mpich_only):
    refused(
        workshop,
        mpich_only,
        "/no/such/pool",
        "No such file or directory",
        "must name a folder that exists on every node",
    )


def test_a_pool_where_nothing_can_be_mapped(workshop, mpich_only):
    refused(workshop, mpich_only, "/proc")


def test_a_pool_that_is_too_small(workshop, mpich_only, isolated):
    options = ["--pool", "/run/pool", "--pool-size", "64KiB"]
    running = workshop.across(
        mpich_only, 4, [mpich_only.python, PROGRAMS / "messages.py", 22], sites=1, options=options
    )
    running.finish().fails_naming("site a", "n1", "/run/pool", "bytes are needed")


def test_a_pool_that_fills_up(workshop, mpich_only, isolated):
    """Room for the region and some rings, not for all pairs: an error of the rank that needed more, and no SIGBUS."""
    environment = through_provider(workshop, mpich_only)
    options = ["--pool", "/run/pool", "--pool-size", "512KiB"]
    program = [mpich_only.python, PROGRAMS / "messages.py", 22]
    running = workshop.across(mpich_only, 8, program, sites=1, options=options, environment=environment)
    done = running.finish().fails_naming("site a", "/run/pool/landbridge-", "16384 bytes are needed and")
    assert "SIGBUS" not in done.err and "signal 7" not in done.err, str(done)
    last = done.err.splitlines()[-1]
    assert done.code == 75 and re.match(
        r"landbridge: site a, node n\d: rank \d cannot go on: memory /run/pool/", last
    ), str(done)


def test_a_pool_that_has_no_room_for_an_answer(workshop, mpich_only, isolated):
    """The acknowledgement belongs to no operation of the rank that needs more: ranks waited for it without end."""
    environment = through_provider(workshop, mpich_only)
    # MPICH's MPI_Init takes 32 rings of 16 KiB for 8 ranks: there is one more.
    options = ["--pool", "/run/pool", "--pool-size", "576KiB"]
    program = [mpich_only.python, PROGRAMS / "no_answer.py"]
    running = workshop.across(mpich_only, 8, program, sites=1, options=options, environment=environment)
    done = running.finish().fails_naming(
        "site a", "rank 3 cannot go on: memory /run/pool/", "16384 bytes are needed and"
    )
    assert "has it" in done.out and "went on" not in done.out, str(done)


def test_a_pool_that_nodes_do_not_share(workshop, mpich_only, isolated):
    """Every host of a lab has its own /tmp: the second node does not find the first one's file."""
    gateway = workshop.folder / "gateway"
    file = workshop.folder / "own-tmp.toml"
    gateway.write_text(
        f"""#!/bin/sh
sed 's|^fingerprint|memory = "/tmp"\\nfingerprint|' "$3" > {file}
ln -sf "$(dirname "$3")/a.key" {workshop.folder}/a.key
exec {LANDBRIDGE} gateway --sites {file} --site "$1" --gateway "$2"
"""
    )
    gateway.chmod(0o755)
    options = ["--gateway-command", f"{gateway} {{site}} {{gateway}} {{sites_file}}"]
    running = workshop.across(
        mpich_only, 4, [mpich_only.python, PROGRAMS / "messages.py", 22], sites=1, options=options
    )
    running.finish().fails_naming("site a", "n2", "/tmp/landbridge-", "the same on all nodes of the site")


# As a container without setuid is: a user namespace of its own, from which the agent's descriptors cannot be opened.
IN_USER_NAMESPACE = ["unshare", "-Ur"]
# The same, if it also closes inherited descriptors.
CLOSING = ["bash", "-c", 'eval "exec $LANDBRIDGE_MEMORY_FD>&-"; exec unshare -Ur "$@"', "-"]


@pytest.mark.one_mpi
@pytest.mark.parametrize("container, shares", [(IN_USER_NAMESPACE, True), (CLOSING, False)], ids=["inherits", "closes"])
def test_ranks_in_user_namespaces(workshop, mpi, container, shares):
    if subprocess.run(["unshare", "-Ur", "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no user namespaces")
    sites = LoopbackSites(workshop)
    sites.start_gateway("a")
    log = workshop.folder / "provider.log"
    environment = {**mpi.environment, **through_provider(workshop, mpi), "LANDBRIDGE_SITES": str(sites.file)}
    words = [
        LANDBRIDGE,
        "run",
        "--mpi",
        mpi.name,
        "--site",
        "a=2",
        "--",
        *container,
        mpi.python,
        PROGRAMS / "messages.py",
        22,
    ]
    done = workshop.run(words, environment=environment, limit=60).check()
    assert f"messages: {22 * 2 * 2} good" in done.out, str(done)
    if shares:
        assert [(items > 20, site) for items, _, site, _ in carried(log)] == [(True, 0)] * 2
        assert done.err == "", str(done)
    else:
        assert all(items == 0 and site > 0 for items, _, site, _ in carried(log))
        # The ranks of a node need to hear it once.
        assert done.err.count("it uses the network, which is slower") == 1, str(done)
