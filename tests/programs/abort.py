"""Rank WHO calls MPI_Abort with CODE in the middle of collective work.

abort.py WHO CODE
"""

import sys

from mpi4py import MPI

who, code = int(sys.argv[1]), int(sys.argv[2])
comm = MPI.COMM_WORLD
for step in range(1_000_000_000):
    comm.allreduce(step)
    if step == 20 and comm.rank == who:
        comm.Abort(code)
