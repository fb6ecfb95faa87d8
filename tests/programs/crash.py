"""Rank WHO ends itself in the middle of collective work by HOW: `segv`, `kill` or an exit code. The others continue.

crash.py WHO HOW
"""

import os
import signal
import sys

from mpi4py import MPI

who, how = int(sys.argv[1]), sys.argv[2]
comm = MPI.COMM_WORLD
for step in range(1_000_000_000):
    comm.allreduce(step)
    if step == 20 and comm.rank == who:
        if how.isdecimal():
            os._exit(int(how))
        os.kill(os.getpid(), signal.SIGSEGV if how == "segv" else signal.SIGKILL)
