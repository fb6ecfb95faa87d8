"""All ranks reduce BYTES of doubles to all, again and again for SECONDS: allreduce.py BYTES SECONDS

Prints the median and the mean time of one, in milliseconds, as rank 0 sees it.
"""

import json
import statistics
import sys

import numpy as np
from mpi4py import MPI

length, seconds = int(sys.argv[1]) // 8, float(sys.argv[2])
comm = MPI.COMM_WORLD
leaving = np.arange(length, dtype=np.float64) + comm.rank
arriving = np.empty_like(leaving)


def turns(until):
    times = []
    while True:
        began = MPI.Wtime()
        comm.Allreduce(leaving, arriving)
        times.append(MPI.Wtime() - began)
        # Rank 0's clock counts for all. All ranks start the next one together, as far as a barrier can ensure that.
        if comm.bcast(MPI.Wtime() >= until if comm.rank == 0 else None):
            return times
        comm.Barrier()


turns(MPI.Wtime() + seconds / 4)
times = turns(MPI.Wtime() + seconds)
good = (arriving == np.arange(length) * comm.size + comm.size * (comm.size - 1) // 2).all()
if not comm.allreduce(good, MPI.LAND):
    sys.exit("allreduce: wrong sums arrived")
if comm.rank == 0:
    print(
        json.dumps(
            {"ms": statistics.median(times) * 1e3, "mean_ms": statistics.mean(times) * 1e3, "count": len(times)}
        ),
        flush=True,
    )
