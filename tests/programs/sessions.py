"""Communicators made from MPI-4 sessions, without MPI_COMM_WORLD: of all ranks, and at the same time of every second
one, of neighbours (which may share a node) and of each rank alone."""

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
    for kind, part_of in (
        ("half", lambda rank: rank % 2),
        ("pair", lambda rank: rank // 2),
        ("alone", lambda rank: rank),
    ):
        members = [rank for rank in range(ranks) if part_of(rank) == part_of(mine)]
        group = world.Incl(members)
        part = MPI.Intracomm.Create_from_group(group, f"{kind}-{part_of(mine)}")
        if part.allreduce(mine) != sum(members):
            sys.exit(f"wrong sum over ranks {members}")
        part.Free()
        group.Free()
    if number == 2 and comm.rank == 0:
        print(f"sessions: {ranks} ranks good", flush=True)
    comm.Free()
world.Free()
session.Finalize()
