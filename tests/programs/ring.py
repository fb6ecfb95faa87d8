"""One of three programs in a ring of couplings: ring.py NUMBER ROUNDS. An array goes round, in another layout and on
another MPI library at each, and each adds to it; the first compares the result."""

import sys

import numpy as np
from mpi4py import MPI

import landbridge as lb

NUMBER, ROUNDS = map(int, sys.argv[1:])
SHAPE = (37, 26)
RINGS = ["first@a", "second@b", "third@c"]
comm = MPI.COMM_WORLD
layouts = [
    lb.Layout(SHAPE, [lb.Block(comm.size), lb.Whole()]),
    lb.Layout(SHAPE, [lb.Whole(), lb.Cyclic(comm.size, block=3, first=comm.size - 1)], order="F"),
    lb.Layout(SHAPE, [lb.Cyclic(comm.size, block=4), lb.Whole()]),
]
layout, other = layouts[NUMBER], layouts[(NUMBER + 1) % 3]

# All join in the order of the names: nobody waits for one who waits for him.
joined = {}
for name in sorted({RINGS[NUMBER], RINGS[NUMBER - 1]}):
    joined[name] = lb.join(name, comm, timeout=60)
onward, back = joined[RINGS[NUMBER]], joined[RINGS[NUMBER - 1]]


def expected(version):
    return np.arange(SHAPE[0] * SHAPE[1], dtype=np.float64).reshape(SHAPE) * (version + 1)


whole = lb.Layout(SHAPE, [lb.Whole(), lb.Whole()])
for version in range(ROUNDS):
    if NUMBER == 0:
        array = expected(version) if comm.rank == 0 else None
        onward.export("ring", lb.redistribute(array, whole, layout, comm), layout, version)
        came = lb.redistribute(back.fetch("ring", other, version, timeout=60), other, whole, comm)
        if comm.rank == 0:
            assert (came == expected(version) + 2).all(), version
    else:
        mine = back.fetch("ring", layout, version, timeout=60)
        # Exported in yet another layout.
        onward.export("ring", lb.redistribute(mine + 1, layout, other, comm), other, version)
for coupling in (onward, back):
    coupling.close(timeout=60)
if comm.rank == 0:
    print("ring: good")
