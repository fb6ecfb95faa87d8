"""Endless collective work. Rank 0 creates the file FILE once all ranks work.

endless.py FILE
"""

import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
for step in range(1_000_000_000):
    comm.allreduce(step)
    if step == 20 and comm.rank == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write("all ranks work\n")
