"""Two nodes of one site whose ranks only communicate with each other: the network between them is cut or
interrupted, or one rank only computes."""

import pytest

from harness import LANDBRIDGE, PROGRAMS

# No time is asserted: only a hang takes this long. A job is meant to end within 10 s.
LIMIT_S = 60
# Longer than ranks wait for a sign of life.
LONG_S = 9

LAB = f"{LANDBRIDGE} lab"
UNPLUG, PLUG = f"{LAB} unplug a-n2", f"{LAB} plug a-n2"
# Frames to the other node go to a station that does not exist, both ways. Both nodes still reach their gateway.
ASTRAY = "ip neigh replace 10.1.0.{} lladdr 02:00:00:00:00:fe dev eth0 nud permanent"
CUT_BETWEEN = f"{ASTRAY.format(2)}; {LAB} enter a-n2 -- {ASTRAY.format(1)}"


def play(workshop, mpi, what, seconds, then="true"):
    """A job with a rank on each node, and a command once it has started."""
    started = workshop.folder / "started"
    run = f"{LANDBRIDGE} run -n 2 --mpi {mpi.name} -- {mpi.python} {PROGRAMS / 'stream.py'} {what} {started} {seconds}"
    begun = f"while ! [ -e {started} ] && kill -0 $job; do sleep 0.05; done"
    script = f"{run} & job=$!; {begun}; {then}; wait $job"
    options = ["--isolation", "namespaces"]
    return workshop.lab(
        ["bash", "-c", script], sites=1, options=options, environment=mpi.environment, limit=LIMIT_S
    ).finish()


@pytest.mark.one_mpi
def test_a_way_between_two_nodes_that_is_cut_ends_the_job(workshop, mpi, isolated):
    """Their agents are alive and have a gateway; only the ranks can notice."""
    done = play(workshop, mpi, "stream", LIMIT_S, CUT_BETWEEN)
    # Each rank may report the other.
    done.fails_naming(
        "site a", "node n", "cannot go on: cannot reach rank", "at site a, node n", "no sign of life for 7 s"
    )
    assert done.code == 75, str(done)


@pytest.mark.one_mpi
def test_an_unplugged_node_ends_the_job(workshop, mpi, isolated):
    done = play(workshop, mpi, "stream", LIMIT_S, UNPLUG)
    done.fails_naming("site a", "node n2", "rank 1", "no sign of life")
    assert done.code == 75, str(done)


@pytest.mark.one_mpi
def test_a_short_interruption_is_none(workshop, mpi, isolated):
    done = play(workshop, mpi, "stream", 6, f"{UNPLUG}; sleep 2; {PLUG}").check()
    assert "stream: good" in done.out, str(done)


@pytest.mark.one_mpi
def test_a_rank_that_computes_while_much_is_sent_to_it_is_left_alone(workshop, mpi, isolated):
    """Its kernel has closed the window, and answers."""
    done = play(workshop, mpi, "computing", LONG_S).check()
    assert "computing: good" in done.out, str(done)
