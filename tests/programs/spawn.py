"""All ranks ask for two more processes of PROGRAM, and then the last one alone. Both must fail with an MPI error
after which the ranks can continue.

spawn.py PROGRAM
"""

import sys

from mpi4py import MPI

program = sys.argv[1]
world = MPI.COMM_WORLD


def refused(comm):
    try:
        comm.Spawn(program, args=["an argument", "x=y"], maxprocs=2)
    except MPI.Exception as error:
        return error.Get_error_class() != MPI.SUCCESS
    return False


answers = world.allgather(refused(world))
if world.rank == world.size - 1:
    answers.append(refused(MPI.COMM_SELF))
world.Barrier()
if world.rank == world.size - 1:
    print(f"spawn: {'refused' if all(answers) else 'not refused'}", flush=True)
