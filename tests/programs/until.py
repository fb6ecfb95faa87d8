"""Collective work until the file END exists. Rank 0 creates the file FILE once all ranks work.

until.py FILE END
"""

import os
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
step = 0
while not comm.bcast(os.path.exists(sys.argv[2]), root=0):
    step += 1
    assert comm.allreduce(1) == comm.size
    if step == 20 and comm.rank == 0:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write("all ranks work\n")
