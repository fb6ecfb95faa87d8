"""All ranks exchange messages of many lengths with all others, in rounds, until FILE exists; every byte is checked.

exchange.py STARTED FILE ROUNDS: rank 0 makes STARTED after the first round; at least ROUNDS rounds.
"""

import os
import sys

import numpy as np
from mpi4py import MPI

started, stop, least = sys.argv[1], sys.argv[2], int(sys.argv[3])
comm = MPI.COMM_WORLD
LENGTHS = [0, 1, 100, 5_000, 20_000, 300_000]


def content(source, target, turn, length):
    return (np.arange(length, dtype=np.uint32) * 7 + source * 1009 + target * 31 + turn).astype(np.uint8)


turn = 0
while True:
    for length in LENGTHS:
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        arriving = {rank: np.empty(length, dtype=np.uint8) for rank in others}
        requests = [comm.Irecv(arriving[rank], rank, tag=turn % 1000) for rank in others]
        leaving = [content(comm.rank, rank, turn, length) for rank in others]
        requests += [comm.Isend(data, rank, tag=turn % 1000) for data, rank in zip(leaving, others)]
        MPI.Request.Waitall(requests)
        for rank in others:
            if not (arriving[rank] == content(rank, comm.rank, turn, length)).all():
                sys.exit(f"rank {comm.rank}: round {turn}: {length} bytes from rank {rank} are wrong")
    turn += 1
    if comm.rank == 0 and turn == 1:
        with open(started, "w") as file:
            file.write("started\n")
    over = comm.bcast(turn >= least and os.path.exists(stop) if comm.rank == 0 else None)
    if over:
        break
total = comm.allreduce(turn)
if comm.rank == 0:
    print(f"exchange: {turn} rounds good on {comm.size} ranks", flush=True)
    assert total == turn * comm.size
