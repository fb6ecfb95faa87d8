"""All ranks send BYTES to each other rank, again and again for SECONDS: alltoall.py BYTES SECONDS [in-step]

By MPI_Alltoall, or in-step: in lockstep, by exchanges in pairs, as MPICH does for such lengths, but with a barrier
before each. The first half of the ranks is one site, the second half the other. Prints the payload that crossed between
them, each way, in Mbit/s.
"""

import json
import sys

import numpy as np
from mpi4py import MPI

length, seconds = int(sys.argv[1]), float(sys.argv[2])
in_step = sys.argv[3:] == ["in-step"]
comm = MPI.COMM_WORLD
if in_step and comm.size & (comm.size - 1):
    sys.exit(f"alltoall: pairs in step need a power of two as number of ranks, not {comm.size}")
leaving = np.full((comm.size, length), comm.rank, dtype=np.uint8)
arriving = np.empty_like(leaving)


def exchange():
    if not in_step:
        comm.Alltoall(leaving, arriving)
        return
    arriving[comm.rank] = leaving[comm.rank]
    for step in range(1, comm.size):
        comm.Barrier()
        peer = comm.rank ^ step
        comm.Sendrecv(leaving[peer], peer, recvbuf=arriving[peer], source=peer)


def turns(until):
    count = 0
    while True:
        exchange()
        count += 1
        # Rank 0's clock counts for all.
        if comm.bcast(MPI.Wtime() >= until if comm.rank == 0 else None):
            return count


turns(MPI.Wtime() + seconds / 4)
comm.Barrier()
began = MPI.Wtime()
count = turns(began + seconds)
elapsed = MPI.Wtime() - began
good = (arriving == np.arange(comm.size, dtype=np.uint8)[:, None]).all()
if not comm.allreduce(good, MPI.LAND):
    sys.exit("alltoall: wrong bytes arrived")
if comm.rank == 0:
    print(json.dumps({"mbit_s": (comm.size // 2) ** 2 * length * count * 8 / elapsed / 1e6}), flush=True)
