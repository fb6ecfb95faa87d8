#!/usr/bin/env python3
"""Random arrays between two programs, against NumPy's result for the whole array.

    couplings.py NAME@SITE SIDE SIZES SEEDS [FIRST]

SIDE: 0 or 1. SIZES: ranks of the two sides, as 3,2. Prints how many arrays came."""

import random
import sys
import traceback

import numpy as np
from mpi4py import MPI

import landbridge as lb
from redistributions import Case, strided


def main():
    name, side = sys.argv[1], int(sys.argv[2])
    sizes = [int(size) for size in sys.argv[3].split(",")]
    first = int(sys.argv[5]) if len(sys.argv) > 5 else 0
    seeds = range(first, first + int(sys.argv[4]))
    comm = MPI.COMM_WORLD
    rank, came = comm.Get_rank(), 0
    assert comm.Get_size() == sizes[side], f"side {side} has {comm.Get_size()} ranks"
    with lb.join(name, comm, timeout=60) as coupling:
        for seed in seeds:
            chance = random.Random(seed)
            sender = chance.randrange(2)
            case = Case(chance, sizes[sender], sizes[1 - sender])
            own = random.Random(seed * 1000 + side * 100 + rank)
            if sender == side:
                a = strided(own, case.sent(rank)) if rank < case.source.size else None
                coupling.export(f"v{seed}", a, case.source, version=seed, dtype=case.dtype)
                continue
            into = wanted = None
            if rank < case.target.size:
                into = strided(own, case.target_part(rank, case.before))
                wanted = case.target_part(rank, case.after)
            got = coupling.fetch(f"v{seed}", case.target, version=seed, select=case.select, into=into, timeout=60)
            right = got is into and (wanted is None or np.array_equal(got, wanted))
            if not comm.allreduce(right, MPI.LAND):
                texts = f"{case.source} to {case.target}, {case.select}: got {got!r}, not {wanted!r}"
                print(f"seed {seed}: rank {rank}: {texts}", file=sys.stderr)
                comm.Abort(1)
            came += 1
    if rank == 0:
        print(f"{came} arrays came")


if __name__ == "__main__":
    try:
        main()
    except Exception:
        # The other ranks wait for this one.
        traceback.print_exc()
        MPI.COMM_WORLD.Abort(1)
