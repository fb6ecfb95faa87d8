"""Rank 0 sends to rank 1; every byte is checked. STARTED is made once the first has arrived.

stream.py stream STARTED SECONDS: messages of 1 MiB without a pause, for SECONDS after STARTED was made.
stream.py computing STARTED SECONDS: one of 64 MiB that rank 1 begins to take, and then computes for SECONDS.
"""

import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

what, started, seconds = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
comm = MPI.COMM_WORLD
assert comm.size == 2


def content(length, turn):
    return (np.arange(length, dtype=np.uint32) * 7 + turn).astype(np.uint8)


def transfer(length, turn, meanwhile=lambda request: None):
    data = content(length, turn)
    if comm.rank == 0:
        comm.Send(data, 1)
        return
    arrived = np.empty_like(data)
    request = comm.Irecv(arrived, 0)
    meanwhile(request)
    request.Wait()
    assert (arrived == data).all(), f"message {turn}: wrong bytes"


def compute(request):
    """Asks for the message, takes a little of it, and then makes no call."""
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        assert not request.Test(), "nothing is left to wait for"
        time.sleep(0.02)
    started.touch()
    time.sleep(seconds)


if what == "computing":
    transfer(64 << 20, 0, compute)
else:
    turn, end = 0, None
    while not comm.bcast(end is not None and time.monotonic() > end, root=1):
        for _ in range(16):
            transfer(1 << 20, turn)
            turn += 1
        if comm.rank == 1 and end is None:
            started.touch()
            end = time.monotonic() + seconds
if comm.rank == 1:
    print(f"{what}: good", flush=True)
