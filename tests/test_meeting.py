"""Two sites that can only dial out meet at a gateway of a third: jobs run across them as across any other two, and
survive the loss of connections and of the gateway where they meet, as long as there is another."""

import re
import time

import pytest

from harness import LANDBRIDGE, PROGRAMS, CuttingProxy, LoopbackSites, wait_until
from test_trunks import EXCHANGE, plain


def start_exchange(workshop, sites, mpi, blocks, rounds=20):
    """Starts it with this many ranks at each site; returns after the first round."""
    started, stop = workshop.folder / "started", workshop.folder / "stop"
    places = [word for name, count in blocks.items() for word in ("--site", f"{name}={count}")]
    words = [LANDBRIDGE, "run", *places, "--mpi", mpi.name, "--", mpi.python, EXCHANGE, started, stop, rounds]
    running = workshop.start(words, environment={**mpi.environment, "LANDBRIDGE_SITES": str(sites.file)}, limit=90)
    running.wait_for(started.exists, 30, "the first round")
    return running, stop


def ends_well(running, stop, ranks):
    stop.write_text("stop\n")
    done = running.finish().check()
    assert f"rounds good on {ranks} ranks" in done.out, str(done)


def carried(gateway):
    """Bytes that a gateway reports as carried between gateways that met there, for meetings that are over."""
    return [int(number) for number in re.findall(r"their meeting is over .*bytes=(\d+)", plain(gateway.err()))]


@pytest.mark.one_mpi
@pytest.mark.parametrize("names, links", [("abz", 1), ("zba", 4)])
def test_sites_that_only_dial_out_run_a_job_with_the_third(workshop, mpi, names, links):
    sites = LoopbackSites(workshop, names=names, hidden="ab", links=links)
    sites.start_gateways()
    running, stop = start_exchange(workshop, sites, mpi, {"a": 2, "b": 2, "z": 1})
    ends_well(running, stop, 5)


@pytest.mark.one_mpi
def test_the_third_need_not_take_part(workshop, mpi):
    sites = LoopbackSites(workshop, names="abz", hidden="ab")
    gateways = sites.start_gateways()
    running, stop = start_exchange(workshop, sites, mpi, {"a": 2, "b": 2})
    ends_well(running, stop, 4)
    for site in "ab":
        assert "trunk up" in gateways[site, 1].err() and "job closed" in gateways[site, 1].err()
    assert "job" not in plain(gateways["z", 1].err()).replace("landbridge", ""), gateways["z", 1].err()
    gateways["a", 1].child.terminate()
    wait_until(lambda: carried(gateways["z", 1]), 5, "the meeting to end")
    assert sum(carried(gateways["z", 1])) > 1 << 20, gateways["z", 1].err()


def test_check_shows_that_they_reach_each_other_and_names_what_is_missing(workshop):
    sites = LoopbackSites(workshop, names="abz", hidden="ab")
    gateways = sites.start_gateways()
    environment = {"LANDBRIDGE_SITES": str(sites.file)}
    words = [LANDBRIDGE, "sites", "check", "--from"]
    for site in "abz":
        workshop.run([*words, site], environment=environment, limit=20).check()
    gateways["z", 1].child.kill()
    gateways["z", 1].finish(within=30)
    time.sleep(1)
    for site, other in ("ab", "ba"):
        done = workshop.run([*words, site], environment=environment, limit=20)
        assert done.code == 1, str(done)
        assert f"site {other}: neither its gateway gw1 nor this one can be dialled" in done.out + done.err, str(done)
        assert "gateway gw1 of site z" in done.out + done.err, str(done)
    words = [LANDBRIDGE, "run", "--site", "a=1", "--site", "b=1", "--", "true"]
    workshop.run(words, environment=environment).fails_naming(
        "site b: neither its gateway gw1", "gateway gw1 of site z"
    )


@pytest.mark.one_mpi
def test_a_place_that_is_killed_is_replaced_by_another_and_nothing_is_lost(workshop, mpi):
    """First the gateway where they met, which is the one that they reached first; then, with that back, the other."""
    sites = LoopbackSites(workshop, names="abz", hidden="ab", gateways={"a": 1, "b": 1, "z": 2})
    gateways = sites.start_gateways()
    running, stop = start_exchange(workshop, sites, mpi, {"a": 2, "b": 2})
    met = {number: gateways["z", number] for number in (1, 2)}
    (first,) = [number for number in met if "two gateways meet here" in met[number].err()]
    second = 3 - first
    for number, other in ((first, second), (second, first)):
        met[number].child.kill()
        met[number].finish(within=30)
        wait_until(lambda other=other: "two gateways meet here" in met[other].err(), 10, "a meeting at the other")
        time.sleep(1)
        assert running.child.poll() is None, str(running.finish())
        met[number] = sites.start_gateway("z", number=number)
        wait_until(
            lambda number=number: met[number].err().count("trunk up") >= 2, 10, "trunks of the gateway that returned"
        )
    ends_well(running, stop, 4)


@pytest.mark.parametrize("links", [1, 4])
def test_connections_that_are_cut_lose_nothing(workshop, mpich_only, links):
    """Also connections to the meeting's host, where it is dialled at another address than it listens on: its trunks,
    and its own traffic."""
    with CuttingProxy() as proxy:
        sites = LoopbackSites(workshop, names="abz", hidden="ab", links=links, proxies={"z": proxy})
        sites.start_gateways()
        running, stop = start_exchange(workshop, sites, mpich_only, {"a": 2, "b": 2, "z": 1})
        for _ in range(10):
            time.sleep(0.5)
            assert running.child.poll() is None, str(running.finish())
            proxy.cut()
        ends_well(running, stop, 5)
        assert proxy.cuts >= 10, f"only {proxy.cuts} connections were there to be cut"


def test_several_gateways_of_hidden_sites_all_meet(workshop, mpich_only):
    sites = LoopbackSites(workshop, names="abz", hidden="ab", gateways={"a": 2, "b": 2, "z": 1})
    gateways = sites.start_gateways()
    assert plain(gateways["z", 1].err()).count("two gateways meet here") == 4
    done = sites.run(
        mpich_only,
        [mpich_only.python, PROGRAMS / "large_message.py", 32 << 20],
        "--site",
        "a=1",
        "--site",
        "b=1",
        limit=60,
    )
    done.check()
