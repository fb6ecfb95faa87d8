"""The WAN fails while a job runs: links are cut, sites cannot reach each other for a while. Nothing is lost or
duplicated while the gateways' patience lasts; after that the job ends with an error that names the loss."""

import json
import random
import re
import signal
import time
import urllib.request

import pytest

from harness import LANDBRIDGE, PROGRAMS, CuttingProxy, LoopbackSites, free_port, wait_until

EXCHANGE = PROGRAMS / "exchange.py"


def start_exchange(workshop, sites, mpi, rounds, ranks=4, options=()):
    started, stop = workshop.folder / "started", workshop.folder / "stop"
    report = workshop.folder / "run.json"
    words = [
        LANDBRIDGE,
        "run",
        "-n",
        ranks,
        "--mpi",
        mpi.name,
        f"--json={report}",
        *options,
        "--",
        mpi.python,
        EXCHANGE,
        started,
        stop,
        rounds,
    ]
    running = workshop.start(words, environment={**mpi.environment, "LANDBRIDGE_SITES": str(sites.file)}, limit=90)
    running.wait_for(started.exists, 30, "the first round")
    return running, stop


@pytest.mark.one_mpi
@pytest.mark.parametrize("links", [1, 4])
def test_links_that_are_cut_lose_nothing(workshop, mpi, links):
    """Connections between the gateways are reset every now and then, all of them or some."""
    with CuttingProxy() as proxy:
        sites = LoopbackSites(workshop, proxies={"b": proxy}, links=links)
        for site in "ab":
            sites.start_gateway(site)
        running, stop = start_exchange(workshop, sites, mpi, rounds=20)
        chance = random.Random(7)
        until = time.monotonic() + 30
        while proxy.cuts < 12 and time.monotonic() < until:
            time.sleep(0.3)
            assert running.child.poll() is None, str(running.finish())
            proxy.cut(lambda: links == 1 or chance.random() < 0.5)
        stop.write_text("stop\n")
        done = running.finish().check()
        assert "rounds good on 4 ranks" in done.out, str(done)
        assert proxy.cuts >= 12, f"only {proxy.cuts} connections were there to be cut"


@pytest.mark.one_mpi
def test_gateways_that_are_killed_and_return_lose_nothing(workshop, mpi):
    """Any gateway, including those that lead the job, while others remain: the others retransmit its frames."""
    kill_and_return(workshop, mpi, ["a2", "b3"])


# The other pair of site b, and each of the gateways that lead the job by itself.
OTHERS = [pytest.param(victims, marks=pytest.mark.matrix) for victims in (["b2", "b3"], ["a1"], ["b1"])]


@pytest.mark.parametrize("victims", [["a2"], ["a1", "b1"], ["b1", "b2"], *OTHERS], ids=" ".join)
def test_other_gateways_that_are_killed_and_return_lose_nothing(workshop, mpich_only, victims):
    kill_and_return(workshop, mpich_only, victims)


def test_a_lead_is_done_without_where_the_other_site_has_one_gateway(workshop, mpich_only):
    kill_and_return(workshop, mpich_only, ["b1"], gateways={"a": 1, "b": 2})


@pytest.mark.parametrize("victims", [["a1"], ["b1"], ["a1", "b1"], ["b2"]], ids=" ".join)
def test_gateways_are_restarted_one_after_the_other_while_a_job_runs(workshop, mpich_only, victims):
    """As for an upgrade: SIGTERM, and started again."""
    kill_and_return(workshop, mpich_only, victims, gateways=2, how=signal.SIGTERM)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP], ids=lambda how: how.name)
def test_a_job_of_one_site_goes_on_without_its_leading_gateway(workshop, mpich_only, how):
    sites = LoopbackSites(workshop, gateways=2)
    gateways = sites.start_gateways()
    running, stop = start_exchange(workshop, sites, mpich_only, rounds=20, ranks=2, options=["--site", "a=2"])
    gateways["a", 1].child.send_signal(how)
    # Longer than its silence may last.
    time.sleep(9 if how == signal.SIGSTOP else 2)
    gateways["a", 1].child.send_signal(signal.SIGCONT)
    stop.write_text("stop\n")
    assert "rounds good on 2 ranks" in running.finish().check().out


def test_a_job_ends_when_its_agents_know_none_of_the_gateways_that_are_left(workshop, mpich_only):
    """A third gateway was added; the others, which start the agents, have not read the new sites file."""
    old = LoopbackSites(workshop, names="a", gateways=2)
    before = old.write("before.toml")
    gateways = [old.start_gateway("a", file=before, number=number) for number in (1, 2)]
    third = {("a", 3): free_port()}
    old.gateways.update(third)
    old.file = old.write("sites.toml")
    old.start_gateway("a", number=3)
    running, _ = start_exchange(workshop, old, mpich_only, rounds=1000, ranks=2)
    for gateway in gateways:
        gateway.child.kill()
    done = running.finish(within=30)
    assert done.code == 75, str(done)
    assert "site a, node n1: agent lost with ranks 0 to 1: its gateways are lost" in done.err, str(done)


@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_a_node_that_has_lost_its_last_gateway_is_the_reason_and_not_the_ranks_that_miss_it(
    workshop, mpich_only, how, isolated
):
    started, stop, out = (workshop.folder / name for name in ("started", "stop", "run.out"))
    script = f"""
{LANDBRIDGE} run -n 3 --map-by node -- {mpich_only.python} {EXCHANGE} {started} {stop} 1000000 > {out} 2>&1 & job=$!
until [ -e {started} ]; do sleep 0.1; done
{LANDBRIDGE} lab enter a-n2 -- ip route add blackhole 10.1.0.102
sleep 8
{LANDBRIDGE} lab {how} a-gw1
wait $job
echo "code $?"
tail -n 1 {out}
"""
    words = ["bash", "-c", script]
    environment = mpich_only.environment
    running = workshop.lab(words, sites=1, nodes=3, options=["--gateways", 2], environment=environment, limit=90)
    done = running.finish()
    assert "code 75" in done.out and "site a, node n2: agent lost with rank 1" in done.out, str(done)


def kill_and_return(workshop, mpi, victims, gateways=3, how=signal.SIGKILL):
    sites = LoopbackSites(workshop, gateways=gateways, pages=True)
    gateways = sites.start_gateways()
    running, stop = start_exchange(workshop, sites, mpi, rounds=20)
    victims = [(victim[0], int(victim[1])) for victim in victims]
    killed = []
    for _ in range(2):
        for victim in victims:
            time.sleep(0.5)
            gateways[victim].child.send_signal(how)
            gateways[victim].child.wait(timeout=5)
            killed.append(gateways[victim])
        time.sleep(1)
        assert running.child.poll() is None, str(running.finish())
        for site, number in victims:
            gateways[site, number] = sites.start_gateway(site, number=number)
        for victim in victims:
            wait_until(
                lambda victim=victim: carried(sites, victim) > 0, 20, f"gateway {victim} returned and to be used again"
            )
    stop.write_text("stop\n")
    done = running.finish().check()
    assert "rounds good on 4 ranks" in done.out, str(done)
    for gateway in killed:
        wait_until(lambda gateway=gateway: not gateway.processes(), 5, "what a killed gateway had started to end")


def carried(sites, gateway):
    """Bytes of open jobs that a gateway has carried so far. Ranks reconnect to one that returned within a second or
    so."""
    with urllib.request.urlopen(f"http://127.0.0.1:{sites.pages[gateway]}/view.json", timeout=5) as answer:
        jobs = json.load(answer)["jobs"]
    return sum(job["traffic"]["sent"] + job["traffic"]["received"] for job in jobs)


def relayed(gateway):
    """Bytes of jobs that a gateway reports as sent and received, once they are closed."""
    wait_until(lambda: "job closed" in gateway.err(), 5, "the gateway to close the job")
    return sum(int(number) for number in re.findall(r"(?:sent|received)=(\d+)", plain(gateway.err())))


def plain(text):
    """Without the colours of a terminal."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.one_mpi
@pytest.mark.alone
def test_every_gateway_carries_its_part(workshop, mpi):
    """A single large message uses all of them."""
    sites = LoopbackSites(workshop, gateways=3)
    gateways = sites.start_gateways()
    done = sites.run(mpi, [mpi.python, PROGRAMS / "large_message.py", 64 << 20], ranks=2, limit=60).check()
    parts = [relayed(gateway) for gateway in gateways.values()]
    assert min(parts) > sum(parts) / 6 * 0.5, f"{parts}\n{done}"


def test_a_job_runs_without_the_gateways_that_are_down(workshop, mpich_only):
    sites = LoopbackSites(workshop, gateways=2)
    for site in "ab":
        sites.start_gateway(site)
    done = sites.run(mpich_only, [mpich_only.python, PROGRAMS / "reach.py"], ranks=4).check()
    assert "site a: gateway gw2 is not used" in done.err, str(done)


@pytest.mark.one_mpi
def test_a_blackout_is_waited_for(workshop, mpi):
    """Nothing gets through for longer than it takes to notice, and peers that dial in vain keep dialling."""
    with CuttingProxy() as proxy:
        sites = LoopbackSites(workshop, proxies={"b": proxy})
        for site in "ab":
            sites.start_gateway(site)
        running, stop = start_exchange(workshop, sites, mpi, rounds=3)
        proxy.hold(True)
        time.sleep(5)
        assert running.child.poll() is None, str(running.finish())
        proxy.hold(False)
        stop.write_text("stop\n")
        done = running.finish().check()
        assert "rounds good on 4 ranks" in done.out, str(done)


def test_a_blackout_beyond_patience_ends_the_job(workshop, mpich_only):
    with CuttingProxy() as proxy:
        sites = LoopbackSites(workshop, proxies={"b": proxy}, patience="1s")
        for site in "ab":
            sites.start_gateway(site)
        running, _ = start_exchange(workshop, sites, mpich_only, rounds=3)
        proxy.hold(True)
        done = running.finish(within=20)
        done.fails_naming("site b", "did not come back within 1 s")


@pytest.mark.alone
@pytest.mark.parametrize("delay, fewest, most", [("0", 1, 1), ("50ms", 4, 6)])
def test_a_longer_way_has_more_links(workshop, mpich_only, isolated, delay, fewest, most):
    """A link for each 25 ms of the round trip, where the sites file does not set a number."""
    job = f"{LANDBRIDGE} run -n 2 --mpi mpich -- {mpich_only.python} {PROGRAMS}/large_message.py {16 << 20} > job.out"
    top = f"{LANDBRIDGE} top --once --json"
    done = (
        workshop.lab(["sh", "-c", f"{job} && {top}"], nodes=1, delay=delay, environment=mpich_only.environment)
        .finish()
        .check()
    )
    looks = [look["view"]["trunks"] for look in json.loads(done.out)["gateways"]]
    assert looks, done
    for (trunk,) in looks:
        assert fewest <= len(trunk["links"]) <= most and trunk["links_wanted"] == len(trunk["links"]), trunk


def test_a_job_begins_and_ends_while_links_are_cut(workshop, mpich_only):
    """Messages between gateways about a job are not lost with a link either."""
    with CuttingProxy() as proxy:
        sites = LoopbackSites(workshop, proxies={"b": proxy}, links=2)
        for site in "ab":
            sites.start_gateway(site)
        with proxy.cutting_every(0.15):
            for _ in range(3):
                done = sites.run(mpich_only, [mpich_only.python, PROGRAMS / "reach.py"], ranks=4, limit=60).check()
                assert done.code == 0, str(done)


def test_a_gateway_that_was_started_anew_has_lost_its_jobs_and_serves_new_ones(workshop, mpich_only):
    sites = LoopbackSites(workshop)
    gateways = {site: sites.start_gateway(site) for site in "ab"}
    running, _ = start_exchange(workshop, sites, mpich_only, rounds=3)
    gateways["b"].child.kill()
    gateways["b"].finish(within=30)
    sites.start_gateway("b")
    running.finish(within=20).fails_naming("site b")
    sites.run(mpich_only, [mpich_only.python, PROGRAMS / "reach.py"], ranks=2).check()
