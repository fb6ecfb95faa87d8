"""The first half of the ranks stream to the second half, each to its own partner, for SECONDS: streams.py SECONDS

Prints the payload that arrived between two moments that all receivers share, in Mbit/s.
"""

import json
import sys

import numpy as np
from mpi4py import MPI

seconds = float(sys.argv[1])
comm = MPI.COMM_WORLD
half = comm.size // 2
partner = (comm.rank + half) % comm.size
LENGTH, AHEAD = 1 << 20, 8
DATA, STOP = 1, 2


def stream(until):
    """Sends or receives until the sender has had enough; bytes that arrived."""
    if comm.rank < half:
        data = np.zeros(LENGTH, dtype=np.uint8)
        requests = [comm.Isend(data, partner, DATA) for _ in range(AHEAD)]
        while MPI.Wtime() < until:
            done = MPI.Request.Waitany(requests)
            requests[done] = comm.Isend(data, partner, DATA)
        MPI.Request.Waitall(requests)
        comm.Send(b"", partner, STOP)
        return 0
    buffer, status, arrived = np.empty(LENGTH, dtype=np.uint8), MPI.Status(), 0
    while True:
        comm.Probe(partner, MPI.ANY_TAG, status)
        comm.Recv(buffer, partner, status.tag)
        if status.tag == STOP:
            return arrived
        arrived += status.Get_count()


stream(MPI.Wtime() + seconds / 4)
comm.Barrier()
began = MPI.Wtime()
arrived = stream(began + seconds)
comm.Barrier()
elapsed = MPI.Wtime() - began
total = comm.allreduce(arrived)
if comm.rank == 0:
    print(json.dumps({"mbit_s": total * 8 / elapsed / 1e6}), flush=True)
