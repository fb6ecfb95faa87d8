"""One of several programs of a job: prints its name, rank and number (`MPI_APPNUM`), then talks to the others."""

import os
import sys

from mpi4py import MPI

name = sys.argv[1]
world = MPI.COMM_WORLD
number, universe = world.Get_attr(MPI.APPNUM), world.Get_attr(MPI.UNIVERSE_SIZE)
# The leaders of all programs exchange messages, which cross sites.
program = world.Split(number, world.rank)
leaders = world.Split(0 if program.rank == 0 else MPI.UNDEFINED, world.rank)
names = leaders.allgather(name) if leaders != MPI.COMM_NULL else None
names = program.bcast(names)
site = os.environ["LANDBRIDGE_SITE_NAME"]
print(
    f"{name}: rank {world.rank} of {world.size} at {site}, program {number} of {','.join(names)}, "
    f"rank {program.rank} of {program.size} there, universe {universe}",
    flush=True,
)
assert world.allreduce(1) == world.size
