#!/usr/bin/env python3
"""Redistributions that an exception of one rank interrupts: while elements are converted and, by a signal's handler,
at any time. That rank goes on. Later runs have the right elements, and nothing is written to memory that was freed.

For three ranks."""

import faulthandler
import os
import random
import signal
import sys
import threading
import time
import warnings

import numpy as np
from mpi4py import MPI

import landbridge as lb

ROUNDS = 120
comm = MPI.COMM_WORLD
rank = comm.Get_rank()
beside = comm.Dup()
beat = time.monotonic()


def watch():
    while time.monotonic() < beat + 120:
        time.sleep(0.5)
    print(f"rank {rank}: waits for over 120 s", flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(7)


def layouts(count):
    own = np.array_split(np.random.default_rng(1).permutation(count), comm.size)
    return lb.Layout(count, lb.Block(comm.size)), lb.Layout(count, lb.Lists(own)), own[rank]


def fresh(count, dtypes=("f8", "f4")):
    """New arrays, where freed memory may have been."""
    return [np.full(count, -1, dtype) for dtype in dtypes for _ in range(8)]


def undamaged(arrays):
    return all((array == -1).all() for array in arrays)


def conversions():
    """On rank 1 a conversion raises a warning; that rank alone raises it."""
    src, dst, own = layouts(4 * comm.size)
    for turn in range(ROUNDS // 3):
        large, into = np.full(4, 1e300), np.zeros(4, "f4") if rank == 1 else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error" if rank == 1 else "ignore")
                lb.redistribute(large, src, dst, comm, into=into)
            assert rank != 1, "the warning was not raised"
        except RuntimeWarning as warning:
            assert rank == 1 and "overflow" in str(warning), warning
        arrays = fresh(4)
        got = lb.redistribute(np.arange(4.0) + 4 * rank, src, dst, comm)
        assert (got == own).all(), (turn, got, own)
        assert undamaged(arrays), turn
        note()


class Struck(Exception):
    """Raised by the handler of the signal."""


def strike(_number, frame):
    """Raises in the middle of a run; a call that has hardly begun takes no part in it yet."""
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    if names & {"_prepared", "begin", "wait"}:
        raise Struck
    if "run" in names:
        signal.setitimer(signal.ITIMER_REAL, 0.0002)


def interruptions(count, latest):
    """A signal comes during a run of rank 1, up to `latest` seconds after its start. Returns how many came in time."""
    src, dst, own = layouts(count * comm.size)
    plan, chance, struck = lb.plan(src, dst, "f8", comm), random.Random(count), 0
    mine = np.arange(float(count)) + rank * count
    plan.run(mine)
    signal.signal(signal.SIGALRM, strike)
    for turn in range(ROUNDS):
        beside.barrier()
        if rank != 1:
            time.sleep(0.005)
        else:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0003, latest))
        try:
            plan.run(mine + turn * 1e6)
        except Struck:
            struck += 1
        except lb.PlanError as error:
            # Rank 1 was struck before its first message, or in an earlier run.
            assert "Struck" in str(error), error
            struck += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        arrays = fresh(count, ["f8"])
        beside.barrier()
        for more in (2e9, 3e9):
            try:
                got = plan.run(mine + more)
            except lb.PlanError as error:
                assert "in an earlier run" in str(error), error
                continue
            assert (got == own + more).all(), (turn, got, own + more)
        assert undamaged(arrays), turn
        note()
    return struck


def note():
    global beat
    beat = time.monotonic()


def packed(count, budget, among=comm):
    """A plan whose messages go in pieces."""
    extent = count * comm.size
    layouts = lb.Layout(extent, lb.Block(comm.size)), lb.Layout(extent, lb.Cyclic(comm.size, block=75))
    return lb.plan(*layouts, "f8", among, budget=budget)


def out_of_order(count):
    """Rank 1 waits for something else while a run is in flight, of which it has pieces that the others need back before
    they send more: for a later run, one of another communicator, and MPI."""
    src, dst, own = layouts(4 * comm.size)
    small, large = [lb.plan(src, dst, "f8", each) for each in (comm, beside)], packed(count, 1 << 16)
    mine, index = np.arange(float(count)) + rank * count, np.arange(count * comm.size)
    for turn in range(6):
        note()
        started = large.start(mine + turn) if rank == 1 else None
        got = None if rank == 1 else large.run(mine + turn)
        if turn % 3 < 2:
            assert (small[turn % 3].run(np.arange(4.0) + 4 * rank) == own).all(), turn
        else:
            comm.Barrier()
        got = started.wait() if rank == 1 else got
        assert (got == index[index // 75 % comm.size == rank] + turn).all(), turn


def repeated_interruptions(count, budget):
    """Runs with more pieces than may be in flight are interrupted, and also the next run, while it finishes the one
    before. Returns how many runs were struck."""
    plan = packed(count, budget)
    mine, index = np.arange(float(count)) + rank * count, np.arange(count * comm.size)
    own, struck = index[index // 75 % comm.size == rank], 0
    signal.signal(signal.SIGALRM, strike)
    for turn in range(10):
        note()
        if rank != 1:
            time.sleep(0.1)
        for run in range(4):
            if rank == 1 and run < 2:
                signal.setitimer(signal.ITIMER_REAL, 0.03)
            try:
                got = plan.run(mine + 1e9 * run)
                assert (got == own + 1e9 * run).all(), (turn, run, sorted(set(got // 1e9)))
            except Struck:
                struck += 1
            except lb.PlanError as error:
                assert "Struck" in str(error), error
                struck += rank == 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    return struck


def waits_interrupted(count):
    """Rank 1 is struck again and again while it waits, finishes the run, or takes reasons. Each wait that is not struck
    returns the elements, or raises the reason of this run and no other error."""
    plan, whole = packed(count, None), packed(4, None)
    mine, index = np.arange(float(count)) + rank * count, np.arange(count * comm.size)
    own, chance = index[index // 75 % comm.size == rank], random.Random(count)
    struck, in_wait = 0, [False]

    def strike_wait(_number, _frame):
        if in_wait[0]:
            raise Struck

    signal.signal(signal.SIGALRM, strike_wait)
    for turn in range(ROUNDS):
        note()
        # In each third run the part of rank 2 does not fit: ranks that would receive from it raise its reason.
        wrong = turn % 3 == 0
        running = plan.start(np.zeros(1) if wrong and rank == 2 else mine + turn)
        while True:
            try:
                try:
                    if rank == 1:
                        in_wait[0] = True
                        signal.setitimer(signal.ITIMER_REAL, chance.choice([2e-5, 1e-4, 5e-4]))
                    got = running.wait()
                finally:
                    in_wait[0] = False
                assert not wrong and (got == own + turn).all(), turn
                break
            except Struck:
                struck += 1
                # With less time than this between two strikes, nothing is ever over.
                if struck % 50 == 0:
                    time.sleep(0.002)
            except lb.PlanError as error:
                assert wrong and "rank 2: ValueError: a has shape (1,)" in str(error), (turn, error)
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            assert running.wait() is got and not wrong
        except lb.PlanError:
            assert wrong
    assert whole.run(np.arange(4.0)) is not None
    return struck


def several_threads(count):
    """Three threads wait for each of several runs, and another one tests them. All get the elements of their run."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return
    src, dst, own = layouts(count * comm.size)
    mine, index = np.arange(float(count)) + rank * count, np.arange(count * comm.size)
    cases = [
        (packed(count, None), index[index // 75 % comm.size == rank]),
        (lb.plan(src, dst, "f8", comm), own),
        (lb.plan(src, lb.Layout(count * comm.size, lb.Block(comm.size)), "f8", comm), mine),
    ]
    wrong = []
    for turn in range(20):
        note()
        runs = [(plan.start(mine + 1e9 * turn), wanted + 1e9 * turn) for plan, wanted in cases]

        def waits(run, wanted):
            try:
                got = run.wait()
                if not (got == wanted).all():
                    wrong.append((got, wanted))
            except BaseException as error:
                wrong.append(repr(error))

        def tests(run, _wanted):
            try:
                while not run.test():
                    time.sleep(0)
            except BaseException as error:
                wrong.append(repr(error))

        threads = [threading.Thread(target=waits, args=run) for run in 3 * runs]
        threads += [threading.Thread(target=tests, args=run) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, (turn, wrong[:2])


def requests_kept_once():
    """A wait is struck after the plan has kept the run's requests. They are freed when other arrays take their place,
    and the next wait does not bring them back."""
    count, blocks = 4096, lb.Layout(4096 * comm.size, lb.Block(comm.size))
    plan = lb.plan(blocks, blocks, "f8", comm, dst_ranks=[(of + 1) % comm.size for of in range(comm.size)])
    mine, arrays = (rank - 1) % comm.size, [(np.full(count, float(rank)), np.zeros(count)) for _ in range(12)]
    running, unpack = plan.start(arrays[0][0], into=arrays[0][1]), plan._unpack

    def struck(*_):
        plan._unpack = unpack
        raise Struck

    plan._unpack = struck
    try:
        running.wait()
        raise SystemExit("the wait was not struck")
    except Struck:
        pass
    for turn in range(3):
        for a, into in arrays[1:]:
            into[:] = 0
            assert (plan.run(a, into=into) == mine).all()
        assert (running.wait() == mine).all(), turn
    note()


def freed_in_flight(count):
    """A communicator is freed while runs of it are in flight: they end first, and their waits return the elements."""
    mine, index = np.arange(float(count)) + rank * count, np.arange(count * comm.size)
    own = index[index // 75 % comm.size == rank]
    for turn in range(6):
        note()
        other = comm.Dup()
        plan = packed(count, None, other)
        runs = [plan.start(mine + 1e9 * run) for run in range(3)]
        wrong = plan.start(np.zeros(1) if rank == 2 else mine)
        dropped = plan.start(mine)
        del dropped
        other.Free()
        after = packed(count, None).run(mine)
        assert (after == own).all(), turn
        for run, running in enumerate(runs):
            assert (running.wait() == own + 1e9 * run).all(), (turn, run)
        try:
            wrong.wait()
            raise SystemExit(f"rank {rank} has heard nothing")
        except lb.PlanError as error:
            assert "rank 2: ValueError" in str(error), error
        for attempt in (plan.run, plan.start):
            try:
                attempt(mine)
                raise SystemExit("a freed communicator was used")
            except RuntimeError as error:
                assert "has been freed" in str(error), error


def freed_before_all_have_started(count):
    """Rank 0 has not started the last run when the communicator is freed: the others give it up."""
    mine = np.arange(float(count)) + rank * count
    for turn in range(3):
        note()
        other = comm.Dup()
        plan = packed(count, None, other)
        all_of_them = plan.start(mine)
        some = plan.start(mine) if rank > 0 else None
        if rank > 0 and turn > 0:
            try:
                some.wait(timeout=0.05)
                raise SystemExit("the run is over without rank 0")
            except TimeoutError:
                pass
        other.Free()
        assert all_of_them.wait() is not None
        for _ in range(2 if rank > 0 else 0):
            try:
                some.wait()
                raise SystemExit("the run is over without rank 0")
            except RuntimeError as error:
                assert "before all ranks had started" in str(error), error
        assert some is None or some.test()


class Hostile(Exception):
    """An error whose text cannot be made."""

    def __str__(self):
        raise SystemExit(3)


class Part:
    """A part that cannot be read."""

    __array_interface__ = property(lambda _: (_ for _ in ()).throw(Hostile()))

    def __array__(self, *_, **__):
        raise Hostile

    def __dlpack__(self, **_):
        raise Hostile

    def __dlpack_device__(self):
        raise Hostile


threading.Thread(target=watch, daemon=True).start()
conversions()
struck = [interruptions(count, latest) for count, latest in [(4, 0.004), (4, 0.02), (300, 0.006)]]
out_of_order(60_000)
repeated = repeated_interruptions(60_000, 1 << 16)
# All messages of rank 1 have begun when it is interrupted, and the others still need their memory back.
repeated += repeated_interruptions(60_000, None if rank == 1 else 1 << 16)
waits = waits_interrupted(300) + waits_interrupted(60_000)
assert rank != 1 or waits > ROUNDS / 4, waits
several_threads(3000)
several_threads(100_000)
requests_kept_once()
freed_in_flight(60_000)
freed_before_all_have_started(60_000)
# On a busy machine some signals come before the run, or after it.
assert rank != 1 or repeated > 6, repeated
src, dst, _ = layouts(12)
try:
    lb.redistribute(Part() if rank == 1 else np.zeros(4), src, dst, comm)
    sys.exit("a hostile part was taken")
except (lb.PlanError, Hostile):
    pass
struck = comm.allreduce(sum(struck))
if rank == 0:
    assert struck > ROUNDS / 8, struck
    print(f"all runs were right; {struck} were struck", flush=True)
