"""Time that ranks take for an operation together."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD


def timed(work, repeats):
    """Seconds of the slowest rank: the median over the repeats."""
    own = np.empty(repeats)
    for at in range(repeats):
        comm.Barrier()
        began = time.perf_counter()
        work()
        own[at] = time.perf_counter() - began
    slowest = np.empty(repeats)
    comm.Allreduce(own, slowest, MPI.MAX)
    return float(np.median(slowest))
