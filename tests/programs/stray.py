"""Rank 0 makes a file as MPICH does for a window, and is killed before it is unlinked."""

import os
import signal

from mpi4py import MPI

MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    with open("/dev/shm/mpich_shar_tmpSTRAY0", "wb"):
        os.kill(os.getpid(), signal.SIGKILL)
MPI.COMM_WORLD.Barrier()
