"""Gateways' figures about the network between sites: three sites whose links are shaped differently."""

import json
import re

import pytest

from harness import LANDBRIDGE, PROGRAMS

# Rate in Mbit/s and one-way delay in ms between two sites, before and after a change.
SHAPES = {("a", "b"): (80, 5), ("a", "c"): (40, 10), ("b", "c"): (20, 20)}
CHANGED = {("a", "b"): (16, 25)}


def shape(shapes):
    """Afterwards TCP needs 10 s to believe in a longer delay, where its congestion control is BBR."""
    changes = [
        f"{LANDBRIDGE} lab wan {a} {b} rate={rate}mbit delay={delay}ms" for (a, b), (rate, delay) in shapes.items()
    ]
    return [*changes, "sleep 12"]


def job(mpi, *words, log="/dev/null"):
    return (
        f"{LANDBRIDGE} run -n 3 --site a=1 --site b=1 --site c=1 --mpi {mpi.name} --collectives native -x "
        f"LANDBRIDGE_LOG_FILE={log} -- "
        f"{mpi.python} {PROGRAMS / 'links.py'} {' '.join(map(str, words))}"
    )


def in_lab(workshop, mpi, steps, limit):
    """Runs these commands one after the other on a node of a lab of three sites; returns the JSON that they print."""
    # The links are the bottleneck, not the gateways' cards.
    options = ["--nic-rate", "1gbit", "--isolation", "namespaces"]
    script = " && ".join(steps)
    done = (
        workshop.lab(["sh", "-c", script], sites=3, nodes=1, options=options, environment=mpi.environment, limit=limit)
        .finish()
        .check()
    )
    return [json.loads(line) for line in done.out.splitlines() if line.startswith("{")], done


# On an idle machine rates are within 0.1 of the links' own. Where other tests run meanwhile, this is only enough to
# distinguish the links. A transfer that measures is one of its kind and too short for that: those tests run alone.
WITHIN = 0.5


def check(found, shapes, how, done):
    """The figures are those of the shapes: rates of payload, round trips with the gateways' share."""
    assert found["schema"] == 1 and found["site"] == "a" and found["sites"] == ["a", "b", "c"]
    assert len(found["pairs"]) == 6
    for pair in found["pairs"]:
        rate, delay = shapes[tuple(sorted((pair["from"], pair["to"])))]
        assert pair["mbit_s"] == pytest.approx(rate * 0.95, rel=WITHIN), f"{pair}\n{done}"
        assert 2 * delay <= pair["rtt_ms"] <= 3 * delay + 40, f"{pair}\n{done}"
        assert pair["measured"] == how and not pair["stale"] and pair["age_s"] < 300, f"{pair}\n{done}"


@pytest.mark.slow
def test_the_traffic_of_jobs_shows_each_link_and_a_change_is_followed(workshop, mpich_only, isolated):
    log = workshop.folder / "ranks.log"
    show = f"sleep 2 && {LANDBRIDGE} sites links --json"
    # A job that ends at once may end before its ranks have heard of the links.
    steps = [*shape(SHAPES), job(mpich_only, 2), show, job(mpich_only, 0, 1, log=log)]
    steps += [*shape(CHANGED), job(mpich_only, 3), show, f"{LANDBRIDGE} sites links"]
    (before, after), done = in_lab(workshop, mpich_only, steps, limit=240)
    check(before, SHAPES, "passive", done)
    check(after, SHAPES | CHANGED, "passive", done)
    assert re.search(r"^from / to +a +b +c$", done.out, re.MULTILINE) and "(passive, " in done.out, str(done)
    # The second job's ranks were given figures from the first one's traffic.
    tables = re.findall(r"links between the job's sites, version \d+: (.*)", log.read_text())
    assert len(tables) == 3, log.read_text()
    for table in tables:
        figures = re.findall(r"#(\d) to #(\d) ([\d.]+) ms ([\d.]+) Mbit/s", table)
        assert len(figures) == 6, table
        for one, other, trip, rate in figures:
            expected, delay = SHAPES[tuple(sorted("abc"[int(at)] for at in (one, other)))]
            assert float(rate) == pytest.approx(expected * 0.95, rel=WITHIN), table
            assert 2 * delay <= float(trip) <= 3 * delay + 40, table


@pytest.mark.slow
@pytest.mark.alone
def test_unknown_links_are_measured_on_request_in_turns(workshop, mpich_only, isolated):
    links = f"{LANDBRIDGE} sites links --json"
    remedy = "landbridge sites links --measure"
    typed = remedy.replace("landbridge", str(LANDBRIDGE), 1)
    steps = [*shape(SHAPES), links, f"{LANDBRIDGE} sites links", typed, links]
    (before, after), done = in_lab(workshop, mpich_only, steps, limit=150)
    for pair in before["pairs"]:
        assert pair["mbit_s"] is None and pair["measured"] is None and pair["stale"], pair
    assert "rate unknown" in done.out and f"`{remedy}` measures now" in done.out, str(done)
    check(after, SHAPES, "active", done)


@pytest.mark.slow
@pytest.mark.alone
def test_what_a_quiet_job_needs_is_measured_and_its_ranks_learn_it(workshop, mpich_only, isolated):
    log = workshop.folder / "ranks.log"
    steps = [*shape(SHAPES), job(mpich_only, 0, 25, log=log), f"{LANDBRIDGE} sites links --json"]
    (after,), done = in_lab(workshop, mpich_only, steps, limit=150)
    check(after, SHAPES, "active", done)
    tables = re.findall(r"links between the job's sites, version \d+: (.*)", log.read_text())
    assert len(tables) == 3 and all(table.count("Mbit/s") == 6 for table in tables), log.read_text()
