"""Every rank kills itself inside MPI_Init, as soon as MPICH's file is there."""

import os
import signal
import threading


def watch():
    while not any(name.startswith("mpich_") for name in os.listdir("/dev/shm")):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


threading.Thread(target=watch, daemon=True).start()

from mpi4py import MPI  # noqa: E402 (it calls MPI_Init, which the thread above interrupts)

for _ in range(1_000_000_000):
    MPI.COMM_WORLD.Barrier()
