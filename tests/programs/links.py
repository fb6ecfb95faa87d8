"""Rank by rank, each sends to each other as fast as it can for a while, so that the gateways see the path's rate.

links.py SECONDS [QUIET]: then all ranks wait for QUIET seconds, calling MPI now and then.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

seconds, quiet = float(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
comm = MPI.COMM_WORLD
data = np.ones(128 << 10, dtype=np.uint8)
MORE, END = 1, 2

for source in range(comm.size):
    for target in range(comm.size):
        if source == target or seconds == 0:
            continue
        if comm.rank == source:
            end = time.monotonic() + seconds
            requests = []
            while time.monotonic() < end:
                # Enough in flight that the path limits it, not the program.
                requests.append(comm.Isend(data, target, tag=MORE))
                if len(requests) > 64:
                    requests.pop(0).Wait()
            requests.append(comm.Isend(data[:1], target, tag=END))
            MPI.Request.Waitall(requests)
        elif comm.rank == target:
            place, status = np.empty_like(data), MPI.Status()
            while status.tag != END:
                comm.Recv(place, source, tag=MPI.ANY_TAG, status=status)
        comm.Barrier()
until = time.monotonic() + quiet
while time.monotonic() < until:
    time.sleep(0.2)
    comm.Iprobe()
comm.Barrier()
if comm.rank == 0:
    print("links: done", flush=True)
