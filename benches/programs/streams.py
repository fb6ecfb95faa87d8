"""The first half of the ranks stream to the second half, each to its own partner.

    streams.py SECONDS [--length BYTES] [--ahead MESSAGES] [--pairs PAIRS] [--bins MS] [--after SECONDS --do COMMAND]

Prints the payload that arrived between two moments that all receivers share, in Mbit/s; with --bins also for each
interval of MS milliseconds in that time. --pairs: only the first PAIRS pairs stream; the others sleep meanwhile. --do:
rank 0 runs this command the given number of seconds after the first moment.
"""

import argparse
import json
import shlex
import subprocess
import threading
import time

import numpy as np
from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("seconds", type=float)
parser.add_argument("--length", type=int, default=1 << 20)
parser.add_argument("--ahead", type=int, default=8)
parser.add_argument("--pairs", type=int)
parser.add_argument("--bins", type=int, default=0)
parser.add_argument("--after", type=float, default=0.0)
parser.add_argument("--do")
given = parser.parse_args()

comm = MPI.COMM_WORLD
half = comm.size // 2
partner = (comm.rank + half) % comm.size
DATA, STOP = 1, 2


def send(began, seconds):
    data = np.zeros(given.length, dtype=np.uint8)
    requests = [comm.Isend(data, partner, DATA) for _ in range(given.ahead)]
    while MPI.Wtime() < began + seconds:
        done = MPI.Request.Waitany(requests)
        requests[done] = comm.Isend(data, partner, DATA)
    # One for each receive that the partner has posted.
    requests += [comm.Isend(b"", partner, STOP) for _ in range(given.ahead)]
    MPI.Request.Waitall(requests)


def receive(began, bins):
    """Bytes that arrived; `bins` counts them by time. Receives are posted ahead: on a long path, one message at a
    time would mean one per round trip."""
    buffers = [np.empty(given.length, dtype=np.uint8) for _ in range(given.ahead)]
    requests = [comm.Irecv(buffer, partner, MPI.ANY_TAG) for buffer in buffers]
    status, arrived, left = MPI.Status(), 0, given.ahead
    while left:
        done = MPI.Request.Waitany(requests, status)
        if status.tag == STOP:
            left -= 1
            continue
        requests[done] = comm.Irecv(buffers[done], partner, MPI.ANY_TAG)
        count = status.Get_count()
        arrived += count
        bin_of_now = int((MPI.Wtime() - began) * 1000 / given.bins) if given.bins else 0
        if bin_of_now < len(bins):
            bins[bin_of_now] += count
    return arrived


def stream(began, seconds, bins):
    if given.pairs is not None and comm.rank % half >= given.pairs:
        time.sleep(seconds)
        return 0
    if comm.rank < half:
        send(began, seconds)
        return 0
    return receive(began, bins)


stream(MPI.Wtime(), given.seconds / 4, [])
comm.Barrier()
began = MPI.Wtime()
if given.do and comm.rank == 0:
    threading.Timer(given.after, subprocess.Popen, [shlex.split(given.do)]).start()
bins = np.zeros(int(given.seconds * 1000 / given.bins) if given.bins else 0)
arrived = stream(began, given.seconds, bins)
# A barrier of many ranks over a long path takes time, which must not count against the few that stream.
elapsed = comm.allreduce(MPI.Wtime() - began, MPI.MAX) if given.pairs else 0
comm.Barrier()
elapsed = elapsed or MPI.Wtime() - began
total = comm.allreduce(arrived)
if len(bins):
    comm.Allreduce(MPI.IN_PLACE, bins)
if comm.rank == 0:
    rates = {"bins_mbit_s": [round(each * 8 / given.bins / 1e3, 1) for each in bins]} if len(bins) else {}
    print(json.dumps({"mbit_s": total * 8 / elapsed / 1e6, **rates}), flush=True)
