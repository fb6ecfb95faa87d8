"""Two ranks on one node: the cost of messages through the MPI library's own shared memory, in microseconds per
exchange, median of five, with and without a receive from any source that is posted all the time."""

import time
from statistics import median

import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
there = 1 - world.rank
out, into, never = (numpy.zeros(1) for _ in range(3))
status = MPI.Status()


def sendrecv():
    world.Sendrecv(out, there, 1, into, there, 1)


def probe():
    request = world.Isend(out, there, 2)
    world.Probe(MPI.ANY_SOURCE, 2, status)
    world.Recv(into, status.source, 2)
    request.Wait()


def measure(exchange, times=100):
    samples = []
    for _ in range(5):
        world.Barrier()
        start = time.perf_counter()
        for _ in range(times):
            exchange()
        samples.append((time.perf_counter() - start) / times * 1e6)
    return median(samples)


measure(sendrecv)
figures = {"sendrecv": measure(sendrecv), "probe": measure(probe)}
standing = world.Irecv(never, MPI.ANY_SOURCE, 99)
figures["beside a receive"] = measure(sendrecv)
world.Send(out, there, 99)
standing.Wait()
if world.rank == 0:
    print(*(f"{name}: {value:.2f} us" for name, value in figures.items()), sep="\n", flush=True)
