"""Rank 0 sends rank 3, to which MPI_Init has sent nothing, a message that wants an answer. If there is memory for one
more ring, rank 3 has none for the answer. None of its operations fails: it waits for rank 5, which waits for rank 0."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
time.sleep(0.5)
print("has begun", flush=True)
word = np.zeros(8)
if comm.rank == 0:
    comm.Ssend(word, 3)
    comm.Send(word, 5)
elif comm.rank == 3:
    comm.Recv(word, 0)
    print("has it", flush=True)
    comm.Recv(word, 5)
elif comm.rank == 5:
    comm.Recv(word, 0)
    comm.Send(word, 3)
else:
    # Until the job ends.
    comm.Recv(word, comm.rank)
print("went on", flush=True)
