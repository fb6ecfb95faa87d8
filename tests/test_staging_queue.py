"""The simulation of a queue of jobs whose input and output move (benches/staging/queue.py)."""

import sys
from dataclasses import replace
from itertools import combinations

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "benches"))
from staging.queue import SERIAL, Job, Policy, simulate, workload

OVERLAPPED = Policy(overlapped=True, harm=0.06)
INFINITE = float("inf")


@pytest.fixture(scope="session", autouse=True)
def built():
    """These tests need nothing built."""


def job(number, nodes, compute, stage_in=0.0, stage_out=0.0, arrival=0.0, estimate=None):
    return Job(number, arrival, nodes, compute, estimate or compute, stage_in, stage_out)


def times(outcome):
    return [(run.start, run.computes, run.end) for run in outcome.runs]


def test_serial_jobs_hold_their_nodes_while_data_moves():
    outcome = simulate([job(0, 2, 8, 1, 1), job(1, 2, 8, 1, 1)], 2, SERIAL)
    assert times(outcome) == [(0, 1, 10), (10, 11, 20)]
    assert (outcome.makespan, outcome.wait) == (20, 6)


def test_a_short_job_is_backfilled_and_does_not_delay_the_first_of_the_queue():
    jobs = [job(0, 1, 10), job(1, 2, 5), job(2, 1, 9), job(3, 1, 11)]
    # The second waits for both nodes until 10; the third fits before, the fourth does not.
    assert [run.start for run in simulate(jobs, 2, SERIAL).runs] == [0, 10, 0, 15]


def test_a_chain_of_eight_jobs_comes_down_to_its_bound():
    jobs = [job(number, 2, 8, 1, 1) for number in range(8)]
    assert simulate(jobs, 2, SERIAL).makespan == pytest.approx(80)
    # The first input and the last output have nothing to hide behind: 1 + 8 * 8 + 1.
    assert simulate(jobs, 2, replace(OVERLAPPED, harm=0)).makespan == pytest.approx(66)
    # Output and input of neighbours disturb for 2 of 8 seconds, at the ends of the chain for 1.
    longer = simulate(jobs, 2, replace(OVERLAPPED, harm=0.5)).makespan
    assert 66 < longer < 66 + 8 * 2 * 0.5


def test_input_that_went_to_another_node_is_repaired():
    # Node 0 is expected to be free at 10, and node 1 at 20. Node 1 is free at 5.
    jobs = [job(0, 1, 10, estimate=10), job(1, 1, 5, estimate=20), job(2, 1, 10, stage_in=2)]
    outcome = simulate(jobs, 2, replace(OVERLAPPED, harm=0, repair=4.0))
    last = outcome.runs[2]
    assert (last.nodes, last.start, last.computes, last.wrong) == ([1], 5, 5.5, 1)
    assert outcome.moved == {"in": 2, "out": 0, "repair": 0.5, "cancelled": 2}


def test_moving_more_slowly_beside_a_job_lets_the_next_one_wait():
    jobs = [job(0, 1, 10), job(1, 1, 10, stage_in=8)]
    whole, half = (simulate(jobs, 1, Policy(True, busy_rate=rate)) for rate in (1.0, 0.5))
    assert whole.runs[1].computes == pytest.approx(10)
    # Five of eight seconds are moved beside the first job, three after it.
    assert half.runs[1].computes == pytest.approx(13)


def test_no_data_makes_both_alike():
    for seed in range(5):
        jobs = workload(seed, 60, 16, 0.8, 0.0)
        assert times(simulate(jobs, 16, SERIAL)) == times(simulate(jobs, 16, replace(OVERLAPPED, harm=0)))


def test_equal_seeds_give_equal_outcomes():
    first, second = (simulate(workload(3, 60, 16, 0.8, 0.3), 16, OVERLAPPED) for _ in range(2))
    assert times(first) == times(second)


@pytest.mark.parametrize("policy", [SERIAL, OVERLAPPED, replace(OVERLAPPED, busy_rate=0.3, ahead=1)])
@pytest.mark.parametrize("load", [0.5, 0.9, INFINITE])
@pytest.mark.parametrize("seed", range(4))
def test_nodes_are_used_once_and_everything_is_moved(policy, load, seed):
    jobs = workload(seed, 60, 16, load, 0.3)
    outcome = simulate(jobs, 16, policy)
    assert [run.job for run in outcome.runs] == jobs
    for run in outcome.runs:
        assert len(set(run.nodes)) == run.job.nodes
        assert run.job.arrival <= run.start <= run.computes <= run.computed <= run.end <= run.done
        assert run.computed - run.computes >= run.job.compute - 1e-6
        assert run.computed - run.computes <= run.job.compute * (1 + policy.harm) + 1e-6
    for one, other in combinations(outcome.runs, 2):
        if set(one.nodes) & set(other.nodes):
            assert one.end <= other.start + 1e-6 or other.end <= one.start + 1e-6
    moved = outcome.moved
    needed = sum(job.nodes * job.stage_in for job in jobs)
    assert moved["in"] - moved["cancelled"] + moved["repair"] * policy.repair == pytest.approx(needed)
    assert moved["out"] == pytest.approx(sum(job.nodes * job.stage_out for job in jobs))


def test_a_job_that_never_fits_is_refused():
    with pytest.raises(ValueError, match=r"jobs \[0\] need more than 2 nodes"):
        simulate([job(0, 3, 1)], 2, SERIAL)
