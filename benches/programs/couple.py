#!/usr/bin/env python3
"""Two programs of MPICH that hand over an n x n array of float64, version after version; a line of JSON.

    couple.py COMMAND MPIEXEC PYTHON PROCESSES N KIND VERSIONS [HOST,HOST HOST,HOST]

COMMAND: landbridge. KIND: quarters (of 2 x p/2 to rows), dealt (64 x 64 to 48 x 80), rows, or copies (one process
exports, each of the others fetches all of it). HOSTs: hosts of the two programs in the surrounding lab; by default both
run here. Without COMMAND (`-`): both copy through one shared file instead."""

import itertools
import json
import os
import subprocess
import sys
import tempfile

BLOCKS = [(64, 64), (48, 80)]


def side(number, processes, n, kind, versions):
    import time

    import numpy as np
    from mpi4py import MPI

    import landbridge as lb

    comm, shape, half = MPI.COMM_WORLD, (n, n), max(processes // 2, 1)
    rows = lb.Layout(shape, [lb.Block(processes), lb.Whole()])
    if kind == "quarters":
        layouts = lb.Layout(shape, [lb.Block(processes // half), lb.Block(half)]), rows
    elif kind == "dealt":
        axes = [[lb.Cyclic(processes // half, block=high), lb.Cyclic(half, block=wide)] for high, wide in BLOCKS]
        layouts = [lb.Layout(shape, each) for each in axes]
    elif kind == "copies":
        whole = [lb.Whole(), lb.Whole()]
        layouts = lb.Layout(shape, whole), lb.Layout(shape, whole, grid=[lb.Copies(processes), 0, 1])
    else:
        layouts = rows, rows
    layout = layouts[number]
    a = np.full(layout.local_shape(comm.Get_rank()), number + 1.0)
    budget = 2 * a.nbytes + (1 << 20)
    # Load the coupling module before the barrier: its import belongs to a program's start.
    join = lb.join
    comm.Barrier()
    began = time.time()
    times = []
    with join("bench@a", comm, budget=budget) as coupling:
        joined = time.time()
        for version in range(versions):
            if number == 0:
                coupling.export("v", a, layout, version=version)
            else:
                coupling.fetch("v", layout, version=version, into=a)
            times.append(time.time())
    assert number == 0 or (a == 1.0).all()
    if comm.Get_rank() == 0:
        print(json.dumps({"side": number, "began": began, "joined": joined, "times": times}), flush=True)


def through_a_file(n, versions):
    """Half of the ranks copy their parts into a file that all have mapped, and the others copy them out of it."""
    import time

    import numpy as np
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    rank, half = comm.Get_rank(), comm.Get_size() // 2
    path = comm.bcast(f"/dev/shm/landbridge-bench-{os.getpid()}" if rank == 0 else None)
    if rank == 0:
        with open(path, "wb") as file:
            file.truncate(n * n * 8)
    comm.Barrier()
    shared = np.memmap(path, np.float64, "r+", shape=(half, n * n // half))
    comm.Barrier()
    if rank == 0:
        os.unlink(path)
    own, times = np.ones(n * n // half), []
    for _ in range(versions):
        if rank < half:
            shared[rank] = own
        comm.Barrier()
        if rank >= half:
            own[:] = shared[rank - half]
        comm.Barrier()
        times.append(time.time())
    if rank == 0:
        print(json.dumps({"side": 1, "times": times}), flush=True)


def main():
    command, mpiexec, python, processes, n, kind, versions, *hosts = sys.argv[1:]
    processes, n, versions = int(processes), int(n), int(versions)
    if command == "-":
        words = [mpiexec, "-n", str(2 * processes), python, __file__, "file", str(n), str(versions)]
        line = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print(json.dumps({"cycle_ms": cycle(line["times"])}))
        return
    started = []
    os.environ["PATH"] = os.path.dirname(command) + ":" + os.environ["PATH"]
    for number in range(2):
        words = [mpiexec, "-n", str(1 if kind == "copies" and number == 0 else processes)]
        environment = dict(os.environ)
        if hosts:
            first, *others = hosts[number].split(",")
            environment["LANDBRIDGE_SITE_NAME"] = first[0]
            if others:
                raise SystemExit("one host a side: a lab's nodes do not share what mpiexec needs")
            words = [command, "lab", "enter", first, "--", *words]
        out = tempfile.TemporaryFile("w+")  # noqa: SIM115 (read after the process has ended)
        words += [python, __file__, "side", str(number), str(processes), str(n), kind, str(versions)]
        started.append((subprocess.Popen(words, stdout=out, env=environment, text=True), out))
    lines = []
    for child, out in started:
        if child.wait():
            raise SystemExit(f"exit code {child.returncode}")
        out.seek(0)
        lines.append(json.loads(out.read()))
    exporter, fetcher = lines
    began = max(exporter["began"], fetcher["began"])
    first, joined = fetcher["times"][0] - began, max(exporter["joined"], fetcher["joined"]) - began
    print(json.dumps({"cycle_ms": cycle(fetcher["times"]), "first_ms": 1e3 * first, "join_ms": 1e3 * joined}))


def cycle(times):
    """Milliseconds from one version to the next: the median without the first ones, which still allocate memory."""
    differences = sorted(after - before for before, after in itertools.pairwise(times))
    later = sorted(after - before for before, after in itertools.pairwise(times[3:])) or differences
    return 1e3 * later[len(later) // 2]


if __name__ == "__main__":
    if sys.argv[1] == "side":
        side(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
    elif sys.argv[1] == "file":
        through_a_file(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
