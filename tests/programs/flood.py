"""Rank 0 floods the last rank, which does not receive until FILE exists; then everything must arrive, unharmed, in
order.

flood.py COUNT BYTES HOW FILE, where HOW is `asleep` (the receiver makes no MPI call meanwhile) or `awake` (it probes
for something else, so its library keeps making progress)."""

import os
import sys
import time

import numpy as np
from mpi4py import MPI

LONGEST_S = 60

count, size, how, go = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
comm = MPI.COMM_WORLD
last = comm.size - 1
comm.Barrier()
if comm.rank == 0:
    data = [np.full(size, number % 251, dtype=np.uint8) for number in range(251)]
    requests = [comm.Isend(data[number % 251], last, tag=1) for number in range(count)]
    MPI.Request.Waitall(requests)
elif comm.rank == last:
    end = time.monotonic() + LONGEST_S
    while not os.path.exists(go):
        if time.monotonic() > end:
            sys.exit(f"rank {comm.rank}: {go} did not appear in {LONGEST_S} s")
        if how == "awake":
            for _ in range(1000):
                comm.Iprobe(0, tag=2)
        else:
            time.sleep(0.01)
    buffer = np.empty(size, dtype=np.uint8)
    for number in range(count):
        comm.Recv(buffer, 0, tag=1)
        if not (buffer == number % 251).all():
            sys.exit(f"rank {comm.rank}: message {number} is wrong")
    print(f"flood: {count} messages good", flush=True)
comm.Barrier()
