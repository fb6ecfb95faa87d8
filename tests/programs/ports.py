"""Two ranks connect to each other by a port, as programs of two jobs would. Either call must fail with an MPI error,
which leaves the ranks able to go on."""

from mpi4py import MPI

world = MPI.COMM_WORLD


def refused(call, port):
    try:
        call(port).Disconnect()
    except MPI.Exception as error:
        return error.Get_error_class() != MPI.SUCCESS
    return False


port = world.bcast(MPI.Open_port() if world.rank == 0 else None)
alone = MPI.COMM_SELF
answer = refused(alone.Accept if world.rank == 0 else alone.Connect, port)
world.Barrier()
print(f"ports: {'refused' if answer else 'not refused'}", flush=True)
