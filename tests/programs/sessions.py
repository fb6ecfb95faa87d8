"""Communicators made from MPI-4 sessions, without MPI_COMM_WORLD: of all ranks, and of every second one at the same time."""

import sys

from mpi4py import MPI

session = MPI.Session.Init()
world = session.Create_group("mpi://WORLD")
ranks = world.Get_size()
for number in range(3):
    comm = MPI.Intracomm.Create_from_group(world, f"all-{number}")
    if comm.allreduce(comm.rank) != ranks * (ranks - 1) // 2:
        sys.exit("wrong sum over all ranks")
    mine = world.Get_rank()
    half = world.Incl([rank for rank in range(ranks) if rank % 2 == mine % 2])
    part = MPI.Intracomm.Create_from_group(half, f"half-{mine % 2}")
    if part.allreduce(mine) != sum(rank for rank in range(ranks) if rank % 2 == mine % 2):
        sys.exit("wrong sum over half of the ranks")
    part.Free()
    half.Free()
    if number == 2 and comm.rank == 0:
        print(f"sessions: {ranks} ranks good", flush=True)
    comm.Free()
world.Free()
session.Finalize()
